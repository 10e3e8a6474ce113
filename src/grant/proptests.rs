//! What holds for every decision, on nodes, requests and policies made at random from small pools,
//! so that names, numbers and addresses meet often.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::tests::machines;
use super::{Grant, Inventory, Outcome, TopologyFile, decide};
use crate::inventory::*;
use crate::policy::{Allowance, Claims, OnRefusal, Policy};
use crate::request::*;

/// One decision's inputs.
#[derive(Debug, Clone)]
pub struct Inputs {
    pub request: Request,
    pub node: Node,
    pub pod: PodView,
    pub topology: Option<TopologyFile>,
    pub policy: Policy,
}

impl Inputs {
    pub fn decide(&self) -> Outcome {
        let inventory = Inventory { node: &self.node, pod: &self.pod, topology: self.topology };
        decide(&self.request, &inventory, &self.policy)
    }
}

/// Addresses as (GID, address).
const ADDRESSES: [&str; 6] =
    ["::ffff:10.0.0.5", "::ffff:10.1.0.6", "::ffff:10.1.0.7", "fd93::12", "fd93::13", "fe80::9"];
const NAMES: [&str; 6] = ["mlx5_1", "mlx5_10", "mlx5_2", "rdmap79s0", "erdma_0", "rxe0"];
const NETDEVS: [&str; 4] = ["eth0", "eth1", "net1", "bond0"];
const VARIABLES: [&str; 9] = [
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_RANGE",
    "UCX_NET_DEVICES",
    "UCX_IB_GID_INDEX",
    "NCCL_SOCKET_IFNAME",
    "NVIDIA_VISIBLE_DEVICES",
    "NCCL_TOPO_FILE",
    "",
];
const VALUES: [&str; 9] =
    ["", "all", "0,1", "=mlx5_1:1", "^=mlx5_10", "3", "-1", "a\nb", "mlx5_1:1,eth0"];

fn cpu_set() -> impl Strategy<Value = CpuSet> {
    select(&["0-31", "32-63", "0-63", "0-7", "40-47", "3", "16-47"][..])
        .prop_map(|list| list.parse().unwrap())
}

fn device(kind: &'static str, number: usize) -> impl Strategy<Value = Option<CharDev>> {
    let made = (
        prop_oneof![5 => Just(231_u32), 1 => Just(511)],
        select(&[None, Some(0o666), Some(0o600)][..]),
    );
    option::weighted(0.95, made).prop_map(move |made| {
        let (major, mode) = made?;
        let minor = u32::try_from(number).unwrap();
        Some(CharDev { name: format!("{kind}{number}"), major, minor, mode })
    })
}

fn gid_table() -> impl Strategy<Value = Vec<Gid>> {
    let entry = (
        select(&ADDRESSES[..]),
        option::weighted(0.9, select(&[GidKind::V1, GidKind::V2, GidKind::V2][..])),
        option::of(select(&NETDEVS[..])),
    );
    vec(entry, 0..8).prop_map(|entries| {
        (0..)
            .zip(entries)
            .map(|(index, (value, kind, netdev))| Gid {
                index,
                value: value.parse().unwrap(),
                kind,
                netdev: netdev.map(str::to_owned),
            })
            .collect()
    })
}

fn port(hca: usize, number: u32) -> impl Strategy<Value = Port> {
    let link = select(
        &[LinkLayer::InfiniBand, LinkLayer::Ethernet, LinkLayer::Ethernet, LinkLayer::Unknown][..],
    );
    let state = prop_oneof![5 => Just(PortState::Active), 1 => Just(PortState::Down)];
    let netdev = option::of(select(&NETDEVS[..]));
    (link, state, netdev, gid_table(), device("umad", hca), device("issm", hca)).prop_map(
        move |(link_layer, state, netdev, gids, umad, issm)| Port {
            number,
            link_layer,
            state,
            rate: "100 Gb/sec (4X EDR)".into(),
            lid: 0,
            gid_slots: 8,
            gids,
            pkeys: Vec::new(),
            netdev: netdev.map(str::to_owned),
            umad,
            issm,
        },
    )
}

