//! Privileges: what root may keep, and that nobody gains any.

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Mechanism, Row, Rule, Stage};

/// What root keeps: files of others below the folders that are open anyway.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Drops every capability but a few of root's, and forbids to gain any.
pub(crate) fn drop_all(stage: &Stage) -> Result<Row, String> {
    let refused = |error| format!("privileges cannot be dropped: {error}");
    let before = rustix::thread::capabilities(None).map_err(refused)?;
    // In a user namespace the rights are new, and the user had none.
    let kept = if stage.has_user_namespace { CapabilitySet::empty() } else { KEPT & before.permitted };
    if before.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..64 {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            if !kept.contains(capability)
                && matches!(rustix::thread::capability_is_in_bounding_set(capability), Ok(true))
            {
                rustix::thread::remove_capability_from_bounding_set(capability).map_err(refused)?;
            }
        }
    }
    rustix::thread::set_no_new_privs(true).map_err(refused)?;
    // Kernels without ambient capabilities have none to clear.
    let _ = rustix::thread::clear_ambient_capability_set();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(refused)?;
    let detail =
        if kept.is_empty() { "none left, none to gain" } else { "only rights over files left, none to gain" };
    Ok(Row::new(Rule::Privileges, Mechanism::Capabilities, true, detail))
}
