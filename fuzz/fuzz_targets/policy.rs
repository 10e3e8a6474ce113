//! The policy file. Besides not panicking: an error has a place in the text and one line, and what
//! is allowed to a pod is never more than its rule gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdma_ctk::policy::Policy;
use rdma_ctk::request::Pod;

fuzz_target!(|text: &str| {
    match Policy::from_toml(text) {
        Err(error) => {
            let lines = text.lines().count() + 1;
            assert!((1..=lines).contains(&error.line), "{error}");
            assert!(error.column >= 1 && !error.message.contains('\n'), "{error}");
        }
        Ok(policy) => {
            let pod = Pod {
                name: "train-0".into(),
                namespace: "ml".into(),
                labels: [("tier".to_owned(), "batch".to_owned())].into(),
                ..Pod::default()
            };
            let allowed = policy.allowance(&pod);
            let rule = policy.rules.iter().find(|rule| rule.matches(&pod));
            let given = rule.map_or(&policy.default, |rule| &rule.allow);
            assert!(allowed.keys.is_subset(&given.keys));
            assert!(allowed.nodes.is_subset(&given.nodes));
            assert!(allowed.capabilities.is_subset(&given.capabilities));
            let ceiling = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
            assert!(ceiling(allowed.memlock_max) <= ceiling(given.memlock_max));
            let _ = policy.sandboxes.of("kata-qemu");
        }
    }
});
