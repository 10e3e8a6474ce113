//! Which parts of the policy speak of a pod. On some paths not everything is known of it
//! ([`Unknown`]): what might speak of it then takes away, and gives nothing.
//!
//! [`Unknown`]: crate::request::Unknown

use std::borrow::Cow;

use super::{Allowance, Narrowing, OnRefusal, Policy, Rule, matches_any};
use crate::request::Pod;

/// Whether a rule speaks of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    No,
    /// Its runtime handler would tell.
    Perhaps,
    Yes,
}

/// Something that takes away from what the deciding rule gives.
struct Taking<'a> {
    narrowing: Cow<'a, Narrowing>,
    /// It is a rule, not a narrowing.
    by_rule: bool,
    /// Its number in the file.
    number: usize,
    /// The rule's, which may be the stricter one.
    on_refusal: OnRefusal,
    /// It applies because something is not known of the pod.
    doubtful: bool,
}

impl Taking<'_> {
    fn apply(&self, allowance: &mut Allowance) {
        self.narrowing.apply(allowance);
        if self.on_refusal == OnRefusal::Refuse {
            allowance.on_refusal = OnRefusal::Refuse;
        }
    }
}

impl Policy {
    /// Where the file keeps something from that pod, to be named in a refusal: `[default] keys`,
    /// `allow.keys of rule 2`, `keys of narrowing 1`. `has` tells whether an allowance has it.
    pub fn place(&self, pod: &Pod, setting: &str, has: impl Fn(&Allowance) -> bool) -> String {
        let (rule, takings) = self.choose(pod);
        let mut left = Cow::Borrowed(self.given(rule));
        if has(&left) {
            for taking in &takings {
                taking.apply(left.to_mut());
                if has(&left) {
                    continue;
                }
                let number = taking.number;
                return match (taking.by_rule, taking.doubtful) {
                    (true, _) => format!(
                        "allow.{setting} of rule {number}, which may be the pod's: its runtime \
                         handler is not known here"
                    ),
                    (false, true) => format!(
                        "{setting} of narrowing {number}, which may be the pod's: its labels are \
                         not known here"
                    ),
                    (false, false) => format!("{setting} of narrowing {number}"),
                };
            }
        }
        match rule {
            None => format!("[default] {setting}"),
            Some(at) => format!("allow.{setting} of rule {}", at + 1),
        }
    }

    /// What that pod may have: what the first rule that matches it gives, else the default, less
    /// what every matching [`Narrowing`] takes away; and less what a rule before that keeps back
    /// which may be the pod's, its runtime handler being unknown.
    pub fn allowance(&self, pod: &Pod) -> Cow<'_, Allowance> {
        let (rule, takings) = self.choose(pod);
        let mut allowance = Cow::Borrowed(self.given(rule));
        for taking in &takings {
            taking.apply(allowance.to_mut());
        }
        allowance
    }

    /// What is taken from that pod only because something is not known of it; a sentence each.
    pub fn doubts(&self, pod: &Pod) -> Vec<String> {
        let (rule, takings) = self.choose(pod);
        let mut left = self.given(rule).clone();
        let mut doubts = Vec::new();
        for taking in &takings {
            let before = left.clone();
            taking.apply(&mut left);
            if left == before || !taking.doubtful {
                continue;
            }
            let number = taking.number;
            doubts.push(if taking.by_rule {
                format!(
                    "rule {number} of config.toml goes by the runtime handler, which is not known \
                     here: what it keeps back is not given"
                )
            } else {
                format!(
                    "narrowing {number} of config.toml goes by labels, which are not known here: \
                     it applies"
                )
            });
        }
        doubts
    }

    fn given(&self, rule: Option<usize>) -> &Allowance {
        rule.and_then(|at| self.rules.get(at)).map_or(&self.default, |rule| &rule.allow)
    }

    /// The rule that decides, and what takes away from that.
    fn choose(&self, pod: &Pod) -> (Option<usize>, Vec<Taking<'_>>) {
        let mut takings = Vec::new();
        let mut chosen = None;
        for (at, rule) in self.rules.iter().enumerate() {
            match self.reach(rule, pod) {
                Reach::No => {}
                Reach::Perhaps => takings.push(Taking {
                    narrowing: Cow::Owned(Narrowing::to(&rule.allow)),
                    by_rule: true,
                    number: at + 1,
                    on_refusal: rule.allow.on_refusal,
                    doubtful: true,
                }),
                Reach::Yes => {
                    chosen = Some(at);
                    break;
                }
            }
        }
        let narrowings = self.narrow.iter().enumerate().filter(|(_, one)| one.matches(pod));
        takings.extend(narrowings.map(|(at, narrowing)| Taking {
            narrowing: Cow::Borrowed(narrowing),
            by_rule: false,
            number: at + 1,
            on_refusal: OnRefusal::Warn,
            doubtful: pod.unknown.labels && !narrowing.labels.is_empty(),
        }));
        (chosen, takings)
    }

    /// A pod of which the handler is not known has taken the wrapper: by one of the handlers that
    /// policy says are the wrapper's, or by none, where the wrapper is the default runtime.
    fn reach(&self, rule: &Rule, pod: &Pod) -> Reach {
        if !pod.unknown.runtime_handler {
            return if rule.matches(pod) { Reach::Yes } else { Reach::No };
        }
        let namespaces = &rule.namespaces;
        let handlers = &rule.runtime_handlers;
        let wrappers = self.wrapper_handlers.iter().map(String::as_str);
        let mut named = std::iter::once("").chain(wrappers).map(|name| matches_any(handlers, name));
        if !namespaces.is_empty() && !matches_any(namespaces, &pod.namespace) {
            Reach::No
        } else if handlers.is_empty() || named.clone().all(|named| named) {
            Reach::Yes
        } else if named.any(|named| named) {
            Reach::Perhaps
        } else {
            Reach::No
        }
    }
}