fn role() -> impl Strategy<Value = Role> {
    select(vec![
        Role::Physical { vfs: 0 },
        Role::Physical { vfs: 2 },
        Role::Virtual { physical: None },
        Role::Representor,
        Role::Bond { netdev: "bond0".into() },
        Role::BondMember { bond: "bond0".into() },
        Role::Software { parent: None },
    ])
}

fn hca(number: usize, name: &'static str) -> impl Strategy<Value = Hca> {
    (
        select(&["mlx5", "efa", "erdma"][..]),
        select(&[NodeType::Ca, NodeType::Ca, NodeType::Rnic, NodeType::Unspecified][..]),
        option::weighted(0.9, Just(())),
        option::weighted(0.8, 0_u32..2),
        option::weighted(0.8, cpu_set()),
        device("uverbs", number),
        (port(number, 1), port(number, 2), select(&[0_usize, 1, 1, 1, 2, 2][..])),
        role(),
        prop_oneof![
            8 => Just(Home::Host),
            1 => Just(Home::Elsewhere),
            3 => Just(Home::NetdevElsewhere)
        ],
    )
        .prop_map(
            move |(driver, node_type, pci, numa, near, uverbs, (one, two, ports), role, home)| {
                Hca {
                    name: name.into(),
                    index: None,
                    driver: Driver(driver.into()),
                    node_type,
                    node_guid: String::new(),
                    firmware: None,
                    pci: pci.map(|()| machines::pci(&format!("0000:{:02x}:00.0", 0x10 + number))),
                    numa,
                    local_cpus: near.unwrap_or_default(),
                    uverbs,
                    ports: [one, two].into_iter().take(ports).collect(),
                    role,
                    home,
                }
            },
        )
}

fn interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let interface = (select(&NETDEVS[..]), vec(select(&ADDRESSES[..]), 0..3), any::<bool>());
    vec(interface, 0..4).prop_map(|all| {
        (1..)
            .zip(all)
            .map(|(index, (name, addresses, default_route))| {
                let address = |text: &str| {
                    let gid: std::net::Ipv6Addr = text.parse().unwrap();
                    (gid.to_canonical(), 24)
                };
                let addresses = addresses.into_iter().map(address).collect();
                Interface {
                    index,
                    addresses,
                    default_route,
                    ..machines::interface(name, "macvlan", &[])
                }
            })
            .collect()
    })
}

pub fn node() -> impl Strategy<Value = Node> {
    let hcas: Vec<_> = NAMES.iter().enumerate().map(|(n, name)| hca(n, name)).collect();
    let kept = subsequence((0..NAMES.len()).collect::<Vec<_>>(), 2..=NAMES.len());
    let nearness =
        select(&[Nearness::Switch, Nearness::HostBridge, Nearness::NumaNode, Nearness::Other][..]);
    (
        hcas,
        kept,
        option::weighted(0.8, Just(())),
        prop_oneof![9 => Just(NetnsMode::Shared), 1 => Just(NetnsMode::Exclusive)],
        option::of(cpu_set()),
        interfaces(),
        (0_u32..3, vec(nearness, 18), any::<bool>()),
    )
        .prop_map(
            |(hcas, kept, cm, netns_mode, isolated, interfaces, (gpus, nearness, direct))| {
                let hcas: Vec<Hca> = kept.iter().map(|place| hcas[*place].clone()).collect();
                let gpu = |n: u32| machines::pci(&format!("0000:{:02x}:00.0", 0x80 + n));
                let pairs = (0..gpus).flat_map(|n| hcas.iter().map(move |hca| (n, hca)));
                let relations = pairs.zip(nearness).map(|((n, hca), nearness)| Relation {
                    hca: hca.name.clone(),
                    gpu: gpu(n),
                    nearness,
                });
                Node {
                    relations: relations.collect(),
                    gpus: (0..gpus)
                        .map(|n| Gpu {
                            pci: gpu(n),
                            vendor: 0x10de,
                            numa: None,
                            minor: Some(n),
                            uuid: None,
                        })
                        .collect(),
                    netns_mode,
                    isolated: isolated.unwrap_or_default(),
                    interfaces,
                    rdma_cm: cm.and_then(|()| machines::node([]).rdma_cm),
                    gpudirect: if direct { vec!["dma-buf".into()] } else { Vec::new() },
                    ..machines::node(hcas)
                }
            },
        )
}

