//! Laws of signing: what is signed verifies whole, only the signature line changes, and once is enough.

use proptest::prelude::*;
use rye_item::{ItemType, SignatureFormat};
use rye_trust::coverage::{ContentStatus, compare_content};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::{Coverage, SignOutcome, TrustVerdict, sign};

use crate::support::{
    FileKind, file_kind, file_kinds, fixed_time, report_for, sample, sign_bytes, sign_with_vector_key,
    vector_key,
};

const SHEBANG: &str = "#!/usr/bin/env run\n";

/// The bytes of a file without its signature line.
fn without_line(bytes: &[u8], format: &SignatureFormat) -> Vec<u8> {
    let layout = FileLayout::parse(bytes, format);
    [&bytes[layout.shebang], &bytes[layout.content]].concat()
}

/// Every shape of content a file of this kind may have.
fn contents(kind: &FileKind) -> Vec<Vec<u8>> {
    let text = sample(kind);
    let with_shebang = format!("{SHEBANG}{text}");
    let mut texts: Vec<String> =
        [text, &with_shebang, text.trim_end(), with_shebang.trim_end(), "", "\n", SHEBANG, "x"]
            .into_iter()
            .flat_map(|text| [text.to_owned(), text.replace('\n', "\r\n"), text.replace('\n', "\r")])
            .collect();
    texts.push(format!("{SHEBANG}{}", text.replace('\n', "\r\n")));
    texts.push(format!("{}{text}", SHEBANG.replace('\n', "\r\n")));
    texts.push(format!("\u{feff}{text}"));
    texts.push(format!("{}{text}", "x".repeat(3000)));
    let mut contents: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    contents.push(b"\xff\xfe\0 not text \x80\n".to_vec());
    contents
}

/// Checks every law for one content.
fn check_laws(kind: &FileKind, content: &[u8]) {
    let key = vector_key();
    let format = &kind.format;
    let SignOutcome::Written { bytes, signature } = sign(content, format, key, &fixed_time()) else {
        panic!("an unsigned content was already signed: {content:?}");
    };
    let layout = FileLayout::parse(&bytes, format);
    assert_eq!(layout.signature.as_ref(), Some(&signature));
    assert_eq!(without_line(&bytes, format), content, "content bytes changed");
    assert_eq!(bytes.len() - content.len(), layout.line.len());

    let content_of = compare_content(kind.item_type, &bytes, &layout);
    let ContentStatus::Intact { coverage: Coverage::Full, uncovered } = content_of else {
        panic!("{content_of:?}");
    };
    assert!(
        uncovered.iter().all(|range| range.end <= layout.line.end),
        "content is uncovered: {uncovered:?}"
    );
    assert_eq!(report_for(kind, &bytes).verdict, TrustVerdict::Full);

    let later = Timestamp::new("2030-01-01T00:00:00Z").expect("a moment");
    assert_eq!(sign(&bytes, format, key, &later), SignOutcome::Unchanged(signature));
}

#[test]
fn every_file_kind_except_json_is_signable() {
    let all: Vec<_> =
        file_kinds().iter().map(|kind| format!("{}{}", kind.item_type, kind.extension)).collect();
    let expected = "directive.md tool.py tool.yaml tool.yml tool.js tool.ts tool.mjs tool.cjs tool.sh tool.toml \
                    tool.pl tool.rb knowledge.md knowledge.yaml knowledge.yml config.yaml config.yml config.toml";
    assert_eq!(all.join(" "), expected);
}

#[test]
fn signed_files_verify_fully() {
    for kind in file_kinds() {
        for content in contents(&kind) {
            check_laws(&kind, &content);
        }
    }
}

#[test]
fn signature_line_uses_the_files_line_break() {
    for kind in file_kinds() {
        let text = sample(&kind);
        let line_of = |content: String| {
            let bytes = sign_with_vector_key(content.as_bytes(), &kind.format);
            let layout = FileLayout::parse(&bytes, &kind.format);
            String::from_utf8(bytes[layout.line].to_vec()).expect("text")
        };
        let is_unix = |line: String| line.ends_with('\n') && !line.contains('\r');
        let is_windows = |line: String| line.ends_with("\r\n") && line.matches('\r').count() == 1;
        assert!(is_unix(line_of(text.to_owned())));
        assert!(is_unix(line_of(String::new())));
        assert!(is_unix(line_of("one line".to_owned())));
        assert!(is_windows(line_of(text.replace('\n', "\r\n"))));
        assert!(is_windows(line_of(format!("{SHEBANG}{text}").replace('\n', "\r\n"))));
        if kind.format.after_shebang {
            assert!(is_windows(line_of(format!("{}one line", SHEBANG.replace('\n', "\r\n")))));
        }
    }
}

