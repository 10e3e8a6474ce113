use proptest::prelude::*;

use super::*;

fn read(line: &str) -> CommandLine {
    parse(&line.split_whitespace().collect::<Vec<_>>())
}

fn action(line: &str) -> Action {
    read(line).action
}

fn start(bundle: &str, id: &str) -> Action {
    Action::Start(Start {
        bundle: (!bundle.is_empty()).then(|| bundle.into()),
        config: None,
        id: (!id.is_empty()).then(|| id.into()),
        other: None,
    })
}

#[test]
fn the_subcommand_is_found_behind_the_global_flags() {
    for (line, expected) in [
        (
            "--root /r --log /b/log.json --log-format json --systemd-cgroup create --bundle /b \
             --pid-file /b/p x",
            start("/b", "x"),
        ),
        ("--root=/r create --bundle=/b x", start("/b", "x")),
        ("create -b /b x", start("/b", "x")),
        ("create -b/b x", start("/b", "x")),
        ("create -bundle /b x", start("/b", "x")),
        ("create x --bundle /b", start("/b", "x")),
        ("run x", start("", "x")),
        ("run --detach -- x", start("", "x")),
        ("-- create x", start("", "x")),
        ("create --preserve-fds 3 --no-pivot --no-new-keyring x", start("", "x")),
        ("--systemd-cgroup create --bundle /b --pid-file f --no-pivot x", start("/b", "x")),
        (
            "--cgroup-manager systemd --config /c restore --image-path /i --bundle /b x",
            start("/b", "x"),
        ),
        ("--rootless true create x", start("", "x")),
        ("--debug --systemd-cgroup=false create x", start("", "x")),
        ("-r /state -l /log create -b /b x", start("/b", "x")),
        ("--log-level debug run -b /b x", start("/b", "x")),
        ("--log-l debug --roo /r run -b /b x", start("/b", "x")),
        ("-sl /log create -b /b x", start("/b", "x")),
        ("run -db /b x", start("/b", "x")),
        ("run -ddb/b x", start("/b", "x")),
        ("run --bund=/b x", start("/b", "x")),
        ("run --b /b --pi p --p 3 x", start("/b", "x")),
        // A flag of tomorrow, whose value stands where the subcommand would.
        ("--new value create -b /b x", start("/b", "x")),
        ("--new=value --newer /v restore -b /b x", start("/b", "x")),
        ("--new value state create", Action::Pass),
        ("--new value", Action::Pass),
        ("run --newer -newbool -b /b x", start("/b", "x")),
        ("state create", Action::Pass),
        ("kill --all create 9", Action::Pass),
        ("--log create state x", Action::Pass),
        ("--root create delete --force x", Action::Delete { id: Some("x".into()) }),
        ("update --resources=- create", Action::Pass),
        ("mounts add create x", Action::Pass),
        ("help run", Action::Pass),
        ("start create", Action::Pass),
        ("--version", Action::Pass),
        ("features", Action::Pass),
        ("", Action::Pass),
        ("--", Action::Pass),
        ("--root", Action::Pass),
    ] {
        // Of two readings that of runc.
        let found = match action(line) {
            Action::Start(start) => Action::Start(start.settle(false, &|_| false)),
            other => other,
        };
        assert_eq!(found, expected, "{line}");
    }
}

#[test]
fn a_container_named_create_and_values_named_like_flags_confuse_nothing() {
    assert_eq!(action("create --pid-file --bundle create"), start("", "create"));
    assert_eq!(action("create --bundle create create"), start("create", "create"));
    assert_eq!(action("create -- --bundle"), start("", "--bundle"));
}

#[test]
fn the_document_is_in_the_bundle_unless_crun_is_told_another() {
    for (line, path) in [
        ("create x", "./config.json"),
        ("create --bundle /b x", "/b/config.json"),
        ("create --bundle /b --config other.json x", "/b/other.json"),
        ("create -b /b -f /c/other.json x", "/c/other.json"),
    ] {
        let Action::Start(start) = action(line) else { panic!("{line}") };
        assert_eq!(start.document(), PathBuf::from(path), "{line}");
    }
}

