//! Tasks of the project that are more than one command.
fn main() {}
