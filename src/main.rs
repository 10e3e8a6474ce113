//! The `rdma-ctk` program: parse, dispatch, exit code.

use std::process::ExitCode;

use rdma_ctk::cli::{Cli, Exit, run};

fn main() -> ExitCode {
    match run(&Cli::typed()) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("rdma-ctk: {error}");
            Exit::Failure.into()
        }
    }
}
