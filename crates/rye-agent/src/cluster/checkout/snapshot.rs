//! The files of a project as they are when a thread is submitted: a list, and parts that hold their bytes one behind the other.
//! Each part is a blob of the store under its digest, so equal parts of two submissions are kept once.

use std::path::Path;

use lillux::Digest;
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};

use super::content::{FileBytes, MAX_FILE_BYTES};
use super::left_out::LeftOutFiles;
use super::refused;
use super::rules::{CheckoutRules, Exclusion, exclusion, holds_private_key};
use super::walk::list_files;
use crate::store::StoreHandle;

/// The format that is written and read.
const FORMAT: u32 = 1;
/// The most files of a snapshot.
const MAX_FILES: usize = 20_000;
/// The most that they may hold together.
const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// A part is closed once it holds this much.
const PART_BYTES: usize = 4 << 20;

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotFile {
    path: String,
    digest: String,
    bytes: u64,
    #[serde(rename = "executable")]
    is_executable: bool,
}

/// The list of a snapshot's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotManifest {
    format: u32,
    /// The files, in the order in which their bytes stand in the parts.
    files: Vec<SnapshotFile>,
    /// The parts, by digest. None of them ends in the middle of a file.
    parts: Vec<String>,
}

/// A project's files, ready to be kept in a store.
#[derive(Debug)]
pub(in crate::cluster) struct FrozenSnapshot {
    /// The list.
    pub(in crate::cluster) manifest: Vec<u8>,
    /// The parts.
    pub(in crate::cluster) parts: Vec<Vec<u8>>,
    /// What does not travel, and why.
    pub(in crate::cluster) left_out: LeftOutFiles,
}