#[test]
fn signature_line_follows_allowed_shebang() {
    for kind in file_kinds() {
        let bytes = sign_with_vector_key(format!("{SHEBANG}{}", sample(&kind)).as_bytes(), &kind.format);
        assert_eq!(bytes.starts_with(SHEBANG.as_bytes()), kind.format.after_shebang);
        assert_eq!(FileLayout::parse(&bytes, &kind.format).shebang.is_empty(), !kind.format.after_shebang);
    }
}

#[test]
fn resigning_replaces_the_signature_line() {
    for kind in file_kinds() {
        for content in contents(&kind) {
            let first = sign_with_vector_key(&content, &kind.format);
            let edited = [&first[..], b"# one more line\n"].concat();
            assert_ne!(report_for(&kind, &edited).verdict, TrustVerdict::Full);
            let second = sign_with_vector_key(&edited, &kind.format);
            let expected = sign_with_vector_key(&[&content[..], b"# one more line\n"].concat(), &kind.format);
            if FileLayout::parse(&content, &kind.format).shebang
                == FileLayout::parse(&expected, &kind.format).shebang
            {
                assert_eq!(second, expected);
            }
            assert_eq!(report_for(&kind, &second).verdict, TrustVerdict::Full);
        }
    }
}

#[test]
fn resigning_replaces_key_and_repairs_line_break() {
    let other = lillux::SecretKey::generate().expect("randomness");
    for kind in file_kinds() {
        let content = sample(&kind).as_bytes();
        let ours = sign_with_vector_key(content, &kind.format);
        let theirs = sign_bytes(&ours, &kind.format, &other);
        assert_eq!(theirs, sign_bytes(content, &kind.format, &other));
        assert_eq!(sign_with_vector_key(&theirs, &kind.format), ours);

        let line = FileLayout::parse(&ours, &kind.format).line;
        let broken = [&ours[..line.end - 1], b"\r\n", &ours[line.end..]].concat();
        assert_eq!(sign_with_vector_key(&broken, &kind.format), ours);
    }
}

#[test]
fn non_signature_line_is_content() {
    let kind = file_kind(ItemType::Tool, ".py");
    for line in ["# rye:unsigned\n", "# rye:signed:soon\n", "# kiwi-mcp:validated:x\n", "#rye:signed:\n"] {
        check_laws(&kind, format!("{line}x = 1\n").as_bytes());
    }
    let twice =
        [sign_with_vector_key(b"x = 1\n", &kind.format), sign_with_vector_key(b"y = 2\n", &kind.format)]
            .concat();
    let again = sign_with_vector_key(&twice, &kind.format);
    assert_eq!(
        again.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"# rye:signed:")).count(),
        2
    );
    assert_eq!(report_for(&kind, &again).verdict, TrustVerdict::Full);
}

/// Contents made of what signature lines, shebangs and line ends are made of, and any bytes.
fn any_content() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        prop::sample::select(vec![
            &b"\n"[..],
            b"\r\n",
            b"\r",
            b"#!/bin/sh",
            b"# ",
            b"// ",
            b"<!-- ",
            b" -->",
            b"rye:signed:",
            b"---",
            b"---\n",
            b"2026-01-02T03:04:05Z:",
            b"<directive>",
            b"</directive>",
            b"\xef\xbb\xbf",
            b"\0",
            b"x",
        ])
        .prop_map(<[u8]>::to_vec),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

fn any_kind() -> impl Strategy<Value = FileKind> {
    prop::sample::select(file_kinds())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn signing_laws_apply_to_any_bytes(kind in any_kind(), content in any_content()) {
        // Such a content is signed already, in the eyes of its format.
        prop_assume!(FileLayout::parse(&content, &kind.format).signature.is_none());
        check_laws(&kind, &content);
    }

    #[test]
    fn signing_is_idempotent(
        kind in any_kind(),
        content in any_content(),
        before in prop::sample::select(vec!["", "#!/bin/sh\n", "#!/bin/sh\r\n"]),
    ) {
        let line = sign_with_vector_key(b"", &kind.format);
        let file = [before.as_bytes(), &line, &content].concat();
        let once = sign_with_vector_key(&file, &kind.format);
        prop_assert_eq!(sign_with_vector_key(&once, &kind.format), once.clone());
        prop_assert_eq!(without_line(&once, &kind.format), without_line(&file, &kind.format));
        prop_assert_eq!(report_for(&kind, &once).verdict, TrustVerdict::Full);
    }

    #[test]
    fn layout_partitions_the_file(kind in any_kind(), content in any_content(), is_signed in any::<bool>()) {
        let bytes = if is_signed { sign_with_vector_key(&content, &kind.format) } else { content };
        let layout = FileLayout::parse(&bytes, &kind.format);
        prop_assert_eq!(layout.shebang.start, 0);
        prop_assert_eq!(layout.shebang.end, layout.line.start);
        prop_assert_eq!(layout.line.end, layout.content.start);
        prop_assert_eq!(layout.content.end, bytes.len());
        prop_assert_eq!(layout.signature.is_some(), !layout.line.is_empty());
    }
}
