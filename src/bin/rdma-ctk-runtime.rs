//! `rdma-ctk-runtime` and `rdma-ctk-hook`: one program under two names.

use std::process::ExitCode;

use rdma_ctk::oci::arena::Arena;
use rdma_ctk::oci::{self, Surroundings};
use rdma_ctk::roots::Roots;

#[global_allocator]
static ARENA: Arena = Arena::new();

fn main() -> ExitCode {
    let roots = Roots::below("/".as_ref());
    let surroundings = Surroundings { roots, variable: &|name| std::env::var_os(name) };
    oci::main(&surroundings, std::env::args_os().collect())
}
