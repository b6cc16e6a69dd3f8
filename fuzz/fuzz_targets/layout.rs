//! Where a signature line stands and what it covers, in every format: the parts are the file, what is reported as
//! uncovered is in order, and signing any bytes gives a file that is covered whole.
#![no_main]

use std::ops::Range;
use std::sync::LazyLock;

use lillux::{Digest, SecretKey};
use rye_item::{ItemType, SignatureFormat};
use rye_trust::coverage::{ContentStatus, Coverage, compare_content};
use rye_trust::signature::{FileLayout, SignatureLine, Timestamp, format_line};
use rye_trust::{SignOutcome, sign};

static KEY: LazyLock<SecretKey> = LazyLock::new(|| {
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f\n-----END PRIVATE KEY-----\n";
    SecretKey::from_pem(pem).expect("a key")
});

static NOW: LazyLock<Timestamp> = LazyLock::new(|| Timestamp::new("2026-01-02T03:04:05Z").expect("a moment"));

/// Checks the parts of a file, and gives back how its content compares.
fn check(item_type: ItemType, bytes: &[u8], format: &SignatureFormat) -> ContentStatus {
    let layout = FileLayout::parse(bytes, format);
    assert_eq!(layout.shebang.start, 0);
    assert_eq!(layout.shebang.end, layout.line.start);
    assert_eq!(layout.line.end, layout.content.start);
    assert_eq!(layout.content.end, bytes.len());
    assert_eq!(layout.signature.is_some(), !layout.line.is_empty());
    assert!(format.after_shebang || layout.shebang.is_empty());

    let content = compare_content(item_type, bytes, &layout);
    match &content {
        ContentStatus::Unsigned => assert!(layout.signature.is_none()),
        ContentStatus::InvalidShebang(_) => assert!(format.after_shebang && bytes.starts_with(b"#!")),
        ContentStatus::Intact { coverage, uncovered } => {
            let mut end = 0;
            for Range { start, end: next } in uncovered {
                assert!(end <= *start && start < next && *next <= bytes.len(), "{uncovered:?}");
                end = *next;
            }
            let is_whole = uncovered.iter().all(|range| range.end <= layout.content.start);
            assert!(is_whole || *coverage == Coverage::Partial, "{uncovered:?}");
            assert_ne!(*coverage, Coverage::None);
        }
        ContentStatus::Changed { .. } => assert!(layout.signature.is_some()),
    }
    content
}

/// A file that claims `hash`, with a made-up signature line.
fn with_line(
    shebang: &str,
    content: &[u8],
    format: &SignatureFormat,
    hash: Digest,
    line_break: &str,
) -> Vec<u8> {
    let signature = KEY.sign(&Digest::of(b"anything"));
    let line = SignatureLine {
        timestamp: NOW.clone(),
        hash,
        signature_text: signature.to_base64(),
        signature,
        fingerprint: KEY.public_key().fingerprint(),
        registry: None,
    };
    [shebang.as_bytes(), format_line(&line, format, line_break).as_bytes(), content].concat()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [choice, mode, start, length, data @ ..] = data else {
        return;
    };
    let (item_type, format) = &rye_fuzz::formats()[usize::from(*choice) % rye_fuzz::formats().len()];
    check(*item_type, data, format);
    let shebang = if mode & 4 == 0 { "" } else { "#!/bin/sh\n" };
    let line_break = if mode & 8 == 0 { "\n" } else { "\r\n" };
    match mode & 3 {
        0 => {}
        1 => {
            let SignOutcome::Written { bytes, .. } = sign(data, format, &KEY, &NOW) else {
                return;
            };
            let content = check(*item_type, &bytes, format);
            assert!(matches!(content, ContentStatus::Intact { coverage: Coverage::Full, .. }), "{content:?}");
            assert!(matches!(sign(&bytes, format, &KEY, &NOW), SignOutcome::Unchanged(_)));
            let (before, after) = (FileLayout::parse(data, format), FileLayout::parse(&bytes, format));
            assert_eq!(data[before.shebang], bytes[after.shebang]);
            assert_eq!(data[before.content], bytes[after.content]);
        }
        // The hash of a part: where the original would have taken that part, the coverage is partial.
        _ => {
            let start = usize::from(*start).min(data.len());
            let end = (start + usize::from(*length)).min(data.len());
            let bytes = with_line(shebang, data, format, Digest::of(&data[start..end]), line_break);
            check(*item_type, &bytes, format);
            let bytes = with_line(shebang, data, format, Digest::of(data), line_break);
            check(*item_type, &bytes, format);
        }
    }
});
