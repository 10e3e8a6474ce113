//! Tests of whole decisions, by part, on nodes that are made here.

mod machines;
mod memlock;
mod nodes;
mod selection;
