use std::borrow::Cow;

use super::*;
use crate::inventory::{Driver, Hca, Home, NodeType, Role};
use crate::request::{Key, NetnsRequest, NodeKind, SmcMethod, Unknown};

fn pod(namespace: &str, runtime_handler: &str) -> Pod {
    Pod { namespace: namespace.into(), runtime_handler: runtime_handler.into(), ..Pod::default() }
}

fn hca(name: &str, pci: Option<&str>) -> Hca {
    Hca {
        name: name.into(),
        index: None,
        driver: Driver("mlx5".into()),
        node_type: NodeType::Ca,
        node_guid: String::new(),
        firmware: None,
        pci: pci.map(|text| text.parse().unwrap()),
        numa: None,
        local_cpus: crate::inventory::CpuSet::default(),
        uverbs: None,
        ports: Vec::new(),
        role: Role::Physical { vfs: 0 },
        home: Home::Host,
    }
}

fn error(text: &str) -> String {
    Policy::from_toml(text).unwrap_err().to_string()
}

/// Lines of a commented text with the comment sign taken from those that are no prose.
fn uncommented(text: &str) -> String {
    text.lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn wildcards_match_any_run() {
    for (pattern, text, expected) in [
        ("mlx5_0", "mlx5_0", true),
        ("mlx5_1", "mlx5_10", false),
        ("mlx5_*", "mlx5_10", true),
        ("*", "", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "a-b-b-c", true),
        ("a*bb", "ab", false),
        ("ab*b", "ab", false),
        ("**", "x", true),
        ("", "", true),
        ("", "x", false),
    ] {
        assert_eq!(wildcard(pattern, text), expected, "{pattern:?} {text:?}");
    }
}

#[test]
fn the_commented_default_is_the_default() {
    assert_eq!(Policy::from_toml("").unwrap(), Policy::default());
    assert_eq!(Policy::from_toml(DEFAULT_TOML).unwrap(), Policy::default());
    let text = uncommented(DEFAULT_TOML);
    assert!(text.contains("\n[default]\nkeys") || text.contains("\n[default]\n#"), "{text}");
    assert_eq!(Policy::from_toml(&text).unwrap(), Policy::default());
}

#[test]
fn every_key_is_in_the_commented_default() {
    // The examples count too: `rules` and `narrow` have no default to show.
    let example = r##"
        topology_file = "/t.xml"
        [[links.pools]]
        adapters = ["*"]
        range = "10.0.0.0/8"
        prefix_length = 8
        gateway = "10.0.0.1"
        routes = []
        [[rules]]
        allow.memlock_max = "1Gi"
        [[narrow]]
        keys = []
        adapters = []
        virtual_functions = false
        nodes = []
        memlock_max = "1"
        capabilities = []
        netns = []
        smc = []
        smc_sysctls = []
    "##;
    let policy = toml::Value::try_from(Policy::from_toml(example).unwrap()).unwrap();
    fn keys(value: &toml::Value, all: &mut BTreeSet<String>) {
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    all.insert(key.clone());
                    keys(value, all);
                }
            }
            toml::Value::Array(items) => items.iter().for_each(|item| keys(item, all)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    keys(&policy, &mut all);
    assert!(all.len() > 20, "{all:?}");
    for key in all {
        let named =
            [format!("{key} ="), format!("[{key}]"), format!(".{key} ="), format!("\"{key}")];
        assert!(
            key == "allow" || named.iter().any(|text| DEFAULT_TOML.contains(text)),
            "{key} is not documented"
        );
    }
}

#[test]
fn examples_of_the_texts_are_read() {
    for (text, from) in [(DEFAULT_TOML, "[[rules]]"), (MULTI_TENANT_TOML, "[[rules]]")] {
        let at = text.find(&format!("# {from}")).unwrap();
        let example: String = text[at..]
            .lines()
            .filter(|line| line.starts_with("# [[") || line.contains(" = "))
            .map(|line| format!("{}\n", line.trim_start_matches("# ")))
            .collect();
        let policy = Policy::from_toml(&example).unwrap();
        assert_eq!(policy.rules.len(), 1, "{example}");
    }
}

#[test]
fn the_closed_variant_gives_nothing() {
    let policy = Policy::from_toml(MULTI_TENANT_TOML).unwrap();
    assert_eq!(policy.claims, Claims::Off);
    let given = policy.allowance(&pod("default", "")).into_owned();
    assert_eq!(
        given,
        Allowance {
            keys: BTreeSet::new(),
            adapters: BTreeSet::new(),
            nodes: BTreeSet::new(),
            memlock_max: Some(0),
            netns: BTreeSet::new(),
            smc: BTreeSet::new(),
            ..Allowance::default()
        }
    );
    assert!(!given.permits(&hca("mlx5_0", None)));
}

#[test]
fn without_a_file_only_harmless_things_may_be_asked_for() {
    let given = Allowance::default();
    for key in [Key::Capabilities, Key::Limits] {
        assert!(!given.keys.contains(&key), "{key:?}");
    }
    for kind in [NodeKind::Umad, NodeKind::Issm] {
        assert!(!given.nodes.contains(&kind), "c17 {kind:?}");
    }
    for mode in [NetnsRequest::Exclusive, NetnsRequest::Ipvlan, NetnsRequest::Macvlan] {
        assert!(!given.netns.contains(&mode), "{mode:?}");
    }
    for (method, permitted) in [
        (SmcMethod::Off, true),
        (SmcMethod::Auto, true),
        (SmcMethod::Bpf, true),
        (SmcMethod::Preload, true),
        (SmcMethod::Tcp2smc, false),
    ] {
        assert_eq!(given.permits_smc(method), permitted, "{method:?}");
    }
}

#[test]
fn c17_mad_nodes_need_a_rule() {
    let policy = Policy::from_toml(
        r#"
        [[rules]]
        namespaces = ["fabric"]
        allow.nodes = ["uverbs", "rdma_cm", "umad", "issm"]
        "#,
    )
    .unwrap();
    assert!(policy.allowance(&pod("fabric", "")).nodes.contains(&NodeKind::Umad));
    assert!(!policy.allowance(&pod("default", "")).nodes.contains(&NodeKind::Umad));
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = Policy::from_toml(
        r#"
        [default]
        adapters = []
        [[rules]]
        namespaces = ["hpc-*"]
        runtime_handlers = ["runc", ""]
        allow.memlock_max = "64GiB"
        [[rules]]
        namespaces = ["hpc-*", "ml"]
        allow.memlock_max = 4096
        allow.adapters = ["mlx5_[01]", "0000:3b:*"]
        [[rules]]
        runtime_handlers = ["open"]
        "#,
    )
    .unwrap();
    for (namespace, handler, memlock, adapters) in [
        ("hpc-a", "runc", Some(64 << 30), &["*"][..]),
        ("hpc-a", "", Some(64 << 30), &["*"]),
        ("hpc-a", "crun", Some(4096), &["0000:3b:*", "mlx5_[01]"]),
        ("ml", "runc", Some(4096), &["0000:3b:*", "mlx5_[01]"]),
        ("hpc", "runc", None, &[]),
        ("x", "open", None, &["*"]),
    ] {
        let given = policy.allowance(&pod(namespace, handler));
        assert_eq!(given.memlock_max, memlock, "{namespace} {handler}");
        assert!(given.adapters.iter().eq(adapters), "{namespace} {handler}");
    }
    let given = policy.allowance(&pod("ml", ""));
    assert!(given.permits(&hca("anything", Some("0000:3b:00.1"))));
    assert!(given.permits(&hca("mlx5_[01]", None)));
    assert!(!given.permits(&hca("mlx5_0", Some("0000:3c:00.0"))));
}

#[test]
fn labels_and_names_only_take_away() {
    let policy = Policy::from_toml(
        r#"
        [default]
        memlock_max = "8Gi"
        capabilities = ["ipc_lock"]
        [[rules]]
        namespaces = ["open"]
        allow.capabilities = ["CAP_IPC_LOCK", "NET_RAW"]
        [[narrow]]
        labels = { tier = "batch-*" }
        adapters = ["mlx5_2"]
        memlock_max = "16Gi"
        capabilities = ["IPC_LOCK", "SYS_ADMIN"]
        virtual_functions = true
        nodes = ["uverbs", "umad"]
        keys = ["devices", "limits"]
        netns = ["exclusive", "shared"]
        smc = ["tcp2smc"]
        [[narrow]]
        pods = ["web-*"]
        adapters = ["mlx5_*"]
        memlock_max = "1Gi"
        "#,
    )
    .unwrap();
    let narrowed = |namespace: &str, name: &str, tier: Option<&str>| {
        let labels = tier.map(|tier| ("tier".to_owned(), tier.to_owned())).into_iter().collect();
        let pod = Pod { name: name.into(), labels, ..pod(namespace, "") };
        policy.allowance(&pod).into_owned()
    };
    assert!(matches!(policy.allowance(&pod("default", "")), Cow::Borrowed(_)));
    assert_eq!(narrowed("default", "x", None), policy.default);
    assert_eq!(narrowed("default", "x", Some("other")), policy.default);

    let batch = narrowed("default", "x", Some("batch-1"));
    assert_eq!(batch.memlock_max, Some(8 << 30), "a higher ceiling adds nothing");
    assert_eq!(batch.keys, [Key::Devices].into());
    assert_eq!(batch.nodes, [NodeKind::Uverbs].into());
    assert_eq!(batch.netns, [NetnsRequest::Shared].into());
    assert_eq!(batch.smc, BTreeSet::new());
    assert_eq!(batch.capabilities, BTreeSet::from(["IPC_LOCK".to_owned()]));
    assert!(!batch.virtual_functions);
    assert!(batch.permits(&hca("mlx5_2", None)) && !batch.permits(&hca("mlx5_3", None)));

    let mut by_name = Pod { name: "web-0".into(), ..pod("open", "") };
    let ceiling = |pod: &Pod, most| {
        policy.place(pod, "memlock_max", |a| a.memlock_max.is_none_or(|max| max >= most))
    };
    assert_eq!(ceiling(&by_name, 2 << 30), "memlock_max of narrowing 2");
    by_name.namespace = "default".into();
    assert_eq!(ceiling(&by_name, 16 << 30), "[default] memlock_max");
    let capabilities = |pod: &Pod| policy.place(pod, "capabilities", |_| false);
    assert_eq!(capabilities(&pod("open", "")), "allow.capabilities of rule 1");

    let both = narrowed("open", "web-0", Some("batch-1"));
    assert_eq!(both.memlock_max, Some(1 << 30));
    assert_eq!(both.capabilities, BTreeSet::from(["IPC_LOCK".to_owned()]));
    assert!(both.permits(&hca("mlx5_2", None)) && !both.permits(&hca("mlx5_3", None)));
}

#[test]
fn c106_sandboxes_are_told_by_handler() {
    let policy = Policy::from_toml("sandboxes.allow = [\"runsc-rdma\"]").unwrap();
    for (handler, expected) in [
        ("", Sandbox::None),
        ("runc", Sandbox::None),
        ("rdma", Sandbox::None),
        ("kata-qemu", Sandbox::Machine),
        ("kata", Sandbox::Machine),
        ("runsc", Sandbox::Kernel),
        ("gvisor", Sandbox::Kernel),
        ("runsc-rdma", Sandbox::None),
    ] {
        assert_eq!(policy.sandboxes.of(handler), expected, "{handler:?}");
    }
}

#[test]
fn mistakes_are_named_with_line_and_column() {
    insta::assert_snapshot!(error("claims = \"limit\"\nclaim = 1\n"), @"line 2, column 1: unknown field `claim`, expected one of `skip_containers`, `wrapper_handlers`, `claims`, `rails`, `topology_file`, `dialects`, `links`, `sandboxes`, `smc`, `daemon`, `cdi`, `wrapper`, `default`, `rules`, `narrow`");
    insta::assert_snapshot!(error("claims = \"some\""), @"line 1, column 10: unknown variant `some`, expected one of `limit`, `full`, `off`");
    insta::assert_snapshot!(error("claims = "), @"line 1, column 10: string values must be quoted, expected literal string");
    insta::assert_snapshot!(error("[default]\n  keys = [\"devices\", \"device\"]"), @"line 2, column 22: unknown variant `device`, expected one of `devices`, `nodes`, `memlock`, `capabilities`, `numa`, `env`, `netns`, `address`, `smc`, `limits`, `require`");
    insta::assert_snapshot!(error("[default]\nmemlock_max = \"64 gigs\""), @r#"line 2, column 15: "64 gigs": "gigs" is no unit: expected K, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024)"#);
    insta::assert_snapshot!(error("[default]\nmemlock_max = -1"), @r#"line 2, column 15: expected an amount of memory, such as "64GiB""#);
    insta::assert_snapshot!(error("[default]\ncapabilities = [\"IPC_LOCKS\"]"), @r#"line 2, column 16: there is no capability "IPC_LOCKS""#);
    insta::assert_snapshot!(error("[[rules]]\nlabels = {}"), @"line 2, column 1: unknown field `labels`, expected one of `namespaces`, `runtime_handlers`, `allow`");
    insta::assert_snapshot!(error("[[rules]]\nallow = { adapter = [] }"), @"line 2, column 11: unknown field `adapter`, expected one of `keys`, `adapters`, `virtual_functions`, `nodes`, `memlock_max`, `capabilities`, `netns`, `smc`, `smc_sysctls`, `on_refusal`");
    insta::assert_snapshot!(error("topology_file = \"nccl.xml\""), @r#"line 1, column 17: "nccl.xml" is no absolute path without "..""#);
    insta::assert_snapshot!(error("topology_file = \"/run/../etc/shadow\""), @r#"line 1, column 17: "/run/../etc/shadow" is no absolute path without "..""#);
    insta::assert_snapshot!(error("[daemon]\nmetrics = \"localhost\""), @r#"line 2, column 11: "localhost" is no address to listen at: expected ADDRESS:PORT, such as "127.0.0.1:9471", or "" for none"#);
    insta::assert_snapshot!(error("[daemon]\ndeadline_percent = 100"), @"line 2, column 20: 100 is out of range: a part of the runtime's timeout from 30 to 95 percent");
    insta::assert_snapshot!(error("# ä\nä = 1"), @"line 2, column 1: invalid unquoted key, expected letters, numbers, `-`, `_`");
    insta::assert_snapshot!(error("skip_containers = [\"a\"\n"), @"line 1, column 23: unclosed array, expected `]`");
    insta::assert_snapshot!(error("\0"), @"line 1, column 2: key with no value, expected `=`");
}

#[test]
fn a_file_is_loaded_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let roots = crate::roots::Roots::below(folder.path());
    assert_eq!(load(&roots).unwrap(), Policy::default());

    std::fs::create_dir_all(path(&roots).parent().unwrap()).unwrap();
    std::fs::write(path(&roots), "\u{feff}claims = \"full\"\ndaemon.metrics = \"\"\n").unwrap();
    let policy = load(&roots).unwrap();
    assert_eq!((policy.claims, policy.daemon.metrics), (Claims::Full, None));

    std::fs::write(path(&roots), "claims = limit").unwrap();
    let error = load(&roots).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "config.toml: line 1, column 10: string values must be quoted, expected literal string"
        ),
        "{error}"
    );

    std::fs::write(path(&roots), [0xff_u8, 0xfe]).unwrap();
    let error = load(&roots).unwrap_err().to_string();
    assert!(error.ends_with("config.toml: stream did not contain valid UTF-8"), "{error}");
}

#[test]
fn what_is_written_is_read_again() {
    for text in [DEFAULT_TOML, MULTI_TENANT_TOML, "topology_file = \"/x\"\ndaemon.metrics = \"\""] {
        let policy = Policy::from_toml(text).unwrap();
        let written = toml::to_string(&policy).unwrap();
        assert_eq!(Policy::from_toml(&written).unwrap(), policy, "{written}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = Policy::from_toml(&text);
    }

    #[test]
    fn no_pair_of_texts_panics(pattern in "[a*]{0,8}", text in "[ab]{0,8}") {
        let _ = wildcard(&pattern, &text);
    }
}

#[test]
fn what_is_not_known_of_a_pod_takes_away_and_gives_nothing() {
    let rules = |text: &str| Policy::from_toml(text).unwrap();
    let unknown = |namespace: &str| Pod {
        name: "p".into(),
        unknown: Unknown { runtime_handler: true, labels: true },
        ..pod(namespace, "")
    };
    let names = |policy: &Policy, namespace: &str| {
        let allowance = policy.allowance(&unknown(namespace));
        let adapters = ["mlx5_0", "mlx5_1"];
        adapters.into_iter().filter(|name| allowance.permits(&hca(name, None))).collect::<Vec<_>>()
    };
    // A rule by handler gives nothing, whichever of the wrapper's it names.
    let gives = |handler: &str| {
        rules(&format!(
            "wrapper_handlers = ['rdma-admin', 'rdma-tenant']\n[default]\nadapters = []\n[[rules]]\n\
             runtime_handlers = ['{handler}']\nallow.adapters = ['*']\n"
        ))
    };
    for (handler, expected) in [
        ("rdma-admin", &[][..]),
        ("rdma-tenant", &[]),
        ("rdma-*", &[]),
        ("", &[]),
        ("other", &[]),
        // One that matches every handler there is.
        ("*", &["mlx5_0", "mlx5_1"]),
    ] {
        assert_eq!(names(&gives(handler), "x"), expected, "{handler}");
    }
    // One that keeps back does so, and says so; one of another namespace or handler does not.
    let keeps = |rule: &str| {
        rules(&format!(
            "[[rules]]\n{rule}\nallow.adapters = ['mlx5_1']\nallow.on_refusal = 'refuse'\n[default]\n\
             on_refusal = 'warn'\n"
        ))
    };
    let guest = keeps("runtime_handlers = ['rdma']");
    assert_eq!(names(&guest, "x"), ["mlx5_1"]);
    assert_eq!(guest.allowance(&unknown("x")).on_refusal, OnRefusal::Refuse);
    insta::assert_snapshot!(guest.doubts(&unknown("x")).join("\n"), @"rule 1 of config.toml goes by the runtime handler, which is not known here: what it keeps back is not given");
    let place = guest.place(&unknown("x"), "adapters", |a| a.permits(&hca("mlx5_0", None)));
    insta::assert_snapshot!(place, @"allow.adapters of rule 1, which may be the pod's: its runtime handler is not known here");
    for rule in ["runtime_handlers = ['runc']", "runtime_handlers = ['rdma']\nnamespaces = ['y']"] {
        let policy = keeps(rule);
        assert_eq!(names(&policy, "x"), ["mlx5_0", "mlx5_1"], "{rule}");
        assert!(policy.doubts(&unknown("x")).is_empty(), "{rule}");
    }
    // A rule before it that surely matches decides alone.
    let sure = rules(
        "[[rules]]\nnamespaces = ['x']\n[[rules]]\nruntime_handlers = ['rdma']\nallow.adapters = []\n",
    );
    assert_eq!(names(&sure, "x"), ["mlx5_0", "mlx5_1"]);
    assert_eq!(names(&sure, "y"), [""; 0]);

    // Labels likewise: what they would take is taken.
    let labels = rules("[[narrow]]\nlabels = { tier = 'guest' }\nadapters = ['mlx5_1']\n");
    assert_eq!(names(&labels, "x"), ["mlx5_1"]);
    insta::assert_snapshot!(labels.doubts(&unknown("x")).join("\n"), @"narrowing 1 of config.toml goes by labels, which are not known here: it applies");
    let place = labels.place(&unknown("x"), "adapters", |a| a.permits(&hca("mlx5_0", None)));
    insta::assert_snapshot!(place, @"adapters of narrowing 1, which may be the pod's: its labels are not known here");
    let by_name = rules(
        "[[narrow]]\nlabels = { tier = 'guest' }\npods = ['q']\nadapters = []\n[[narrow]]\npods = \
         ['p']\nadapters = ['mlx5_0']\n",
    );
    assert_eq!(names(&by_name, "x"), ["mlx5_0"]);
    assert!(by_name.doubts(&unknown("x")).is_empty());
    // Nothing of this where everything is known.
    assert!(labels.doubts(&pod("x", "")).is_empty());
    assert_eq!(*labels.allowance(&pod("x", "")), labels.default);
}
