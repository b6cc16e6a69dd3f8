//! Archives of bundles, `.tar.zst` and `.zip`: made the same byte for byte each time, and taken apart as what they are,
//! a stranger's bytes. An archive holds plain files and folders below `.ai/`; anything else in it is named and refused,
//! and nothing of it stays on the disk. What is not a bundle may also come as a `.tar.gz`, under the same rules.

mod entry_policy;
mod pack;
mod tar_reader;
mod zip_reader;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use lillux::dir::{Dir, DirError};
use lillux::file;

use crate::path::{BundlePath, InvalidBundlePath};
use entry_policy::EntryPolicy;
pub use pack::{ArchiveFormat, pack};

/// How much an archive may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Entries, folders included.
    pub entries: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of all files together.
    pub total_bytes: u64,
    /// Bytes that may come out of one byte of the archive, beyond [`ArchiveLimits::ratio_exempt_bytes`].
    pub ratio: u64,
    /// Bytes that may come out whatever the ratio: a small archive of much the same text is not a bomb.
    pub ratio_exempt_bytes: u64,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self {
            entries: 20_000,
            file_bytes: 64 << 20,
            total_bytes: 512 << 20,
            ratio: 200,
            ratio_exempt_bytes: 16 << 20,
        }
    }
}

impl ArchiveLimits {
    /// How many bytes may come out of an archive of this many.
    fn max_total_bytes(&self, archive_bytes: u64) -> u64 {
        let fitting = self.ratio_exempt_bytes.saturating_add(self.ratio.saturating_mul(archive_bytes));
        fitting.min(self.total_bytes)
    }
}

/// Why an archive is refused, or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The bytes are neither a zstd nor a zip archive.
    #[error("this is neither a `.tar.zst` nor a `.zip` archive")]
    NotAnArchive,
    /// The bytes are none of the archives that can be imported.
    #[error("this is neither a `.tar.gz` nor a `.tar.zst` nor a `.zip` archive")]
    NotAForeignArchive,
    /// The name says no format that can be written.
    #[error("`{}` does not say which archive: it ends neither in `.tar.zst` nor in `.zip`", rye_item::text::one_line(.0))]
    UnknownFormat(String),
    /// An entry may not be in a bundle.
    #[error("the archive holds `{}`: {reason}", rye_item::text::one_line(entry))]
    InvalidEntry {
        /// Its name in the archive.
        entry: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// It holds too much.
    #[error("the archive holds more than {limit} {what}")]
    TooLarge {
        /// The bound.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// It says one thing in two ways, or stops half-way.
    #[error("the archive is damaged: {}", rye_item::text::one_line(.0))]
    Damaged(String),
    /// Something follows after its end.
    #[error("the archive has bytes that belong to no file")]
    TrailingBytes,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The system refused, beneath a folder.
    #[error(transparent)]
    Beneath(#[from] DirError),
}

impl From<InvalidBundlePath> for ArchiveError {
    fn from(error: InvalidBundlePath) -> Self {
        Self::InvalidEntry { entry: error.path, reason: error.reason }
    }
}

/// Takes the archive at `archive` apart into the folder `into`, which is made and must not be there yet. Which kind of
/// archive it is, its bytes say, not its name. Gives the files, sorted.
///
/// # Errors
/// When it is not an archive, holds what a bundle may not, or too much; then nothing is left at `into`.
pub fn unpack(archive: &Path, limits: &ArchiveLimits, into: &Path) -> Result<Vec<BundlePath>, ArchiveError> {
    unpack_content(archive, limits, into, ArchiveContent::Bundle)
}

/// What an archive is expected to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArchiveContent {
    /// A bundle: files below `.ai/`, packed as `rye` packs them.
    Bundle,
    /// Files of any kind, which are put below `.ai/`.
    Foreign,
}

impl ArchiveContent {
    /// What is put before each name.
    fn prefix(self) -> &'static str {
        match self {
            Self::Bundle => "",
            Self::Foreign => ".ai/",
        }
    }

    fn not_an_archive(self) -> ArchiveError {
        match self {
            Self::Bundle => ArchiveError::NotAnArchive,
            Self::Foreign => ArchiveError::NotAForeignArchive,
        }
    }
}

