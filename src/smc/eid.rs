//! User EIDs: names by which two machines know that they may speak SMC version 2 to each other
//! (`smc_clc_ueid_add` in `net/smc/smc_clc.c`).

use std::fmt;
use std::str::FromStr;

use crate::policy::is_eid;

/// Length of an EID on the wire.
const LENGTH: usize = 32;

/// A user EID, padded with blanks to 32 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eid(String);

/// A text is no EID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no user EID: up to 32 of A-Z, 0-9, '.' and '-', a letter or digit first")]
pub struct EidError(String);

impl FromStr for Eid {
    type Err = EidError;

    fn from_str(text: &str) -> Result<Self, EidError> {
        if is_eid(text) {
            Ok(Self(format!("{text:<LENGTH$}")))
        } else {
            Err(EidError(text.to_owned()))
        }
    }
}

impl Eid {
    /// With its blanks.
    pub fn padded(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eid_is_what_the_kernel_takes() {
        let longest = "A".repeat(32);
        for (text, good) in [
            ("RDMA-CTK", true),
            ("0.A", true),
            (&longest, true),
            (&"A".repeat(33), false),
            ("", false),
            ("-A", false),
            ("rdma-ctk", false),
            ("A B", false),
            ("A\0", false),
        ] {
            let eid = text.parse::<Eid>();
            assert_eq!(eid.is_ok(), good, "{text}");
            if let Ok(eid) = eid {
                assert_eq!((eid.padded().len(), eid.to_string()), (32, text.to_owned()));
            }
        }
    }
}
