//! The commands that a person types, one file each.

pub mod exit;
pub mod output;