fn unpack_content(
    archive: &Path,
    limits: &ArchiveLimits,
    into: &Path,
    content: ArchiveContent,
) -> Result<Vec<BundlePath>, ArchiveError> {
    let file = file::open_regular(archive).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => content.not_an_archive(),
        _ => error.into(),
    })?;
    create_new_folder(into)?;
    let unpacked = unpack_into(&file, limits, into, content);
    if unpacked.is_err() {
        // The refusal is what is worth telling; a folder that cannot be removed is only untidy.
        let _ = file::remove_tree(into);
    }
    unpacked
}

/// Takes an archive that holds no bundle apart: its files, with the same rules, as if they lay below `.ai/`. It may be a
/// `.tar.gz` too.
///
/// # Errors
/// As [`unpack`].
pub fn unpack_foreign(
    archive: &Path,
    limits: &ArchiveLimits,
    into: &Path,
) -> Result<Vec<BundlePath>, ArchiveError> {
    unpack_content(archive, limits, into, ArchiveContent::Foreign)
}

/// Makes one new, private folder.
fn create_new_folder(path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("`{}` already exists", path.display()),
        ));
    }
    file::create_dirs(path, true)
}

fn unpack_into(
    file: &File,
    limits: &ArchiveLimits,
    into: &Path,
    content: ArchiveContent,
) -> Result<Vec<BundlePath>, ArchiveError> {
    let root = Dir::open(into)?;
    let mut last: Option<(String, Dir)> = None;
    let mut files = Vec::new();
    read_entries(file, limits, content, &mut |path, bytes| {
        let (parent, name) = path.as_str().rsplit_once('/').unwrap_or(("", path.as_str()));
        let folder = match last.take() {
            Some((known, folder)) if known == parent => folder,
            _ => create_folders_beneath(&root, parent)?,
        };
        folder.write_new(OsStr::new(name), bytes)?;
        last = Some((parent.to_owned(), folder));
        files.push(path.clone());
        Ok(())
    })?;
    files.sort();
    Ok(files)
}

/// Opens the folder `relative` below `root`, making what is missing, following no link.
pub(crate) fn create_folders_beneath(root: &Dir, relative: &str) -> Result<Dir, DirError> {
    let mut names = relative.split('/').filter(|name| !name.is_empty());
    let first = names.next().map(|name| root.create_dir(OsStr::new(name)));
    let first = match first {
        Some(first) => first?,
        None => return root.open_dir(Path::new("")),
    };
    names.try_fold(first, |folder, name| folder.create_dir(OsStr::new(name)))
}

/// What is done with each file of an archive.
pub type FileHandler<'a> = dyn FnMut(&BundlePath, &[u8]) -> Result<(), ArchiveError> + 'a;

/// Reads an archive and hands each of its files to `take`, in the archive's order.
///
/// # Errors
/// As [`unpack`], and what `take` says.
pub fn read_archive(
    source: impl Read + Seek,
    limits: &ArchiveLimits,
    handler: &mut FileHandler<'_>,
) -> Result<(), ArchiveError> {
    read_entries(source, limits, ArchiveContent::Bundle, handler)
}

fn read_entries(
    mut source: impl Read + Seek,
    limits: &ArchiveLimits,
    content: ArchiveContent,
    handler: &mut FileHandler<'_>,
) -> Result<(), ArchiveError> {
    let length = source.seek(SeekFrom::End(0))?;
    source.seek(SeekFrom::Start(0))?;
    let mut magic = [0; 4];
    match source.read_exact(&mut magic) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(content.not_an_archive()),
        Err(error) => return Err(error.into()),
    }
    source.seek(SeekFrom::Start(0))?;
    let mut policy = EntryPolicy::new(limits, limits.max_total_bytes(length), content.prefix(), handler);
    match &magic {
        [0x28, 0xb5, 0x2f, 0xfd] => tar_reader::read_tar_zst(source, &mut policy),
        [0x1f, 0x8b, 0x08, _] if content == ArchiveContent::Foreign => {
            tar_reader::read_tar_gz(source, &mut policy)
        }
        b"PK\x03\x04" | b"PK\x05\x06" => zip_reader::read_zip(source, length, &mut policy),
        _ => Err(content.not_an_archive()),
    }
}

#[cfg(test)]
mod gzip_tests;
#[cfg(test)]
mod tests;
