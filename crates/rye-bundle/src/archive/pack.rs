//! Making archives: the same files give the same bytes, whenever and wherever they are packed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use lillux::file::{self, Mode, ReadError};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use super::{ArchiveError, Limits};
use crate::path::FilePath;

const LEVEL: i32 = 9;
const MODE: u32 = 0o644;

/// A kind of archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.tar.zst`
    TarZst,
    /// `.zip`
    Zip,
}

impl Format {
    /// The format a file's name asks for, if it is an archive's name.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
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
pub fn pack(folder: &Path, files: &[FilePath], out: &Path) -> Result<(), ArchiveError> {
    let format = Format::of(out).ok_or_else(|| ArchiveError::UnknownFormat(out.display().to_string()))?;
    let files: BTreeSet<&FilePath> = files.iter().collect();
    let limits = Limits::default();
    if files.len() > limits.entries {
        return Err(ArchiveError::TooMuch { limit: limits.entries as u64, what: "entries" });
    }
    let source = Source { folder, files: &files, limits: &limits };
    file::write_atomic_with(out, Mode::Kept, |file| {
        let total = match format {
            Format::TarZst => source.pack_tar(file)?,
            Format::Zip => source.pack_zip(file)?,
        };
        // An archive that nobody could take apart again is of no use.
        let limit = limits.total_of(file.metadata()?.len());
        match total > limit {
            true => Err(ArchiveError::TooMuch { limit, what: "bytes, or far more than its own size" }),
            false => Ok(()),
        }
    })
}

struct Source<'a> {
    folder: &'a Path,
    files: &'a BTreeSet<&'a FilePath>,
    limits: &'a Limits,
}

impl Source<'_> {
    fn pack_tar(&self, out: &mut File) -> Result<u64, ArchiveError> {
        let encoder = zstd::Encoder::new(out, LEVEL)?;
        let mut builder = tar::Builder::new(encoder);
        let mut total = 0;
        for path in self.files {
            let bytes = self.read(path)?;
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(MODE);
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
            .unix_permissions(MODE);
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

    fn read(&self, path: &FilePath) -> Result<Vec<u8>, ArchiveError> {
        match file::read_beneath(self.folder, path.as_path(), self.limits.file_bytes) {
            Ok((bytes, _)) => Ok(bytes),
            Err(ReadError::Io(error)) => Err(error.into()),
            Err(ReadError::TooLarge { limit, .. }) => {
                Err(ArchiveError::TooMuch { limit, what: "bytes in one file" })
            }
            Err(ReadError::NotAFile { .. }) => {
                Err(ArchiveError::Entry { entry: path.to_string(), reason: "it is not a regular file" })
            }
            Err(ReadError::Escapes { .. }) => Err(ArchiveError::Entry {
                entry: path.to_string(),
                reason: "it leaves the folder through a link",
            }),
        }
    }
}
