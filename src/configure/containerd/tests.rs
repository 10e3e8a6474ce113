use insta::assert_snapshot;

use super::merged::glob;
use super::node::DROP_IN;
use super::*;
use crate::configure::{ApplyError, Owner, apply, undo, undo_plan};

/// A node with files below its `etc`, and NRI's folder of plugins in it.
struct Fixture {
    folder: tempfile::TempDir,
    roots: Roots,
}

const MAIN: &str = "containerd/config.toml";
const OURS: &str = "containerd/conf.d/99-rdma-ctk.toml";

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Self { roots: Roots::below(folder.path()), folder };
        fs::create_dir_all(&fixture.roots.etc).unwrap();
        for (name, text) in files {
            fixture.write(name, text);
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.roots.etc.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn plan(&self, options: &Options) -> Plan {
        plan(&self.roots, options).unwrap()
    }

    /// The diff of a plan, with paths as the node has them.
    fn diff(&self, options: &Options) -> String {
        self.plan(options).diff().replace(self.folder.path().to_str().unwrap(), "")
    }

    /// Everything below `etc`, with modes.
    fn everything(&self) -> Vec<(String, u32, String)> {
        fn walk(folder: &Path, all: &mut Vec<(String, u32, String)>) {
            use std::os::unix::fs::PermissionsExt;
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                let found = fs::symlink_metadata(&path).unwrap();
                let text = if found.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else {
                    fs::read_to_string(&path).unwrap_or_default()
                };
                all.push((path.display().to_string(), found.permissions().mode(), text));
                if found.is_dir() {
                    walk(&path, all);
                }
            }
        }
        let mut all = Vec::new();
        walk(&self.roots.etc, &mut all);
        all.sort();
        all
    }
}

fn version(text: &str) -> Options {
    Options { version: Some(text.parse().unwrap()), ..Options::default() }
}

fn plugin(text: &str) -> Options {
    Options { form: Form::Plugin, ..version(text) }
}

/// The plan does what it says once, does nothing twice, and is taken back to the byte.
fn there_and_back(fixture: &Fixture, options: &Options) {
    let before = fixture.everything();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(options)).unwrap();
    assert_ne!(fixture.everything(), before);
    assert_eq!(fixture.plan(options).files, [], "twice is once");
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.everything(), before);
    assert!(matches!(
        undo_plan(&fixture.roots, Owner::Containerd),
        Err(ApplyError::NoRecord { .. })
    ));
}

const V2: &str = r#"# The node team owns this file.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.9" # pinned
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.nri.v1.nri"]
  # Off until somebody needs it.
  disable = true # see ticket 12
  disable_connections = true
  plugin_request_timeout = "3s"

[metrics]
  address = ""
"#;

#[test]
fn version_2_is_edited_in_place_with_its_comments() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /etc/containerd/config.toml
    +++ /etc/containerd/config.toml
    @@ -8,8 +8,8 @@
     
     [plugins."io.containerd.nri.v1.nri"]
       # Off until somebody needs it.
    -  disable = true # see ticket 12
    -  disable_connections = true
    +  disable = false # see ticket 12
    +  disable_connections = false
       plugin_request_timeout = "3s"
     
     [metrics]
    "#);
    there_and_back(&fixture, &version("1.7.34"));
}

