//! What has to be set in a pod so that several sub-interfaces work beside each other, and beside the
//! pod's own network: pure.
//!
//! The main table has room for one way to a network, so what is sent from the address of one rail
//! would leave by another, or by the pod's own interface. Each rail has therefore a table of its own,
//! in which everything leaves by it, and a rule that leads there whatever is sent from its address.

use std::net::IpAddr;

use super::{Child, Setting};
use crate::inventory::Prefix;
use crate::inventory::prefix::width;

/// Number of the table of the sub-interface with index 0, and the place of the first rule: before
/// those of the main table (32766), behind what network plugins have (up to some thousands).
const TABLES: u32 = 20_000;
/// The main table.
const MAIN: u32 = 254;
/// Metric of the second rail's way to where the first one leads too.
const METRIC: u32 = 100;

/// All that has to be set, in the order in which the kernel takes it.
pub fn plan(children: &[Child]) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut main: Vec<(Prefix, u32)> = Vec::new();
    for (place, child) in children.iter().enumerate() {
        if share(children, child) {
            settings.extend(sysctls(child));
        }
        let rail = Rail { child, table: TABLES + child.index, alone: is_alone(children, child) };
        rail.routes(place, &mut main, &mut settings);
    }
    settings
}

#[derive(Debug, Clone, Copy)]
struct Rail<'a> {
    child: &'a Child,
    table: u32,
    /// What the kernel sets by itself leads everywhere that this one's addresses lead.
    alone: bool,
}

impl Rail<'_> {
    fn routes(self, place: usize, main: &mut Vec<(Prefix, u32)>, settings: &mut Vec<Setting>) {
        for own in &self.child.lease.addresses {
            let ipv4 = own.address.is_ipv4();
            let gateway =
                self.child.lease.gateways.iter().find(|via| via.is_ipv4() == ipv4).copied();
            let routes = self.child.lease.routes.iter().filter(|r| r.to.address.is_ipv4() == ipv4);
            let everything = Prefix { address: unspecified(ipv4), length: 0 };
            // A router beyond the prefix is on the wire all the same.
            let beyond = gateway.filter(|via| !own.holds(*via)).map(|via| network(via, width(via)));
            for route in routes.clone() {
                let to = Prefix { address: route.to.first(), length: route.to.length };
                let times = main.iter().filter(|(before, _)| *before == to).count();
                let metric = METRIC * u32::try_from(times).unwrap_or(u32::MAX / METRIC);
                if let Some(beyond) = beyond {
                    settings.extend(self.once(main, beyond, own));
                }
                main.push((to, self.child.index));
                settings.push(self.route(MAIN, to, route.via, own, metric));
            }
            if self.alone && gateway.is_none() {
                continue;
            }
            let table = self.table;
            let wire = Prefix { address: own.first(), length: own.length };
            settings.push(self.route(table, wire, None, own, 0));
            if let Some(beyond) = beyond {
                settings.push(self.route(table, beyond, None, own, 0));
            }
            let through = gateway.map(|via| (everything, Some(via)));
            let named = routes
                .map(|route| {
                    (Prefix { address: route.to.first(), length: route.to.length }, route.via)
                })
                .filter(|(to, _)| *to != wire && Some(*to) != beyond && to.length > 0);
            for (to, via) in named.chain(through) {
                settings.push(self.route(table, to, via, own, 0));
            }
            let place = u32::try_from(place).unwrap_or(0);
            settings.push(Setting::Rule { from: own.address, table, priority: TABLES + place });
        }
    }

    /// A route of the main table, unless this sub-interface has it there.
    fn once(self, main: &mut Vec<(Prefix, u32)>, to: Prefix, own: &Prefix) -> Option<Setting> {
        if main.contains(&(to, self.child.index)) {
            return None;
        }
        let times = main.iter().filter(|(before, _)| *before == to).count();
        main.push((to, self.child.index));
        let metric = METRIC * u32::try_from(times).unwrap_or(u32::MAX / METRIC);
        Some(self.route(MAIN, to, None, own, metric))
    }

    fn route(
        self,
        table: u32,
        to: Prefix,
        via: Option<IpAddr>,
        own: &Prefix,
        metric: u32,
    ) -> Setting {
        // The kernel takes no address of IPv6 here while it looks for duplicates of it.
        let from = own.address.is_ipv4().then_some(own.address);
        Setting::Route { table, to, via, index: self.child.index, from, metric }
    }
}

