//! Archives: what comes out has plain, distinct names and stays within the bounds; anything else is an error, never a
//! panic. A tape is also read as it is, so that the compression does not hide it from the fuzzer.
#![no_main]

use std::collections::HashSet;
use std::io::Cursor;

use rye_bundle::archive::{Limits, read};

const LIMITS: Limits =
    Limits { entries: 64, file_bytes: 1 << 20, total_bytes: 1 << 21, ratio: 100, any_ratio_bytes: 1 << 20 };

fn check(archive: &[u8]) {
    let mut names = HashSet::new();
    let mut total = 0;
    let _ = read(Cursor::new(archive), &LIMITS, &mut |path, bytes| {
        assert!(path.as_str().starts_with(".ai/"));
        assert!(names.insert(path.folded()), "twice: {path}");
        total += bytes.len() as u64;
        assert!(bytes.len() as u64 <= LIMITS.file_bytes && total <= LIMITS.total_bytes);
        assert!(names.len() <= LIMITS.entries);
        Ok(())
    });
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check(data);
    if let Ok(packed) = zstd::encode_all(data, 1) {
        check(&packed);
    }
});
