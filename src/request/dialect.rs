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
use crate::policy::{Dialect, Dialects, VolcengineMode};

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
        pod_networks(value, dialects, request)?;
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

/// `k8s.volcengine.com/pod-networks`: a JSON list with one block `{"cniConf": {"name": "rdma"}}` for
/// each adapter whose interface the pod is to get, or one for all of them where the node's mode is
/// `shared-host`; entries by other names are other networks.
fn pod_networks(
    value: &str,
    dialects: &Dialects,
    request: &mut Request,
) -> Result<(), RequestError> {
    if dialects.volcengine != Dialect::Serve {
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
    let (devices, netns) = match dialects.volcengine_mode {
        VolcengineMode::Shared => (Devices::Count(count), NetnsRequest::Ipvlan),
        VolcengineMode::Exclusive => (Devices::Count(count), NetnsRequest::Exclusive),
        VolcengineMode::SharedHost if count == 1 => (Devices::All, NetnsRequest::Ipvlan),
        VolcengineMode::SharedHost => {
            const ONE: &str = "expected one block of the name rdma, which stands for all adapters \
                               of a node in mode shared-host";
            return Err(wrong(POD_NETWORKS, value, ONE));
        }
    };
    ask(request, Key::Devices, POD_NETWORKS, value, |request| request.devices = Some(devices));
    ask(request, Key::Netns, POD_NETWORKS, value, |request| request.netns = netns);
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