#[test]
fn version_2_without_the_table_gets_one() {
    let fixture = Fixture::new(&[(MAIN, "version = 2\n\n[grpc]\n  uid = 0 # root\n")]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /etc/containerd/config.toml
    +++ /etc/containerd/config.toml
    @@ -2,3 +2,6 @@
     
     [grpc]
       uid = 0 # root
    +
    +[plugins."io.containerd.nri.v1.nri"]
    +disable = false
    "#);
    there_and_back(&fixture, &version("1.7.34"));
}

#[test]
fn version_3_needs_nothing_before_2_2() {
    let fixture = Fixture::new(&[(MAIN, "version = 3\n")]);
    for version in [version("2.0.5"), version("2.1.9"), Options::default()] {
        let plan = fixture.plan(&version);
        assert_eq!(plan.files, []);
        assert!(plan.notes[0].starts_with("nothing to change"), "{:?}", plan.notes);
    }
}

#[test]
fn version_3_requires_us_where_the_runtime_can() {
    let fixture = Fixture::new(&[(MAIN, "version = 3\n\n[debug]\n  level = 'info'\n")]);
    assert_snapshot!(fixture.diff(&version("2.2.0")), @r#"
    --- /etc/containerd/config.toml
    +++ /etc/containerd/config.toml
    @@ -2,3 +2,8 @@
     
     [debug]
       level = 'info'
    +
    +[plugins."io.containerd.nri.v1.nri".default_validator]
    +enable = true
    +required_plugins = ["rdma-ctk"]
    +tolerate_missing_plugins_annotation = "tolerate-missing.rdma-ctk.io"
    "#);
    there_and_back(&fixture, &version("2.2.0"));
    let without = Options { require: false, ..version("2.2.0") };
    assert_eq!(fixture.plan(&without).files, []);
}

#[test]
fn new_settings_stand_as_deep_as_their_neighbours() {
    let text = format!(
        "version = 2\n[plugins.'{TABLE}']\n    # how long\n    plugin_request_timeout = '3s'\n"
    );
    let fixture = Fixture::new(&[(MAIN, &text)]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @"
    --- /etc/containerd/config.toml
    +++ /etc/containerd/config.toml
    @@ -2,3 +2,4 @@
     [plugins.'io.containerd.nri.v1.nri']
         # how long
         plugin_request_timeout = '3s'
    +    disable = false
    ");
}

const V4: &str = "version = 4
imports = ['/etc/containerd/conf.d/*.toml']

[plugins]
  [plugins.'io.containerd.nri.v1.nri']
    disable = true

    [plugins.'io.containerd.nri.v1.nri'.default_validator]
      required_plugins = ['policy']
      reject_oci_hook_adjustment = true
      tolerate_missing_plugins_annotation = 'example.org/tolerate'
";

#[test]
fn version_4_with_imports_gets_a_file_of_our_own() {
    let fixture = Fixture::new(&[(MAIN, V4), ("containerd/conf.d/50-other.toml", "version = 4\n")]);
    // Version 4 itself says that the validator is there.
    assert_snapshot!(fixture.diff(&Options::default()), @r#"
    --- /dev/null
    +++ /etc/containerd/conf.d/99-rdma-ctk.toml
    @@ -0,0 +1,10 @@
    +# Made by `rdma-ctk configure containerd --nri`; `--undo` takes it away. It is read
    +# after the other files, and its settings win over theirs.
    +version = 4
    +
    +[plugins."io.containerd.nri.v1.nri"]
    +disable = false
    +
    +[plugins."io.containerd.nri.v1.nri".default_validator]
    +enable = true
    +required_plugins = ["policy", "rdma-ctk"]
    "#);
    assert_snapshot!(fixture.plan(&Options::default()).notes.join("\n"), @r#"
    restart containerd (`systemctl restart containerd`); containers that run go on
    then start the plugin: `systemctl enable --now rdma-ctk`
    no container of this node is created while the plugin is away, those of static pods too; pods that have to start all the same (control plane, network) need the annotation example.org/tolerate: "true"
    the validator was off, and with it comes into force what it is told to reject: reject_oci_hook_adjustment
    "#);
    there_and_back(&fixture, &Options::default());
    there_and_back(&fixture, &version("2.4.2"));
}

#[test]
fn a_folder_that_is_imported_and_missing_is_made_and_taken_away() {
    let fixture = Fixture::new(&[(MAIN, V4)]);
    there_and_back(&fixture, &version("2.3.0"));
    assert!(!fixture.path("containerd/conf.d").exists());
}

#[test]
fn a_later_file_that_says_otherwise_is_edited_itself() {
    let later = "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n";
    let fixture = Fixture::new(&[
        (MAIN, "version = 3\nimports = [\"conf.d/*.toml\"]\n"),
        ("containerd/conf.d/zz-site.toml", later),
    ]);
    assert_snapshot!(fixture.diff(&version("2.1.9")), @"
    --- /etc/containerd/conf.d/zz-site.toml
    +++ /etc/containerd/conf.d/zz-site.toml
    @@ -1,2 +1,2 @@
     [plugins.'io.containerd.nri.v1.nri']
    -disable = true
    +disable = false
    ");
    there_and_back(&fixture, &version("2.1.9"));
}

#[test]
fn containerd_1_7_takes_the_last_table_as_a_whole() {
    let main = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    let table = "[plugins.\"io.containerd.nri.v1.nri\"]\n";
    // A table of somebody else's is completed where it is.
    let other = format!("version = 2\n{table}socket_path = \"/run/nri.sock\"\n");
    let fixture = Fixture::new(&[(MAIN, main), ("containerd/conf.d/10-site.toml", &other)]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /etc/containerd/conf.d/10-site.toml
    +++ /etc/containerd/conf.d/10-site.toml
    @@ -1,3 +1,4 @@
     version = 2
     [plugins."io.containerd.nri.v1.nri"]
     socket_path = "/run/nri.sock"
    +disable = false
    "#);
    there_and_back(&fixture, &version("1.7.34"));
    // Without one there is nothing that ours could hide.
    let fixture = Fixture::new(&[(MAIN, main)]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /dev/null
    +++ /etc/containerd/conf.d/99-rdma-ctk.toml
    @@ -0,0 +1,6 @@
    +# Made by `rdma-ctk configure containerd --nri`; `--undo` takes it away. It is read
    +# after the other files, and its settings win over theirs.
    +version = 2
    +
    +[plugins."io.containerd.nri.v1.nri"]
    +disable = false
    "#);
    there_and_back(&fixture, &version("1.7.34"));
    // A pattern of which nobody knows the folder is no place.
    let relative = "version = 2\nimports = [\"conf.d/*.toml\"]\n";
    let fixture = Fixture::new(&[(MAIN, relative)]);
    assert_eq!(fixture.plan(&version("1.7.34")).files[0].path, fixture.path(MAIN));
    assert_eq!(fixture.plan(&version("2.2.0")).files[0].path, fixture.path(OURS));
}

#[test]
fn without_a_file_the_least_one_is_made() {
    let fixture = Fixture::new(&[]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /dev/null
    +++ /etc/containerd/config.toml
    @@ -0,0 +1,4 @@
    +version = 2
    +
    +[plugins."io.containerd.nri.v1.nri"]
    +disable = false
    "#);
    assert_snapshot!(fixture.diff(&version("2.4.2")), @r#"
    --- /dev/null
    +++ /etc/containerd/config.toml
    @@ -0,0 +1,6 @@
    +version = 4
    +
    +[plugins."io.containerd.nri.v1.nri".default_validator]
    +enable = true
    +required_plugins = ["rdma-ctk"]
    +tolerate_missing_plugins_annotation = "tolerate-missing.rdma-ctk.io"
    "#);
    assert_eq!(fixture.plan(&version("2.1.9")).files, []);
    // A version that is not known may be one that has NRI off.
    assert!(fixture.diff(&Options::default()).contains("+version = 2"));
    there_and_back(&fixture, &version("1.7.34"));
    let fixture = Fixture::new(&[(MAIN, "# nothing yet")]);
    assert_snapshot!(fixture.diff(&version("1.7.34")), @r#"
    --- /etc/containerd/config.toml
    +++ /etc/containerd/config.toml
    @@ -1 +1,5 @@
    -# nothing yet
    \ No newline at end of file
    +# nothing yet
    +version = 2
    +
    +[plugins."io.containerd.nri.v1.nri"]
    +disable = false
    "#);
    there_and_back(&fixture, &version("1.7.34"));
}

#[test]
fn inline_and_dotted_tables_are_understood() {
    for text in [
        "version = 2\nplugins = { \"io.containerd.nri.v1.nri\" = { disable = true } }\n",
        "version = 2\nplugins.\"io.containerd.nri.v1.nri\".disable = true\n",
        "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = true\ndefault_validator = { enable = false }\n",
    ] {
        let fixture = Fixture::new(&[(MAIN, text)]);
        for options in [version("1.7.34"), version("2.2.0")] {
            there_and_back(&fixture, &options);
        }
        apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("2.2.0"))).unwrap();
        let file = File::parse("x".into(), fixture.read(MAIN)).unwrap();
        let settings = settings([&file], Merge::Deep);
        assert_eq!((settings.disable, settings.validator), (Some(false), Some(true)), "{text}");
        assert_eq!(settings.required_plugins, ["rdma-ctk"]);
    }
}

#[test]
fn a_plugin_that_is_required_by_its_index_is_required() {
    let text = format!(
        "version = 4\n[plugins.'{TABLE}'.default_validator]\nenable = true\nrequired_plugins = \
         ['10-rdma-ctk']\ntolerate_missing_plugins_annotation = 'x'\n"
    );
    let fixture = Fixture::new(&[(MAIN, &text)]);
    assert_eq!(fixture.plan(&Options::default()).files, []);
    let other = Options { index: "20".into(), ..Options::default() };
    assert!(
        fixture.diff(&other).contains("['10-rdma-ctk', \"rdma-ctk\"]")
            || fixture.diff(&other).contains("rdma-ctk\"]")
    );
}

#[test]
fn settings_in_tables_where_nobody_looks_are_named() {
    let fixture = Fixture::new(&[(
        MAIN,
        "version = 3\nplugin_request_timeout = '5s'\ndisable = false\ndisabled_plugins = \
         ['io.containerd.grpc.v1.cri']\n[nri]\nplugin_config_path = '/x'\n[plugins.nri]\n\
         disable_connections = true\n[plugins.'io.containerd.nri.v1.nri']\n\
         plugin_request_timeout = '2s'\n",
    )]);
    assert_snapshot!(fixture.plan(&version("2.1.9")).notes.join("\n"), @r#"
    /etc/containerd/config.toml: plugin_request_timeout is not in [plugins."io.containerd.nri.v1.nri"], and containerd ignores it there
    /etc/containerd/config.toml: disable is not in [plugins."io.containerd.nri.v1.nri"], and containerd ignores it there
    /etc/containerd/config.toml: nri.plugin_config_path is not in [plugins."io.containerd.nri.v1.nri"], and containerd ignores it there
    /etc/containerd/config.toml: plugins.nri.disable_connections is not in [plugins."io.containerd.nri.v1.nri"], and containerd ignores it there
    /etc/containerd/config.toml: disabled_plugins takes io.containerd.grpc.v1.cri away, and with it NRI; take it off the list
    nothing to change in NRI's table
    containerd 2.1.9 cannot be told to require the plugin (2.2 can): containers that are created while it is away are refused when they start, or named by `rdma-ctk inspect`
    "#);
}

#[test]
fn what_must_not_be_changed_is_refused_in_words() {
    let refused = |text: &str, options: &Options| {
        let fixture = Fixture::new(&[(MAIN, text)]);
        let error = plan(&fixture.roots, options).unwrap_err().to_string();
        error.replace(fixture.folder.path().to_str().unwrap(), "")
    };
    assert_snapshot!(refused("disabled_plugins = [\"cri\"]\n", &version("1.7.34")), @"/etc/containerd/config.toml: configuration version 1; version 2 is the first that can be changed here. `containerd config migrate` prints the file in the present version");
    assert_snapshot!(refused("version = 1\n", &version("1.7.34")), @"/etc/containerd/config.toml: configuration version 1; version 2 is the first that can be changed here. `containerd config migrate` prints the file in the present version");
    assert_snapshot!(refused("version = 2\n", &version("1.6.20")), @"containerd 1.6.20 cannot raise the locked-memory limit through NRI: 1.7.7 is the first that can; `rdma-ctk configure containerd --runtime` works with older ones");
    assert_snapshot!(refused("version = 2\n[plugins\n", &version("1.7.34")), @"/etc/containerd/config.toml: line 2: unclosed table, expected `]`");
    assert_snapshot!(refused("version = 2\nplugins = 1\n", &version("1.7.34")), @r#"/etc/containerd/config.toml: "plugins" is no table"#);
    assert_snapshot!(refused("# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.\nversion = 2\n", &version("1.7.34")), @"/etc/containerd/config.toml: says that it is generated and not to be edited; make its template import /etc/containerd/conf.d/*.toml, or name another file with --config");
    assert_snapshot!(refused("version = 2\nimports = ['/etc/absent.toml']\n", &version("1.7.34")), @"/etc/absent.toml: No such file or directory (os error 2)");
    assert_snapshot!(refused("version = 3\n", &Options { index: "7".into(), ..version("2.1.9") }), @r#"plugin index "7": two digits are wanted, such as 10"#);
    // The generated file itself needs no change here.
    let k3s = "# File generated by k3s. DO NOT EDIT.\nversion = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n";
    let fixture = Fixture::new(&[(MAIN, k3s)]);
    there_and_back(&fixture, &version("2.2.0"));
}

#[test]
fn the_plugin_form_is_a_link_where_containerd_looks() {
    let fixture = Fixture::new(&[]);
    let folder = fixture.path("plugins");
    let main = format!(
        "version = 3\n[plugins.'{TABLE}']\ndisable_connections = true\nplugin_path = '{}'\n",
        folder.display()
    );
    fixture.write(MAIN, &main);
    fixture.write("nri/conf.d/rdma-ctk.conf", "claims = 'off'\n");
    assert_snapshot!(fixture.diff(&plugin("2.1.9")), @"+/etc/plugins/10-rdma-ctk -> /usr/bin/rdma-ctk");
    assert_snapshot!(fixture.plan(&plugin("2.1.9")).notes.join("\n"), @"
    restart containerd (`systemctl restart containerd`); containers that run go on
    containerd starts the plugin; rdma-ctk.service is not needed beside it
    /etc/nri/conf.d/rdma-ctk.conf is the policy then, in place of /etc/rdma-ctk/config.toml
    containerd 2.1.9 cannot be told to require the plugin (2.2 can): containers that are created while it is away are refused when they start, or named by `rdma-ctk inspect`
    ");
    there_and_back(&fixture, &plugin("2.1.9"));

    // Another index takes the place of the first, and the service that of both.
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&plugin("2.1.9"))).unwrap();
    let later = Options { index: "20".into(), ..plugin("2.1.9") };
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&later)).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    assert!(folder.join("20-rdma-ctk").is_symlink());
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("2.1.9"))).unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.read(MAIN), main);
    assert!(!folder.exists());
}

#[test]
fn programs_put_there_by_hand_are_left_and_named() {
    let fixture = Fixture::new(&[("plugins/10-rdma-ctk", "#!/bin/sh\n"), ("plugins/20-other", "")]);
    let main = format!(
        "version = 3\n[plugins.'{TABLE}']\nplugin_path = '{}'\n",
        fixture.path("plugins").display()
    );
    fixture.write(MAIN, &main);
    for options in [version("2.1.9"), plugin("2.1.9")] {
        let plan = fixture.plan(&options);
        assert_eq!(plan.files, []);
        assert!(plan.notes[0].contains("10-rdma-ctk was put there by hand"), "{:?}", plan.notes);
    }
}

#[test]
fn other_options_change_what_was_made_and_undo_leads_to_the_beginning() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    let before = fixture.everything();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("2.2.0"))).unwrap();
    assert!(fixture.read(MAIN).contains("required_plugins"));
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.everything(), before);
    // A file of ours that is wanted no more goes.
    let fixture =
        Fixture::new(&[(MAIN, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n")]);
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("2.2.0"))).unwrap();
    assert!(fixture.path(OURS).exists());
    let without = Options { require: false, ..version("2.2.0") };
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&without)).unwrap();
    assert!(!fixture.path(OURS).exists());
}

#[test]
fn what_others_have_changed_since_is_not_lost() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    let stale = fixture.plan(&version("1.7.34"));
    fixture.write(MAIN, &format!("{V2}# more\n"));
    let error = apply(&fixture.roots, Owner::Containerd, &stale).unwrap_err();
    assert!(matches!(error, ApplyError::Changed { .. }), "{error}");

    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    let edited = fixture.read(MAIN) + "# and more\n";
    fixture.write(MAIN, &edited);
    let theirs = format!("{V2}# more\n# and more\n");
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    assert!(back.notes[0].contains("only what is rdma-ctk's is taken out"), "{:?}", back.notes);
    assert_eq!(back.files[0].after, Some(Content::Text(theirs.clone())));

    // A change on top of theirs goes back to theirs, too.
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("2.2.0"))).unwrap();
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.read(MAIN), theirs);

    // Where it cannot be told what is ours the way by hand is named.
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    fixture.write(MAIN, "[");
    let error = undo_plan(&fixture.roots, Owner::Containerd).unwrap_err().to_string();
    assert!(error.contains("config.toml.rdma-ctk.bak"), "{error}");
}

