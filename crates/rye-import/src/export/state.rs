//! What an export changes: the files it would write, against those it wrote and those that are there.

use std::collections::BTreeMap;

use lillux_hash::Digest;
use serde::{Deserialize, Serialize};

use super::ExportFile;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedFile {
    /// The digest of what was written.
    pub sha256: String,
    /// The item it was made from.
    pub item: String,
}

/// What was written for a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    /// The files by their paths.
    pub files: BTreeMap<String, ExportedFile>,
}

impl ExportRecord {
    /// The record as it is kept.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// How a file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportState {
    /// It is as it should be.
    Current,
    /// It is not there yet.
    Missing,
    /// It is as it was written or as an import of its item read it, and its item has changed.
    Stale,
    /// It is as it was written, and its item is not exported any more.
    Obsolete,
    /// It was changed after it was written or imported.
    Edited,
    /// It is there, and neither did an export write it nor was its item imported from it.
    Foreign,
}

impl ExportState {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Obsolete => "obsolete",
            Self::Edited => "edited",
            Self::Foreign => "not ours",
        }
    }
}

/// A file of an export, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileExport {
    /// Its path.
    pub path: String,
    /// How it stands.
    pub state: ExportState,
    /// The item it is made from.
    pub item: String,
    /// The digest of what is there.
    #[serde(skip)]
    pub present: Option<Digest>,
    /// Whether what is there is what the import of its item read.
    #[serde(skip)]
    pub is_as_imported: bool,
}

/// Compares the files an export would write with the record of the last one and with the digests of what is there.
#[must_use]
pub fn compare_files(
    wanted: &[ExportFile],
    record: &ExportRecord,
    present: &BTreeMap<String, Digest>,
) -> Vec<FileExport> {
    let mut all = Vec::new();
    for file in wanted {
        let found = present.get(&file.path);
        let recorded = record.files.get(&file.path);
        let is_as_imported = found.is_some_and(|found| file.is_as_imported(found));
        let state = match (found, recorded) {
            (None, _) => ExportState::Missing,
            (Some(found), _) if *found == Digest::of(&file.bytes) => ExportState::Current,
            (Some(found), Some(recorded)) if found.to_hex() == recorded.sha256 => ExportState::Stale,
            (Some(_), _) if is_as_imported => ExportState::Stale,
            (Some(_), Some(_)) => ExportState::Edited,
            (Some(_), None) if file.is_at_source() => ExportState::Edited,
            (Some(_), None) => ExportState::Foreign,
        };
        let (path, item) = (file.path.clone(), file.item.clone());
        all.push(FileExport { path, state, item, present: found.copied(), is_as_imported });
    }
    for (path, recorded) in &record.files {
        if wanted.iter().any(|file| file.path == *path) {
            continue;
        }
        let Some(found) = present.get(path) else { continue };
        let state = match found.to_hex() == recorded.sha256 {
            true => ExportState::Obsolete,
            false => ExportState::Edited,
        };
        let (path, item) = (path.clone(), recorded.item.clone());
        all.push(FileExport { path, state, item, present: Some(*found), is_as_imported: false });
    }
    all
}
