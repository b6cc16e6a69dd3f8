//! `.tar.gz` of others: the same rules as for `.tar.zst`, and never for a bundle.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use lillux::file::{FileMode, read_beneath, write_atomic};
use tar::EntryType;

use super::tests::{entry, file};
use super::*;

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(tar).expect("compressed");
    encoder.finish().expect("finished")
}

fn tar_gz(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = entries.concat();
    tar.extend([0; 1024]);
    gzip(&tar)
}

/// Unpacks `bytes` as files that are not a bundle; whatever happens, a refusal leaves nothing.
fn unpack_bytes(bytes: &[u8], limits: &ArchiveLimits) -> Result<Vec<(String, Vec<u8>)>, ArchiveError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (archive, into) = (folder.path().join("a.bin"), folder.path().join("into"));
    write_atomic(&archive, bytes, FileMode::Preserve).expect("written");
    let unpacked = unpack_foreign(&archive, limits, &into);
    if unpacked.is_err() {
        assert!(!into.exists());
    }
    let read = |path: &BundlePath| {
        (path.to_string(), read_beneath(&into, path.as_path(), 1 << 30).expect("a file").0)
    };
    unpacked.map(|files| files.iter().map(read).collect())
}

#[track_caller]
fn assert_refused(bytes: &[u8], reason: &str) {
    let error = unpack_bytes(bytes, &ArchiveLimits::default()).expect_err("refused").to_string();
    assert!(error.contains(reason), "{error}");
}

#[test]
fn files_come_out_as_they_are() {
    let bytes = tar_gz(&[
        entry(b"kit-1.0/", EntryType::Directory, b""),
        file("kit-1.0/SKILL.md", b"one"),
        file("kit-1.0/.claude/agents/a.md", &[7; 2000]),
    ]);
    let files = unpack_bytes(&bytes, &ArchiveLimits::default()).expect("unpacked");
    assert_eq!(
        files,
        [
            (".ai/kit-1.0/.claude/agents/a.md".to_owned(), vec![7; 2000]),
            (".ai/kit-1.0/SKILL.md".to_owned(), b"one".to_vec()),
        ]
    );
}

#[test]
fn bundles_are_never_gzip() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("a.tar.zst");
    write_atomic(&archive, &tar_gz(&[file(".ai/a", b"x")]), FileMode::Preserve).expect("written");
    let error = unpack(&archive, &ArchiveLimits::default(), &folder.path().join("into"));
    assert!(matches!(error, Err(ArchiveError::NotAnArchive)), "{error:?}");
}

#[test]
fn hostile_gzip_is_refused() {
    assert_refused(&tar_gz(&[file("../a", b"x")]), "the archive holds");
    assert_refused(&tar_gz(&[file("/etc/a", b"x")]), "the archive holds");
    assert_refused(&tar_gz(&[entry(b"l", EntryType::Symlink, b"")]), "symbolic link");
    assert_refused(&tar_gz(&[entry(b"l", EntryType::Link, b"")]), "hard link");
    assert_refused(&tar_gz(&[entry(b"l", EntryType::Char, b"")]), "device");
    assert_refused(&gzip(b"not a tape"), "damaged");
    assert_refused(b"\x1f\x8b\x08\x00", "damaged");
    assert_refused(b"\x1f\x8b\x07\x00 what is this", "neither a `.tar.gz`");
}

#[test]
fn bytes_after_the_member_are_refused() {
    let whole = tar_gz(&[file("a", b"x")]);
    for behind in [b"\0".to_vec(), tar_gz(&[file("b", b"y")])] {
        assert_refused(&[whole.clone(), behind].concat(), "belong to no file");
    }
    for cut in 1..12 {
        assert_refused(&whole[..whole.len() - cut], "damaged");
    }
    let mut other_checksum = whole.clone();
    let at = other_checksum.len() - 6;
    other_checksum[at] ^= 1;
    assert_refused(&other_checksum, "damaged");
}

#[test]
fn gzip_bomb_is_refused() {
    let limits = ArchiveLimits { ratio_exempt_bytes: 1 << 16, ratio: 50, ..ArchiveLimits::default() };
    let bomb = tar_gz(&[file("a", &vec![0; 8 << 20])]);
    let endless = gzip(&[file("a", b""), vec![0; 64 << 20]].concat());
    for bytes in [bomb, endless] {
        let few = ArchiveLimits { entries: 10, ..limits };
        let error = unpack_bytes(&bytes, &few).expect_err("refused");
        assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
    }
}

#[test]
fn changed_bytes_stay_within_limits() {
    let bytes = tar_gz(&[file("a/b.md", b"hello"), file("a/c.md", &[9; 700])]);
    let limits =
        ArchiveLimits { entries: 8, file_bytes: 1 << 12, total_bytes: 1 << 13, ..ArchiveLimits::default() };
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            for (path, content) in unpack_bytes(&changed, &limits).unwrap_or_default() {
                assert!(path.starts_with(".ai/") && content.len() <= 1 << 12, "{path}");
            }
        }
    }
}