#[test]
fn a_cut_after_the_backup_or_the_record_leads_back_too() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    let before = fixture.everything();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    // As if the file had not been written any more.
    fs::copy(fixture.path("containerd/config.toml.rdma-ctk.bak"), fixture.path(MAIN)).unwrap();
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    assert_eq!(back.files, []);
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.everything(), before);
}

/// As if the machine had gone down after so many steps of an undo.
#[test]
fn an_undo_that_was_cut_short_is_taken_up_again() {
    let main = "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n";
    for options in [version("1.7.34"), version("2.2.0"), plugin("2.1.9")] {
        for text in [V2, main] {
            let fixture = Fixture::new(&[(MAIN, text)]);
            if options.form == Form::Plugin {
                let path = fixture.path("plugins");
                let table = format!("[plugins.'{TABLE}']\nplugin_path = '{}'\n", path.display());
                fixture.write(MAIN, &format!("version = 3\n{table}"));
            }
            let before = fixture.everything();
            apply(&fixture.roots, Owner::Containerd, &fixture.plan(&options)).unwrap();
            let backup = fixture.path("containerd/config.toml.rdma-ctk.bak");
            let record = fixture.path("rdma-ctk/configured.json");
            let marked = fs::read_to_string(&record).unwrap();
            assert!(marked.contains("\"undoing\": false"), "{marked}");
            fs::write(&record, marked.replace("\"undoing\": false", "\"undoing\": true")).unwrap();
            if backup.exists() {
                fs::rename(&backup, fixture.path(MAIN)).unwrap();
            }
            let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
            undo(&fixture.roots, Owner::Containerd, &back).unwrap();
            assert_eq!(fixture.everything(), before);
        }
    }
}

