//! Archives made by hand to do harm, one for each way; and the ones made here, which come apart again.

use std::io::{Cursor, Write};
use std::path::PathBuf;

use lillux::file::{FileMode, create_dirs, read_beneath, read_bounded, set_mode, write_atomic};
use tar::{EntryType, Header};
use zip::write::SimpleFileOptions;

use super::*;

/// One entry of a tape: a header with this name and kind, the content, and padding.
pub(super) fn entry(name: &[u8], kind: EntryType, content: &[u8]) -> Vec<u8> {
    sized_entry(name, kind, content, content.len() as u64)
}

fn sized_entry(name: &[u8], kind: EntryType, content: &[u8], size: u64) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().div_ceil(512) * 512, 0);
    bytes
}

pub(super) fn file(name: &str, content: &[u8]) -> Vec<u8> {
    entry(name.as_bytes(), EntryType::Regular, content)
}

/// A record of an extended header, which begins with its own length.
fn record(text: &str) -> String {
    let length = (1..99).find(|length: &usize| *length == format!("{length} {text}\n").len());
    format!("{} {text}\n", length.expect("a short record"))
}

fn compress(tar: &[u8]) -> Vec<u8> {
    zstd::encode_all(tar, 3).expect("compressed")
}

fn compressed_tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = entries.concat();
    tar.extend([0; 1024]);
    compress(&tar)
}

fn zip_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        // Short contents as they are, so that a test can find them in the bytes.
        let method = match content.len() {
            0..=10 => zip::CompressionMethod::Stored,
            _ => zip::CompressionMethod::Deflated,
        };
        let options = SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).expect("started");
        writer.write_all(content).expect("written");
    }
    writer.finish().expect("finished").into_inner()
}

/// Unpacks `bytes`; whatever happens, a refusal leaves nothing.
fn unpack_with_limits(bytes: &[u8], limits: &ArchiveLimits) -> Result<Vec<(String, Vec<u8>)>, ArchiveError> {
    let folder = tempfile::tempdir().expect("a folder");
    let (archive, into) = (folder.path().join("a.bin"), folder.path().join("into"));
    write_atomic(&archive, bytes, FileMode::Preserve).expect("written");
    let unpacked = unpack(&archive, limits, &into);
    match unpacked {
        Ok(files) => {
            let read = |path: &BundlePath| {
                let bytes = read_beneath(&into, path.as_path(), 1 << 30).expect("a file").0;
                (path.to_string(), bytes)
            };
            Ok(files.iter().map(read).collect())
        }
        Err(error) => {
            let left: Vec<PathBuf> = std::fs::read_dir(folder.path())
                .expect("the folder")
                .map(|entry| entry.expect("an entry").path())
                .collect();
            assert_eq!(left, [archive]);
            Err(error)
        }
    }
}

fn unpack_bytes(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, ArchiveError> {
    unpack_with_limits(bytes, &ArchiveLimits::default())
}

#[track_caller]
fn assert_refused(bytes: &[u8], reason: &str) {
    match unpack_bytes(bytes) {
        Ok(files) => panic!("taken: {:?}", files.iter().map(|(name, _)| name).collect::<Vec<_>>()),
        Err(error) => assert!(error.to_string().contains(reason), "{error}"),
    }
}

#[test]
fn packing_is_reproducible_and_round_trips() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = format!(".ai/knowledge/{}/{}/x.md", "a".repeat(120), "b".repeat(200));
    let contents: Vec<(String, Vec<u8>)> = [
        (".ai/tools/team/a.py".to_owned(), b"print(1)\n".to_vec()),
        (".ai/tools/team/empty.json".to_owned(), Vec::new()),
        (".ai/tools/team/data.bin".to_owned(), (0..=255).collect()),
        (long, vec![b'x'; 1300]),
    ]
    .into();
    for (path, bytes) in &contents {
        let path = folder.path().join("in").join(path);
        create_dirs(path.parent().expect("a folder"), false).expect("folders");
        write_atomic(&path, bytes, FileMode::Preserve).expect("written");
    }
    let mut files: Vec<BundlePath> =
        contents.iter().map(|(path, _)| BundlePath::new(path.as_str()).expect("a path")).collect();
    for name in ["a.tar.zst", "a.zip"] {
        let (first, second) = (folder.path().join(name), folder.path().join(format!("again-{name}")));
        pack(&folder.path().join("in"), &files, &first).expect("packed");
        files.reverse();
        set_mode(&folder.path().join("in/.ai/tools/team/a.py"), 0o700).expect("mode");
        pack(&folder.path().join("in"), &files, &second).expect("packed again");
        let read = |path: &Path| read_bounded(path, 1 << 20).expect("an archive").0;
        assert!(read(&first) == read(&second), "{name}");
        let mut expected = contents.clone();
        expected.sort();
        assert_eq!(unpack_bytes(&read(&first)).expect("unpacked"), expected, "{name}");
    }
    let refused = pack(&folder.path().join("in"), &files, &folder.path().join("a.rar"));
    assert!(matches!(refused, Err(ArchiveError::UnknownFormat(_))));
}

