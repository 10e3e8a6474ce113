//! What each runtime can do through NRI, by its version.
//!
//! A field that a runtime does not know is dropped without a word, so what it can apply has to be
//! known beforehand. The two tables here are all that the project knows of versions.

use std::fmt;

/// Three numbers of a version; whatever a vendor appends is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// The version at the start of `text`, such as `v2.1.9+unknown`, `1.7.24~ds1` or `1.34`.
    /// `None` for `(devel)`, an empty text, or `0.0.0-unknown`, which stands for no version.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        let patch = match numbers.next() {
            // A dot that ends the number, as in "1.7.~rc1".
            None | Some("") => 0,
            Some(patch) => patch.parse().ok()?,
        };
        let version = Self(major, minor, patch);
        (version != Self(0, 0, 0)).then_some(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The runtimes that have NRI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `containerd`
    Containerd,
    /// `cri-o`
    Crio,
    /// `docker`, whose NRI takes environment and mounts, refuses most else and drops the rest.
    Docker,
}

impl Kind {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "containerd" => Some(Self::Containerd),
            "cri-o" => Some(Self::Crio),
            "docker" => Some(Self::Docker),
            _ => None,
        }
    }
}

/// From which version of a runtime on it has which NRI, by runtime and then ascending.
const NRI: &[(Kind, Version, Version)] = &[
    (Kind::Containerd, Version(1, 7, 0), Version(0, 3, 0)),
    (Kind::Containerd, Version(1, 7, 7), Version(0, 4, 0)),
    (Kind::Containerd, Version(1, 7, 14), Version(0, 6, 0)),
    (Kind::Containerd, Version(1, 7, 16), Version(0, 6, 1)),
    (Kind::Containerd, Version(1, 7, 26), Version(0, 8, 0)),
    (Kind::Containerd, Version(2, 2, 0), Version(0, 10, 0)),
    (Kind::Containerd, Version(2, 2, 1), Version(0, 11, 0)),
    (Kind::Containerd, Version(2, 3, 0), Version(0, 12, 0)),
    (Kind::Containerd, Version(2, 4, 0), Version(0, 12, 1)),
    (Kind::Crio, Version(1, 26, 0), Version(0, 2, 0)),
    (Kind::Crio, Version(1, 27, 0), Version(0, 3, 0)),
    (Kind::Crio, Version(1, 29, 0), Version(0, 5, 0)),
    (Kind::Crio, Version(1, 30, 0), Version(0, 6, 0)),
    (Kind::Crio, Version(1, 31, 0), Version(0, 6, 1)),
    (Kind::Crio, Version(1, 32, 0), Version(0, 9, 0)),
    (Kind::Crio, Version(1, 34, 0), Version(0, 10, 0)),
    (Kind::Crio, Version(1, 35, 0), Version(0, 11, 0)),
    (Kind::Crio, Version(1, 37, 0), Version(0, 12, 0)),
    (Kind::Docker, Version(29, 2, 0), Version(0, 11, 0)),
    (Kind::Docker, Version(29, 7, 2), Version(0, 12, 1)),
];

/// NRI of a runtime that cannot be told: the oldest that is still about in numbers.
const ASSUMED: Version = Version(0, 6, 1);

/// In which versions of one runtime something works.
#[derive(Debug, Clone, Copy)]
enum Since {
    Never,
    At(Version),
    /// From the first on but not from the second, and from the third on again.
    Gap(Version, Version, Version),
}

impl Since {
    fn holds(self, version: Version) -> bool {
        match self {
            Self::Never => false,
            Self::At(from) => from <= version,
            Self::Gap(from, until, again) => {
                (from <= version && version < until) || again <= version
            }
        }
    }

    fn describe(self, runtime: &str) -> Option<String> {
        match self {
            Self::Never => None,
            Self::At(from) => Some(format!("{runtime} {}", short(from))),
            Self::Gap(from, _, again) => Some(format!(
                "{runtime} {} ({} for {}.{})",
                short(again),
                short(from),
                from.0,
                from.1
            )),
        }
    }
}

/// 1.29.0 is told as 1.29: CRI-O's features come with the minor version.
fn short(version: Version) -> String {
    match version {
        Version(major, minor, 0) => format!("{major}.{minor}"),
        version => version.to_string(),
    }
}