#[test]
fn where_readers_differ_the_runtimes_own_counts_and_what_is_there() {
    for (line, gnu, there, document) in [
        ("create -bundle /b x", false, &["/b/config.json"][..], "/b/config.json"),
        ("create -bundle /b x", false, &["undle/config.json"], "undle/config.json"),
        ("create -bundle /b x", true, &["/b/config.json"], "undle/config.json"),
        ("create -bundle /b x", false, &[], "/b/config.json"),
        ("create -b=/b x", true, &[], "=/b/config.json"),
        ("create -b=/b x", false, &[], "/b/config.json"),
        // What two read alike is not asked twice.
        ("create -b /b x", true, &[], "/b/config.json"),
        ("create --config o.json -b /b x", true, &["/b/o.json"], "/b/o.json"),
        ("create --config config.json -b /b x", true, &["config.json"], "/b/config.json"),
    ] {
        let Action::Start(start) = action(line) else { panic!("{line}") };
        let exists = |path: &Path| there.iter().any(|there| Path::new(there) == path);
        let settled = start.settle(gnu, &exists);
        assert_eq!(settled.document(), PathBuf::from(document), "{line}");
        assert_eq!(
            start.is_plain(),
            !line.contains("-bundle") && !line.contains('=') && !line.contains("o.json"),
            "{line}"
        );
    }
    let Action::Start(start) = action("run -b /b -f o.json x") else { panic!() };
    let settled = start.settle(true, &|path| path == Path::new("o.json"));
    assert_eq!(settled.document(), std::path::absolute("o.json").unwrap());
}

#[test]
fn exec_is_taken_with_a_process_file_only() {
    let exec = |process: &str, id: Option<&str>| Action::Exec {
        process: process.into(),
        id: id.map(Into::into),
    };
    assert_eq!(
        action("--root /r exec --process /t/p --console-socket /s --detach --pid-file f x"),
        exec("/t/p", Some("x"))
    );
    assert_eq!(action("exec -p=/t/p x"), exec("/t/p", Some("x")));
    assert_eq!(action("exec -dp /t/p x"), exec("/t/p", Some("x")));
    assert_eq!(action("exec -d --proc=/t/p x"), exec("/t/p", Some("x")));
    assert_eq!(action("exec --process /t/p"), exec("/t/p", None));
    assert_eq!(action("exec x sh --process /etc/shadow"), Action::Pass);
    assert_eq!(action("exec --env A=B --user 1 x sh"), Action::Pass);
    assert_eq!(action("exec -u --process x sh"), Action::Pass);
}

#[test]
fn the_log_is_known_for_every_subcommand() {
    let line = read("--log /b/log.json --log-format=json --root=/r create x");
    assert_eq!(line.log, Some("/b/log.json".into()));
    assert_eq!(line.log_format, LogFormat::Json);
    assert_eq!(line.root, Some("/r".into()));
    assert_eq!(read("--log-format json --log-format text state x").log_format, LogFormat::Text);
}

/// One flag of crun's and its value, in each way that GNU's readers take.
fn gnu(name: &'static str, letter: Option<char>) -> impl Strategy<Value = Vec<String>> {
    let value = "[a-z/=-]{1,6}";
    (value, 0..6_usize, 1..=name.len()).prop_map(move |(value, way, length)| {
        match (way, letter) {
            (0, _) => vec![format!("--{name}"), value],
            (1, _) => vec![format!("--{name}={value}")],
            (2, Some(letter)) => vec![format!("-{letter}"), value],
            (3, Some(letter)) => vec![format!("-{letter}{value}")],
            (4, Some(letter)) => vec![format!("-dd{letter}"), value],
            // Its beginning, if no other name begins so.
            (5, _) => {
                let others = START.crun.iter().filter(|other| **other != name);
                let shared = others.map(|other| {
                    other.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count()
                });
                let least = shared.max().unwrap_or(0) + 1;
                vec![format!("--{}", &name[..length.max(least).min(name.len())]), value]
            }
            _ => vec![format!("--{name}"), value],
        }
    })
}

