//! `.tar.zst` and `.tar.gz`: one frame of zstd, or one member of gzip, around one tape. Read block by block, so that what
//! is not understood is refused instead of skipped.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::GzDecoder;
use tar::{EntryType, Header};

use super::ArchiveError;
use super::entry_policy::{EntryPolicy, decode_error};

const BLOCK_BYTES: usize = 512;
/// A window of 8 MiB: what `zstd -19` uses. A larger one is memory a stranger asks for.
const MAX_WINDOW_LOG: u32 = 23;
/// A path has at most 1024 bytes; an extended header may hold times and owners too.
const MAX_NAME_BYTES: u64 = 2048;
const MAX_RECORDS_BYTES: u64 = 8192;

/// Records of an extended header that say nothing about content or name.
const IGNORED_RECORDS: [&str; 7] = ["mtime", "atime", "ctime", "uid", "gid", "uname", "gname"];

/// Reads a `.tar.zst` to its last byte.
pub(super) fn read_tar_zst(source: impl Read, policy: &mut EntryPolicy<'_>) -> Result<(), ArchiveError> {
    let mut decoder =
        zstd::Decoder::with_buffer(BufReader::new(source)).map_err(decode_error)?.single_frame();
    decoder.window_log_max(MAX_WINDOW_LOG).map_err(decode_error)?;
    let limit = policy.stream_limit();
    read_entries(&mut BoundedReader { inner: &mut decoder, limit, left: limit }, policy)?;
    decoder.finish_frame().map_err(decode_error)?;
    match decoder.finish().fill_buf()? {
        [] => Ok(()),
        _ => Err(ArchiveError::TrailingBytes),
    }
}

/// Reads a `.tar.gz` to its last byte. Its decoder needs 32 KiB whatever the archive says.
pub(super) fn read_tar_gz(source: impl Read, policy: &mut EntryPolicy<'_>) -> Result<(), ArchiveError> {
    let mut decoder = GzDecoder::new(BufReader::new(source));
    let limit = policy.stream_limit();
    // The tape is read until the decoder has nothing more, which is when it has compared the checksum.
    read_entries(&mut BoundedReader { inner: &mut decoder, limit, left: limit }, policy)?;
    match decoder.into_inner().fill_buf()? {
        [] => Ok(()),
        _ => Err(ArchiveError::TrailingBytes),
    }
}

fn read_entries(tar: &mut impl Read, policy: &mut EntryPolicy<'_>) -> Result<(), ArchiveError> {
    let mut long_name: Option<Vec<u8>> = None;
    loop {
        let mut block = [0; BLOCK_BYTES];
        tar.read_exact(&mut block).map_err(decode_error)?;
        if block.iter().all(|byte| *byte == 0) {
            return match long_name {
                None => check_end(tar),
                Some(_) => Err(ArchiveError::Damaged("a name without a file".to_owned())),
            };
        }
        let header = Header::from_byte_slice(&block);
        verify_checksum(&block, header)?;
        policy.count_entry()?;
        let size = header.entry_size().map_err(decode_error)?;
        let short_name = header.path_bytes();
        let refused = |name: &[u8], reason| {
            let entry = String::from_utf8_lossy(name).into_owned();
            Err(ArchiveError::InvalidEntry { entry, reason })
        };
        let kind = header.entry_type();
        match kind {
            EntryType::Regular => {
                // Old archives have no kind for folders but a name that ends in a slash.
                let name = long_name.take().unwrap_or_else(|| short_name.to_vec());
                let is_old_folder = name.ends_with(b"/");
                if is_old_folder {
                    return refused(&name, "it is a file whose name is a folder's");
                }
                policy.accept_file(&name, size, &mut tar.take(size))?;
                skip_padding(tar, size)?;
            }
            EntryType::Directory => {
                let name = long_name.take().unwrap_or_else(|| short_name.to_vec());
                if size != 0 {
                    return refused(&name, "it is a folder with content");
                }
                policy.accept_folder(&name)?;
            }
            EntryType::GNULongName if long_name.is_none() => {
                let mut name = read_metadata_entry(tar, size, MAX_NAME_BYTES)?;
                if name.pop() != Some(0) {
                    return Err(ArchiveError::Damaged("a long name without its end".to_owned()));
                }
                long_name = Some(name);
            }
            EntryType::XHeader if long_name.is_none() => {
                long_name = path_record(&read_metadata_entry(tar, size, MAX_RECORDS_BYTES)?)?;
            }
            // `git archive` names its commit there.
            EntryType::XGlobalHeader => {
                let records = read_metadata_entry(tar, size, MAX_RECORDS_BYTES)?;
                for (key, _) in parse_records(&records)? {
                    if key != "comment" {
                        return refused(&short_name, "it is a header for all entries");
                    }
                }
            }
            EntryType::Symlink => return refused(&short_name, "it is a symbolic link"),
            EntryType::Link => return refused(&short_name, "it is a hard link"),
            EntryType::Char | EntryType::Block => return refused(&short_name, "it is a device"),
            EntryType::Fifo => return refused(&short_name, "it is a pipe"),
            EntryType::GNUSparse => return refused(&short_name, "it is a sparse file"),
            EntryType::GNULongName | EntryType::XHeader => {
                return refused(&short_name, "it is one long name after another");
            }
            _ => return refused(&short_name, "it is neither a file nor a folder"),
        }
    }
}

