//! Whether a placeholder is still what was made. One that was read in full is known again by its inode, size and time, so
//! that a warm server reads none of them twice.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::{MAX_RECORD_BYTES, PlaceholderContent};
use crate::file;

/// What a placeholder looked like when it was last read in full: its size, the time of its last change, its content.
type SeenPlaceholder = (u64, SystemTime, PlaceholderContent);

/// Placeholders that were read in full, by device and inode.
static SEEN: Mutex<Option<HashMap<(u64, u64), SeenPlaceholder>>> = Mutex::new(None);

/// How many placeholders are remembered.
const MAX_SEEN: usize = 4096;

/// How old a change must be before its time tells it from a later one: clocks of file systems tick slowly.
pub(super) const MIN_SETTLED_AGE: Duration = Duration::from_secs(2);

/// Whether a placeholder is at `path` as it was made.
pub(super) fn is_unchanged(path: &Path, content: &PlaceholderContent) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return false };
    let has_kind = match content {
        PlaceholderContent::Folder => metadata.is_dir(),
        PlaceholderContent::File(_) => metadata.is_file(),
    };
    has_kind && (was_seen(&metadata, content) || is_as_made(path, &metadata, content))
}

/// Whether this very file or folder was read before, and has not changed since. A rename changes neither its content's time
/// nor its size.
pub(super) fn was_seen(metadata: &Metadata, content: &PlaceholderContent) -> bool {
    let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = seen.as_ref().and_then(|seen| seen.get(&(metadata.dev(), metadata.ino())));
    found.is_some_and(|(size, modified, known)| {
        *size == metadata.size()
            && metadata.modified().is_ok_and(|time| time == *modified)
            && known == content
    })
}

/// Reads a placeholder, and remembers it if its last change lies far enough back.
fn is_as_made(path: &Path, metadata: &Metadata, content: &PlaceholderContent) -> bool {
    let is_as_made = match content {
        PlaceholderContent::Folder => path.read_dir().is_ok_and(|mut entries| entries.next().is_none()),
        PlaceholderContent::File(text) => {
            file::read_bounded(path, MAX_RECORD_BYTES).is_ok_and(|(bytes, _)| bytes == text.as_bytes())
        }
    };
    let settled = metadata.modified().ok().filter(|modified| {
        #[expect(clippy::disallowed_methods, reason = "files' times are set by this clock")]
        let now = SystemTime::now();
        now.duration_since(*modified).is_ok_and(|age| age >= MIN_SETTLED_AGE)
    });
    if let (true, Some(modified)) = (is_as_made, settled) {
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert_default();
        if seen.len() >= MAX_SEEN {
            seen.clear();
        }
        seen.insert((metadata.dev(), metadata.ino()), (metadata.size(), modified, content.clone()));
    }
    is_as_made
}
