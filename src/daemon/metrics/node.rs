//! What is read when metrics are asked for: the node's adapters, whose they are, and the counters
//! of their ports, once for each adapter and port, in bytes. Containers cannot read these counters
//! of a shared adapter themselves, and they are not per pod: which pods have the adapter is told by
//! `rdma_pod_hca_info`.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use crate::daemon::snapshot::Keeper;
use crate::inventory::{Home, Node};
use crate::roots::Roots;

/// A counter of a port: name and help of the metric, the files that may hold it below the port's
/// folder, the first that is there counting, and the factor to the metric's unit.
struct PortCounter {
    name: &'static str,
    help: &'static str,
    files: &'static [(&'static str, u64)],
}

/// Data counters of the InfiniBand management datagrams count units of four bytes (InfiniBand
/// specification, PortXmitData); the drivers' own count bytes.
const PORT_COUNTERS: &[PortCounter] = &[
    PortCounter {
        name: "rdma_port_transmit_bytes",
        help: "Bytes sent by the port",
        files: &[("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1)],
    },
    PortCounter {
        name: "rdma_port_receive_bytes",
        help: "Bytes received by the port",
        files: &[("counters/port_rcv_data", 4), ("hw_counters/rx_bytes", 1)],
    },
    PortCounter {
        name: "rdma_port_transmit_packets",
        help: "Packets sent by the port",
        files: &[
            ("counters/port_xmit_packets", 1),
            ("hw_counters/tx_pkts", 1),
            ("hw_counters/sent_pkts", 1),
        ],
    },
    PortCounter {
        name: "rdma_port_receive_packets",
        help: "Packets received by the port",
        files: &[
            ("counters/port_rcv_packets", 1),
            ("hw_counters/rx_pkts", 1),
            ("hw_counters/rcvd_pkts", 1),
        ],
    },
    PortCounter {
        name: "rdma_port_transmit_wait",
        help: "Ticks in which the port had data to send and could not",
        files: &[("counters/port_xmit_wait", 1)],
    },
    PortCounter {
        name: "rdma_port_transmit_discards",
        help: "Packets that the port dropped instead of sending",
        files: &[("counters/port_xmit_discards", 1)],
    },
    PortCounter {
        name: "rdma_port_receive_errors",
        help: "Packets with errors that the port received",
        files: &[("counters/port_rcv_errors", 1)],
    },
    PortCounter {
        name: "rdma_port_symbol_errors",
        help: "Symbol errors of the port's link",
        files: &[("counters/symbol_error", 1)],
    },
    PortCounter {
        name: "rdma_port_link_downed",
        help: "Times that the port's link went down",
        files: &[("counters/link_downed", 1)],
    },
];

/// A container that has an adapter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Namespace of its pod.
    pub namespace: String,
    /// Name of its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// Kernel name of the adapter.
    pub hca: String,
    /// Its CPUs are known, and none of them is next to the adapter.
    pub far: bool,
}

/// Tells who has which adapter.
pub type Holders = dyn Fn() -> Vec<Holder> + Send + Sync;

/// Reads the node at each scrape.
pub struct NodeCollector {
    keeper: Keeper,
    roots: Roots,
    holders: Arc<Holders>,
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCollector").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl NodeCollector {
    /// Reads the adapters that `keeper` knows below `roots`, held as `holders` says.
    pub fn new(keeper: Keeper, roots: Roots, holders: Arc<Holders>) -> Self {
        Self { keeper, roots, holders }
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        if let Some(age) = self.keeper.age() {
            encoder
                .encode_descriptor(
                    "rdma_ctk_inventory_age_seconds",
                    "Time since the inventory was last read",
                    None,
                    MetricType::Gauge,
                )?
                .encode_gauge(&age.as_secs_f64())?;
        }
        holders(&mut encoder, &(self.holders)())?;
        match self.keeper.now() {
            Some(node) => {
                adapters(&mut encoder, &node)?;
                ports(&mut encoder, &node, &self.roots)
            }
            None => Ok(()),
        }
    }
}

fn holders(encoder: &mut DescriptorEncoder, holders: &[Holder]) -> Result<(), fmt::Error> {
    let mut info = encoder.encode_descriptor(
        "rdma_pod_hca_info",
        "Containers that have the adapter",
        None,
        MetricType::Gauge,
    )?;
    for holder in holders {
        let labels = [
            ("namespace", holder.namespace.as_str()),
            ("pod", &holder.pod),
            ("container", &holder.container),
            ("hca", &holder.hca),
        ];
        info.encode_family(&labels)?.encode_gauge(&1i64)?;
    }
    let mut far = encoder.encode_descriptor(
        "rdma_ctk_numa_mismatch",
        "Containers none of whose CPUs is next to the adapter that they have",
        None,
        MetricType::Gauge,
    )?;
    let mut names: Vec<&str> = holders.iter().map(|holder| holder.hca.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let count = holders.iter().filter(|holder| holder.far && holder.hca == name).count();
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        far.encode_family(&[("hca", name)])?.encode_gauge(&count)?;
    }
    Ok(())
}

fn adapters(encoder: &mut DescriptorEncoder, node: &Node) -> Result<(), fmt::Error> {
    let mut info = encoder.encode_descriptor(
        "rdma_hca_info",
        "Adapters of the node",
        None,
        MetricType::Gauge,
    )?;
    for hca in &node.hcas {
        let pci = hca.pci.map(|pci| pci.to_string()).unwrap_or_default();
        let numa = hca.numa.map(|numa| numa.to_string()).unwrap_or_default();
        let home = match hca.home {
            Home::Host => "host",
            Home::Elsewhere => "elsewhere",
            Home::NetdevElsewhere => "netdev-elsewhere",
        };
        let labels = [
            ("hca", hca.name.as_str()),
            ("driver", &hca.driver.0),
            ("pci", &pci),
            ("numa", &numa),
            ("firmware", hca.firmware.as_deref().unwrap_or_default()),
            ("home", home),
        ];
        info.encode_family(&labels)?.encode_gauge(&1i64)?;
    }
    let mut state = encoder.encode_descriptor(
        "rdma_port_active",
        "1 while the port is ACTIVE",
        None,
        MetricType::Gauge,
    )?;
    for hca in &node.hcas {
        for port in &hca.ports {
            let number = port.number.to_string();
            let labels = [("hca", hca.name.as_str()), ("port", &number)];
            let active = i64::from(port.state == crate::inventory::PortState::Active);
            state.encode_family(&labels)?.encode_gauge(&active)?;
        }
    }
    Ok(())
}

fn ports(encoder: &mut DescriptorEncoder, node: &Node, roots: &Roots) -> Result<(), fmt::Error> {
    for counter in PORT_COUNTERS {
        let mut metric =
            encoder.encode_descriptor(counter.name, counter.help, None, MetricType::Counter)?;
        for hca in node.hcas.iter().filter(|hca| hca.home == Home::Host) {
            let class = roots.sys.join("class/infiniband").join(&hca.name);
            for port in &hca.ports {
                let number = port.number.to_string();
                let Some(value) = counter.read(&class.join("ports").join(&number)) else {
                    continue;
                };
                let labels = [("hca", hca.name.as_str()), ("port", &number)];
                metric
                    .encode_family(&labels)?
                    .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
            }
        }
    }
    Ok(())
}

impl PortCounter {
    /// The value of that port, in the metric's unit. `None`: no file is there, or what is in it
    /// is no number (`N/A (no PMA)`).
    fn read(&self, port: &Path) -> Option<u64> {
        self.files.iter().find_map(|(file, factor)| {
            let text = fs::read_to_string(port.join(file)).ok()?;
            text.trim().parse::<u64>().ok()?.checked_mul(*factor)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::registry::Registry;

    use super::*;
    use crate::inventory::{Driver, Hca, LinkLayer, NodeType, Port, PortState, Role};

    fn port(number: u32, state: PortState) -> Port {
        Port {
            number,
            link_layer: LinkLayer::InfiniBand,
            state,
            rate: String::new(),
            lid: 0,
            gid_slots: 0,
            gids: Vec::new(),
            pkeys: Vec::new(),
            netdev: None,
            umad: None,
            issm: None,
        }
    }

    fn node() -> Node {
        let hca = Hca {
            name: "mlx5_0".into(),
            index: None,
            driver: Driver("mlx5".into()),
            node_type: NodeType::Ca,
            node_guid: String::new(),
            firmware: Some("28.42.1000".into()),
            pci: Some("0000:18:00.0".parse().unwrap()),
            numa: None,
            local_cpus: crate::inventory::CpuSet::new(),
            uverbs: None,
            ports: vec![port(1, PortState::Active), port(2, PortState::Down)],
            role: Role::Physical { vfs: 0 },
            home: Home::Host,
        };
        Node { hcas: vec![hca], ..Node::default() }
    }

    #[tokio::test]
    async fn c109_each_port_counts_once_in_bytes_and_texts_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::below(folder.path());
        let write = |path: &str, text: &str| {
            let path = roots.sys.join("class/infiniband/mlx5_0/ports").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("1/counters/port_xmit_data", "1000\n");
        write("1/counters/port_rcv_data", "N/A (no PMA)\n");
        write("2/hw_counters/rx_bytes", "17\n");

        let keeper = Keeper::new(Box::new(|| Ok(node())));
        keeper.start(|| {}).unwrap();
        keeper.node(Duration::from_secs(10)).await.unwrap();
        let holder = |pod: &str, far| Holder {
            namespace: "ml".into(),
            pod: pod.into(),
            container: "worker".into(),
            hca: "mlx5_0".into(),
            far,
        };
        let holders = move || vec![holder("a", false), holder("b", true)];
        let mut registry = Registry::default();
        let collector = NodeCollector::new(keeper, roots.clone(), Arc::new(holders));
        registry.register_collector(Box::new(collector));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();

        let lines = |start: &str| text.lines().filter(|l| l.starts_with(start)).collect::<Vec<_>>();
        assert_eq!(
            lines("rdma_port_transmit_bytes_total"),
            ["rdma_port_transmit_bytes_total{hca=\"mlx5_0\",port=\"1\"} 4000"]
        );
        assert_eq!(
            lines("rdma_port_receive_bytes_total"),
            ["rdma_port_receive_bytes_total{hca=\"mlx5_0\",port=\"2\"} 17"]
        );
        assert_eq!(lines("rdma_pod_hca_info{").len(), 2, "{text}");
        assert_eq!(lines("rdma_ctk_numa_mismatch{"), ["rdma_ctk_numa_mismatch{hca=\"mlx5_0\"} 1"]);
        assert_eq!(lines("rdma_port_active{").len(), 2);
        assert_eq!(
            lines("rdma_hca_info{"),
            ["rdma_hca_info{hca=\"mlx5_0\",driver=\"mlx5\",pci=\"0000:18:00.0\",numa=\"\",\
              firmware=\"28.42.1000\",home=\"host\"} 1"]
        );
    }
}
