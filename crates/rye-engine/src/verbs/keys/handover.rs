//! Recording hand-overs of others: after this the new key is trusted by a document of user space, and the old one is not.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use lillux::{PublicKey, SecretKey};
use rye_item::text::quote_name;
use rye_space::Workspace;
use rye_space::handovers::HANDOVERS_FOLDER;
use rye_space::keys::{self, TRUSTED_FOLDER};
use rye_trust::signature::Timestamp;
use rye_trust::{Handover, Identity};

/// The largest hand-over that is copied.
const MAX_HANDOVER_BYTES: u64 = 16 << 10;

/// What to say about the hand-overs that a workspace follows, and whether they are recorded now.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandoverRecord {
    /// One line for each.
    pub(crate) notices: Vec<String>,
    /// Whether user space was changed.
    pub(crate) is_changed: bool,
}

/// Records what the workspace follows. A hand-over that cannot be recorded, because there is no usable key, is followed all
/// the same as long as it lies in the project.
pub(crate) fn record_handovers(workspace: &Workspace, now: Option<&Timestamp>) -> HandoverRecord {
    let mut record = HandoverRecord::default();
    for handover in &workspace.new_handovers {
        let (old, new) = (handover.old_fingerprint(), handover.new_fingerprint());
        let owner =
            workspace.keys.find(&new, &rye_item::Space::Project).map_or("", |known| known.owner.as_str());
        let line =
            format!("the key {old} was replaced by {new}, signed by both; owner {}", quote_name(owner));
        let recorded = now.map_or(Err("no time".to_owned()), |now| record_one(workspace, handover, now));
        record.is_changed |= recorded.is_ok();
        record.notices.push(match recorded {
            Ok(()) => format!("{line}: the new key is trusted in its place"),
            Err(reason) => format!("{line}: it is used, but not recorded: {reason}"),
        });
    }
    record
}

fn record_one(workspace: &Workspace, handover: &Handover, now: &Timestamp) -> Result<(), String> {
    let roots = &workspace.roots;
    let key = keys::own_secret_key(&roots.signing_keys).map_err(|error| error.to_string())?;
    if !workspace.keys.is_trusted_everywhere(&key.public_key()) {
        return Err("your key has no valid identity document".to_owned());
    }
    let source = roots.project_ai().unwrap_or_default().join(HANDOVERS_FOLDER);
    let write = || -> std::io::Result<()> {
        let trusted = roots.user_ai().join(TRUSTED_FOLDER);
        file::create_dirs(&trusted, true)?;
        let _lock = file::Lock::acquire_dir(&trusted)?;
        replace_document(&trusted, handover, &key, now)?;
        store_handover(&source, &roots.user_ai().join(HANDOVERS_FOLDER), handover)?;
        // Last: until it is gone, the next command does the same again.
        file::remove(&trusted.join(format!("{}.toml", handover.old_fingerprint())))
    };
    write().map_err(|error| error.to_string())
}

/// Trusts the new key by a document that says what the old one's says.
fn replace_document(
    trusted: &Path,
    handover: &Handover,
    key: &SecretKey,
    now: &Timestamp,
) -> std::io::Result<()> {
    let documents = keys::identities_in(trusted);
    let find = |wanted: &PublicKey| {
        let mut known = documents.iter().filter_map(|found| found.identity.as_ref().ok());
        known.find(|identity| identity.key == *wanted)
    };
    let Some(old) = find(&handover.old) else { return Ok(()) };
    // Trusted already, by the user's own decision: that stays.
    if find(&handover.new).is_some() {
        return Ok(());
    }
    let identity = Identity {
        may_introduce: old.may_introduce,
        projects: old.projects.clone(),
        ..Identity::new(handover.new.clone(), &old.owner)
    };
    let path = trusted.join(format!("{}.toml", identity.fingerprint));
    keys::write_signed_document(&path, &identity.to_document(), key, now)
}

/// Copies a hand-over, which both keys signed, byte for byte.
pub(super) fn store_handover(from: &Path, to: &Path, handover: &Handover) -> std::io::Result<PathBuf> {
    let name = format!("{}.toml", handover.old_fingerprint());
    let read = file::read_beneath_no_symlinks(from, Path::new(&name), MAX_HANDOVER_BYTES);
    let (bytes, _) = read.map_err(|error| std::io::Error::other(error.to_string()))?;
    if Handover::parse(&bytes).as_ref() != Ok(handover) {
        return Err(std::io::Error::other("the hand-over changed while it was read"));
    }
    file::create_dirs(to, false)?;
    let path = to.join(name);
    file::write_atomic(&path, &bytes, FileMode::Preserve)?;
    Ok(path)
}
