//! What the admin has to do and to know after a change.

use std::path::{Path, PathBuf};

use super::super::change::Plan;
use super::edit::Wanted;
use super::node::Node;
use super::version::Version;
use super::{Form, Options, PLUGIN, TOLERATE};

/// containerd's default for `plugin_config_path`.
const PLUGIN_CONFIG_PATH: &str = "/etc/nri/conf.d";

/// Adds it to the plan's notes.
pub(super) fn advise(
    node: &Node,
    options: &Options,
    wanted: &Wanted,
    locate: &dyn Fn(&Path) -> PathBuf,
    plan: &mut Plan,
) {
    let changes = !plan.files.is_empty();
    let now = &node.settings;
    let mut note = |text: String| plan.notes.push(text);
    if changes {
        note(
            "restart containerd (`systemctl restart containerd`); containers that run go on".into(),
        );
    } else if node.disabled() {
        note("nothing to change in NRI's table".into());
    } else {
        note("nothing to change: NRI is on and takes plugins".into());
    }
    match options.form {
        Form::Service if changes => {
            note("then start the plugin: `systemctl enable --now rdma-ctk`".into());
        }
        Form::Service => {}
        Form::Plugin => {
            note("containerd starts the plugin; rdma-ctk.service is not needed beside it".into());
            let folder = now.plugin_config_path.as_deref().unwrap_or(PLUGIN_CONFIG_PATH);
            for name in [format!("{}-{PLUGIN}.conf", options.index), format!("{PLUGIN}.conf")] {
                let path = Path::new(folder).join(name);
                if locate(&path).is_file() {
                    note(format!(
                        "{} is the policy then, in place of /etc/rdma-ctk/config.toml",
                        path.display()
                    ));
                }
            }
        }
    }
    if !options.require {
        return;
    }
    match node.version.filter(|version| options.version.is_some() || *version >= Version::VALIDATOR)
    {
        None => note(
            "containerd's version is not known, so it is not told to require the plugin; name it \
             with --containerd-version"
                .into(),
        ),
        Some(version) if version < Version::VALIDATOR => note(format!(
            "containerd {version} cannot be told to require the plugin (2.2 can): containers that \
             are created while it is away are refused when they start, or named by `rdma-ctk \
             inspect`"
        )),
        Some(_) => {
            let key = wanted.tolerate.as_deref().or(now.tolerate.as_deref()).unwrap_or(TOLERATE);
            note(format!(
                "no container of this node is created while the plugin is away, those of static \
                 pods too; pods that have to start all the same (control plane, network) need the \
                 annotation {key}: \"true\""
            ));
            if wanted.validator == Some(true) && !now.rejects.is_empty() {
                note(format!(
                    "the validator was off, and with it comes into force what it is told to \
                     reject: {}",
                    now.rejects.join(", ")
                ));
            }
        }
    }
}
