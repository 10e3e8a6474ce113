//! Nodes, pods, requests and policies made at random from small pools, so that names, numbers and
//! addresses meet often.

use std::collections::BTreeSet;

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::grant::tests::machines;
use crate::grant::{Inventory, Outcome, SmcFacts, TopologyFile, decide};
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
    pub smc: Option<SmcFacts>,
    pub policy: Policy,
}

impl Inputs {
    pub fn decide(&self) -> Outcome {
        let inventory = Inventory {
            node: &self.node,
            pod: &self.pod,
            topology: self.topology,
            smc: self.smc.as_ref(),
            children: None,
        };
        decide(&self.request, &inventory, &self.policy)
    }
}

/// Addresses as (GID, address).
const ADDRESSES: [&str; 6] =
    ["::ffff:10.0.0.5", "::ffff:10.1.0.6", "::ffff:10.1.0.7", "fd93::12", "fd93::13", "fe80::9"];
pub const NAMES: [&str; 6] = ["mlx5_1", "mlx5_10", "mlx5_2", "rdmap79s0", "erdma_0", "rxe0"];
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

/// An HCA of that name, with uverbs of that number.
pub fn hca(number: usize, name: &'static str) -> impl Strategy<Value = Hca> {
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

fn node() -> impl Strategy<Value = Node> {
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
    (path, vec(can(), 8), option::weighted(0.2, select(&[0, 1 << 20, u64::MAX][..]))).prop_map(
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
                sysctl: can(),
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
                            source: "/dev".into(),
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
        prop_oneof![
            40 => Just(SmcMethod::Off),
            10 => select(&[SmcMethod::Auto, SmcMethod::Bpf, SmcMethod::Preload][..])
        ],
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
fn smc() -> impl Strategy<Value = SmcFacts> {
    (prop::bool::weighted(0.9), can(), can(), can()).prop_map(|(loaded, tcp2smc, bpf, preload)| {
        SmcFacts { loaded, tcp2smc, bpf, preload, ..SmcFacts::default() }
    })
}

pub fn inputs() -> impl Strategy<Value = Inputs> {
    let topology = select(&[
        None,
        Some(TopologyFile::Missing),
        Some(TopologyFile::Present { mode: 0o600 }),
        Some(TopologyFile::Vendor { mode: 0o644 }),
        Some(TopologyFile::Present { mode: 0o644 }),
    ]);
    (request(), node(), pod(), topology, option::weighted(0.9, smc()), policy()).prop_map(
        |(mut request, node, pod, topology, smc, policy)| {
            // It is had by this path alone.
            if request.smc != SmcMethod::Off {
                request.carrier.path = CarrierPath::Nri;
            }
            Inputs { request, node, pod, topology, smc, policy }
        },
    )
}