/// Whether an address of that sub-interface lies on a network on which another one is too.
fn share(children: &[Child], child: &Child) -> bool {
    let others = children.iter().filter(|other| other.index != child.index);
    let theirs = || others.clone().flat_map(|other| &other.lease.addresses);
    child
        .lease
        .addresses
        .iter()
        .filter(|own| own.address.is_ipv4())
        .any(|own| theirs().any(|other| own.holds(other.address) || other.holds(own.address)))
}

/// Whether no other sub-interface has addresses.
fn is_alone(children: &[Child], child: &Child) -> bool {
    !children.iter().any(|other| other.index != child.index && !other.lease.addresses.is_empty())
}

/// Settings of an interface that is not the only one on its network: it answers for its own address
/// alone and asks from its own, and what arrives over it is not dropped because the main table leads
/// back by another.
fn sysctls(child: &Child) -> impl Iterator<Item = Setting> {
    let at = |name: &str| format!("net/ipv4/conf/{}/{name}", child.interface);
    [("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "2")]
        .map(|(name, value)| Setting::Sysctl { path: at(name), value: value.to_owned() })
        .into_iter()
}

fn network(address: IpAddr, length: u8) -> Prefix {
    Prefix { address, length }
}

fn unspecified(ipv4: bool) -> IpAddr {
    crate::inventory::prefix::of_number(0, ipv4)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::netns::addresses::{Lease, Route};

    /// A sub-interface with addresses, routes and a router.
    pub(crate) fn child(
        index: u32,
        addresses: &[&str],
        routes: &[&str],
        gateway: Option<&str>,
    ) -> Child {
        let gateway: Option<IpAddr> = gateway.map(|text| text.parse().unwrap());
        Child {
            interface: format!("rdma{}", index - 2),
            index,
            mtu: 4096,
            lease: Lease {
                boot: String::new(),
                sandbox: "a".into(),
                pod: "ml/a".into(),
                hca: format!("mlx5_{}", index - 2),
                interface: None,
                addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
                gateways: gateway.into_iter().collect(),
                routes: routes
                    .iter()
                    .map(|text| {
                        let to: Prefix = text.parse().unwrap();
                        Route { to, via: gateway.filter(|g| g.is_ipv4() == to.address.is_ipv4()) }
                    })
                    .collect(),
            },
        }
    }

    fn words(setting: &Setting) -> String {
        match setting {
            Setting::Sysctl { path, value } => format!("{path}={value}"),
            Setting::Route { table, to, via, index, from, metric } => {
                let via = via.map(|via| format!(" via {via}")).unwrap_or_default();
                let from = from.map(|from| format!(" src {from}")).unwrap_or_default();
                let metric = if *metric > 0 { format!(" metric {metric}") } else { String::new() };
                let table = if *table == 254 { String::new() } else { format!(" table {table}") };
                format!("{to}{via} dev {index}{from}{metric}{table}")
            }
            Setting::Rule { from, table, priority } => {
                format!("rule {priority} from {from} table {table}")
            }
        }
    }

    fn planned(children: &[Child]) -> Vec<String> {
        plan(children).iter().map(words).collect()
    }

    #[test]
    fn one_rail_needs_no_table_but_where_it_has_a_router() {
        assert_eq!(planned(&[child(2, &["10.1.0.7/24"], &[], None)]), Vec::<String>::new());
        assert_eq!(planned(&[child(2, &[], &["10.0.0.0/8"], None)]), Vec::<String>::new());
        assert_eq!(
            planned(&[child(2, &["10.1.0.7/24"], &["10.9.8.7/8"], None)]),
            ["10.0.0.0/8 dev 2 src 10.1.0.7"]
        );
        assert_eq!(
            planned(&[child(2, &["10.1.0.7/24"], &["10.0.0.0/8"], Some("10.1.0.1"))]),
            [
                "10.0.0.0/8 via 10.1.0.1 dev 2 src 10.1.0.7",
                "10.1.0.0/24 dev 2 src 10.1.0.7 table 20002",
                "10.0.0.0/8 via 10.1.0.1 dev 2 src 10.1.0.7 table 20002",
                "0.0.0.0/0 via 10.1.0.1 dev 2 src 10.1.0.7 table 20002",
                "rule 20000 from 10.1.0.7 table 20002",
            ]
        );
    }

    #[test]
    fn rails_in_one_subnet_answer_for_themselves_and_leave_by_themselves() {
        let rails = [child(2, &["10.1.0.7/24"], &[], None), child(3, &["10.1.0.8/24"], &[], None)];
        assert_eq!(
            planned(&rails),
            [
                "net/ipv4/conf/rdma0/arp_ignore=1",
                "net/ipv4/conf/rdma0/arp_announce=2",
                "net/ipv4/conf/rdma0/rp_filter=2",
                "10.1.0.0/24 dev 2 src 10.1.0.7 table 20002",
                "rule 20000 from 10.1.0.7 table 20002",
                "net/ipv4/conf/rdma1/arp_ignore=1",
                "net/ipv4/conf/rdma1/arp_announce=2",
                "net/ipv4/conf/rdma1/rp_filter=2",
                "10.1.0.0/24 dev 3 src 10.1.0.8 table 20003",
                "rule 20001 from 10.1.0.8 table 20003",
            ]
        );
    }

    #[test]
    fn rails_in_subnets_of_their_own_have_tables_and_the_first_leads() {
        let rails = [
            child(2, &["10.1.0.7/24", "fd01::7/64"], &["10.0.0.0/8"], Some("10.1.0.1")),
            child(3, &["10.2.0.7/24", "fd02::7/64"], &["10.0.0.0/8"], Some("10.2.0.1")),
        ];
        assert_eq!(
            planned(&rails),
            [
                "10.0.0.0/8 via 10.1.0.1 dev 2 src 10.1.0.7",
                "10.1.0.0/24 dev 2 src 10.1.0.7 table 20002",
                "10.0.0.0/8 via 10.1.0.1 dev 2 src 10.1.0.7 table 20002",
                "0.0.0.0/0 via 10.1.0.1 dev 2 src 10.1.0.7 table 20002",
                "rule 20000 from 10.1.0.7 table 20002",
                "fd01::/64 dev 2 table 20002",
                "rule 20000 from fd01::7 table 20002",
                "10.0.0.0/8 via 10.2.0.1 dev 3 src 10.2.0.7 metric 100",
                "10.2.0.0/24 dev 3 src 10.2.0.7 table 20003",
                "10.0.0.0/8 via 10.2.0.1 dev 3 src 10.2.0.7 table 20003",
                "0.0.0.0/0 via 10.2.0.1 dev 3 src 10.2.0.7 table 20003",
                "rule 20001 from 10.2.0.7 table 20003",
                "fd02::/64 dev 3 table 20003",
                "rule 20001 from fd02::7 table 20003",
            ]
        );
    }

    #[test]
    fn a_router_beyond_the_prefix_is_reached_first() {
        let rails = [child(2, &["10.1.0.7/32"], &["10.0.0.0/8"], Some("10.9.9.9"))];
        assert_eq!(
            planned(&rails),
            [
                "10.9.9.9/32 dev 2 src 10.1.0.7",
                "10.0.0.0/8 via 10.9.9.9 dev 2 src 10.1.0.7",
                "10.1.0.7/32 dev 2 src 10.1.0.7 table 20002",
                "10.9.9.9/32 dev 2 src 10.1.0.7 table 20002",
                "10.0.0.0/8 via 10.9.9.9 dev 2 src 10.1.0.7 table 20002",
                "0.0.0.0/0 via 10.9.9.9 dev 2 src 10.1.0.7 table 20002",
                "rule 20000 from 10.1.0.7 table 20002",
            ]
        );
    }
}
