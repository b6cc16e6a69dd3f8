//! The record of one change to a space, written before anything changes: which files, what they were and will be. It lies
//! in user space, and is checked again when it is read: its paths lead below `.ai/` or nowhere.

use std::path::Path;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_item::BundleId;
use serde_json::{Value, json};

use super::generations::{self, Generation};
use super::transaction::FileChange;
use super::{InstallError, InstallState};
use crate::path::BundlePath;

const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// New files are being written aside. Nothing has changed.
    Staging,
    /// Files are being put in place: to be taken back if it stops here.
    Applying,
    /// All are in place: only tidying up is left.
    Committed,
}

impl Phase {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Staging, "staging"), (Self::Applying, "applying"), (Self::Committed, "committed")];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(phase, _)| *phase == self).map_or("", |(_, name)| name)
    }
}

/// One change to a space.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    pub(super) phase: Phase,
    pub(super) bundle: BundleId,
    /// The folder below `.ai/bundles/` that holds new files, then old ones.
    pub(super) staging: String,
    pub(super) changes: Vec<FileChange>,
    /// Folders below `.ai/` that are made for it, outer ones first.
    pub(super) created_folders: Vec<String>,
    /// Where backups go.
    pub(super) backups: String,
    /// The bundle's versions once it is done.
    pub(super) history: Vec<Generation>,
}

impl Journal {
    pub(super) fn write(&self, state: &InstallState) -> Result<(), InstallError> {
        let changes: Vec<Value> = self
            .changes
            .iter()
            .map(|change| {
                json!({
                    "path": change.path,
                    "old": change.old,
                    "new": change.new,
                    "keeps_backup": change.keeps_backup,
                })
            })
            .collect();
        let value = json!({
            "journal": 1,
            "space": state.space(),
            "phase": self.phase.as_str(),
            "bundle_id": self.bundle.as_str(),
            "staging": self.staging,
            "changes": changes,
            "made": self.created_folders,
            "backups": self.backups,
            "history": generations::to_values(&self.history),
        });
        let bytes = serde_json::to_vec(&value).map_err(std::io::Error::from)?;
        Ok(file::write_atomic(&state.journal_path(), &bytes, FileMode::Private)?)
    }

    /// Reads the record, if there is one.
    pub(super) fn read(state: &InstallState) -> Result<Option<Self>, InstallError> {
        let path = state.journal_path();
        let damaged = |reason: String| InstallError::DamagedJournal { path: path.clone(), reason };
        let bytes = match file::read_bounded(&path, MAX_JOURNAL_BYTES) {
            Ok((bytes, _)) => bytes,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if value["space"].as_str() != Some(state.space()) {
            return Err(damaged("it is of another space".to_owned()));
        }
        parse_journal(&value).map(Some).map_err(damaged)
    }

    pub(super) fn remove(path: &Path) -> Result<(), InstallError> {
        Ok(file::remove(path)?)
    }
}

fn parse_journal(value: &Value) -> Result<Journal, String> {
    let text = |value: &Value, key: &str| {
        value[key].as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` is missing"))
    };
    let list = |key: &str| value[key].as_array().ok_or_else(|| format!("`{key}` is missing"));
    if value["journal"] != 1 {
        return Err("another version of rye wrote it".to_owned());
    }
    let phase = text(value, "phase")?;
    let phase = Phase::ALL.iter().find(|(_, name)| *name == phase).ok_or("its phase is unknown")?.0;
    let mut changes = Vec::new();
    for change in list("changes")? {
        let digest = |key: &str| match &change[key] {
            Value::Null => Ok(None),
            Value::String(text) => text.parse::<Digest>().map(Some).map_err(|error| error.to_string()),
            _ => Err(format!("invalid hash `{key}`")),
        };
        changes.push(FileChange {
            path: BundlePath::new(text(change, "path")?).map_err(|error| error.to_string())?,
            old: digest("old")?,
            new: digest("new")?,
            keeps_backup: change["keeps_backup"] == true,
        });
    }
    let mut created_folders = Vec::new();
    for folder in list("made")? {
        let folder = folder.as_str().ok_or("`made` holds no text")?;
        BundlePath::new(format!(".ai/{folder}")).map_err(|error| error.to_string())?;
        created_folders.push(folder.to_owned());
    }
    let (staging, backups) = (text(value, "staging")?, text(value, "backups")?);
    for name in [&staging, &backups] {
        BundlePath::new(format!(".ai/{name}")).map_err(|error| error.to_string())?;
        if name.contains('/') {
            return Err(format!("invalid name `{name}`"));
        }
    }
    if !staging.starts_with(super::transaction::STAGING_PREFIX) {
        return Err("its staging folder is none".to_owned());
    }
    Ok(Journal {
        phase,
        bundle: BundleId::new(text(value, "bundle_id")?).map_err(|error| error.to_string())?,
        staging,
        changes,
        created_folders,
        backups,
        history: generations::from_values(list("history")?).ok_or("`history` cannot be read")?,
    })
}