#[test]
fn configuring_after_half_an_undo_begins_anew() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    let before = fixture.everything();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    let record = fixture.path("rdma-ctk/configured.json");
    let marked = fs::read_to_string(&record).unwrap();
    fs::write(&record, marked.replace("\"undoing\": false", "\"undoing\": true")).unwrap();
    let backup = fixture.path("containerd/config.toml.rdma-ctk.bak");
    fs::rename(&backup, fixture.path(MAIN)).unwrap();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    assert!(backup.exists());
    let back = undo_plan(&fixture.roots, Owner::Containerd).unwrap();
    undo(&fixture.roots, Owner::Containerd, &back).unwrap();
    assert_eq!(fixture.everything(), before);
}

#[test]
fn a_backup_that_is_gone_is_told() {
    let fixture = Fixture::new(&[(MAIN, V2)]);
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    let backup = fixture.path("containerd/config.toml.rdma-ctk.bak");
    fs::remove_file(&backup).unwrap();
    let error = undo_plan(&fixture.roots, Owner::Containerd).unwrap_err();
    assert!(matches!(error, ApplyError::NoBackup { .. }), "{error}");
    assert!(error.to_string().contains("config.toml.rdma-ctk.bak, which is gone"), "{error}");
    assert!(fixture.read(MAIN).contains("disable = false"));
}

