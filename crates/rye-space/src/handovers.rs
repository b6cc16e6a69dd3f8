//! Reading hand-overs from one key to the next, and following those of a project.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lillux::file;
use lillux::{Fingerprint, PublicKey};
use rye_trust::{Handover, KeyRing};

use crate::file_stamp::WatchSet;
use crate::keys::{MAX_DOCUMENT_BYTES, toml_files};
use crate::roots::Roots;

/// Below a space's `.ai/`: hand-overs from one key to the next.
pub const HANDOVERS_FOLDER: &str = "config/keys/handovers";

/// The valid hand-overs in a folder, sorted by file name, with their files. Each file is named after the key that is
/// replaced; what is not valid has no effect.
#[must_use]
pub fn handovers_in(folder: &Path) -> Vec<(PathBuf, Handover)> {
    let names = toml_files(folder).into_iter();
    names
        .filter_map(|name| {
            let (bytes, _) =
                file::read_beneath_no_symlinks(folder, Path::new(&name), MAX_DOCUMENT_BYTES).ok()?;
            let handover = Handover::parse(&bytes).ok()?;
            let is_named = name.trim_end_matches(".toml") == handover.old_fingerprint().as_str();
            is_named.then(|| (folder.join(&name), handover))
        })
        .collect()
}

/// Follows the hand-overs of the project. Gives the keys that were replaced before, and the hand-overs that are new.
pub(crate) fn follow(
    roots: &Roots,
    own_key: Option<&PublicKey>,
    ring: &mut KeyRing,
    notices: &mut Vec<String>,
    watch_set: &mut WatchSet,
) -> (BTreeSet<Fingerprint>, Vec<Handover>) {
    let recorded_folder = roots.user_ai().join(HANDOVERS_FOLDER);
    watch_set.add(recorded_folder.clone());
    let recorded = handovers_in(&recorded_folder);
    // The own former keys stay trusted until they are revoked: other projects have items that they signed.
    let is_own = |handover: &Handover| leads_to_own(handover, &recorded, own_key);
    let retired: BTreeSet<Fingerprint> = recorded
        .iter()
        .filter(|(_, handover)| !is_own(handover))
        .map(|(_, handover)| handover.old_fingerprint())
        .collect();
    let Some(ai) = roots.project_ai() else { return (retired, Vec::new()) };
    let folder = ai.join(HANDOVERS_FOLDER);
    watch_set.add(folder.clone());
    let mut found = Vec::new();
    for (path, handover) in handovers_in(&folder) {
        watch_set.add(path);
        let (old, new) = (handover.old_fingerprint(), handover.new_fingerprint());
        if ring.revocation(&old).is_some() || ring.revocation(&new).is_some() {
            notices.push(format!(
                "the hand-over from the key {old} to {new} is ignored: one of them is revoked"
            ));
        }
        if own_key == Some(&handover.old) {
            notices.push(format!(
                "your key {old} was replaced by {new} elsewhere: bring the new one here: rye keys import FILE"
            ));
        }
        found.push(handover);
    }
    let followed = ring.follow_handovers(&found, own_key, &retired);
    (retired, followed)
}

/// Whether a recorded hand-over is one of the user's own: the own key follows from it.
#[must_use]
pub fn leads_to_own(handover: &Handover, recorded: &[(PathBuf, Handover)], own: Option<&PublicKey>) -> bool {
    let mut key = &handover.new;
    for _ in 0..=recorded.len() {
        if own == Some(key) {
            return true;
        }
        match recorded.iter().find(|(_, next)| next.old == *key) {
            Some((_, next)) => key = &next.new,
            None => return false,
        }
    }
    false
}
