//! What a container can reach through its network namespace: the addresses inside, and the GID
//! tables of the node's HCAs as they were once those addresses had settled.

use serde::{Deserialize, Serialize};

use super::node::{Gid, Interface};

/// How the container's network namespace was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "view", rename_all = "lowercase")]
pub enum PodView {
    /// The container shares the host's namespace: the node's own interfaces and GIDs count.
    Host,
    /// It has one of its own, and this is what is in there.
    Ready(PodNetwork),
    /// It has one of its own that was not read in time.
    Pending {
        /// What is still missing, as part of a sentence.
        reason: String,
    },
    /// It cannot be read, or nobody said which one it is.
    Unknown {
        /// Why, as part of a sentence.
        reason: String,
    },
}

/// A pod's network: its interfaces, and the GID tables that its addresses are looked up in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodNetwork {
    /// Interfaces inside the namespace (loopback too), ascending by `ifindex`.
    pub interfaces: Vec<Interface>,
    /// GID tables of the node's RoCE ports, read after the addresses of `interfaces`. In shared
    /// mode a table is the same in every namespace and holds other pods' entries too: what is the
    /// pod's own is told by value, never by the name of the interface.
    pub gids: Vec<PortGids>,
    /// On a host in exclusive mode, the RDMA devices that belong to this namespace, by kernel
    /// name; empty in shared mode, where every device can be used from everywhere.
    #[serde(default)]
    pub hcas: Vec<String>,
}

impl PodNetwork {
    /// GID table of that port; empty when the port was not read.
    pub fn gids(&self, hca: &str, port: u32) -> &[Gid] {
        self.gids
            .iter()
            .find(|table| table.hca == hca && table.port == port)
            .map_or(&[], |table| &table.gids)
    }
}

/// Used slots of one port's GID table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortGids {
    /// HCA's kernel name.
    pub hca: String,
    /// Port number, from 1.
    pub port: u32,
    /// Used slots, ascending by index.
    pub gids: Vec<Gid>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_was_not_read_has_no_gids() {
        let gid =
            Gid { index: 3, value: "::ffff:10.0.0.9".parse().unwrap(), kind: None, netdev: None };
        let network = PodNetwork {
            interfaces: Vec::new(),
            gids: vec![PortGids { hca: "mlx5_0".into(), port: 1, gids: vec![gid.clone()] }],
            hcas: Vec::new(),
        };
        assert_eq!(network.gids("mlx5_0", 1), [gid]);
        assert_eq!(network.gids("mlx5_0", 2), []);
        assert_eq!(network.gids("mlx5_1", 1), []);
    }

    #[test]
    fn a_view_survives_json() {
        for view in [
            PodView::Host,
            PodView::Ready(PodNetwork::default()),
            PodView::Pending { reason: "no address on net1 yet".into() },
        ] {
            let text = serde_json::to_string(&view).unwrap();
            assert_eq!(serde_json::from_str::<PodView>(&text).unwrap(), view, "{text}");
        }
    }
}