#[test]
fn archive_format_is_detected_by_magic() {
    assert_refused(b"", "neither");
    assert_refused(b"PK", "neither");
    assert_refused(b"\x1f\x8b\x08\x00 gzip of something", "neither");
    assert_eq!(unpack_bytes(&compressed_tar(&[file(".ai/tools/a.py", b"x")])).expect("unpacked").len(), 1);
    assert_eq!(unpack_bytes(&zip_of(&[(".ai/tools/a.py", b"x")])).expect("unpacked").len(), 1);
}

#[test]
fn archives_from_common_programs_are_accepted() {
    let records = record("path=.ai/tools/b.py") + &record("mtime=1700000000");
    let pax = entry(b"PaxHeaders/x", EntryType::XHeader, records.as_bytes());
    let commit = entry(b"pax_global_header", EntryType::XGlobalHeader, record("comment=abcd").as_bytes());
    let long = format!(".ai/tools/{}.py", "x".repeat(150));
    let gnu = entry(b"././@LongLink", EntryType::GNULongName, format!("{long}\0").as_bytes());
    let archive = compressed_tar(&[
        commit,
        entry(b"./", EntryType::Directory, b""),
        entry(b"./.ai/", EntryType::Directory, b""),
        entry(b".ai/tools/", EntryType::Directory, b""),
        file("./.ai/tools/a.py", b"a"),
        pax,
        file("short", b"b"),
        gnu,
        file("short", b"c"),
    ]);
    let names: Vec<String> =
        unpack_bytes(&archive).expect("unpacked").into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [".ai/tools/a.py", ".ai/tools/b.py", &long]);
}

#[test]
fn tar_yields_only_files_and_folders() {
    for (kind, reason) in [
        (EntryType::Symlink, "symbolic link"),
        (EntryType::Link, "hard link"),
        (EntryType::Char, "device"),
        (EntryType::Block, "device"),
        (EntryType::Fifo, "pipe"),
        (EntryType::GNUSparse, "sparse"),
        (EntryType::Continuous, "neither a file nor a folder"),
        (EntryType::GNULongLink, "neither a file nor a folder"),
        (EntryType::new(b'V'), "neither a file nor a folder"),
    ] {
        let first = file(".ai/tools/first.py", b"x");
        assert_refused(&compressed_tar(&[first, entry(b".ai/tools/a", kind, b"")]), reason);
    }
    assert_refused(
        &compressed_tar(&[entry(b".ai/tools/a/", EntryType::Directory, b"x")]),
        "folder with content",
    );
    assert_refused(&compressed_tar(&[file(".ai/tools/a/", b"x")]), "folder's");
}

#[test]
fn names_that_are_not_plain_are_refused() {
    let names: [&[u8]; 11] = [
        b"/etc/passwd",
        b"../a",
        b".ai/../../a",
        b".ai/tools/..",
        b".ai//a",
        b"././.ai/a",
        b"tools/a",
        b".ai/a\\b",
        b".ai/a:b",
        b".ai/\xff\xfe",
        b".ai/\xc3\xa9",
    ];
    for name in names {
        let refused =
            unpack_bytes(&compressed_tar(&[file(".ai/a", b"x"), entry(name, EntryType::Regular, b"x")]));
        assert!(matches!(refused, Err(ArchiveError::InvalidEntry { .. })), "{name:?}: {refused:?}");
        if let Ok(name) = std::str::from_utf8(name) {
            let refused = unpack_bytes(&zip_of(&[(".ai/a", b"x"), (name, b"x")]));
            assert!(refused.is_err(), "{name}");
        }
    }
    let hidden = entry(b"././@LongLink", EntryType::GNULongName, b".ai/a\0/../../b\0");
    assert_refused(&compressed_tar(&[hidden, file("short", b"x")]), "allowed");
    let folder = entry(b".ai/../..", EntryType::Directory, b"");
    assert_refused(&compressed_tar(&[folder]), "`..`");
}