/// Flags of runc's in each way that Go's readers take.
fn go(name: &'static str) -> impl Strategy<Value = Vec<String>> {
    ("[a-z/=-]{1,6}", 0..4_usize).prop_map(move |(value, way)| match way {
        0 => vec![format!("--{name}"), value],
        1 => vec![format!("--{name}={value}")],
        2 => vec![format!("-{name}"), value],
        _ => vec![format!("-{name}={value}")],
    })
}

/// Whatever else is on the line, the bundle is what it says.
fn has_bundle(line: &[String], gnu: bool, bundle: &str) -> Result<(), TestCaseError> {
    let Action::Start(start) = parse(line).action else {
        return Err(TestCaseError::fail(format!("{line:?} starts nothing")));
    };
    let settled = start.settle(gnu, &|_| false);
    prop_assert_eq!(settled.bundle, Some(PathBuf::from(bundle)), "{:?}", line);
    prop_assert_eq!(settled.id, Some(OsString::from("id")), "{:?}", line);
    Ok(())
}

proptest! {
    /// A bundle that crun takes is not missed.
    #[test]
    fn cruns_bundle_is_found(
        before in prop_oneof![
            Just(vec![]),
            Just(vec!["--log-level".to_owned(), "debug".to_owned()]),
            Just(vec!["--log-f=json".to_owned(), "--debug".to_owned(), "--roo".to_owned(), "run".to_owned()]),
        ],
        flags in proptest::collection::vec(
            prop_oneof![
                gnu("config", Some('f')),
                gnu("pid-file", None),
                gnu("console-socket", None),
                gnu("preserve-fds", None),
                Just(vec!["-d".to_owned()]),
                Just(vec!["--det".to_owned()]),
                Just(vec!["--no-pivot".to_owned()]),
            ],
            0..4,
        ),
        (bundle, last) in ("[a-z/=-]{1,6}", 0..5_usize),
    ) {
        let mut line = before;
        line.push("run".to_owned());
        line.extend(flags.into_iter().flatten());
        line.extend(match last {
            0 => vec!["-b".to_owned(), bundle.clone()],
            1 => vec![format!("-b{bundle}")],
            2 => vec![format!("-db{bundle}")],
            3 => vec![format!("--bund={bundle}")],
            _ => vec!["--bundle".to_owned(), bundle.clone()],
        });
        line.push("id".to_owned());
        has_bundle(&line, true, &bundle)?;
    }

    /// A bundle that runc takes is not missed.
    #[test]
    fn runcs_bundle_is_found(
        flags in proptest::collection::vec(
            prop_oneof![
                go("pid-file"),
                go("console-socket"),
                go("pidfd-socket"),
                go("lsm-profile"),
                Just(vec!["-d".to_owned()]),
                Just(vec!["-detach".to_owned()]),
                Just(vec!["--no-pivot=true".to_owned()]),
            ],
            0..4,
        ),
        (bundle, last) in ("[a-z/=-]{1,6}", 0..4_usize),
    ) {
        let mut line = vec!["--criu".to_owned(), "create".to_owned(), "restore".to_owned()];
        line.extend(flags.into_iter().flatten());
        line.extend(match last {
            0 => vec!["-b".to_owned(), bundle.clone()],
            1 => vec![format!("-b={bundle}")],
            2 => vec![format!("-bundle={bundle}")],
            _ => vec!["--bundle".to_owned(), bundle.clone()],
        });
        line.push("id".to_owned());
        has_bundle(&line, false, &bundle)?;
    }

    /// Whatever is typed is read, and a subcommand is only ever what stands behind the flags.
    #[test]
    fn every_line_is_read(words in proptest::collection::vec("-{0,2}[a-z=/]{0,6}", 0..8)) {
        let line = parse(&words);
        let known = ["create", "run", "restore", "exec"];
        let named = words.iter().any(|word| known.contains(&word.as_str()));
        prop_assert!(named || line.action == Action::Pass);
    }
}