fn pod() -> impl Strategy<Value = PodView> {
    let table = (select(&NAMES[..]), 1_u32..3, gid_table());
    let ready = (interfaces(), vec(table, 0..6), subsequence(&NAMES[..], 0..3));
    prop_oneof![
        2 => Just(PodView::Host),
        5 => ready.prop_map(|(interfaces, tables, hcas)| PodView::Ready(PodNetwork {
            interfaces,
            gids: tables
                .into_iter()
                .map(|(hca, port, gids)| PortGids { hca: hca.into(), port, gids })
                .collect(),
            hcas: hcas.into_iter().map(str::to_owned).collect(),
        })),
        1 => Just(PodView::Pending { reason: "no address yet".into() }),
        1 => Just(PodView::Unknown { reason: "nobody said".into() }),
    ]
}

fn devices() -> impl Strategy<Value = Option<Devices>> {
    let selector = select(vec![
        Selector::Name("mlx5_1".into()),
        Selector::Name("mlx5_*".into()),
        Selector::Name("*".into()),
        Selector::Name("rxe0".into()),
        Selector::Pci(machines::pci("0000:11:00.0")),
        Selector::Netdev("eth1".into()),
        Selector::Driver("efa".into()),
        Selector::Link(Link::Roce),
        Selector::Numa(1),
        Selector::Gpu,
        Selector::Rail(vec![0, 1]),
        Selector::Rail(vec![u32::MAX]),
    ]);
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(Devices::None)),
        8 => Just(Some(Devices::All)),
        4 => select(&[0, 1, 1, 2, u32::MAX][..]).prop_map(|count| Some(Devices::Count(count))),
        6 => vec(selector, 1..3).prop_map(|selectors| Some(Devices::Select(selectors))),
    ]
}

fn can() -> impl Strategy<Value = Can> {
    prop_oneof![49 => Just(Can::Yes), 1 => Just(Can::No("another version".into()))]
}

fn carrier() -> impl Strategy<Value = Carrier> {
    let path =
        select(&[CarrierPath::Nri, CarrierPath::Wrapper, CarrierPath::Hook, CarrierPath::Cdi][..]);
    (path, vec(can(), 7), option::weighted(0.2, select(&[0, 1 << 20, u64::MAX][..]))).prop_map(
        |(path, cans, memlock_ceiling)| {
            let mut cans = cans.into_iter();
            let mut can = || cans.next().unwrap_or_default();
            Carrier {
                name: "NRI on containerd 2.1.9".into(),
                path,
                devices: can(),
                device_rules: can(),
                rlimits: can(),
                capabilities: can(),
                cpuset: can(),
                unified: can(),
                unified_lines: can(),
                memlock_ceiling,
            }
        },
    )
}

