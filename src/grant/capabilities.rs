//! What is said about capabilities; whether they may be had is settled by the gates.

use super::{Case, Notes};
use crate::inventory::Hca;

/// Says which capability was not needed, and which one old hardware needs.
pub(super) fn remark(case: &Case<'_>, hcas: &[&Hca], notes: &mut Notes) {
    let asked = &case.request.capabilities;
    if asked.contains("IPC_LOCK") {
        notes.reason(
            "capabilities",
            "IPC_LOCK was not needed: the memlock limit does the same, for every user",
        );
    }
    let erdma = hcas.iter().any(|hca| hca.driver.is("erdma"));
    if erdma && !asked.contains("SYS_RAWIO") {
        notes.reason(
            "capabilities",
            "eRDMA hardware without extended doorbells opens for SYS_RAWIO only, which no path but \
             the runtime wrapper and the podman hook can give (capabilities.rdma-ctk.io: SYS_RAWIO)",
        );
    }
}
