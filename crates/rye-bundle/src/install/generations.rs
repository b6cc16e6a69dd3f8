//! Versions of a bundle that were installed, each as the archive it would be installed from again. The last one is what
//! is installed now; those before it are what a rollback returns to.

use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode, ReadError};
use rye_item::BundleId;
use semver::Version;
use serde_json::{Value, json};

use super::{InstallError, InstallState};
use crate::archive;
use crate::path::BundlePath;

/// How many are kept: the installed one, and three to return to.
pub const MAX_GENERATIONS: usize = 4;
const MAX_LIST_BYTES: u64 = 1 << 16;
const LIST_FILE_NAME: &str = "history.json";

/// One version that was installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Its version.
    pub version: Version,
    /// The digest of its manifest, by which it is distinguished from others.
    pub manifest_hash: Digest,
    /// Where it came from, as the user named it.
    pub source: Option<String>,
    /// The digest it is known by there: `sha256:…`.
    pub source_digest: Option<String>,
}

/// The versions of `bundle` in the order they were installed.
///
/// # Errors
/// When the list is there, but cannot be read.
pub fn read_generations(state: &InstallState, bundle: &BundleId) -> Result<Vec<Generation>, InstallError> {
    let path = state.generations_folder(bundle).join(LIST_FILE_NAME);
    let bytes = match file::read_bounded(&path, MAX_LIST_BYTES) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.is_absent() => return Ok(Vec::new()),
        Err(ReadError::Io(error)) => return Err(error.into()),
        Err(error) => return Err(damaged_list(&path, &error)),
    };
    let list: Vec<Value> = serde_json::from_slice(&bytes).map_err(|error| damaged_list(&path, &error))?;
    from_values(&list).ok_or_else(|| damaged_list(&path, &"an entry has no version or hash"))
}

fn damaged_list(path: &Path, reason: &dyn std::fmt::Display) -> InstallError {
    InstallError::DamagedJournal { path: path.to_owned(), reason: reason.to_string() }
}

/// The list after `next` was installed over the last one. A version that was there already moves to the end.
#[must_use]
pub fn after_install(mut known: Vec<Generation>, next: Generation) -> Vec<Generation> {
    known.retain(|generation| generation.manifest_hash != next.manifest_hash);
    known.push(next);
    let surplus = known.len().saturating_sub(MAX_GENERATIONS);
    known.drain(..surplus);
    known
}

/// The one to return to from `installed`: the last that is another, and the list after returning to it.
#[must_use]
pub fn previous_generation(
    known: &[Generation],
    installed: &Digest,
) -> Option<(Generation, Vec<Generation>)> {
    let end = known.iter().rposition(|generation| generation.manifest_hash == *installed);
    let earlier = &known[..end.unwrap_or(known.len())];
    let last = earlier.last()?;
    Some((last.clone(), earlier.to_vec()))
}

/// Where the archive of a version lies.
#[must_use]
pub fn archive_path(state: &InstallState, bundle: &BundleId, manifest_hash: &Digest) -> PathBuf {
    state.generations_folder(bundle).join(format!("{manifest_hash}.tar.zst"))
}

/// Keeps the files of the folder `staged` as a version. Until a list names it, it is nothing.
///
/// # Errors
/// When it cannot be packed.
pub fn store_generation(
    state: &InstallState,
    bundle: &BundleId,
    manifest_hash: &Digest,
    staged: &Path,
    files: &[BundlePath],
) -> Result<(), InstallError> {
    let path = archive_path(state, bundle, manifest_hash);
    if path.exists() {
        return Ok(());
    }
    file::create_dirs(&state.generations_folder(bundle), true)?;
    Ok(archive::pack(staged, files, &path)?)
}

/// Writes the list and removes the archives it does not name; an empty list removes all.
pub(super) fn write_generations(
    state: &InstallState,
    bundle: &BundleId,
    list: &[Generation],
) -> Result<(), InstallError> {
    let folder = state.generations_folder(bundle);
    if list.is_empty() {
        return Ok(file::remove_tree(&folder)?);
    }
    file::create_dirs(&folder, true)?;
    let text = serde_json::to_vec(&to_values(list)).map_err(std::io::Error::from)?;
    file::write_atomic(&folder.join(LIST_FILE_NAME), &text, FileMode::Private)?;
    prune_archives(state, bundle)
}

/// Removes the archives that no list names: of a change that was taken back.
pub(super) fn prune_archives(state: &InstallState, bundle: &BundleId) -> Result<(), InstallError> {
    let folder = state.generations_folder(bundle);
    let known = read_generations(state, bundle)?;
    if known.is_empty() {
        return Ok(file::remove_tree(&folder)?);
    }
    let listed: Vec<String> =
        known.iter().map(|generation| format!("{}.tar.zst", generation.manifest_hash)).collect();
    for entry in fs_err::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != LIST_FILE_NAME && !listed.iter().any(|listed| name == listed.as_str()) {
            file::remove(&entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn to_values(list: &[Generation]) -> Vec<Value> {
    list.iter()
        .map(|generation| {
            json!({
                "version": generation.version.to_string(),
                "manifest_hash": generation.manifest_hash,
                "source": generation.source,
                "source_digest": generation.source_digest,
            })
        })
        .collect()
}

pub(super) fn from_values(list: &[Value]) -> Option<Vec<Generation>> {
    list.iter()
        .map(|value| {
            // Earlier versions did not write where a bundle came from.
            let optional = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
            Some(Generation {
                version: Version::parse(value.get("version")?.as_str()?).ok()?,
                manifest_hash: value.get("manifest_hash")?.as_str()?.parse().ok()?,
                source: optional("source"),
                source_digest: optional("source_digest"),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(version: &str) -> Generation {
        Generation {
            version: Version::parse(version).expect("a version"),
            manifest_hash: Digest::of(version.as_bytes()),
            source: Some(format!("oci://example.org/gifts:{version}")),
            source_digest: Some(format!("sha256:{}", Digest::of(version.as_bytes()))),
        }
    }

    #[test]
    fn versions_record_their_source() {
        let known = vec![generation("1.0.0"), generation("2.0.0")];
        assert_eq!(from_values(&to_values(&known)), Some(known));
        let old = json!({"version": "1.0.0", "manifest_hash": Digest::of(b"x")});
        let read = from_values(&[old]).expect("an entry of an earlier version");
        assert_eq!((&read[0].source, &read[0].source_digest), (&None, &None));
    }

    fn versions(list: &[Generation]) -> Vec<String> {
        list.iter().map(|generation| generation.version.to_string()).collect()
    }

    #[test]
    fn three_versions_can_be_rolled_back() {
        let mut known = Vec::new();
        for version in ["1.0.0", "2.0.0", "3.0.0", "4.0.0", "5.0.0"] {
            known = after_install(known, generation(version));
        }
        assert_eq!(versions(&known), ["2.0.0", "3.0.0", "4.0.0", "5.0.0"]);
        for expected in ["4.0.0", "3.0.0", "2.0.0"] {
            let installed = known.last().expect("installed").manifest_hash;
            let (target, after) = previous_generation(&known, &installed).expect("an earlier one");
            assert_eq!(target, generation(expected));
            known = after;
        }
        assert_eq!(previous_generation(&known, &generation("2.0.0").manifest_hash), None);
    }

    #[test]
    fn installing_the_same_again_adds_nothing() {
        let known = vec![generation("1.0.0"), generation("2.0.0")];
        assert_eq!(after_install(known.clone(), generation("2.0.0")), known);
        assert_eq!(versions(&after_install(known, generation("1.0.0"))), ["2.0.0", "1.0.0"]);
    }
}
