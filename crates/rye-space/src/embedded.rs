//! The bundles inside the binary, sealed by the build: items, manifest and identity document, all signed.

use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_item::{ExtractorSet, ItemId, ItemRef, ItemType};
use rye_trust::Identity;

use crate::file_stamp::FileStamp;
use crate::scan::{ItemEntry, ScanResult, split_extension};

/// A bundle inside the binary.
#[derive(Debug)]
pub struct Embedded {
    /// Its id.
    pub id: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The first 16 hex characters of its manifest's digest: another build, another seal.
    pub seal: &'static str,
    /// Whether it counts only once the user has enabled it.
    pub is_opt_in: bool,
    /// The id prefixes its items must have.
    pub categories: &'static [&'static str],
    /// Path (`.ai/…`) and bytes of each file, sorted by path.
    pub files: &'static [(&'static str, &'static [u8])],
    /// Path and content of each YAML item, as the build read it, in JSON, sorted by path.
    pub fields: &'static [(&'static str, &'static str)],
}

include!(concat!(env!("OUT_DIR"), "/embedded_bundles.rs"));

impl Embedded {
    /// The bytes of the file at `path` (`.ai/…`).
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&'static [u8]> {
        let index = self.files.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
        Some(self.files[index].1)
    }

    /// Who signed its items.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        let documents = self.files.iter().filter(|(path, _)| path.starts_with(".ai/config/keys/trusted/"));
        documents.filter_map(|(_, bytes)| Identity::parse(bytes).ok()).collect()
    }

    /// What the YAML item at `path` (`.ai/…`) says, in JSON.
    #[must_use]
    pub fn fields(&self, path: &str) -> Option<&'static str> {
        let index = self.fields.binary_search_by(|(known, _)| (*known).cmp(path)).ok()?;
        Some(self.fields[index].1)
    }

    /// A digest over all files, for telling builds apart.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of_pieces(self.files.iter().flat_map(|(path, bytes)| [path.as_bytes(), *bytes]))
    }

    /// The bundle as read-only files in a cache folder named by its seal, for tools that need a real path. A file
    /// that was changed there is put right.
    ///
    /// # Errors
    /// When the cache cannot be written.
    pub fn materialise(&self, cache: &Path) -> std::io::Result<PathBuf> {
        let bundles = cache.join("bundles");
        let folder = bundles.join(format!("{}-{}", self.id, self.seal));
        if self.is_materialised(&folder) {
            return Ok(folder);
        }
        file::create_dirs(&bundles, true)?;
        let _lock = file::Lock::acquire(&bundles.join(format!(".{}.lock", self.id)))?;
        if self.is_materialised(&folder) {
            return Ok(folder);
        }
        let staging = bundles.join(format!(".{}-{}.new", self.id, self.seal));
        file::remove_tree(&staging)?;
        for (path, bytes) in self.files {
            let path = staging.join(path);
            if let Some(parent) = path.parent() {
                file::create_dirs(parent, false)?;
            }
            file::write_atomic(&path, bytes, FileMode::ReadOnly)?;
        }
        file::remove_tree(&folder)?;
        file::rename_dir(&staging, &folder)?;
        make_folders_read_only(&folder)?;
        Ok(folder)
    }

    fn is_materialised(&self, folder: &Path) -> bool {
        self.files.iter().all(|(path, bytes)| {
            file::read_beneath(folder, Path::new(path), bytes.len() as u64)
                .is_ok_and(|(found, _)| found == *bytes)
        })
    }
}

fn make_folders_read_only(folder: &Path) -> std::io::Result<()> {
    for entry in fs_err::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_folders_read_only(&entry.path())?;
        }
    }
    file::set_mode(folder, 0o555)
}

/// The items of an embedded bundle. Their stamp is the seal: it changes with the binary only.
#[must_use]
pub fn scan(embedded: &Embedded, types: &[ItemType], extractors: &ExtractorSet) -> ScanResult {
    let seal = i64::from_str_radix(&embedded.seal[..15], 16).unwrap_or_default();
    let entries = embedded.files.iter().filter_map(|(path, bytes)| {
        let (folder, rest) = path.strip_prefix(".ai/")?.split_once('/')?;
        let item_type = ItemType::from_folder(folder).filter(|item_type| types.contains(item_type))?;
        let (stem, extension) = split_extension(rest)?;
        extractors.for_type(item_type).extensions.iter().find(|known| *known == extension)?;
        Some(ItemEntry {
            item: ItemRef::new(item_type, ItemId::new(stem).ok()?),
            extension: extension.to_owned(),
            relative: format!("{folder}/{rest}"),
            stamp: FileStamp {
                size: i64::try_from(bytes.len()).unwrap_or(i64::MAX),
                modified: seal,
                changed: seal,
            },
        })
    });
    ScanResult { entries: entries.collect(), ..ScanResult::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn materialised_bundle_is_read_only_and_repaired() {
        let cache = tempfile::tempdir().expect("folder");
        let embedded = &BUNDLES[0];
        let folder = embedded.materialise(cache.path()).expect("materialised");
        assert!(folder.ends_with(format!("{}-{}", embedded.id, embedded.seal)));
        let (path, bytes) = embedded.files[0];
        let file = folder.join(path);
        assert_eq!(file::read_bounded(&file, 1 << 20).expect("read").0, bytes);
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().expect("folder"))), (0o444, 0o555));

        file::set_mode(file.parent().expect("folder"), 0o755).expect("opened");
        file::write_atomic(&file, b"evil", FileMode::Preserve).expect("changed");
        assert_eq!(embedded.materialise(cache.path()).expect("materialised"), folder);
        assert_eq!(file::read_bounded(&file, 1 << 20).expect("read").0, bytes);
    }
}
