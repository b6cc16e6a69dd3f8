//! A text file in memory, with the ids of its lines.

use std::io::Read as _;
use std::path::Path;

use lillux::Digest;
use lillux::beneath::OpenFile;
use rye_exec::NativeError;

use crate::line_id::{Track, content};
use crate::line_id_store::Held;
use crate::lines::Lines;
use crate::show::shown;

/// The largest file that is held in memory and can be edited.
pub(super) const MOST_BYTES: u64 = 16 * 1024 * 1024;
/// The most lines that get ids.
const MOST_LINES: usize = 200_000;

/// Reads an open file of at most [`MOST_BYTES`]; None if it is larger.
pub(super) fn read_whole(opened: &OpenFile, relative: &Path) -> Result<Option<Vec<u8>>, NativeError> {
    if opened.metadata.len() > MOST_BYTES {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(opened.metadata.len()).unwrap_or(0) + 1);
    (&opened.file)
        .take(MOST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| NativeError::failed(format!("failed to read `{}`: {error}", shown(relative))))?;
    Ok(if bytes.len() as u64 > MOST_BYTES { None } else { Some(bytes) })
}

/// The ids of a file's lines, brought up to date and kept. None if it has too many lines.
pub(super) fn track(held: Option<&Held>, file: Digest, lines: &Lines<'_>) -> Option<Track> {
    if lines.list.len() > MOST_LINES {
        return None;
    }
    let known = held.and_then(Held::load);
    if let (Some(held), Some(known)) = (held, &known)
        && known.file == file
        && known.ids.len() == lines.list.len()
    {
        held.touch();
        return Some(known.clone());
    }
    let contents = lines.list.iter().map(|line| content(line.text)).collect();
    let track = match known {
        Some(known) => known.synced(file, contents),
        None => Track::fresh(file, contents),
    };
    if let Some(held) = held {
        held.save(&track);
    }
    Some(track)
}

/// Refuses when the caller expected another version. `absent` expects that there is no file.
pub(super) fn check_expected(
    expected: Option<&str>,
    found: Option<&Digest>,
    relative: &Path,
) -> Result<(), NativeError> {
    let Some(expected) = expected else { return Ok(()) };
    let is_met = match found {
        None => expected == "absent",
        Some(digest) => digest.to_hex().eq_ignore_ascii_case(expected.trim()),
    };
    if is_met {
        return Ok(());
    }
    let found_text = found.map_or_else(|| "absent".to_owned(), Digest::to_hex);
    Err(NativeError::failed(format!(
        "`{}` is not the version you expected: it changed since it was read. Nothing was written: read it again",
        shown(relative)
    ))
    .with(serde_json::json!({"expected_hash": expected, "hash": found_text})))
}

/// Refuses a text that holds a marker which stands for a secret: writing it would replace the secret.
pub(super) fn refuse_redacted(text: &str) -> Result<(), NativeError> {
    if !rye_item::text::has_redaction(text) {
        return Ok(());
    }
    Err(NativeError::denied(
        "the text holds `[redacted:…]`, which stands for a secret that was taken out; change the lines around it, or \
         ask the user to make this change",
    ))
}