fn container() -> impl Strategy<Value = Container> {
    let mount = (
        select(&["/dev", "/dev/infiniband", "/etc", "/etc/nccl.conf", "/data/", ""][..]),
        select(&["bind", "tmpfs"][..]),
    );
    let present = select(&[("uverbs0", 0), ("uverbs2", 2), ("uverbs2", 3), ("rdma_cm", 121)][..]);
    (
        (option::of(select(&[0_u32, 1000][..])), any::<bool>(), any::<bool>()),
        vec((select(&VARIABLES[..]), select(&VALUES[..])), 0..5),
        vec(mount, 0..2),
        option::weighted(0.2, present),
        select(&[
            Limit::Invisible,
            Limit::Inherited(None),
            Limit::Inherited(Some(8 << 20)),
            Limit::Own(u64::MAX),
            Limit::Own(0),
        ]),
        (
            option::of(cpu_set()),
            option::of(cpu_set()),
            option::weighted(0.1, Just(())),
            option::weighted(0.2, select(&["0", "1", "0-1"][..])),
        ),
        (
            option::of(select(&[500_u64, 8000, 8000, u64::MAX][..])),
            option::of(select(&[8192_u64, 2][..])),
        ),
        (
            prop_oneof![9 => Just(""), 1 => select(&["kata-qemu", "runsc", "rdma", "runc"][..])],
            prop::bool::weighted(0.03),
        ),
        option::of(Just(["IPC_LOCK".to_owned()].into())),
    )
        .prop_map(
            |(
                (uid, user_namespace, all_devices),
                env,
                mounts,
                devices,
                memlock,
                (cpus, parent_cpus, owned, mems),
                (cpu_limit_milli, cpu_shares),
                (handler, granted_before),
                capabilities,
            )| {
                let base = machines::nothing().container;
                Container {
                    pod: Pod { runtime_handler: handler.into(), ..base.pod },
                    uid,
                    user_namespace,
                    all_devices,
                    env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                    mounts: mounts
                        .into_iter()
                        .map(|(destination, kind)| Mount {
                            destination: destination.into(),
                            source: "/x".into(),
                            kind: kind.into(),
                        })
                        .collect(),
                    devices: devices
                        .into_iter()
                        .map(|(name, minor)| Device {
                            path: format!("/dev/infiniband/{name}"),
                            major: if name == "rdma_cm" { 10 } else { 231 },
                            minor,
                        })
                        .collect(),
                    capabilities,
                    memlock,
                    cpus,
                    cpus_owned: owned.map(|()| "10-balloons".into()),
                    mems: mems.map(|list| list.parse().unwrap()),
                    parent_cpus,
                    cpu_limit_milli,
                    cpu_shares,
                    granted_before,
                    ..Container { id: base.id, name: base.name, ..Container::default() }
                }
            },
        )
}

fn subset<T: Ord + Clone + std::fmt::Debug + 'static>(
    all: &'static [T],
) -> impl Strategy<Value = BTreeSet<T>> {
    subsequence(all, 0..=all.len()).prop_map(|chosen| chosen.into_iter().collect())
}

const KINDS: [NodeKind; 4] = [NodeKind::Uverbs, NodeKind::RdmaCm, NodeKind::Umad, NodeKind::Issm];

fn request() -> impl Strategy<Value = Request> {
    let claim = (btree_set((select(&[231_u32][..]), 0_u32..7), 0..3), subset(&NAMES));
    let claim = claim.prop_map(|(uverbs, names)| Claim {
        by: "a device plugin".into(),
        uverbs,
        names: names.into_iter().map(str::to_owned).collect(),
    });
    (
        (container(), carrier(), devices()),
        prop_oneof![9 => Just([NodeKind::Uverbs, NodeKind::RdmaCm].into()), 1 => subset(&KINDS)],
        prop_oneof![
            3 => Just(Memlock::Unlimited),
            1 => select(&[0, 1 << 20, 1 << 40][..]).prop_map(Memlock::Bytes)
        ],
        prop_oneof![19 => Just([].into()), 1 => Just(["IPC_LOCK".to_owned()].into())],
        prop_oneof![
            6 => Just(NumaMode::Prefer),
            2 => Just(NumaMode::Strict),
            1 => Just(NumaMode::Off)
        ],
        (subset(&EnvFamily::ALL), any::<bool>()),
        prop_oneof![
            29 => Just(NetnsRequest::Auto),
            1 => select(&[NetnsRequest::Shared, NetnsRequest::Host, NetnsRequest::Ipvlan][..])
        ],
        prop_oneof![49 => Just(SmcMethod::Off), 1 => Just(SmcMethod::Auto)],
        option::weighted(0.1, (option::of(0_u32..9), option::of(0_u32..9))),
        prop_oneof![9 => Just([].into()), 1 => subset(&[
            Requirement::RdmaCm,
            Requirement::Gpudirect,
            Requirement::RoceInterface,
            Requirement::Gid,
        ])],
        (option::of(claim), subset(&Key::ALL)),
    )
        .prop_map(
            |(
                (container, carrier, devices),
                nodes,
                memlock,
                capabilities,
                numa,
                (families, file),
                netns,
                smc,
                limits,
                require,
                (claim, keys),
            )| {
                let mut request = Request {
                    container,
                    carrier,
                    devices,
                    nodes,
                    memlock,
                    capabilities,
                    numa,
                    env: EnvMode { families, file },
                    netns,
                    smc,
                    limits: limits
                        .map(|(hca_handle, hca_object)| Limits { hca_handle, hca_object }),
                    require,
                    claim,
                    ..machines::nothing()
                };
                for key in keys.into_iter().filter(|key| *key < Key::Nodes) {
                    machines::typed(&mut request, key, "typed");
                }
                request
            },
        )
}