#[test]
fn names_that_clash_are_refused() {
    let clash = |second: Vec<u8>, reason| {
        assert_refused(&compressed_tar(&[file(".ai/tools/a.py", b"x"), second]), reason)
    };
    clash(file(".ai/tools/a.py", b"y"), "twice");
    clash(file("./.ai/tools/a.py", b"y"), "twice");
    clash(file(".ai/tools/A.py", b"y"), "other case");
    clash(file(".ai/Tools/b.py", b"y"), "other case");
    clash(file(".ai/tools/a.py/b", b"y"), "also a file");
    clash(file(".ai/tools", b"y"), "a file and a folder");
    clash(entry(b".ai/tools/a.py", EntryType::Directory, b""), "a file and a folder");
    assert_refused(&zip_of(&[(".ai/a.py", b"x"), (".ai/A.py", b"y")]), "other case");
    assert_refused(&zip_of(&[(".ai/a", b"x"), (".ai/a/b", b"y")]), "also a file");
    // The library refuses to write a name twice: it is written into the finished bytes.
    let twice = zip_of(&[(".ai/a.py", b"x"), (".ai/b.py", b"y")]);
    assert_refused(&replace_bytes(&twice, b".ai/b.py", b".ai/a.py"), "twice");
}

fn replace_bytes(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes
}

#[test]
fn malicious_tar_headers_are_refused() {
    let x = |records: &str| entry(b"PaxHeaders/x", EntryType::XHeader, records.as_bytes());
    let next = || file(".ai/tools/a.py", b"x");
    for text in ["linkpath=/etc/x", "size=9", "GNU.sparse.major=1", "SCHILY.xattr.user.a=b"] {
        assert_refused(&compressed_tar(&[x(&record(text)), next()]), "extended header");
    }
    let twice = record("path=.ai/a") + &record("path=.ai/b");
    assert_refused(&compressed_tar(&[x(&twice), next()]), "extended header");
    for broken in ["99999999999999999999 a=b\n", "5 a=b\n", "7 a=b\n", "6 a=b", "x", "6 ab\n\n", "0 ", "2 "] {
        assert_refused(&compressed_tar(&[x(broken), next()]), "cannot be read");
    }
    let global = entry(b"g", EntryType::XGlobalHeader, record("path=.ai/b").as_bytes());
    assert_refused(&compressed_tar(&[global, next()]), "header for all entries");
    let long = || entry(b"././@LongLink", EntryType::GNULongName, b".ai/a\0");
    assert_refused(&compressed_tar(&[long(), long(), next()]), "after another");
    assert_refused(&compressed_tar(&[long()]), "name without a file");
    assert_refused(
        &compressed_tar(&[entry(b"l", EntryType::GNULongName, b".ai/a"), next()]),
        "without its end",
    );
    let endless = sized_entry(b"l", EntryType::GNULongName, b"", 1 << 40);
    assert_refused(&compressed_tar(&[endless]), "bytes in a header");
}

#[test]
fn trailing_tar_data_is_refused() {
    let whole = [file(".ai/tools/a.py", b"x")].concat();
    assert_refused(&compress(&whole), "damaged");
    let mut half = whole.clone();
    half.extend([0; 512]);
    assert_refused(&compress(&half), "damaged");
    let mut behind = whole.clone();
    behind.extend([0; 1024]);
    behind.extend(file(".ai/tools/b.py", b"y"));
    assert_refused(&compress(&behind), "belong to no file");
    let mut padding = whole.clone();
    padding[513] = b'y';
    padding.extend([0; 1024]);
    assert_refused(&compress(&padding), "belong to no file");
    let mut garbage = compressed_tar(&[file(".ai/tools/a.py", b"x")]);
    let second = garbage.clone();
    garbage.push(0);
    assert_refused(&garbage, "belong to no file");
    garbage.pop();
    garbage.extend(second);
    assert_refused(&garbage, "belong to no file");
    let mut zeros = whole;
    zeros.extend([0; 10_240]);
    assert!(unpack_bytes(&compress(&zeros)).is_ok());
}

#[test]
fn damaged_archives_are_refused() {
    let tar = compressed_tar(&[file(".ai/tools/a.py", &[7; 5000])]);
    for end in [5, 20, tar.len() - 1] {
        assert!(unpack_bytes(&tar[..end]).is_err(), "{end}");
    }
    let zip = zip_of(&[(".ai/tools/a.py", b"hello hello hello"), (".ai/tools/b.py", b"x")]);
    for end in [30, zip.len() / 2, zip.len() - 1] {
        assert!(unpack_bytes(&zip[..end]).is_err(), "{end}");
    }
    let mut header = file(".ai/tools/a.py", b"x");
    header[0] = b'_';
    assert_refused(&compressed_tar(&[header]), "checksum");
    let claimed = sized_entry(b".ai/a", EntryType::Regular, b"x", 5000);
    assert_refused(&compressed_tar(&[claimed]), "not as many bytes");
}

