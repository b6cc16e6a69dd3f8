//! What every entry of an archive passes, whichever kind of archive it is: a plain name, no clash with an earlier one,
//! and the bounds.

use std::collections::HashMap;
use std::io::{self, Read};

use super::{ArchiveError, ArchiveLimits, FileHandler};
use crate::path::BundlePath;

/// How much is read at once: what an entry claims to hold is not accepted before it has come.
const MAX_INITIAL_CAPACITY: u64 = 1 << 20;

/// The entries of one archive, as they come in.
pub(super) struct EntryPolicy<'a> {
    limits: &'a ArchiveLimits,
    /// What is put before each name.
    prefix: &'static str,
    handler: &'a mut FileHandler<'a>,
    entries: usize,
    /// Bytes that may still come.
    bytes_left: u64,
    total: u64,
    /// By name without case: the name as it was written, and whether it is a file.
    names: HashMap<String, (String, bool)>,
}

impl<'a> EntryPolicy<'a> {
    pub(super) fn new(
        limits: &'a ArchiveLimits,
        total: u64,
        prefix: &'static str,
        handler: &'a mut FileHandler<'a>,
    ) -> Self {
        Self { limits, prefix, handler, entries: 0, bytes_left: total, total, names: HashMap::new() }
    }

    /// How many bytes may come out of the archive, the headers of its entries included.
    pub(super) fn stream_limit(&self) -> u64 {
        // Each entry has a header and padding, and may have a long name before it.
        self.total.saturating_add((self.limits.entries as u64).saturating_mul(4096))
    }

    /// Counts an entry of any kind.
    pub(super) fn count_entry(&mut self) -> Result<(), ArchiveError> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(ArchiveError::TooLarge { limit: self.limits.entries as u64, what: "entries" });
        }
        Ok(())
    }

    /// A folder: nothing is made of it, but its name has to be a plain one.
    pub(super) fn accept_folder(&mut self, name: &[u8]) -> Result<(), ArchiveError> {
        let name = decode_name(name)?;
        let name = strip_dot_prefix(name.trim_end_matches('/'));
        if matches!(name, "" | "." | ".ai") {
            return Ok(());
        }
        let path = BundlePath::new(format!("{}{name}", self.prefix))?;
        self.register_name(path.as_str(), false)
    }

    /// A file of `size` bytes, which are read from `content`.
    pub(super) fn accept_file(
        &mut self,
        name: &[u8],
        size: u64,
        content: &mut dyn Read,
    ) -> Result<(), ArchiveError> {
        let name = decode_name(name)?;
        let path = BundlePath::new(format!("{}{}", self.prefix, strip_dot_prefix(&name)))?;
        self.register_name(path.as_str(), true)?;
        if size > self.limits.file_bytes {
            return Err(ArchiveError::TooLarge { limit: self.limits.file_bytes, what: "bytes in one file" });
        }
        self.bytes_left = self.bytes_left.checked_sub(size).ok_or(ArchiveError::TooLarge {
            limit: self.total,
            what: "bytes, or far more than its own size",
        })?;
        let mut bytes = Vec::with_capacity(usize::try_from(size.min(MAX_INITIAL_CAPACITY)).unwrap_or(0));
        content.take(size.saturating_add(1)).read_to_end(&mut bytes).map_err(decode_error)?;
        if bytes.len() as u64 != size {
            return Err(ArchiveError::InvalidEntry {
                entry: path.to_string(),
                reason: "it has not as many bytes as it says",
            });
        }
        (self.handler)(&path, &bytes)
    }

    /// Enters a name and the folders it lies in; two that are one where case is ignored are refused.
    fn register_name(&mut self, path: &str, is_file: bool) -> Result<(), ArchiveError> {
        let refused = |reason| Err(ArchiveError::InvalidEntry { entry: path.to_owned(), reason });
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            match self.names.get(&folder.to_lowercase()) {
                None => {
                    self.names.insert(folder.to_lowercase(), (folder.to_owned(), false));
                }
                Some((_, true)) => return refused("its folder is also a file"),
                Some((known, false)) if known != folder => {
                    return refused("its folder is there already, in other case");
                }
                Some((_, false)) => {}
            }
        }
        match self.names.get(&path.to_lowercase()) {
            None => {
                self.names.insert(path.to_lowercase(), (path.to_owned(), is_file));
                Ok(())
            }
            Some((known, false)) if !is_file && known == path => Ok(()),
            Some((known, true)) if is_file && known == path => refused("it is there twice"),
            Some((_, known_is_file)) if *known_is_file != is_file => refused("it is a file and a folder"),
            Some(_) => refused("it is there already, in other case"),
        }
    }
}

/// The name as text.
fn decode_name(name: &[u8]) -> Result<String, ArchiveError> {
    match std::str::from_utf8(name) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(ArchiveError::InvalidEntry {
            entry: String::from_utf8_lossy(name).into_owned(),
            reason: "its name is not UTF-8",
        }),
    }
}

/// The name without the `./` that some programs put before every name.
fn strip_dot_prefix(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}

/// What a decoder says of bytes it cannot read.
pub(super) fn decode_error(error: io::Error) -> ArchiveError {
    match error.downcast::<ArchiveError>() {
        Ok(error) => error,
        Err(error) => ArchiveError::Damaged(error.to_string()),
    }
}
