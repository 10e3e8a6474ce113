//! A pod's annotations, one `KEY: VALUE` a line, read for a container.
//!
//! Besides not panicking: messages are one line, what is understood is understood again when it is
//! written, and a pod whose keys do not mention us asks for nothing.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use rdma_ctk::policy::{Dialect, Policy};
use rdma_ctk::request::{Carrier, Container, mentions_us, parse, unmatched_scopes};

fuzz_target!(|text: &str| {
    let annotations: BTreeMap<String, String> = text
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_owned(), value.replace("\\n", "\n")))
        .collect();
    let mut serving = Policy::default();
    serving.dialects.alibabacloud = Dialect::Serve;
    serving.dialects.volcengine = Dialect::Serve;
    let read = |annotations: &BTreeMap<String, String>, name: &str, policy: &Policy| {
        let container = Container { name: name.to_owned(), ..Container::default() };
        parse(annotations, container, Carrier::default(), policy, None)
    };
    for policy in [Policy::default(), serving] {
        for name in ["main", "istio-proxy", ""] {
            match read(&annotations, name, &policy) {
                Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
                Ok(request) => {
                    assert!(mentions_us(annotations.keys()) || !request.asks());
                    if let Some(devices) = &request.devices {
                        let key = "devices.rdma-ctk.io".to_owned();
                        let written = BTreeMap::from([(key, devices.to_string())]);
                        let again = read(&written, "main", &policy);
                        assert_eq!(
                            again.ok().and_then(|again| again.devices).as_ref(),
                            Some(devices)
                        );
                    }
                }
            }
        }
    }
    let _ = unmatched_scopes(&annotations, &["main"]);
});