/// What a runtime may or may not be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Device nodes with their cgroup rule.
    Devices,
    /// Rules of the device cgroup without a node.
    DeviceRules,
    /// Mounts.
    Mounts,
    /// Environment variables.
    Env,
    /// CPUs and memory nodes of the cpuset.
    Cpuset,
    /// Files of the unified cgroup hierarchy, such as `rdma.max`.
    Unified,
    /// POSIX resource limits, such as the locked memory.
    Rlimits,
    /// CDI devices by name.
    Cdi,
    /// Sysctls in the container's spec.
    Sysctl,
    /// Network devices moved into the container.
    NetDevices,
    /// Memory policy of the container's process.
    MemoryPolicy,
    /// The container's limits are in the request.
    RlimitsVisible,
    /// The container's user is in the request.
    UserVisible,
    /// The names of CDI devices that the CRI request carries are in the request.
    CdiVisible,
    /// The pod's addresses are in the request.
    PodIps,
    /// The event ValidateContainerAdjustment.
    Validation,
    /// The default validator, which can refuse containers that a required plugin has not seen.
    RequiredPlugins,
    /// A call of its own for each event; without it StateChange carries most.
    DedicatedCalls,
}

/// One row of the table of features.
struct Row {
    feature: Feature,
    /// The feature, as the subject of a sentence in the plural.
    subject: &'static str,
    /// From which NRI on it is taken for granted where the runtime or its version is not known.
    unknown: Since,
    containerd: Since,
    crio: Since,
    docker: Since,
}

const fn row(
    feature: Feature,
    subject: &'static str,
    unknown: Since,
    containerd: Since,
    crio: Since,
    docker: Since,
) -> Row {
    Row { feature, subject, unknown, containerd, crio, docker }
}

use Feature as F;
use Since::{At, Gap, Never};
use Version as V;

const CONTAINERD: Since = At(V(1, 7, 0));
const CRIO: Since = At(V(1, 26, 0));
const DOCKER: Since = At(V(29, 2, 0));

#[rustfmt::skip]
const FEATURES: &[Row] = &[
    row(F::Devices, "device nodes through NRI", At(V(0, 2, 0)), CONTAINERD, CRIO, Never),
    row(F::DeviceRules, "device rules without a node through NRI", At(V(0, 10, 0)), At(V(2, 2, 0)), At(V(1, 34, 0)), Never),
    row(F::Mounts, "mounts through NRI", At(V(0, 2, 0)), CONTAINERD, CRIO, DOCKER),
    row(F::Env, "environment variables through NRI", At(V(0, 2, 0)), CONTAINERD, CRIO, DOCKER),
    row(F::Cpuset, "CPU sets through NRI", At(V(0, 2, 0)), CONTAINERD, CRIO, Never),
    row(F::Unified, "cgroup files such as rdma.max through NRI", At(V(0, 2, 0)), CONTAINERD, CRIO, Never),
    row(F::Rlimits, "resource limits through NRI", At(V(0, 4, 0)), At(V(1, 7, 7)), At(V(1, 29, 0)), Never),
    // 1.7.26 to .29 and 2.0 drop them; 1.7.30 needs `enable_cdi` and else refuses the container.
    row(F::Cdi, "CDI devices through NRI", At(V(0, 10, 0)), Gap(V(1, 7, 30), V(2, 0, 0), V(2, 1, 0)), At(V(1, 34, 0)), Never),
    row(F::Sysctl, "sysctls through NRI", At(V(0, 11, 0)), At(V(2, 2, 1)), At(V(1, 35, 0)), Never),
    row(F::NetDevices, "network devices through NRI", At(V(0, 11, 0)), At(V(2, 2, 1)), At(V(1, 35, 0)), Never),
    row(F::MemoryPolicy, "memory policies through NRI", At(V(0, 12, 0)), At(V(2, 3, 0)), At(V(1, 37, 0)), Never),
    row(F::RlimitsVisible, "resource limits in NRI requests", At(V(0, 12, 0)), At(V(2, 3, 0)), At(V(1, 36, 0)), Never),
    row(F::UserVisible, "users in NRI requests", At(V(0, 12, 0)), At(V(2, 3, 0)), At(V(1, 36, 0)), Never),
    row(F::CdiVisible, "CDI devices in NRI requests", Never, At(V(2, 3, 0)), Never, Never),
    row(F::PodIps, "pod addresses in NRI requests", At(V(0, 9, 0)), At(V(2, 1, 0)), At(V(1, 32, 0)), Never),
    row(F::Validation, "validation events", At(V(0, 10, 0)), At(V(2, 2, 0)), At(V(1, 34, 0)), Never),
    row(F::RequiredPlugins, "required plugins", At(V(0, 10, 0)), At(V(2, 2, 0)), At(V(1, 34, 0)), Never),
    row(F::DedicatedCalls, "calls of their own for all events", At(V(0, 12, 0)), At(V(2, 3, 0)), At(V(1, 37, 0)), At(V(29, 7, 2))),
];

