//! Privileges: what root may keep, and that no process gains any.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Confinement, IsolationState, Mechanism, ReceiptRow, SandboxRule};

/// What root keeps where the run needs files of another user.
const RETAINED_CAPABILITIES: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Drops every capability, except that root may still open files of others if the run needs some, and forbids to gain any.
pub(crate) fn drop_capabilities(
    confinement: &Confinement,
    state: &IsolationState,
) -> Result<ReceiptRow, String> {
    let to_message = |error| format!("privileges cannot be dropped: {error}");
    let before = rustix::thread::capabilities(None).map_err(to_message)?;
    // In a user namespace the rights are new, and the user had none.
    let needs_override = !state.has_user_namespace && needs_files_of_others(confinement);
    let retained =
        if needs_override { RETAINED_CAPABILITIES & before.permitted } else { CapabilitySet::empty() };
    if before.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..64 {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            if !retained.contains(capability)
                && matches!(rustix::thread::capability_is_in_bounding_set(capability), Ok(true))
            {
                rustix::thread::remove_capability_from_bounding_set(capability).map_err(to_message)?;
            }
        }
    }
    rustix::thread::set_no_new_privs(true).map_err(to_message)?;
    // Kernels without ambient capabilities have none to clear.
    let _ = rustix::thread::clear_ambient_capability_set();
    let sets =
        CapabilitySets { effective: retained, permitted: retained, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(to_message)?;
    let detail = if retained.is_empty() {
        "none left, none to gain"
    } else {
        "files of other users can be opened, none to gain"
    };
    Ok(ReceiptRow::new(SandboxRule::Privileges, Mechanism::Capabilities, true, detail))
}

/// Whether a path the run works with belongs to another user, or lies in a folder that only another user may enter: a
/// project of another user in a container, a toolchain in another user's home.
fn needs_files_of_others(confinement: &Confinement) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_foreign = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.uid() != own);
    let is_closed = |path: &Path| {
        path.symlink_metadata().is_ok_and(|found| found.uid() != own && found.mode() & 0o005 != 0o005)
    };
    let needed = confinement.write.iter().chain(&confinement.visible).chain(confinement.read.paths());
    confinement.write.iter().any(|path| is_foreign(path))
        || needed.flat_map(|path| path.ancestors()).any(is_closed)
}
