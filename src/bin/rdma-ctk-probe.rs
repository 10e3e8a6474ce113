//! The `rdma-ctk-probe` program; see `rdma_ctk::probe`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(rdma_ctk::probe::command::main() as u8)
}