/// As `containerd config dump` of 1.7.24 and 2.4.2 shows it for these two files.
#[test]
fn lists_and_tables_of_imports_come_together_by_version() {
    let first = format!(
        "[plugins.'{TABLE}']\ndisable = true\n[plugins.'{TABLE}'.default_validator]\n\
         enable = true\nrequired_plugins = ['a', 'b']\n"
    );
    let second = format!(
        "[plugins.'{TABLE}']\ndisable = false\n[plugins.'{TABLE}'.default_validator]\n\
         required_plugins = ['c']\n"
    );
    let files = [first, second].map(|text| File::parse("x".into(), text).unwrap());
    for (merge, validator) in [(Merge::Deep, Some(true)), (Merge::Whole, None)] {
        let settings = settings(&files, merge);
        assert_eq!(settings.disable, Some(false));
        assert_eq!(settings.required_plugins, ["c"], "{merge:?}");
        assert_eq!(settings.validator, validator, "{merge:?}");
    }
    // An empty list is one too.
    let third = format!("[plugins.'{TABLE}'.default_validator]\nrequired_plugins = []\n");
    let third = File::parse("x".into(), third).unwrap();
    let settings = settings([&files[0], &third], Merge::Deep);
    assert_eq!(settings.required_plugins, [""; 0]);
}

