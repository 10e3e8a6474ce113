//! `cargo xtask pages FOLDER`: manual pages and completions, made of the command line itself.

use std::path::Path;

use anyhow::{Context, bail};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use rdma_ctk::cli::Cli;
use rdma_ctk::probe::command::Arguments;

/// Write `FOLDER/man` and `FOLDER/completions`.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let [folder] = arguments else { bail!("usage: cargo xtask pages FOLDER") };
    let folder = Path::new(folder);
    let man = folder.join("man");
    std::fs::create_dir_all(&man).context("cannot make the folder of the manual")?;
    let completions = folder.join("completions");
    std::fs::create_dir_all(&completions).context("cannot make the folder of completions")?;
    for mut command in programs() {
        clap_mangen::generate_to(command.clone(), &man).context("cannot write the manual")?;
        let name = command.get_name().to_owned();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut command, &name, &completions)
                .with_context(|| format!("cannot write completions of {name} for {shell}"))?;
        }
    }
    Ok(())
}

/// The programs that have a command line of their own.
fn programs() -> [Command; 2] {
    [Cli::command(), Arguments::command()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = std::env::temp_dir().join(format!("xtask-pages-{}", std::process::id()));
        run(&[folder.display().to_string()]).unwrap();
        let pages: Vec<String> = std::fs::read_dir(folder.join("man"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        for command in Cli::command().get_subcommands() {
            let page = format!("rdma-ctk-{}.1", command.get_name());
            assert!(pages.contains(&page), "{page} is not among {pages:?}");
        }
        assert!(pages.iter().any(|page| page == "rdma-ctk-probe.1"), "{pages:?}");
        for name in ["rdma-ctk-probe.bash", "_rdma-ctk-probe", "rdma-ctk-probe.fish"] {
            assert!(folder.join("completions").join(name).exists(), "{name}");
        }
        let bash = std::fs::read_to_string(folder.join("completions/rdma-ctk.bash")).unwrap();
        assert!(bash.contains("configure"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