impl Feature {
    fn row(self) -> &'static Row {
        // `every_feature_has_one_row` holds.
        FEATURES.iter().find(|row| row.feature == self).unwrap_or(&FEATURES[0])
    }

    /// What has it, as a sentence without its end: `resource limits through NRI need containerd
    /// 1.7.7 or CRI-O 1.29`.
    #[must_use]
    pub fn needs(self) -> String {
        let row = self.row();
        let runtimes: Vec<String> = [
            row.containerd.describe("containerd"),
            row.crio.describe("CRI-O"),
            row.docker.describe("Docker"),
        ]
        .into_iter()
        .flatten()
        .collect();
        format!("{} need {}", row.subject, runtimes.join(" or "))
    }
}

/// What the runtime of a session can do, by [`Feature`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the features' own")]
#[expect(clippy::struct_excessive_bools, reason = "a set with names")]
pub struct Can {
    pub devices: bool,
    pub device_rules: bool,
    pub mounts: bool,
    pub env: bool,
    pub cpuset: bool,
    pub unified: bool,
    pub rlimits: bool,
    pub cdi: bool,
    pub sysctl: bool,
    pub net_devices: bool,
    pub memory_policy: bool,
    pub rlimits_visible: bool,
    pub user_visible: bool,
    pub cdi_visible: bool,
    pub pod_ips: bool,
    pub validation: bool,
    pub required_plugins: bool,
    pub dedicated_calls: bool,
}

/// The runtime at the other end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// As it calls itself: `containerd`, `cri-o` or `docker`.
    pub name: String,
    /// As it says it, with all that its vendor appended.
    pub version: String,
    /// The version of its NRI: told, else known from its own version, else assumed.
    pub nri: Version,
    /// What it can do.
    pub can: Can,
}

impl Runtime {
    /// What is known of a runtime from its ConfigureRequest. `nri` is empty before NRI 0.12.
    #[must_use]
    pub fn detect(name: &str, version: &str, nri: &str) -> Self {
        let known = Kind::parse(name).zip(Version::parse(version));
        let nri = Version::parse(nri)
            .or_else(|| known.and_then(|(kind, version)| nri_of(kind, version)))
            .unwrap_or(ASSUMED);
        let can = |feature: Feature| {
            let row = feature.row();
            match known {
                Some((Kind::Containerd, version)) => row.containerd.holds(version),
                Some((Kind::Crio, version)) => row.crio.holds(version),
                Some((Kind::Docker, version)) => row.docker.holds(version),
                None if Kind::parse(name) == Some(Kind::Docker) => {
                    !matches!(row.docker, Never) && row.unknown.holds(nri)
                }
                None => row.unknown.holds(nri),
            }
        };
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            nri,
            can: Can {
                devices: can(F::Devices),
                device_rules: can(F::DeviceRules),
                mounts: can(F::Mounts),
                env: can(F::Env),
                cpuset: can(F::Cpuset),
                unified: can(F::Unified),
                rlimits: can(F::Rlimits),
                cdi: can(F::Cdi),
                sysctl: can(F::Sysctl),
                net_devices: can(F::NetDevices),
                memory_policy: can(F::MemoryPolicy),
                rlimits_visible: can(F::RlimitsVisible),
                user_visible: can(F::UserVisible),
                cdi_visible: can(F::CdiVisible),
                pod_ips: can(F::PodIps),
                validation: can(F::Validation),
                required_plugins: can(F::RequiredPlugins),
                dedicated_calls: can(F::DedicatedCalls),
            },
        }
    }

    /// The events that this runtime knows; another one in a subscription makes it refuse the plugin.
    #[must_use]
    pub fn events(&self) -> Events {
        if self.nri < Version(0, 10, 0) { Events(0x7FF) } else { Events(0x3FFF) }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (NRI {})", self.name, self.version, self.nri)
    }
}

fn nri_of(kind: Kind, version: Version) -> Option<Version> {
    NRI.iter()
        .filter(|(of, from, _)| *of == kind && *from <= version)
        .map(|(_, _, nri)| *nri)
        .next_back()
}

/// A set of events: one bit each, bit 0 being RunPodSandbox.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Events(u16);

