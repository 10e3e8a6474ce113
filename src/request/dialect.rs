//! Annotations of vendors, understood as they are.
//!
//! A vendor's own plugin acts on them already. What it has put into a container is a claim
//! ([`super::claim`]); here they only become requests where policy says that the plugin is not
//! there and that we serve in its place.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::{Problem, RequestError, shown};
use super::key::{ERDMA_SMCR, POD_NETWORKS};
use super::{Asked, Devices, Key, NetnsRequest, Request, SmcMethod};
use crate::policy::{Dialect, Dialects};

/// Adds what the vendors' annotations of a pod ask for to the request of one of its containers.
/// Our own keys are more specific, and win.
pub(super) fn add(
    annotations: &BTreeMap<String, String>,
    dialects: &Dialects,
    request: &mut Request,
) -> Result<(), RequestError> {
    if let Some(value) = annotations.get(ERDMA_SMCR) {
        erdma_smcr(value, dialects.alibabacloud, request)?;
    }
    if let Some(value) = annotations.get(POD_NETWORKS) {
        pod_networks(value, dialects.volcengine, request)?;
    }
    Ok(())
}

/// `network.alibabacloud.com/erdma-smcr: "true"`: SMC-R for the TCP of the pod.
fn erdma_smcr(value: &str, dialect: Dialect, request: &mut Request) -> Result<(), RequestError> {
    if dialect != Dialect::Serve {
        return Ok(());
    }
    let method = match value.trim() {
        "true" => SmcMethod::Auto,
        "false" => SmcMethod::Off,
        _ => return Err(wrong(ERDMA_SMCR, value, "expected \"true\" or \"false\"")),
    };
    ask(request, Key::Smc, ERDMA_SMCR, value, |request| request.smc = method);
    Ok(())
}

/// `k8s.volcengine.com/pod-networks`: a JSON list with one `{"cniConf": {"name": "rdma"}}` for each
/// adapter whose interface the pod is to get; entries by other names are other networks.
fn pod_networks(value: &str, dialect: Dialect, request: &mut Request) -> Result<(), RequestError> {
    if dialect != Dialect::Serve {
        return Ok(());
    }
    const EXPECTED: &str = "expected a JSON list such as [{\"cniConf\":{\"name\":\"rdma\"}}]";
    let Ok(Value::Array(networks)) = serde_json::from_str(value) else {
        return Err(wrong(POD_NETWORKS, value, EXPECTED));
    };
    let name =
        |network: &Value| network.pointer("/cniConf/name").and_then(Value::as_str) == Some("rdma");
    let count = u32::try_from(networks.iter().filter(|network| name(network)).count())
        .map_err(|_| wrong(POD_NETWORKS, value, EXPECTED))?;
    if count == 0 {
        return Ok(());
    }
    ask(request, Key::Devices, POD_NETWORKS, value, |request| {
        request.devices = Some(Devices::Count(count));
    });
    ask(request, Key::Netns, POD_NETWORKS, value, |request| request.netns = NetnsRequest::Ipvlan);
    Ok(())
}

fn ask(request: &mut Request, key: Key, by: &str, value: &str, set: impl FnOnce(&mut Request)) {
    if !request.asked_by.contains_key(&key) {
        set(request);
        let asked = Asked { annotation: by.to_owned(), value: shown(value) };
        request.asked_by.insert(key, asked);
    }
}

fn wrong(annotation: &str, value: &str, expected: &'static str) -> RequestError {
    RequestError::Value {
        annotation: annotation.to_owned(),
        value: shown(value),
        problem: Problem::Dialect(expected),
    }
}