/// After the first empty block there is another one, and nothing but such blocks until the tape ends.
fn check_end(tar: &mut impl Read) -> Result<(), ArchiveError> {
    let mut block = [0; BLOCK_BYTES];
    tar.read_exact(&mut block).map_err(decode_error)?;
    loop {
        if block.iter().any(|byte| *byte != 0) {
            return Err(ArchiveError::TrailingBytes);
        }
        match tar.read(&mut block).map_err(decode_error)? {
            0 => return Ok(()),
            count => block[count..].fill(0),
        }
    }
}

fn verify_checksum(block: &[u8; BLOCK_BYTES], header: &Header) -> Result<(), ArchiveError> {
    const FIELD: std::ops::Range<usize> = 148..156;
    let sum = block.iter().enumerate().map(|(at, byte)| match FIELD.contains(&at) {
        true => u32::from(b' '),
        false => u32::from(*byte),
    });
    match header.cksum() {
        Ok(stated) if stated == sum.sum::<u32>() => Ok(()),
        _ => Err(ArchiveError::Damaged("a header does not have its checksum".to_owned())),
    }
}

fn skip_padding(tar: &mut impl Read, size: u64) -> Result<(), ArchiveError> {
    let used = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or(0);
    if used == 0 {
        return Ok(());
    }
    let mut padding = [0; BLOCK_BYTES];
    tar.read_exact(&mut padding[used..]).map_err(decode_error)?;
    match padding.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(ArchiveError::TrailingBytes),
    }
}

/// The content of an entry that describes the next one.
fn read_metadata_entry(tar: &mut impl Read, size: u64, limit: u64) -> Result<Vec<u8>, ArchiveError> {
    if size > limit {
        return Err(ArchiveError::TooLarge { limit, what: "bytes in a header" });
    }
    let mut bytes = Vec::new();
    tar.take(size).read_to_end(&mut bytes).map_err(decode_error)?;
    if bytes.len() as u64 != size {
        return Err(ArchiveError::Damaged("it stops half-way".to_owned()));
    }
    skip_padding(tar, size)?;
    Ok(bytes)
}

/// The path an extended header gives to the next entry.
fn path_record(bytes: &[u8]) -> Result<Option<Vec<u8>>, ArchiveError> {
    let mut path = None;
    for (key, value) in parse_records(bytes)? {
        if key == "path" && path.is_none() {
            path = Some(value.to_vec());
        } else if !IGNORED_RECORDS.contains(&key) {
            return Err(ArchiveError::InvalidEntry {
                entry: key.to_owned(),
                reason: "it is an extended header of a kind no bundle needs",
            });
        }
    }
    Ok(path)
}

/// The records of an extended header: `LENGTH KEY=VALUE\n`, each.
fn parse_records(mut bytes: &[u8]) -> Result<Vec<(&str, &[u8])>, ArchiveError> {
    let broken = || ArchiveError::Damaged("an extended header cannot be read".to_owned());
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
        let length = std::str::from_utf8(&bytes[..space]).map_err(|_| broken())?;
        let length: usize = length.parse().map_err(|_| broken())?;
        if length <= space + 1 || length > bytes.len() {
            return Err(broken());
        }
        let record = bytes[space + 1..length].strip_suffix(b"\n").ok_or_else(broken)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
        let key = std::str::from_utf8(&record[..equals]).map_err(|_| broken())?;
        records.push((key, &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Ok(records)
}

/// A reader that gives at most so many bytes, and says so when there would be more.
struct BoundedReader<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R: Read> Read for BoundedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)? as u64;
        self.left = self.left.checked_sub(count).ok_or_else(|| {
            let what = "bytes, or far more than its own size";
            io::Error::other(ArchiveError::TooLarge { limit: self.limit, what })
        })?;
        Ok(usize::try_from(count).unwrap_or(buffer.len()))
    }
}