fn policy() -> impl Strategy<Value = Policy> {
    let adapters = prop_oneof![
        9 => Just(["*".to_owned()].into()),
        1 => Just(["mlx5_*".to_owned()].into()),
        1 => Just(["0000:11:*".to_owned()].into()),
        1 => Just([].into())
    ];
    (
        prop_oneof![19 => Just(Key::ALL.into()), 1 => subset(&Key::ALL)],
        adapters,
        any::<bool>(),
        prop_oneof![9 => Just(KINDS.into()), 1 => subset(&KINDS)],
        option::weighted(0.3, select(&[0, 1 << 20, 1 << 39][..])),
        prop_oneof![1 => Just([].into()), 1 => Just(["IPC_LOCK".to_owned()].into())],
        select(&[OnRefusal::Refuse, OnRefusal::Warn][..]),
        select(&[Claims::Limit, Claims::Full, Claims::Full, Claims::Off][..]),
        subsequence(&NAMES[..], 0..3),
        option::of(Just("/topo.xml".to_owned())),
    )
        .prop_map(
            |(
                keys,
                adapters,
                virtual_functions,
                nodes,
                memlock_max,
                capabilities,
                on_refusal,
                claims,
                rails,
                topology_file,
            )| Policy {
                claims,
                rails: rails.into_iter().map(str::to_owned).collect(),
                topology_file,
                default: Allowance {
                    keys,
                    adapters,
                    virtual_functions,
                    nodes,
                    memlock_max,
                    capabilities,
                    on_refusal,
                    ..Allowance::default()
                },
                ..Policy::default()
            },
        )
}

/// Inputs of all kinds.
pub fn inputs() -> impl Strategy<Value = Inputs> {
    let topology = select(&[
        None,
        Some(TopologyFile::Missing),
        Some(TopologyFile::Present { mode: 0o600 }),
        Some(TopologyFile::Present { mode: 0o644 }),
    ]);
    (request(), node(), pod(), topology, policy()).prop_map(
        |(request, node, pod, topology, policy)| Inputs { request, node, pod, topology, policy },
    )
}

fn unique<T: Ord>(items: impl IntoIterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}

fn addresses(interfaces: &[Interface]) -> BTreeSet<IpAddr> {
    interfaces.iter().flat_map(|i| &i.addresses).map(|(address, _)| *address).collect()
}

/// A grant without what is said about it.
fn silent(outcome: Outcome) -> Option<Grant> {
    match outcome {
        Outcome::Granted(grant) => {
            Some(Grant { reasons: Vec::new(), warnings: Vec::new(), ..*grant })
        }
        _ => None,
    }
}