/// Freezes the files of a project: what `.gitignore` names is not in it, and neither is what looks like a secret or is hidden from
/// tools.
///
/// # Errors
/// When there are too many, one is too large, or one cannot be read.
pub(in crate::cluster) fn freeze_snapshot(project: &Path, rules: &CheckoutRules) -> Result<FrozenSnapshot> {
    let listing = list_files(project, rules, Some(project))?;
    let mut left_out = LeftOutFiles::default();
    for (path, reason) in &listing.left_out {
        left_out.push(path, reason);
    }
    let mut manifest = SnapshotManifest { format: FORMAT, files: Vec::new(), parts: Vec::new() };
    let (mut parts, mut part, mut total) = (Vec::new(), Vec::new(), 0_u64);
    for path in listing.files {
        // One that goes meanwhile is not there.
        let Some(file) = FileBytes::read(project, &path)? else { continue };
        if holds_private_key(&file.bytes) {
            left_out.push(&path, Exclusion::Secret.reason());
            continue;
        }
        total = total.saturating_add(file.bytes.len() as u64);
        if manifest.files.len() >= MAX_FILES || total > MAX_TOTAL_BYTES {
            let message = format!(
                "the project has more than {MAX_FILES} files or {} MiB: `{}` is one too many",
                MAX_TOTAL_BYTES >> 20,
                one_line(&path)
            );
            return Err(Error::new(Code::TooLarge, message).hint(
                "add build output to .gitignore, or let workers fetch a commit: --checkout git+URL@COMMIT",
            ));
        }
        manifest.files.push(SnapshotFile {
            path,
            digest: Digest::of(&file.bytes).to_hex(),
            bytes: file.bytes.len() as u64,
            is_executable: file.is_executable,
        });
        part.extend_from_slice(&file.bytes);
        if part.len() >= PART_BYTES {
            parts.push(std::mem::take(&mut part));
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    manifest.parts = parts.iter().map(|part| Digest::of(part).to_hex()).collect();
    let manifest = serde_json::to_vec(&manifest).map_err(std::io::Error::other)?;
    Ok(FrozenSnapshot { manifest, parts, left_out })
}

fn parse_digest(text: &str) -> Result<Digest> {
    text.parse().map_err(|_| refused("the snapshot contains an invalid digest"))
}

/// Writes the files of a snapshot below `into`, each checked first.
///
/// # Errors
/// When a part is missing or another one, or a path leads elsewhere.
pub(super) fn unpack_snapshot(store: &StoreHandle, manifest: &str, into: &Path) -> Result<()> {
    let bytes = store.blob(&parse_digest(manifest)?)?;
    let manifest: SnapshotManifest = serde_json::from_slice(&bytes)
        .map_err(|error| refused(format!("the snapshot cannot be read: {}", one_line(&error.to_string()))))?;
    if manifest.format != FORMAT {
        return Err(
            refused(format!("unsupported snapshot format {}", manifest.format)).hint("upgrade the worker")
        );
    }
    unpack_files(&manifest, |digest| Ok(store.blob(digest)?), into)
}

fn unpack_files(
    manifest: &SnapshotManifest,
    mut read: impl FnMut(&Digest) -> Result<Vec<u8>>,
    into: &Path,
) -> Result<()> {
    let total = manifest.files.iter().fold(0_u64, |total, file| total.saturating_add(file.bytes));
    if manifest.files.len() > MAX_FILES || total > MAX_TOTAL_BYTES {
        return Err(refused("the snapshot is larger than a snapshot may be"));
    }
    let mut files = manifest.files.iter();
    for part in &manifest.parts {
        let part = read(&parse_digest(part)?)?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let file = files
                .next()
                .ok_or_else(|| refused("the snapshot has trailing bytes that belong to no file"))?;
            rest = unpack_file(file, rest, into)?;
        }
        // Empty files stand behind whole ones, and hold nothing.
        while let Some(file) = files.as_slice().first().filter(|file| file.bytes == 0) {
            unpack_file(file, &[], into)?;
            files.next();
        }
    }
    for file in files {
        unpack_file(file, &[], into)?;
    }
    Ok(())
}

/// Writes the file that `bytes` begins with; gives what stands behind it.
fn unpack_file<'a>(file: &SnapshotFile, bytes: &'a [u8], into: &Path) -> Result<&'a [u8]> {
    let shown = one_line(&file.path);
    if let Some(reason) = exclusion(&file.path) {
        return Err(refused(format!("`{shown}` in the snapshot {}", reason.reason())));
    }
    let length = usize::try_from(file.bytes).unwrap_or(usize::MAX);
    let (own, rest) = bytes
        .split_at_checked(length)
        .filter(|_| file.bytes <= MAX_FILE_BYTES)
        .ok_or_else(|| refused(format!("`{shown}` in the snapshot is truncated")))?;
    if Digest::of(own).to_hex() != file.digest {
        return Err(refused(format!("`{shown}` is not the file that was submitted")));
    }
    FileBytes { bytes: own.to_vec(), is_executable: file.is_executable }.write(into, &file.path)?;
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "files of the test itself")]
    fn project() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in [
            ("src/main.rs", "fn main() {}\n"),
            ("empty", ""),
            (".gitignore", "/target\n*.log\n!keep.log\n"),
            ("target/big.o", "built"),
            ("a.log", "x"),
            ("keep.log", "kept"),
            (".env", "PASSWORD=1"),
            ("notes.txt", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"),
            ("deploy/id_ed25519", "key"),
            (".git/config", "[core]"),
            (".ai/tools/x.py", "print(1)"),
        ] {
            let path = folder.path().join(path);
            fs_err::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs_err::write(path, text).expect("a file");
        }
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("a link");
        folder
    }

    fn unpack(manifest: &SnapshotManifest, parts: &[Vec<u8>]) -> Result<tempfile::TempDir> {
        let into = tempfile::tempdir().expect("a folder");
        let find = |digest: &Digest| {
            let found = parts.iter().find(|part| Digest::of(part) == *digest).cloned();
            found.ok_or_else(|| refused("no such part"))
        };
        unpack_files(manifest, find, into.path())?;
        Ok(into)
    }

    #[test]
    fn snapshot_travels_without_secrets() {
        let project = project();
        let frozen = freeze_snapshot(project.path(), &CheckoutRules::default()).expect("frozen");
        let manifest: SnapshotManifest = serde_json::from_slice(&frozen.manifest).expect("a list");
        let into = unpack(&manifest, &frozen.parts).expect("unpacked");
        let listing = list_files(into.path(), &CheckoutRules::default(), None).expect("listed");
        assert_eq!(listing.files, [".gitignore", "empty", "keep.log", "src/main.rs"]);
        let read = FileBytes::read(into.path(), "src/main.rs").expect("read").expect("there");
        assert_eq!(read.bytes, b"fn main() {}\n");
        let left_out: Vec<&str> = frozen.left_out.files.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(left_out, [".env", "deploy/id_ed25519", "link", "notes.txt"]);
    }

    #[test]
    fn changed_snapshots_are_refused() {
        let project = project();
        let frozen = freeze_snapshot(project.path(), &CheckoutRules::default()).expect("frozen");
        let manifest: SnapshotManifest = serde_json::from_slice(&frozen.manifest).expect("a list");
        let refusal = |change: &dyn Fn(&mut SnapshotManifest)| {
            let mut changed = manifest.clone();
            change(&mut changed);
            unpack(&changed, &frozen.parts).expect_err("refused").message
        };
        for path in ["../x", "/etc/x", ".git/hooks/post-commit", ".ai/tools/x.py", ".env"] {
            let message = refusal(&|manifest| manifest.files[0].path = path.to_owned());
            assert!(message.starts_with(&format!("`{path}` in the snapshot ")), "{message}");
        }
        assert!(refusal(&|manifest| manifest.files[0].digest = "ab".repeat(32)).contains("is not the file"));
        assert!(refusal(&|manifest| manifest.files[0].bytes += 1).contains("is not the file"));
        assert!(refusal(&|manifest| manifest.files[0].bytes = 1 << 40).contains("larger"));
        assert!(refusal(&|manifest| manifest.parts[0] = "ab".repeat(32)).contains("no such part"));
        assert!(refusal(&|manifest| manifest.parts.clear()).contains("is truncated"));
        assert!(refusal(&|manifest| manifest.files.truncate(2)).contains("to no file"));
    }
}