#[test]
fn limits_are_enforced_before_writing() {
    let limits = ArchiveLimits {
        entries: 3,
        file_bytes: 100,
        total_bytes: 150,
        ratio: 10,
        ratio_exempt_bytes: 1 << 20,
    };
    let refused = |bytes: &[u8], what: &str| {
        let error = unpack_with_limits(bytes, &limits).expect_err("refused").to_string();
        assert!(error.contains(what), "{error}");
    };
    let many: Vec<_> = (0..4).map(|number| (format!(".ai/{number}"), b"x".as_slice())).collect();
    let many: Vec<_> = many.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let as_tape = |files: &[(&str, &[u8])]| {
        compressed_tar(&files.iter().map(|(name, bytes)| file(name, bytes)).collect::<Vec<_>>())
    };
    for make in [as_tape as fn(&[(&str, &[u8])]) -> Vec<u8>, zip_of] {
        refused(&make(&many), "3 entries");
        refused(&make(&[(".ai/a", &[1; 101])]), "in one file");
        refused(&make(&[(".ai/a", &[1; 90]), (".ai/b", &[2; 90])]), "150 bytes");
    }
    let folders: Vec<_> =
        (0..4).map(|number| entry(format!(".ai/{number}/").as_bytes(), EntryType::Directory, b"")).collect();
    refused(&compressed_tar(&folders), "3 entries");
}

#[test]
fn decompression_bomb_is_refused() {
    let limits = ArchiveLimits { ratio_exempt_bytes: 1 << 16, ratio: 50, ..ArchiveLimits::default() };
    let zeros = vec![0; 8 << 20];
    let bombs = [compressed_tar(&[file(".ai/a", &zeros)]), zip_of(&[(".ai/a", zeros.as_slice())])];
    for bomb in bombs {
        let error = unpack_with_limits(&bomb, &limits).expect_err("refused");
        assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
    }
    // The tape never ends: what it holds is not a file at all.
    let endless = compress(&[file(".ai/a", b""), vec![0; 64 << 20]].concat());
    let few = ArchiveLimits { entries: 10, ..limits };
    let error = unpack_with_limits(&endless, &few).expect_err("refused");
    assert!(matches!(error, ArchiveError::TooLarge { .. }), "{error}");
}

#[test]
fn oversized_zstd_window_is_refused() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).expect("an encoder");
    encoder.window_log(27).expect("a window");
    let mut whole = file(".ai/tools/a.py", b"x");
    whole.extend([0; 1024]);
    encoder.write_all(&whole).expect("written");
    assert_refused(&encoder.finish().expect("finished"), "damaged");
}

#[test]
fn inconsistent_zip_headers_are_refused() {
    let zip = zip_of(&[(".ai/tools/a.py", b"hello"), (".ai/tools/b.py", b"other")]);
    let list = zip.windows(4).position(|bytes| bytes == b"PK\x01\x02").expect("the list");
    // The header before the file names another one than the list at the end.
    let mut local = zip.clone();
    let name = local.windows(14).position(|bytes| bytes == b".ai/tools/a.py").expect("a name");
    local[name + 10] = b'z';
    assert_refused(&local, "mismatch");
    let mut listed = zip.clone();
    let name =
        list + listed[list..].windows(14).position(|bytes| bytes == b".ai/tools/a.py").expect("a name");
    listed[name + 10] = b'z';
    assert_refused(&listed, "mismatch");
    // A file that the list does not name.
    let mut prefix = b"PK\x03\x04 something before it all".to_vec();
    prefix.extend(&zip);
    assert!(unpack_bytes(&prefix).is_err());
    let mut suffix = zip.clone();
    suffix.extend(b"something after it all");
    assert_refused(&suffix, "belong to no file");
    let mut commented = zip.clone();
    let at = commented.len() - 2;
    commented[at] = 3;
    commented.extend(b"abc");
    assert_refused(&commented, "belong to no file");
    // Other content than the checksum says.
    assert_refused(&replace_bytes(&zip, b"hello", b"jello"), "checksum");
}

