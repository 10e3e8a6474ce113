//! Annotation keys: which are ours, and which container each of them reaches.

use std::collections::BTreeMap;

use super::error::{RequestError, shown};
use super::nearest::nearest;
use super::{Key, SUFFIX};

/// Key by which a container carries what it was given; only we set it.
pub const MARKER: &str = "grant.rdma-ctk.io";

/// Key by which a pod asks the runtime's own validator to let it start while the NRI plugin is
/// away. The runtime reads it; to us it only is no unknown key.
pub const TOLERATE: &str = "tolerate-missing.rdma-ctk.io";

/// Annotations of vendors that are understood as they are.
pub(super) const ERDMA_SMCR: &str = "network.alibabacloud.com/erdma-smcr";
/// See [`ERDMA_SMCR`].
pub const POD_NETWORKS: &str = "k8s.volcengine.com/pod-networks";

/// Whether any of a pod's annotation keys concerns us. Where none does, no container of that pod
/// has asked for anything by annotation. One look at each key, nothing is allocated.
pub fn mentions_us<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> bool {
    keys.into_iter().any(|key| {
        let key = key.as_ref();
        is_ours(key) || key == ERDMA_SMCR || key == POD_NETWORKS
    })
}

/// Whether a container's own annotations say that it carries a grant of ours already. Not to be
/// asked of a pod's annotations, which are the tenant's.
pub fn carries_grant(container_annotations: &BTreeMap<String, String>) -> bool {
    container_annotations.contains_key(MARKER)
}

/// Keys with a scope that names none of the pod's containers: probably a slip. Sorted.
pub fn unmatched_scopes<N: AsRef<str>>(
    annotations: &BTreeMap<String, String>,
    containers: &[N],
) -> Vec<String> {
    annotations
        .keys()
        .filter(|key| is_ours(key))
        .filter(|key| match Written::of(key).scope {
            Scope::Container(name) => !containers.iter().any(|known| known.as_ref() == name),
            Scope::Bare | Scope::Pod | Scope::Unknown(_) => false,
        })
        .map(|key| shown(key))
        .collect()
}

/// What is amiss with the keys of a pod that has those containers, and is no single container's
/// business: a sentence each.
pub fn slips<N: AsRef<str>>(
    annotations: &BTreeMap<String, String>,
    containers: &[N],
) -> Vec<String> {
    let mut sentences: Vec<String> = annotations.keys().filter_map(|key| near(key)).collect();
    let names = join(containers.iter().map(AsRef::as_ref));
    sentences.extend(unmatched_scopes(annotations, containers).into_iter().map(|key| {
        let name = key.split_once("/container.").map_or("", |(_, name)| name);
        format!("{key}: the pod has no container {name}; it has {names}")
    }));
    sentences
}

/// That a key is none of ours by a slip in the suffix. One that merely resembles ours is not
/// mentioned: word and suffix both have to be near.
fn near(key: &str) -> Option<String> {
    if is_ours(key) {
        return None;
    }
    let (name, scope) = key.split_once('/').map_or((key, ""), |(name, scope)| (name, scope));
    let (word, suffix) = name.split_once('.')?;
    let word = nearest(word, Key::ALL.into_iter().map(Key::word))?;
    nearest(suffix, [SUFFIX])?;
    let slash = if scope.is_empty() { "" } else { "/" };
    Some(format!(
        "{}: is none of our keys, and asks for nothing; did you mean {word}.{SUFFIX}{slash}{}?",
        shown(key),
        shown(scope)
    ))
}

/// Whether our suffix stands before the `/`. Case does not matter: a slip is to be found.
pub(super) fn is_ours(key: &str) -> bool {
    let name = key.split_once('/').map_or(key, |(name, _)| name).as_bytes();
    let Some(at) = name.len().checked_sub(SUFFIX.len()) else { return false };
    name[at..].eq_ignore_ascii_case(SUFFIX.as_bytes()) && (at == 0 || name[at - 1] == b'.')
}

