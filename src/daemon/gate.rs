//! Whether a container that has asked may run without having been given anything.
//!
//! A runtime goes on without a plugin that is away or late, so a container may have been created
//! without us. What its annotations ask is read again here; what it was given is known from the
//! record or from the mark on it.

use std::collections::BTreeMap;

use crate::policy::Policy;
use crate::request::{
    self, Carrier, Devices, Key, Pod, Request, RequestError, SmcMethod, mentions_us,
};

/// What that container asks for by annotation, in words. `None`: nothing that could not be done
/// without, or it is somebody else's to serve.
///
/// Claims do not count: nobody has asked us for them, and what another plugin gave is there.
pub fn asked(
    annotations: &BTreeMap<String, String>,
    pod: &Pod,
    container: &str,
    policy: &Policy,
) -> Option<String> {
    let request = match read(annotations, pod, container, policy)? {
        Ok(request) => request,
        // It may come with a claim.
        Err(RequestError::NothingToApplyTo { .. }) => return None,
        Err(error) => return Some(error.to_string()),
    };
    let devices = !matches!(request.devices, None | Some(Devices::None));
    let key = match request.smc {
        _ if devices => Key::Devices,
        SmcMethod::Off => return None,
        _ => Key::Smc,
    };
    Some(in_words(&request, key))
}

/// The same of SMC-R, which a container that carries our mark does not have for that.
pub fn asked_smc(
    annotations: &BTreeMap<String, String>,
    pod: &Pod,
    container: &str,
    policy: &Policy,
) -> Option<String> {
    let request = read(annotations, pod, container, policy)?.ok()?;
    (request.smc != SmcMethod::Off).then(|| in_words(&request, Key::Smc))
}

/// What a container asks for; `None`: nothing of us.
fn read(
    annotations: &BTreeMap<String, String>,
    pod: &Pod,
    container: &str,
    policy: &Policy,
) -> Option<Result<Request, RequestError>> {
    if !mentions_us(annotations.keys()) || policy.wrapper_handlers.contains(&pod.runtime_handler) {
        return None;
    }
    let container = request::Container {
        name: container.to_owned(),
        pod: pod.clone(),
        ..request::Container::default()
    };
    Some(request::parse(annotations, container, Carrier::default(), policy, None))
}

fn in_words(request: &Request, key: Key) -> String {
    match request.asked_by.get(&key) {
        Some(asked) => format!("{}: {}", asked.annotation, asked.value),
        None => "annotation of a vendor's dialect".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_asks_is_read_for_it_alone() {
        let pod = Pod::default();
        let wrapped = Pod { runtime_handler: "rdma".into(), ..Pod::default() };
        let policy = Policy::default();
        for (annotations, pod, container, expected) in [
            (&[("devices.rdma-ctk.io", "all")][..], &pod, "main", Some("devices.rdma-ctk.io: all")),
            (&[("devices.rdma-ctk.io", "all")], &wrapped, "main", None),
            (&[("devices.rdma-ctk.io", "all")], &pod, "istio-proxy", None),
            (&[("devices.rdma-ctk.io", "none")], &pod, "main", None),
            (&[("devices.rdma-ctk.io/container.main", "all")], &pod, "other", None),
            (&[("memlock.rdma-ctk.io", "unlimited")], &pod, "main", None),
            (&[("prometheus.io/scrape", "true")], &pod, "main", None),
        ] {
            let annotations = annotations.iter().map(|&(k, v)| (k.into(), v.into())).collect();
            let found = asked(&annotations, pod, container, &policy);
            assert_eq!(found.as_deref(), expected, "{annotations:?} {container}");
        }
        let misspelt = BTreeMap::from([("device.rdma-ctk.io".to_owned(), "all".to_owned())]);
        let found = asked(&misspelt, &pod, "main", &policy).unwrap();
        assert!(found.contains("device.rdma-ctk.io"), "{found}");
    }
}
