//! Programs of projects (`.venv/bin/python`, `node_modules/.bin/tsx`) as they were when the user approved them. A signed
//! record in user space, beside the approvals: no tool can write there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode, Lock};
use lillux::{Digest, SecretKey};
use rye_item::text::quote;
use rye_trust::KeyRing;
use rye_trust::signature::Timestamp;
use serde_json::Value;

use crate::keys;

/// Below the user's `.ai/`: recorded programs.
pub const PROGRAMS_FILE: &str = "config/trust/programs.yaml";

/// Below the user's `.ai/`: what each recorded program consisted of, in a file with the name of the program's digest.
const LISTINGS_FOLDER: &str = "config/trust/programs";

/// The largest of them that is read.
const MAX_LISTING_BYTES: u64 = 16 << 20;

/// What a recorded program consisted of; `None` if that is not known. The digest in the signed record vouches for it.
#[must_use]
pub fn read_listing(user_ai: &Path, record: &ProgramRecord) -> Option<String> {
    let path = user_ai.join(LISTINGS_FOLDER).join(record.digest.to_hex());
    let (bytes, _) = file::read_bounded(&path, MAX_LISTING_BYTES).ok()?;
    (Digest::of(&bytes) == record.digest).then(|| String::from_utf8(bytes).ok()).flatten()
}

/// Keeps what recorded programs consist of, and forgets what no record names.
///
/// # Errors
/// When it cannot be written.
pub fn write_listings(user_ai: &Path, records: &ProgramRecords, listings: &[String]) -> std::io::Result<()> {
    let folder = user_ai.join(LISTINGS_FOLDER);
    file::create_dirs(&folder, true)?;
    for listing in listings {
        let name = Digest::of(listing.as_bytes()).to_hex();
        file::write_atomic(&folder.join(name), listing.as_bytes(), FileMode::Private)?;
    }
    let known: BTreeSet<String> = records.records.iter().map(|record| record.digest.to_hex()).collect();
    for entry in fs_err::read_dir(&folder)?.flatten() {
        if entry.file_name().to_str().is_none_or(|name| !known.contains(name)) {
            file::remove_unsynced(&entry.path())?;
        }
    }
    Ok(())
}

/// One program of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRecord {
    /// The project's real path.
    pub project: String,
    /// The program below it.
    pub path: String,
    /// Of everything that decides what it runs.
    pub digest: Digest,
    /// Of what the file system says of the same.
    pub stamp: Digest,
}

/// All recorded programs.
#[derive(Clone, Debug, Default)]
pub struct ProgramRecords {
    /// The records.
    pub records: Vec<ProgramRecord>,
    /// Why the file is not valid, if it is not.
    pub problem: Option<String>,
}

impl ProgramRecords {
    /// Reads the record below the user's `.ai/`. It is valid if a key the user trusts everywhere signed it.
    #[must_use]
    pub fn read(user_ai: &Path, ring: &KeyRing) -> Self {
        match keys::read_record(user_ai, PROGRAMS_FILE, ring) {
            Err(problem) => Self { records: Vec::new(), problem: Some(problem) },
            Ok(document) => {
                let list = document.get("programs").and_then(Value::as_array).into_iter().flatten();
                Self { records: list.filter_map(parse_record).collect(), problem: None }
            }
        }
    }

    /// As [`ProgramRecords::read`], with the lock under which the record may be written.
    ///
    /// # Errors
    /// When the folder of the records cannot be made or locked.
    pub fn read_locked(user_ai: &Path, ring: &KeyRing) -> std::io::Result<(Self, Lock)> {
        let lock = keys::lock_records(user_ai)?;
        Ok((Self::read(user_ai, ring), lock))
    }

    /// The record of a program of a project.
    #[must_use]
    pub fn find(&self, project: &str, path: &str) -> Option<&ProgramRecord> {
        self.records.iter().find(|record| record.project == project && record.path == path)
    }

    /// Writes the records.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, user_ai: &Path, key: &SecretKey, now: &Timestamp) -> std::io::Result<PathBuf> {
        let mut text = String::from("version: \"1.0.0\"\ncategory: trust\nprograms:\n");
        if self.records.is_empty() {
            text = text.replace("programs:\n", "programs: []\n");
        }
        for record in &self.records {
            text.push_str(&format!(
                "  - project: {}\n    path: {}\n    digest: {}\n    stamp: {}\n",
                quote(&record.project),
                quote(&record.path),
                quote(&record.digest.to_hex()),
                quote(&record.stamp.to_hex()),
            ));
        }
        let path = user_ai.join(PROGRAMS_FILE);
        keys::write_signed_document(&path, &text, key, now)?;
        Ok(path)
    }
}

fn parse_record(value: &Value) -> Option<ProgramRecord> {
    let text = |key: &str| value.get(key)?.as_str();
    Some(ProgramRecord {
        project: text("project")?.to_owned(),
        path: text("path")?.to_owned(),
        digest: text("digest")?.parse().ok()?,
        stamp: text("stamp")?.parse().ok()?,
    })
}