/// Fewer cases than usual, since each is a whole node; `PROPTEST_CASES` sets another number.
fn config() -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES");
    asked.map_or_else(|| ProptestConfig::with_cases(96), |_| ProptestConfig::default())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_same_inputs_get_the_same_outcome(inputs in inputs()) {
        prop_assert_eq!(inputs.decide(), inputs.clone().decide());
    }

    #[test]
    fn a_grant_never_exceeds_the_policy(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { request, node, policy, .. } = &inputs;
        let allowance = policy.allowance(&request.container.pod);
        let hcas: Vec<&Hca> =
            grant.adapters.iter().map(|adapter| node.hca(&adapter.name).unwrap()).collect();
        for hca in &hcas {
            prop_assert!(allowance.permits(hca), "{}", hca.name);
        }
        for device in &grant.devices {
            let is = |found: Option<&CharDev>| found.is_some_and(|found| {
                found.path() == device.path
                    && (found.major, found.minor) == (device.major, device.minor)
            });
            let ports = || hcas.iter().flat_map(|hca| &hca.ports);
            let kind = if is(node.rdma_cm.as_ref()) {
                NodeKind::RdmaCm
            } else if hcas.iter().any(|hca| is(hca.uverbs.as_ref())) {
                NodeKind::Uverbs
            } else if ports().any(|port| is(port.umad.as_ref())) {
                NodeKind::Umad
            } else {
                prop_assert!(ports().any(|port| is(port.issm.as_ref())), "{:?}", device);
                NodeKind::Issm
            };
            prop_assert!(allowance.nodes.contains(&kind) && request.nodes.contains(&kind));
        }
        if let Some(limit) = grant.memlock {
            prop_assert!(allowance.memlock_max.is_none_or(|most| limit.bytes <= most));
            prop_assert!(request.carrier.memlock_ceiling.is_none_or(|most| limit.bytes <= most));
            if let Limit::Own(present) | Limit::Inherited(Some(present)) = request.container.memlock
            {
                prop_assert!(limit.bytes > present);
            }
            prop_assert_eq!(&request.carrier.rlimits, &Can::Yes);
        }
        for capability in &grant.capabilities {
            prop_assert!(allowance.capabilities.contains(capability));
            prop_assert!(request.capabilities.contains(capability));
        }
        if !grant.unified.is_empty() {
            prop_assert!(allowance.keys.contains(&Key::Limits));
        }
        if request.devices.is_some() {
            prop_assert!(allowance.keys.contains(&Key::Devices));
        }
    }

    #[test]
    fn nothing_that_is_there_is_set_again(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let container = &inputs.request.container;
        prop_assert!(unique(grant.env.iter().map(|variable| &variable.name)));
        for variable in &grant.env {
            prop_assert!(container.env.iter().all(|(name, _)| *name != variable.name));
        }
        prop_assert!(unique(grant.devices.iter().map(|device| &device.path)));
        for device in &grant.devices {
            prop_assert!(container.devices.iter().all(|present| present.path != device.path));
        }
        let files = grant.files.iter().map(|file| &file.path);
        let destinations: Vec<&String> =
            files.chain(grant.mounts.iter().map(|mount| &mount.destination)).collect();
        prop_assert!(unique(&destinations));
        for destination in destinations {
            prop_assert!(container.mounts.iter().all(|mount| mount.destination != *destination));
        }
        prop_assert!(unique(grant.adapters.iter().map(|adapter| &adapter.name)));
    }

    #[test]
    fn cpus_are_only_narrowed(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { request, node, .. } = &inputs;
        let container = &request.container;
        if let Some(cpus) = &grant.cpus {
            let given = container.cpus.as_ref().or(container.parent_cpus.as_ref());
            prop_assert!(cpus.is_subset(given.unwrap_or(&node.online)));
            prop_assert!(!cpus.is_empty() && cpus.intersection(&node.isolated).is_empty());
            prop_assert!(grant.near.as_ref().is_some_and(|near| cpus.is_subset(near)));
            prop_assert!(container.cpus_owned.is_none());
            let room = 1000 * cpus.len() as u64;
            prop_assert!(container.cpu_limit_milli.is_none_or(|limit| limit <= room));
        }
        if let Some(mems) = &grant.mems {
            prop_assert_eq!(request.numa, NumaMode::Strict);
            prop_assert!(!mems.is_empty());
            prop_assert!(container.mems.as_ref().is_none_or(|given| mems.is_subset(given)));
        }
    }

    #[test]
    fn a_gid_is_never_another_pods(inputs in inputs()) {
        let Outcome::Granted(grant) = inputs.decide() else { return Ok(()) };
        let Inputs { node, pod, .. } = &inputs;
        let own = match pod {
            PodView::Ready(network) => addresses(&network.interfaces),
            _ => BTreeSet::new(),
        };
        let host = addresses(&node.interfaces);
        for adapter in &grant.adapters {
            for gid in &adapter.gids {
                prop_assert!(own.contains(&gid.address) || host.contains(&gid.address));
                let port = node.hca(&adapter.name).unwrap();
                let port = port.ports.iter().find(|port| port.number == gid.port).unwrap();
                let read = match pod {
                    PodView::Ready(network) => network.gids(&adapter.name, gid.port),
                    _ => &[],
                };
                let table = if read.is_empty() { &port.gids } else { read };
                prop_assert!(table.iter().any(|entry| entry.index == gid.index
                    && entry.address() == gid.address
                    && entry.kind == Some(GidKind::V2)));
            }
        }
    }

    #[test]
    fn a_claim_is_never_refused_and_gets_nothing_more(inputs in inputs()) {
        let mut inputs = inputs;
        inputs.request.devices = None;
        inputs.request.smc = SmcMethod::Off;
        match (inputs.decide(), &inputs.request.claim) {
            (Outcome::NotAsked, None) | (Outcome::LeftAlone { .. }, Some(_)) => {}
            (Outcome::Granted(grant), Some(claim)) => {
                prop_assert_eq!(&grant.devices, &[]);
                prop_assert!(grant.capabilities.is_empty() && grant.unified.is_empty());
                for adapter in &grant.adapters {
                    let node = inputs.node.hca(&adapter.name).unwrap().uverbs.as_ref();
                    let held = node.is_some_and(|n| claim.uverbs.contains(&(n.major, n.minor)));
                    prop_assert!(held || claim.names.contains(&adapter.name));
                }
                if inputs.policy.claims == Claims::Limit {
                    prop_assert!(grant.env.is_empty() && grant.files.is_empty());
                    prop_assert!(grant.mounts.is_empty());
                    prop_assert!(grant.cpus.is_none() && grant.near.is_none());
                }
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn an_unrelated_hca_changes_nothing_for_a_name(
        inputs in inputs(),
        name in select(&NAMES[..]),
        stranger in hca(9, "stranger0"),
        place in 0_usize..7,
    ) {
        let mut inputs = inputs;
        inputs.request.devices = Some(Devices::Select(vec![Selector::Name(name.into())]));
        let before = inputs.decide();
        let place = place.min(inputs.node.hcas.len());
        inputs.node.hcas.insert(place, stranger);
        let after = inputs.decide();
        prop_assert_eq!(
            std::mem::discriminant(&before), std::mem::discriminant(&after), "{:?}", after
        );
        prop_assert_eq!(silent(before), silent(after));
    }

    #[test]
    fn a_sentence_is_one_line_and_names_its_key(inputs in inputs()) {
        let (Outcome::Refused(refusal) | Outcome::Waived(refusal)) = inputs.decide() else {
            return Ok(());
        };
        prop_assert!(!refusal.sentence.contains(char::is_control), "{}", refusal.sentence);
        prop_assert!(refusal.sentence.contains(".rdma-ctk.io"), "{}", refusal.sentence);
    }
}

/// A property says nothing of what its inputs never reach.
#[test]
fn the_pools_reach_every_corner() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::collections::BTreeMap;

    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..600 {
        let inputs = inputs().new_tree(&mut runner).unwrap().current();
        let corners: &[(&str, bool)] = match &inputs.decide() {
            Outcome::NotAsked => &[("not asked", true)],
            Outcome::LeftAlone { .. } => &[("left alone", true)],
            Outcome::Refused(_) => &[("refused", true)],
            Outcome::Waived(_) => &[("waived", true)],
            Outcome::Granted(grant) => &[
                ("granted", true),
                ("claimed", inputs.request.devices.is_none()),
                ("several adapters", grant.adapters.len() > 1),
                ("nodes", !grant.devices.is_empty()),
                ("a rule", grant.devices.iter().any(|device| device.rule_only)),
                ("a limit", grant.memlock.is_some()),
                ("cpus", grant.cpus.is_some()),
                ("mems", grant.mems.is_some()),
                ("a gid", grant.adapters.iter().any(|adapter| !adapter.gids.is_empty())),
                ("no use", grant.adapters.iter().any(|adapter| !adapter.usable)),
                ("variables", !grant.env.is_empty()),
                ("files", !grant.files.is_empty()),
                ("mounts", !grant.mounts.is_empty()),
                ("cgroup limits", !grant.unified.is_empty()),
                ("capabilities", !grant.capabilities.is_empty()),
            ],
        };
        for (corner, reached) in corners {
            *seen.entry(corner).or_default() += u32::from(*reached);
        }
    }
    assert!(seen.len() == 19 && seen.values().all(|count| *count > 1), "{seen:?}");
}