#[test]
fn owner_and_mode_stay() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new(&[(MAIN, V2)]);
    fs::set_permissions(fixture.path(MAIN), fs::Permissions::from_mode(0o600)).unwrap();
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    for name in [MAIN, "containerd/config.toml.rdma-ctk.bak"] {
        let mode = fs::metadata(fixture.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_configuration_that_is_a_link_is_changed_where_it_lies() {
    let fixture = Fixture::new(&[("store/config.toml", V2)]);
    fs::create_dir_all(fixture.path("containerd")).unwrap();
    std::os::unix::fs::symlink("../store/config.toml", fixture.path(MAIN)).unwrap();
    there_and_back(&fixture, &version("1.7.34"));
    apply(&fixture.roots, Owner::Containerd, &fixture.plan(&version("1.7.34"))).unwrap();
    assert!(fixture.path(MAIN).is_symlink());
    assert!(fixture.read("store/config.toml").contains("disable = false"));
}

#[test]
fn the_toleration_is_a_key_that_requests_know() {
    assert_eq!(TOLERATE, crate::request::TOLERATE);
}

#[test]
fn patterns_match_as_in_a_shell() {
    for (pattern, name, expected) in [
        ("*.toml", "a.toml", true),
        ("*.toml", "a.toml.rdma-ctk.bak", false),
        ("runtime_*.toml", DROP_IN, false),
        ("99-?dma*", DROP_IN, true),
        ("a*b*c", "abbcbc", true),
        ("a*b*c", "abbcb", false),
        ("", "", true),
        ("*", "", true),
        ("?", "", false),
    ] {
        assert_eq!(glob(pattern, name), expected, "{pattern:?} {name:?}");
    }
}