#[expect(missing_docs, reason = "named as the protocol names them")]
impl Events {
    pub const NONE: Self = Self(0);
    pub const RUN_POD_SANDBOX: Self = Self(1);
    pub const STOP_POD_SANDBOX: Self = Self(1 << 1);
    pub const REMOVE_POD_SANDBOX: Self = Self(1 << 2);
    pub const CREATE_CONTAINER: Self = Self(1 << 3);
    pub const POST_CREATE_CONTAINER: Self = Self(1 << 4);
    pub const START_CONTAINER: Self = Self(1 << 5);
    pub const POST_START_CONTAINER: Self = Self(1 << 6);
    pub const UPDATE_CONTAINER: Self = Self(1 << 7);
    pub const POST_UPDATE_CONTAINER: Self = Self(1 << 8);
    pub const STOP_CONTAINER: Self = Self(1 << 9);
    pub const REMOVE_CONTAINER: Self = Self(1 << 10);
    pub const VALIDATE_CONTAINER_ADJUSTMENT: Self = Self(1 << 13);

    /// The number that goes into a ConfigureResponse.
    #[must_use]
    pub fn bits(self) -> i32 {
        i32::from(self.0)
    }

    /// Those in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of `other` are in it.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({self})")
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Feature; 18] = [
        F::Devices,
        F::DeviceRules,
        F::Mounts,
        F::Env,
        F::Cpuset,
        F::Unified,
        F::Rlimits,
        F::Cdi,
        F::Sysctl,
        F::NetDevices,
        F::MemoryPolicy,
        F::RlimitsVisible,
        F::UserVisible,
        F::CdiVisible,
        F::PodIps,
        F::Validation,
        F::RequiredPlugins,
        F::DedicatedCalls,
    ];

    /// The features beyond those of every version, one letter each.
    fn letters(can: Can) -> String {
        let said = [
            ('l', can.rlimits),
            ('c', can.cdi),
            ('s', can.sysctl),
            ('n', can.net_devices),
            ('m', can.memory_policy),
            ('L', can.rlimits_visible),
            ('U', can.user_visible),
            ('C', can.cdi_visible),
            ('I', can.pod_ips),
            ('v', can.validation),
            ('r', can.required_plugins),
            ('d', can.dedicated_calls),
        ];
        said.into_iter().filter(|(_, has)| *has).map(|(letter, _)| letter).collect()
    }

    #[test]
    fn each_version_of_each_runtime() {
        for (name, version, nri, features) in [
            ("containerd", "1.7.0", "0.3.0", ""),
            ("containerd", "1.7.6", "0.3.0", ""),
            ("containerd", "1.7.7", "0.4.0", "l"),
            ("containerd", "1.7.13", "0.4.0", "l"),
            ("containerd", "1.7.14", "0.6.0", "l"),
            ("containerd", "1.7.15", "0.6.0", "l"),
            ("containerd", "1.7.16", "0.6.1", "l"),
            ("containerd", "1.7.24~ds1", "0.6.1", "l"),
            ("containerd", "1.7.25", "0.6.1", "l"),
            ("containerd", "1.7.26", "0.8.0", "l"),
            ("containerd", "1.7.29", "0.8.0", "l"),
            ("containerd", "1.7.30", "0.8.0", "lc"),
            ("containerd", "v1.7.34-k3s1", "0.8.0", "lc"),
            ("containerd", "2.0.0", "0.8.0", "l"),
            ("containerd", "2.0.11", "0.8.0", "l"),
            ("containerd", "2.1.0", "0.8.0", "lcI"),
            ("containerd", "2.1.9+unknown", "0.8.0", "lcI"),
            ("containerd", "2.2.0", "0.10.0", "lcIvr"),
            ("containerd", "2.2.1", "0.11.0", "lcsnIvr"),
            ("containerd", "2.2.7", "0.11.0", "lcsnIvr"),
            ("containerd", "2.3.0", "0.12.0", "lcsnmLUCIvrd"),
            ("containerd", "2.3.4-gke.1", "0.12.0", "lcsnmLUCIvrd"),
            ("containerd", "2.4.0-beta.0", "0.12.1", "lcsnmLUCIvrd"),
            ("containerd", "3.0.0", "0.12.1", "lcsnmLUCIvrd"),
            ("cri-o", "1.26.0", "0.2.0", ""),
            ("cri-o", "1.27.3", "0.3.0", ""),
            ("cri-o", "1.28.0", "0.3.0", ""),
            ("cri-o", "1.29.0", "0.5.0", "l"),
            ("cri-o", "1.30.0", "0.6.0", "l"),
            ("cri-o", "1.31.5", "0.6.1", "l"),
            ("cri-o", "1.32.0", "0.9.0", "lI"),
            ("cri-o", "1.33.1", "0.9.0", "lI"),
            ("cri-o", "1.34.0", "0.10.0", "lcIvr"),
            ("cri-o", "1.35.0", "0.11.0", "lcsnIvr"),
            ("cri-o", "1.36.0", "0.11.0", "lcsnLUIvr"),
            ("cri-o", "1.37.0", "0.12.0", "lcsnmLUIvrd"),
            ("docker", "29.2.0", "0.11.0", ""),
            ("docker", "29.7.1", "0.11.0", ""),
            ("docker", "29.7.2", "0.12.1", "d"),
        ] {
            let runtime = Runtime::detect(name, version, "");
            assert_eq!(runtime.nri.to_string(), nri, "{name} {version}");
            assert_eq!(letters(runtime.can), features, "{name} {version}");
            let basic = name != "docker";
            let Can { devices, mounts, env, cpuset, unified, .. } = runtime.can;
            assert_eq!([devices, cpuset, unified], [basic; 3], "{name} {version}");
            assert_eq!([mounts, env], [true; 2], "{name} {version}");
        }
    }

    #[test]
    fn what_is_told_comes_first() {
        let nri = |version, nri| Runtime::detect("containerd", version, nri).nri;
        assert_eq!(nri("2.1.9", "v0.12.2"), Version(0, 12, 2));
        assert_eq!(nri("2.1.9", "0.9.1-0.20260101-abcdef"), Version(0, 9, 1));
        for none in ["", "(devel)", "0.0.0-unknown", "v0.0.0", "devel", "1"] {
            assert_eq!(nri("2.1.9", none), Version(0, 8, 0), "{none}");
            assert_eq!(nri("(devel)", none), Version(0, 6, 1), "{none}");
        }
    }

    #[test]
    fn unknown_runtimes_are_judged_by_their_nri() {
        for (name, version, nri, features) in [
            ("containerd", "0.0.0-dev", "", "l"),
            ("containerd", "1.6.0", "", ""),
            ("containerd", "(devel)", "0.12.2", "lcsnmLUIvrd"),
            ("another", "1.0.0", "", "l"),
            ("another", "1.0.0", "0.3.0", ""),
            ("another", "1.0.0", "0.11.0", "lcsnIvr"),
            ("docker", "dev", "", ""),
            ("docker", "dev", "0.12.2", "d"),
        ] {
            let runtime = Runtime::detect(name, version, nri);
            assert_eq!(letters(runtime.can), features, "{name} {version} {nri}");
        }
    }

    #[test]
    fn every_feature_has_one_row() {
        for feature in ALL {
            assert_eq!(FEATURES.iter().filter(|row| row.feature == feature).count(), 1);
            assert_eq!(feature.row().feature, feature);
        }
        assert_eq!(FEATURES.len(), ALL.len());
    }

    #[test]
    fn needs_name_the_version() {
        for (feature, text) in [
            (F::Rlimits, "resource limits through NRI need containerd 1.7.7 or CRI-O 1.29"),
            (F::Cdi, "CDI devices through NRI need containerd 2.1 (1.7.30 for 1.7) or CRI-O 1.34"),
            (F::Sysctl, "sysctls through NRI need containerd 2.2.1 or CRI-O 1.35"),
            (F::CdiVisible, "CDI devices in NRI requests need containerd 2.3"),
            (
                F::Env,
                "environment variables through NRI need containerd 1.7 or CRI-O 1.26 or Docker 29.2",
            ),
        ] {
            assert_eq!(feature.needs(), text);
        }
    }

    #[test]
    fn tables_ascend() {
        for pair in NRI.windows(2) {
            let [(kind, version, nri), (next_kind, next_version, next_nri)] = pair else {
                unreachable!()
            };
            if kind == next_kind {
                assert!(version < next_version && nri < next_nri, "{version} {nri}");
            }
        }
    }

    #[test]
    fn versions_as_vendors_write_them() {
        for (text, version) in [
            ("1.7.24~ds1", Some(Version(1, 7, 24))),
            ("v2.1.9", Some(Version(2, 1, 9))),
            ("2.0.0-rc.1-12-gabcdef", Some(Version(2, 0, 0))),
            ("1.34", Some(Version(1, 34, 0))),
            ("1.34.", Some(Version(1, 34, 0))),
            (" 1.29.1-1.el9 ", Some(Version(1, 29, 1))),
            ("1.2.3.4", Some(Version(1, 2, 3))),
            ("29", None),
            ("", None),
            ("v", None),
            ("1..2", None),
            ("99999999999.1.1", None),
        ] {
            assert_eq!(Version::parse(text), version, "{text}");
        }
    }
}
