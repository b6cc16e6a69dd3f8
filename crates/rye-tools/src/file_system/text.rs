//! A text file in memory, with the ids of its lines.

use std::io::Read as _;
use std::path::Path;

use lillux::Digest;
use lillux::dir::OpenFile;
use rye_exec::NativeError;

use crate::display::display_path;
use crate::line_id::{Track, content_hash};
use crate::line_id_store::LockedTrack;
use crate::lines::Lines;

/// The largest file that is held in memory and can be edited.
pub(super) const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// The most lines that get ids.
const MAX_TRACKED_LINES: usize = 200_000;

/// Reads an open file of at most [`MAX_FILE_BYTES`]; `None` if it is larger.
pub(super) fn read_whole(opened: &OpenFile, relative: &Path) -> Result<Option<Vec<u8>>, NativeError> {
    if opened.metadata.len() > MAX_FILE_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(opened.metadata.len()).unwrap_or(0) + 1);
    (&opened.file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| {
        NativeError::failed(format!("failed to read `{}`: {error}", display_path(relative)))
    })?;
    Ok(if bytes.len() as u64 > MAX_FILE_BYTES { None } else { Some(bytes) })
}

/// The ids of a file's lines, brought up to date and kept. None if it has too many lines.
pub(super) fn update_track(locked: Option<&LockedTrack>, file: Digest, lines: &Lines<'_>) -> Option<Track> {
    if lines.list.len() > MAX_TRACKED_LINES {
        return None;
    }
    let saved = locked.and_then(LockedTrack::load);
    if let (Some(locked), Some(saved)) = (locked, &saved)
        && saved.file == file
        && saved.ids.len() == lines.list.len()
    {
        locked.touch();
        return Some(saved.clone());
    }
    let contents = lines.list.iter().map(|line| content_hash(line.text)).collect();
    let track = match saved {
        Some(saved) => saved.sync(file, contents),
        None => Track::new(file, contents),
    };
    if let Some(locked) = locked {
        locked.save(&track);
    }
    Some(track)
}

/// Refuses when the caller expected another version. `absent` expects that there is no file.
pub(super) fn check_expected(
    expected: Option<&str>,
    actual: Option<&Digest>,
    relative: &Path,
) -> Result<(), NativeError> {
    let Some(expected) = expected else { return Ok(()) };
    let is_met = match actual {
        None => expected == "absent",
        Some(digest) => digest.to_hex().eq_ignore_ascii_case(expected.trim()),
    };
    if is_met {
        return Ok(());
    }
    let found_text = actual.map_or_else(|| "absent".to_owned(), Digest::to_hex);
    Err(NativeError::failed(format!(
        "`{}` is not the version you expected: it changed since it was read. Nothing was written: read it again",
        display_path(relative)
    ))
    .with_data(serde_json::json!({"expected_hash": expected, "hash": found_text})))
}

/// Refuses a text that holds a marker which stands for a secret: writing it would replace the secret.
pub(super) fn reject_redacted(text: &str) -> Result<(), NativeError> {
    if !rye_item::text::has_redaction(text) {
        return Ok(());
    }
    Err(NativeError::denied(
        "the text holds `[redacted:…]`, a redacted secret; change the lines around it, or \
         ask the user to make this change",
    ))
}