/// A key of ours taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written<'a> {
    /// What stands before the suffix, without the dot.
    pub word: &'a str,
    /// Whom it reaches.
    pub scope: Scope<'a>,
}

/// Whom a key reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    /// `KEY`: every container.
    Bare,
    /// `KEY/pod`: every container.
    Pod,
    /// `KEY/container.NAME`
    Container(&'a str),
    /// Something else.
    Unknown(&'a str),
}

impl<'a> Written<'a> {
    /// Takes apart a key for which [`is_ours`] holds.
    pub fn of(key: &'a str) -> Self {
        let (name, rest) = match key.split_once('/') {
            Some((name, rest)) => (name, Some(rest)),
            None => (key, None),
        };
        let word = name.len().checked_sub(SUFFIX.len() + 1).and_then(|at| name.get(..at));
        let scope = match rest {
            None => Scope::Bare,
            Some("pod") => Scope::Pod,
            Some(rest) => match rest.strip_prefix("container.") {
                Some(name) if !name.is_empty() => Scope::Container(name),
                _ => Scope::Unknown(rest),
            },
        };
        Self { word: word.unwrap_or(""), scope }
    }

    /// The key that it is, or the complaint that it is none.
    pub fn key(self, annotation: &str) -> Result<Known, RequestError> {
        let exact = annotation.split('/').next().is_some_and(|name| name.ends_with(SUFFIX));
        let key = Key::ALL.into_iter().find(|key| key.word() == self.word);
        match (self.word, key) {
            (_, Some(key)) if exact => Ok(Known::Key(key)),
            (word, _) if exact && is_word_of(MARKER, word) => Ok(Known::Marker),
            (word, _) if exact && is_word_of(TOLERATE, word) => Ok(Known::Tolerate),
            (word, _) => {
                let words = || Key::ALL.into_iter().map(Key::word);
                // Somebody used to `example.org/word` writes ours that way round.
                let swapped = match self.scope {
                    Scope::Unknown(rest) if word.is_empty() => nearest(rest, words()),
                    _ => None,
                };
                let hint = match (nearest(word, words()), swapped) {
                    (Some(meant), _) => {
                        format!("did you mean {meant}.{SUFFIX}{}?", self.scope.suffix())
                    }
                    (None, Some(meant)) => format!("did you mean {meant}.{SUFFIX}?"),
                    (None, None) => {
                        format!("in front of .{SUFFIX} goes one of {}", join(words()))
                    }
                };
                Err(RequestError::UnknownKey { annotation: shown(annotation), hint })
            }
        }
    }

    /// The complaint about a scope that is none.
    pub fn bad_scope(self, annotation: &str, scope: &str) -> RequestError {
        let key = format!("{}.{SUFFIX}", self.word);
        let hint = match scope.split_once(['.', ':', '=', '/']) {
            _ if nearest(scope, ["pod"]).is_some() => format!("did you mean {key}/pod?"),
            Some((kind, name)) if nearest(kind, ["container"]).is_some() && !name.is_empty() => {
                format!("did you mean {key}/container.{}?", shown(name))
            }
            None if nearest(scope, ["container"]).is_none() && !scope.is_empty() => {
                format!("did you mean {key}/container.{}?", shown(scope))
            }
            _ => format!("there are {key}, {key}/pod and {key}/container.NAME"),
        };
        RequestError::UnknownScope { annotation: shown(annotation), scope: shown(scope), hint }
    }
}

impl Scope<'_> {
    fn suffix(self) -> String {
        match self {
            Self::Bare => String::new(),
            Self::Pod => "/pod".to_owned(),
            Self::Container(name) => format!("/container.{}", shown(name)),
            Self::Unknown(rest) => format!("/{}", shown(rest)),
        }
    }
}

/// A word with our suffix that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// One of the keys that users type.
    Key(Key),
    /// [`MARKER`]
    Marker,
    /// [`TOLERATE`]
    Tolerate,
}

fn is_word_of(key: &str, word: &str) -> bool {
    key.strip_suffix(SUFFIX).and_then(|front| front.strip_suffix('.')) == Some(word)
}

fn join<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}