#[test]
fn zip_yields_only_files_and_folders() {
    let linked = |mode: u32| {
        let zip = zip_of(&[(".ai/tools/a.py", b"hello")]);
        let mut zip = zip;
        let list = zip.windows(4).position(|bytes| bytes == b"PK\x01\x02").expect("the list");
        zip[list + 5] = 3;
        zip[list + 38..list + 42].copy_from_slice(&(mode << 16).to_le_bytes());
        zip
    };
    assert_refused(&linked(0o120_777), "symbolic link");
    assert_refused(&linked(0o010_644), "neither a file nor a folder");
    assert_refused(&linked(0o060_644), "neither a file nor a folder");
    assert!(unpack_bytes(&linked(0o100_755)).is_ok());
    let mut encrypted = zip_of(&[(".ai/tools/a.py", b"hello")]);
    let list = encrypted.windows(4).position(|bytes| bytes == b"PK\x01\x02").expect("the list");
    encrypted[6] |= 1;
    encrypted[list + 8] |= 1;
    assert!(unpack_bytes(&encrypted).is_err());
    let mut folder = zip::ZipWriter::new(Cursor::new(Vec::new()));
    folder.add_directory(".ai/tools/", SimpleFileOptions::default()).expect("a folder");
    folder.start_file(".ai/tools/a.py", SimpleFileOptions::default()).expect("a file");
    folder.write_all(b"x").expect("written");
    assert_eq!(unpack_bytes(&folder.finish().expect("finished").into_inner()).expect("unpacked").len(), 1);
}

#[test]
fn overlapping_zip_entries_are_refused() {
    let zip = zip_of(&[(".ai/tools/a.py", b"hello"), (".ai/tools/b.py", b"other")]);
    let list = zip.windows(4).position(|bytes| bytes == b"PK\x01\x02").expect("the list");
    let second = list + 1 + zip[list + 1..].windows(4).position(|b| b == b"PK\x01\x02").expect("second");
    let mut shared = zip.clone();
    shared[second + 42..second + 46].copy_from_slice(&0_u32.to_le_bytes());
    assert!(unpack_bytes(&shared).is_err());
}

#[test]
fn existing_target_is_not_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let archive = folder.path().join("a.zip");
    let bytes = zip_of(&[(".ai/a", b"x")]);
    write_atomic(&archive, &bytes, FileMode::Preserve).expect("written");
    let into = folder.path().join("into");
    create_dirs(&into.join("kept"), false).expect("a folder");
    assert!(unpack(&archive, &ArchiveLimits::default(), &into).is_err());
    assert!(into.join("kept").is_dir());
    assert!(unpack(folder.path(), &ArchiveLimits::default(), &folder.path().join("other")).is_err());
    assert!(!folder.path().join("other").exists());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a pipe is made by a program")]
fn pipe_is_no_archive() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("a.zip");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let refused = unpack(&pipe, &ArchiveLimits::default(), &folder.path().join("into"));
    assert!(matches!(refused, Err(ArchiveError::NotAnArchive)), "{refused:?}");
}

/// What comes out of any bytes has plain, distinct names and stays within the bounds.
fn assert_within_limits(bytes: &[u8]) {
    let limits = ArchiveLimits {
        entries: 64,
        file_bytes: 1 << 16,
        total_bytes: 1 << 18,
        ratio: 100,
        ratio_exempt_bytes: 1 << 17,
    };
    let (mut names, mut total) = (std::collections::HashSet::new(), 0);
    let _ = read_archive(Cursor::new(bytes), &limits, &mut |path, bytes| {
        assert!(path.as_str().starts_with(".ai/") && names.insert(path.case_folded()), "{path}");
        total += bytes.len() as u64;
        assert!(bytes.len() as u64 <= limits.file_bytes && total <= limits.total_bytes);
        Ok(())
    });
}

#[test]
fn corrupted_archives_stay_within_limits() {
    let long = format!(".ai/tools/{}.py", "x".repeat(150));
    let mut whole = [
        entry(b"././@LongLink", EntryType::GNULongName, format!("{long}\0").as_bytes()),
        file("short", b"hello"),
        entry(b"p", EntryType::XHeader, record("path=.ai/tools/b.py").as_bytes()),
        file(".ai/tools/a.py", b"hello"),
    ]
    .concat();
    whole.extend([0; 1024]);
    let zip = zip_of(&[(".ai/tools/a.py", b"hello hello hello hello"), (".ai/b", b"x")]);
    let packed = compress(&whole);
    for change in [0x01, 0x80, 0xff] {
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= change;
            assert_within_limits(&compress(&changed));
        }
        for source in [&zip, &packed] {
            for at in 0..source.len() {
                let mut changed = source.clone();
                changed[at] ^= change;
                assert_within_limits(&changed);
                assert_within_limits(&source[..at]);
            }
        }
    }
}
