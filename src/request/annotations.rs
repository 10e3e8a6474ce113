//! From a pod's annotations to the request of one of its containers.

use std::collections::BTreeMap;

use super::error::{Problem, RequestError, shown};
use super::key::{Known, Scope, Written, is_ours};
use super::{
    Asked, Carrier, Claim, Container, Devices, Key, Request, SmcMethod, address, dialect, value,
};
use crate::policy::Policy;

/// Longest value that is read, in bytes: each name of 256 selectors at its longest.
const LONGEST: usize = 16_384;

/// Reads what `annotations` (those of the pod) ask for `container`. `claim` is what another plugin
/// has given to it ([`super::claim::recognise`]); [`Request::read`] does both.
///
/// Of the scopes of a key the most specific one that reaches the container counts:
/// `KEY/container.NAME`, `KEY/pod`, `KEY`. The last two do not reach the containers that policy
/// skips.
///
/// # Errors
/// A key with our suffix that is none, or whose value does not parse; a key that changes what
/// devices come with, where there are none. Only keys that reach this container are looked at,
/// those of a wrong form among them where it cannot be told whom they were to reach.
pub fn parse(
    annotations: &BTreeMap<String, String>,
    container: Container,
    carrier: Carrier,
    policy: &Policy,
    claim: Option<Claim>,
) -> Result<Request, RequestError> {
    let skipped = policy.skip_containers.contains(&container.name);
    let mut reaching = Reaching::default();
    for (annotation, text) in annotations.iter().filter(|(annotation, _)| is_ours(annotation)) {
        reaching.add(annotation, text, &container.name, skipped)?;
    }
    let mut request = Request::nothing(container, carrier);
    request.claim = claim;
    for (key, found) in &reaching.keys {
        let read = match found.text.len() {
            0..=LONGEST => set(&mut request, *key, found.text),
            _ => Err(Problem::TooLong("16384 bytes")),
        };
        read.map_err(|problem| RequestError::Value {
            annotation: shown(found.annotation),
            value: shown(found.text),
            problem,
        })?;
        let asked = Asked { annotation: shown(found.annotation), value: shown(found.text) };
        request.asked_by.insert(*key, asked);
    }
    if !skipped {
        dialect::add(annotations, &policy.dialects, &mut request)?;
    }
    if request.devices == Some(Devices::None) {
        request.claim = None;
    }
    reaching.check(&request)?;
    Ok(request)
}

/// The keys that reach a container, with the most specific value of each.
#[derive(Debug, Default)]
struct Reaching<'a> {
    keys: BTreeMap<Key, Found<'a>>,
    /// Another container of the pod is given devices by its name, so that pod-wide keys have
    /// something to apply to there.
    devices_elsewhere: bool,
}

#[derive(Debug, Clone, Copy)]
struct Found<'a> {
    scope: Scope<'a>,
    annotation: &'a str,
    text: &'a str,
}

impl<'a> Reaching<'a> {
    fn add(
        &mut self,
        annotation: &'a str,
        text: &'a str,
        container: &str,
        skipped: bool,
    ) -> Result<(), RequestError> {
        let written = Written::of(annotation);
        match written.scope {
            Scope::Container(name) if name != container => {
                let devices = written.word == Key::Devices.word();
                self.devices_elsewhere |= devices && text.trim() != "none";
                return Ok(());
            }
            Scope::Container(_) => {}
            Scope::Bare | Scope::Pod | Scope::Unknown(_) if skipped => return Ok(()),
            Scope::Bare | Scope::Pod | Scope::Unknown(_) => {}
        }
        let key = match written.key(annotation)? {
            Known::Marker => {
                return Err(RequestError::Reserved { annotation: shown(annotation) });
            }
            Known::Tolerate => return Ok(()),
            Known::Key(key) => key,
        };
        if let Scope::Unknown(scope) = written.scope {
            return Err(written.bad_scope(annotation, scope));
        }
        let found = Found { scope: written.scope, annotation, text };
        let known = self.keys.entry(key).or_insert(found);
        if rank(found.scope) > rank(known.scope) {
            *known = found;
        }
        Ok(())
    }

    /// Complains about a key that changes what devices come with on a container without any.
    ///
    /// A container that was taken out has none by intent. So has one that only a pod-wide key
    /// reaches while another container is given devices by its name: the key was meant for that.
    fn check(&self, request: &Request) -> Result<(), RequestError> {
        if request.devices.is_some() || request.claim.is_some() {
            return Ok(());
        }
        let smc = request.smc != SmcMethod::Off;
        let applies = |key: Key| match key {
            Key::Devices | Key::Smc => true,
            // These two say how SMC-R is to be had, too.
            Key::Netns | Key::Require => smc,
            Key::Nodes
            | Key::Memlock
            | Key::Capabilities
            | Key::Numa
            | Key::Env
            | Key::Address
            | Key::Limits => false,
        };
        let by_name = |found: &Found<'_>| matches!(found.scope, Scope::Container(_));
        let stray = self
            .keys
            .iter()
            .filter(|(key, _)| !applies(**key))
            .find(|(_, found)| by_name(found) || !self.devices_elsewhere);
        match stray {
            None => Ok(()),
            Some((key, found)) => Err(RequestError::NothingToApplyTo {
                annotation: shown(found.annotation),
                container: shown(&request.container.name),
                key: key.annotation(),
                devices: match found.scope {
                    Scope::Container(name) => {
                        format!("{}/container.{}", Key::Devices.annotation(), shown(name))
                    }
                    _ => Key::Devices.annotation(),
                },
            }),
        }
    }
}

fn rank(scope: Scope<'_>) -> u8 {
    match scope {
        Scope::Unknown(_) => 0,
        Scope::Bare => 1,
        Scope::Pod => 2,
        Scope::Container(_) => 3,
    }
}

fn set(request: &mut Request, key: Key, text: &str) -> Result<(), Problem> {
    match key {
        Key::Devices => request.devices = Some(value::devices(text)?),
        Key::Nodes => request.nodes = value::words(text, "uverbs, rdma_cm, umad, issm")?,
        Key::Memlock => request.memlock = value::memlock(text)?,
        Key::Capabilities => request.capabilities = value::capabilities(text)?,
        Key::Numa => request.numa = value::word(text)?,
        Key::Env => request.env = value::env(text)?,
        Key::Netns => request.netns = value::word(text)?,
        Key::Address => request.address = address::address(text)?,
        Key::Smc => (request.smc, request.smc_sysctls) = value::smc(text)?,
        Key::Limits => request.limits = Some(value::limits(text)?),
        Key::Require => request.require = value::require(text)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests;
