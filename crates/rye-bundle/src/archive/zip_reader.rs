//! `.zip`: the list at its end and the headers before each file have to say the same, and leave no byte over.

use std::io::{BufReader, Read, Seek, SeekFrom};

use zip::read::ZipReadOptions;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::ArchiveError;
use super::entry_policy::EntryPolicy;

/// The record at the very end of an archive without a comment.
const END_RECORD_BYTES: usize = 22;
/// What may follow a file before the next one: its sizes, if they were not known before.
const MAX_DESCRIPTOR_BYTES: u64 = 24;
const FILE_TYPE_MASK: u32 = 0o170_000;

/// Reads the archive of `length` bytes.
pub(super) fn read_zip(
    source: impl Read + Seek,
    length: u64,
    policy: &mut EntryPolicy<'_>,
) -> Result<(), ArchiveError> {
    let mut source = BufReader::new(source);
    check_end(&mut source, length)?;
    let mut archive = ZipArchive::new(source).map_err(zip_error)?;
    for _ in 0..archive.len() {
        policy.count_entry()?;
    }
    if archive.has_duplicate_names() {
        return Err(ArchiveError::Damaged("a name is there twice".to_owned()));
    }
    archive.validate_header_consistency().map_err(zip_error)?;
    check_layout(&mut archive)?;
    for index in 0..archive.len() {
        let options = ZipReadOptions::new().enforce_header_consistency(true);
        // The decoder gives the name only after it has looked at how the file is packed.
        check_entry(&archive, index)?;
        let mut entry = archive.by_index_with_options(index, options).map_err(zip_error)?;
        let (name, size) = (entry.name_raw().to_vec(), entry.size());
        match name.ends_with(b"/") {
            true if size == 0 => policy.accept_folder(&name)?,
            true => return invalid_entry(&name, "it is a folder with content"),
            false => policy.accept_file(&name, size, &mut entry)?,
        }
    }
    Ok(())
}

fn check_entry<R>(archive: &ZipArchive<R>, index: usize) -> Result<(), ArchiveError>
where
    R: Read + Seek,
{
    let entry = archive.by_index_data(index).map_err(zip_error)?;
    let name = entry.name_raw();
    if entry.encrypted() {
        return invalid_entry(name, "it is encrypted");
    }
    if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return invalid_entry(name, "it is packed in a way that is not understood here");
    }
    let kind = (entry.external_attributes() >> 16) & FILE_TYPE_MASK;
    match (kind, name.ends_with(b"/")) {
        (0, _) | (0o100_000, false) | (0o040_000, true) => Ok(()),
        (0o120_000, _) => invalid_entry(name, "it is a symbolic link"),
        _ => invalid_entry(name, "it is neither a file nor a folder"),
    }
}

/// The archive ends with its last record: nothing follows, no comment, no second list.
fn check_end(source: &mut (impl Read + Seek), length: u64) -> Result<(), ArchiveError> {
    let start = length
        .checked_sub(END_RECORD_BYTES as u64)
        .ok_or_else(|| ArchiveError::Damaged("it stops half-way".to_owned()))?;
    source.seek(SeekFrom::Start(start))?;
    let mut record = [0; END_RECORD_BYTES];
    source.read_exact(&mut record)?;
    source.seek(SeekFrom::Start(0))?;
    let number = |at: usize| u16::from_le_bytes([record[at], record[at + 1]]);
    if !record.starts_with(b"PK\x05\x06") || number(20) != 0 {
        return Err(ArchiveError::TrailingBytes);
    }
    if number(4) != 0 || number(6) != 0 || number(8) != number(10) {
        return Err(ArchiveError::Damaged("it is one part of several".to_owned()));
    }
    Ok(())
}

/// Files follow one another from the first byte to the list, without holes to hide something in.
fn check_layout<R: Read + Seek>(archive: &mut ZipArchive<R>) -> Result<(), ArchiveError> {
    if archive.offset() != 0 {
        return Err(ArchiveError::TrailingBytes);
    }
    let mut ranges = Vec::with_capacity(archive.len());
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(zip_error)?;
        let start = entry.data_start().unwrap_or(0);
        ranges.push((entry.header_start(), start.saturating_add(entry.compressed_size())));
    }
    ranges.sort_unstable();
    ranges.push((archive.central_directory_start(), 0));
    let mut last_end = 0;
    for (number, (start, end)) in ranges.into_iter().enumerate() {
        let gap = start.checked_sub(last_end).ok_or(ArchiveError::TrailingBytes)?;
        if gap > MAX_DESCRIPTOR_BYTES || (number == 0 && gap > 0) {
            return Err(ArchiveError::TrailingBytes);
        }
        last_end = end;
    }
    Ok(())
}

fn invalid_entry<T>(name: &[u8], reason: &'static str) -> Result<T, ArchiveError> {
    Err(ArchiveError::InvalidEntry { entry: String::from_utf8_lossy(name).into_owned(), reason })
}

fn zip_error(error: ZipError) -> ArchiveError {
    match error {
        ZipError::Io(error) => super::entry_policy::decode_error(error),
        other => ArchiveError::Damaged(other.to_string()),
    }
}
