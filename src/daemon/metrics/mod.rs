//! What the daemon counts. Counting is always on and costs an addition; the endpoint at which it
//! can be read ([`endpoint`]) is there where policy wants it.

pub mod endpoint;
pub mod node;
pub mod smc;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::records::seconds_since_1970;
use crate::nri::MishapKind;

/// Upper bounds of the times that calls take, in seconds: from what a container that asks nothing
/// should take to the runtime's own limit.
const TIMES: [f64; 10] = [0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0];

/// The counters of one daemon.
#[derive(Debug)]
pub struct Metrics {
    /// Containers that were given what they asked for.
    pub grants: Counter,
    /// Containers that were refused, by class of reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// Containers that start without, since policy says so.
    pub waived: Counter,
    /// Containers that were left to somebody else.
    pub left: Counter,
    /// Containers that run without because nobody was there when they were made.
    pub slipped: Counter,
    /// Containers that were found although no event had told of them.
    pub unseen: Counter,
    /// Containers whose device rules were not those of their grant any more.
    pub mismatches: Counter,
    /// Annotations whose scope names no container of its pod.
    pub unmatched: Counter,
    /// Calls of the runtime, and the time that they took.
    pub calls: Family<CallLabel, Histogram, fn() -> Histogram>,
    /// Calls that panicked or were late.
    pub mishaps: Family<MishapLabel, Counter>,
    /// Sessions with the runtime so far.
    pub sessions: Counter,
    /// 1 while a session stands.
    pub connected: Gauge,
    /// When the runtime last called, in seconds since 1970.
    pub last_event: Gauge<u64, AtomicU64>,
    /// Policy files that could not be used.
    pub policy_errors: Counter,
    /// Adapters that are in pods, or on their way.
    pub adapters_away: Gauge,
    /// Adapters that do not come back from a pod.
    pub adapters_stuck: Gauge,
    /// Sub-interfaces that pods have.
    pub sub_interfaces: Gauge,
    /// Those of them that do not go.
    pub sub_interfaces_stuck: Gauge,
}

/// Class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalClass {
    /// An annotation is wrong.
    Annotation,
    /// The inventory was not ready.
    NotReady,
    /// The decision: what was asked for is not there, or is not allowed.
    Decision,
    /// It was created while nobody was there, and not let start.
    Gate,
    /// It was not decided in time, or something on this side failed.
    Internal,
}

impl EncodeLabelValue for RefusalClass {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        let word = match self {
            Self::Annotation => "annotation",
            Self::NotReady => "inventory_not_ready",
            Self::Decision => "decision",
            Self::Gate => "created_unseen",
            Self::Internal => "internal",
        };
        word.encode(encoder)
    }
}

/// Label of [`Metrics::refusals`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// Why.
    pub reason: RefusalClass,
}

/// Label of [`Metrics::calls`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CallLabel {
    /// The call's name in the protocol.
    pub call: &'static str,
}

/// Labels of [`Metrics::mishaps`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MishapLabel {
    /// The call's name in the protocol.
    pub call: &'static str,
    /// `panic` or `late`.
    pub kind: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            grants: Counter::default(),
            refusals: Family::default(),
            waived: Counter::default(),
            left: Counter::default(),
            slipped: Counter::default(),
            unseen: Counter::default(),
            mismatches: Counter::default(),
            unmatched: Counter::default(),
            calls: Family::new_with_constructor(|| Histogram::new(TIMES)),
            mishaps: Family::default(),
            sessions: Counter::default(),
            connected: Gauge::default(),
            last_event: Gauge::default(),
            policy_errors: Counter::default(),
            adapters_away: Gauge::default(),
            adapters_stuck: Gauge::default(),
            sub_interfaces: Gauge::default(),
            sub_interfaces_stuck: Gauge::default(),
        }
    }
}

impl Metrics {
    /// One more refusal.
    pub fn refused(&self, reason: RefusalClass) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// One more call, which took so long.
    pub fn called(&self, call: &'static str, took: Duration) {
        self.calls.get_or_create(&CallLabel { call }).observe(took.as_secs_f64());
        self.last_event.set(seconds_since_1970());
    }

    /// One more call that went wrong.
    pub fn mishap(&self, call: &'static str, kind: MishapKind) {
        let kind = match kind {
            MishapKind::Panic => "panic",
            MishapKind::Late => "late",
        };
        self.mishaps.get_or_create(&MishapLabel { call, kind }).inc();
    }

    /// Makes all of them known to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("rdma_ctk");
        for (name, help, counter) in [
            ("grants", "Containers that were given what they asked for", &self.grants),
            (
                "waived",
                "Containers that start without what they asked for, as policy says",
                &self.waived,
            ),
            ("left", "Containers that asked and were left to somebody else", &self.left),
            (
                "slipped_through",
                "Containers that run without what they asked for because rdma-ctk was not \
                 connected when they were created",
                &self.slipped,
            ),
            ("unseen", "Containers of which no event had told", &self.unseen),
            (
                "device_rule_mismatches",
                "Containers whose device rules were not those of their grant at an update",
                &self.mismatches,
            ),
            (
                "unmatched_scopes",
                "Annotations whose scope names no container of its pod",
                &self.unmatched,
            ),
            ("sessions", "Sessions with the container runtime", &self.sessions),
            ("policy_errors", "Policy files that could not be used", &self.policy_errors),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("refusals", "Containers that were refused", self.refusals.clone());
        registry.register(
            "nri_call_seconds",
            "Time that calls of the runtime took",
            self.calls.clone(),
        );
        registry.register("nri_mishaps", "Calls that panicked or were late", self.mishaps.clone());
        registry.register("nri_connected", "1 while a session stands", self.connected.clone());
        registry.register(
            "adapters_away",
            "Adapters that are in pods, or on their way",
            self.adapters_away.clone(),
        );
        registry.register(
            "adapters_stuck",
            "Adapters that do not come back from a pod",
            self.adapters_stuck.clone(),
        );
        registry.register(
            "sub_interfaces",
            "Sub-interfaces of adapters that pods have",
            self.sub_interfaces.clone(),
        );
        registry.register(
            "sub_interfaces_stuck",
            "Sub-interfaces that do not go after their pod",
            self.sub_interfaces_stuck.clone(),
        );
        registry.register(
            "nri_last_event_timestamp_seconds",
            "When the runtime last called",
            self.last_event.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_name() {
        let metrics = Metrics::default();
        metrics.grants.inc();
        metrics.refused(RefusalClass::NotReady);
        metrics.called("CreateContainer", Duration::from_micros(80));
        metrics.mishap("CreateContainer", MishapKind::Late);
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "rdma_ctk_grants_total 1",
            "rdma_ctk_slipped_through_total 0",
            "rdma_ctk_refusals_total{reason=\"inventory_not_ready\"} 1",
            "rdma_ctk_nri_call_seconds_bucket{le=\"0.0001\",call=\"CreateContainer\"} 1",
            "rdma_ctk_nri_mishaps_total{call=\"CreateContainer\",kind=\"late\"} 1",
            "rdma_ctk_nri_connected 0",
            "rdma_ctk_adapters_stuck 0",
            "rdma_ctk_sub_interfaces 0",
            "rdma_ctk_sub_interfaces_stuck 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        assert!(text.contains("rdma_ctk_nri_last_event_timestamp_seconds 1"), "{text}");
    }
}
