//! The `rdma-ctk` program: parse, dispatch, exit code.
fn main() {}
