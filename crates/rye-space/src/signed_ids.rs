//! The record in user space of which id each nameless content was signed under: read at every start, written by signing.

use std::path::Path;

use lillux::SecretKey;
use lillux::file::{self, FileMode, Lock};
use rye_item::ItemType;
use rye_trust::coverage::{ContentStatus, compare_content};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::signed_ids::{MAX_RECORD_BYTES, SignedId, SignedIds};
use rye_trust::{KeyRing, SignOutcome, sign};

/// Below the user's `.ai/`: the record. Its extension is not one of a config, so that it is not an item itself.
pub const SIGNED_IDS_FILE: &str = "config/trust/signed_ids.txt";

/// Reads the record below the user's `.ai/`. There is none before the first signature.
///
/// # Errors
/// Why it is not used, in words: it is not signed by a key the user trusts everywhere, or damaged.
pub fn read(user_ai: &Path, keys: &KeyRing) -> Result<SignedIds, String> {
    let path = user_ai.join(SIGNED_IDS_FILE);
    let bytes = match file::read_bounded(&path, MAX_RECORD_BYTES as u64) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_absent() => return Ok(SignedIds::default()),
        Err(error) => return Err(error.to_string()),
    };
    let display_path = path.display();
    let layout = FileLayout::parse(&bytes, &rye_trust::identity::signature_format());
    let is_intact =
        matches!(compare_content(ItemType::Config, &bytes, &layout), ContentStatus::Intact { .. });
    let is_trusted = layout.signature.as_ref().is_some_and(|line| {
        keys.find(&line.fingerprint, &rye_item::Space::User).is_some_and(|known| {
            keys.is_trusted_everywhere(&known.key) && known.key.verify(&line.hash, &line.signature)
        })
    });
    if !is_intact || !is_trusted {
        return Err(format!(
            "`{display_path}` is not signed by a key you trust, or changed since: what it records is not used, and the next \
             `rye sign` starts a new one"
        ));
    }
    let text = String::from_utf8_lossy(&bytes);
    SignedIds::parse(&text).map_err(|line| format!("`{display_path}`:{line} is not an entry"))
}

/// Adds what was signed to the record, and to the ring of this process.
///
/// # Errors
/// When the record cannot be written.
pub fn add(
    user_ai: &Path,
    keys: &KeyRing,
    signed: Vec<SignedId>,
    key: &SecretKey,
    now: &Timestamp,
) -> std::io::Result<()> {
    let path = user_ai.join(SIGNED_IDS_FILE);
    let folder = path.parent().unwrap_or(user_ai);
    file::create_dirs(folder, true)?;
    let _lock = Lock::acquire_dir(folder)?;
    // What cannot be read any more binds nothing; it is replaced.
    let mut ids = read(user_ai, keys).unwrap_or_default();
    if ids.add(signed) {
        let text = ids.to_text();
        if let SignOutcome::Written { bytes, .. } =
            sign(text.as_bytes(), &rye_trust::identity::signature_format(), key, now)
        {
            file::write_atomic(&path, &bytes, FileMode::Private)?;
        }
    }
    keys.set_signed_ids(ids);
    Ok(())
}
