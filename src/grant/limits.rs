//! Limits of the rdma cgroup (`rdma.max`), a line for each granted adapter.

use super::gates::carrier;
use super::words::{list, refuse};
use super::{Case, Notes, Refusal};
use crate::inventory::Hca;
use crate::request::{Can, Key};

/// The cgroup v2 file to write.
pub(super) fn limit(
    case: &Case<'_>,
    hcas: &[&Hca],
    notes: &mut Notes,
) -> Result<Vec<(String, String)>, Refusal> {
    let request = case.request;
    let Some(limits) = request.limits else { return Ok(Vec::new()) };
    let words: Vec<String> = [("hca_handle", limits.hca_handle), ("hca_object", limits.hca_object)]
        .into_iter()
        .filter_map(|(name, limit)| Some(format!("{name}={}", limit?)))
        .collect();
    if words.is_empty() {
        return Err(refuse(request, Key::Limits, "it limits nothing"));
    }
    let lacks = match (&request.carrier.unified, &request.carrier.unified_lines) {
        (Can::No(lacks), _) => Some(format!("cannot set rdma.max: {lacks}")),
        (Can::Yes, Can::No(lacks)) if hcas.len() > 1 => Some(format!(
            "cannot limit {} adapters ({}): {lacks}",
            hcas.len(),
            list(hcas.iter().map(|hca| &hca.name))
        )),
        (Can::Yes, _) => None,
    };
    if let Some(lacks) = lacks {
        return Err(refuse(request, Key::Limits, format!("{} {lacks}", carrier(request))));
    }
    let words = words.join(" ");
    let lines: Vec<String> = hcas.iter().map(|hca| format!("{} {words}", hca.name)).collect();
    notes.reason("limits", format!("rdma.max: {}", list(&lines)));
    Ok(vec![("rdma.max".to_owned(), lines.join("\n"))])
}
