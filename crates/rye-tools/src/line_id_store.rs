//! The tracks of line ids in the cache folder: one small file per text file, the least recently used removed first.
//!
//! Everything here may be lost or unusable at any time; ids then come from the file alone.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use lillux::Digest;
use lillux::dir::{Dir, Durability};
use lillux::file::{FileMode, Lock};

use crate::line_id::{LineId, RetiredId, Track};

const HEADER: &[u8] = b"rye line ids 1\n";
const MAX_TRACK_BYTES: u64 = 8 * 1024 * 1024;
/// How many tracks are kept.
const MAX_TRACKS: usize = 1000;

/// The track of one file, held against other processes.
#[derive(Debug)]
pub(crate) struct LockedTrack {
    folder: Dir,
    name: OsString,
    _lock: Lock,
}

impl LockedTrack {
    /// Holds the track of the file that is really at `path`. None if the cache cannot be used.
    pub(crate) fn acquire(cache: &Path, path: &Path) -> Option<Self> {
        let dir = cache.join("line-ids");
        let folder = Dir::open(&dir).ok().or_else(|| {
            lillux::file::create_dirs(&dir, true).ok()?;
            Dir::open(&dir).ok()
        })?;
        let name = Digest::of(path.as_os_str().as_bytes()).to_hex();
        let lock = Lock::acquire(&dir.join(format!("lock-{}", &name[..1]))).ok()?;
        Some(Self { folder, name: name.into(), _lock: lock })
    }

    /// The track, if there is a good one.
    pub(crate) fn load(&self) -> Option<Track> {
        let opened = self.folder.open_child_file(&self.name).ok()?;
        let mut bytes = Vec::with_capacity(usize::try_from(opened.metadata.len()).unwrap_or(0).min(1 << 20));
        opened.file.take(MAX_TRACK_BYTES + 1).read_to_end(&mut bytes).ok()?;
        decode(&bytes)
    }

    /// Says that the track was useful just now.
    pub(crate) fn touch(&self) {
        // Only the order of removal suffers.
        let _ = self.folder.touch(&self.name);
    }

    /// Keeps the track.
    pub(crate) fn save(&self, track: &Track) {
        let bytes = encode(track);
        // File systems flush a file that replaces another; it is not read while the lock is held.
        let _ = self.folder.remove(&self.name);
        // A track that cannot be kept costs some ids, never a wrong line.
        if bytes.len() as u64 > MAX_TRACK_BYTES
            || self.folder.write_atomic(&self.name, &bytes, FileMode::Private, Durability::Renamed).is_err()
        {
            let _ = self.folder.remove(&self.name);
            return;
        }
        // Looking through the folder takes longer than the rest: one name in sixteen does it.
        if self.name.as_bytes().get(1) == Some(&b'0') {
            self.prune();
        }
    }

    fn prune(&self) {
        let Ok((entries, _)) = self.folder.entries(MAX_TRACKS * 64) else { return };
        let is_track = |name: &OsStr| name.len() == 64;
        let mut tracks: Vec<_> = entries
            .into_iter()
            .filter(|entry| is_track(&entry.name))
            .filter_map(|entry| {
                let status = self.folder.status(&entry.name).ok()??;
                Some((status.modified, entry.name))
            })
            .collect();
        let surplus = tracks.len().saturating_sub(MAX_TRACKS);
        tracks.sort_unstable();
        for (_, name) in tracks.into_iter().take(surplus) {
            let _ = self.folder.remove(&name);
        }
    }
}

fn encode(track: &Track) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + 16 * track.ids.len() + 12 * track.retired.len());
    bytes.extend(HEADER);
    bytes.extend(track.file.to_hex().as_bytes());
    bytes.extend((track.ids.len() as u64).to_be_bytes());
    for (content, id) in track.contents.iter().zip(&track.ids) {
        bytes.extend(content.to_be_bytes());
        bytes.extend(id.bits().to_be_bytes());
    }
    for retired in &track.retired {
        bytes.extend(retired.id.bits().to_be_bytes());
        bytes.extend(retired.index.to_be_bytes());
    }
    let check = Digest::of(&bytes);
    bytes.extend(&check.as_bytes()[..8]);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Track> {
    let (body, check) = bytes.split_last_chunk::<8>()?;
    if Digest::of(body).as_bytes()[..8] != check[..] {
        return None;
    }
    let rest = body.strip_prefix(HEADER)?;
    let (file, rest) = rest.split_first_chunk::<64>()?;
    let (count, rest) = rest.split_first_chunk::<8>()?;
    let count = usize::try_from(u64::from_be_bytes(*count)).ok()?;
    let (lines, retired) = rest.split_at_checked(count.checked_mul(16)?)?;
    let (lines, _) = lines.as_chunks::<16>();
    let (retired, odd) = retired.as_chunks::<12>();
    if !odd.is_empty() {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    Some(Track {
        file: std::str::from_utf8(file).ok()?.parse().ok()?,
        contents: lines.iter().map(|line| number(&line[..8])).collect(),
        ids: lines.iter().map(|line| LineId::from_bits(number(&line[8..]))).collect(),
        retired: retired
            .iter()
            .map(|entry| RetiredId {
                id: LineId::from_bits(number(&entry[..8])),
                index: u32::try_from(number(&entry[8..])).unwrap_or(u32::MAX),
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track() -> Track {
        let first = Track::new(Digest::of(b"1"), vec![1, 2, 2, 3]);
        first.sync(Digest::of(b"2"), vec![2, 3, 4])
    }

    #[test]
    fn track_round_trips() {
        assert_eq!(decode(&encode(&track())), Some(track()));
    }

    #[test]
    fn corrupt_track_is_ignored() {
        let good = encode(&track());
        for length in 0..good.len() {
            assert_eq!(decode(&good[..length]), None);
        }
        for index in 0..good.len() {
            let mut bad = good.clone();
            bad[index] ^= 1;
            assert_eq!(decode(&bad), None);
        }
    }

    #[test]
    fn saved_track_is_loaded() {
        let cache = tempfile::tempdir().expect("folder");
        let locked = LockedTrack::acquire(cache.path(), Path::new("/a")).expect("held");
        assert_eq!(locked.load(), None);
        locked.save(&track());
        drop(locked);
        let locked = LockedTrack::acquire(cache.path(), Path::new("/a")).expect("held");
        assert_eq!(locked.load(), Some(track()));
        drop(locked);
        assert_eq!(LockedTrack::acquire(cache.path(), Path::new("/b")).expect("held").load(), None);
    }

    #[test]
    fn old_tracks_are_pruned() {
        let cache = tempfile::tempdir().expect("folder");
        let locked = LockedTrack::acquire(cache.path(), Path::new("/a")).expect("held");
        for number in 0..MAX_TRACKS + 20 {
            let name = OsString::from(format!("{number:064}"));
            locked.folder.write_atomic(&name, b"", FileMode::Private, Durability::Renamed).expect("written");
        }
        locked.prune();
        let (entries, _) = locked.folder.entries(9999).expect("entries");
        assert_eq!(entries.iter().filter(|entry| entry.name.len() == 64).count(), MAX_TRACKS);
        assert!(
            locked.folder.status(OsStr::new(&format!("{:064}", MAX_TRACKS + 19))).expect("status").is_some()
        );
    }

    #[test]
    fn unusable_cache_is_ignored() {
        assert!(LockedTrack::acquire(Path::new("/proc/none"), Path::new("/a")).is_none());
    }
}
