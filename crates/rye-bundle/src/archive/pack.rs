//! Making archives: the same files give the same bytes, whenever and wherever they are packed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use lillux::file::{self, FileMode, ReadError};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use super::{ArchiveError, ArchiveLimits};
use crate::path::BundlePath;

const ZSTD_LEVEL: i32 = 9;
const FILE_MODE: u32 = 0o644;

/// A kind of archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveFormat {
    /// `.tar.zst`
    TarZst,
    /// `.zip`
    Zip,
}

impl ArchiveFormat {
    /// The format a file's name asks for, if it is an archive's name.
    #[must_use]
    pub fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        if name.ends_with(".tar.zst") {
            Some(Self::TarZst)
        } else if name.ends_with(".zip") {
            Some(Self::Zip)
        } else {
            None
        }
    }
}

/// Packs `files` of `folder` into the archive `out`, whose name says which kind. Times, owners and modes are left out.
///
/// # Errors
/// When the name says no kind, a file cannot be read or leaves the folder, or there is more than [`super::unpack`] would
/// take; then nothing is written.
pub fn pack(folder: &Path, files: &[BundlePath], out: &Path) -> Result<(), ArchiveError> {
    let format = ArchiveFormat::from_path(out)
        .ok_or_else(|| ArchiveError::UnknownFormat(out.display().to_string()))?;
    let files: BTreeSet<&BundlePath> = files.iter().collect();
    let limits = ArchiveLimits::default();
    if files.len() > limits.entries {
        return Err(ArchiveError::TooLarge { limit: limits.entries as u64, what: "entries" });
    }
    let source = PackSource { folder, files: &files, limits: &limits };
    file::write_atomic_with(out, FileMode::Preserve, |file| {
        let total = match format {
            ArchiveFormat::TarZst => source.pack_tar(file)?,
            ArchiveFormat::Zip => source.pack_zip(file)?,
        };
        // An archive that could not be unpacked again is of no use.
        let limit = limits.max_total_bytes(file.metadata()?.len());
        match total > limit {
            true => Err(ArchiveError::TooLarge { limit, what: "bytes, or far more than its own size" }),
            false => Ok(()),
        }
    })
}

struct PackSource<'a> {
    folder: &'a Path,
    files: &'a BTreeSet<&'a BundlePath>,
    limits: &'a ArchiveLimits,
}

impl PackSource<'_> {
    fn pack_tar(&self, out: &mut File) -> Result<u64, ArchiveError> {
        let encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
        let mut builder = tar::Builder::new(encoder);
        let mut total = 0;
        for path in self.files {
            let bytes = self.read(path)?;
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(FILE_MODE);
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            builder.append_data(&mut header, path.as_path(), bytes.as_slice())?;
            total += bytes.len() as u64;
        }
        builder.into_inner()?.finish()?;
        Ok(total)
    }

    fn pack_zip(&self, out: &mut File) -> Result<u64, ArchiveError> {
        let mut writer = ZipWriter::new(out);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(DateTime::default())
            .unix_permissions(FILE_MODE);
        let mut total = 0;
        for path in self.files {
            let bytes = self.read(path)?;
            let failed = |error: zip::result::ZipError| ArchiveError::Io(error.into());
            writer.start_file(path.as_str(), options).map_err(failed)?;
            writer.write_all(&bytes)?;
            total += bytes.len() as u64;
        }
        writer.finish().map_err(|error| ArchiveError::Io(error.into()))?;
        Ok(total)
    }

    fn read(&self, path: &BundlePath) -> Result<Vec<u8>, ArchiveError> {
        match file::read_beneath(self.folder, path.as_path(), self.limits.file_bytes) {
            Ok((bytes, _)) => Ok(bytes),
            Err(ReadError::Io(error)) => Err(error.into()),
            Err(ReadError::TooLarge { limit, .. }) => {
                Err(ArchiveError::TooLarge { limit, what: "bytes in one file" })
            }
            Err(ReadError::NotAFile { .. }) => Err(ArchiveError::InvalidEntry {
                entry: path.to_string(),
                reason: "it is not a regular file",
            }),
            Err(ReadError::Escapes { .. }) => Err(ArchiveError::InvalidEntry {
                entry: path.to_string(),
                reason: "it leaves the folder through a link",
            }),
        }
    }
}
