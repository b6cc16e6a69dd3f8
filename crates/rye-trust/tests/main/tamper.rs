//! Every way to change a signed file: no change of a byte that is said to be covered goes unseen.

use rye_item::{ItemType, Space};
use rye_trust::signature::{FileLayout, SignatureLine, format_line};
use rye_trust::{TrustReport, TrustVerdict, verify};
use serde_json::Value;

use crate::support::{
    File, FileKind, covered_bytes, file_kind, file_kinds, is_good, report_for, sample, sign_bytes,
    sign_with_vector_key, vector_key, vector_ring,
};

/// A signed file that is good as it stands.
struct Case {
    name: String,
    kind: FileKind,
    bytes: Vec<u8>,
}

/// Small signed files of every kind: plain, with shebang, with CRLF, empty, without a final line break, with a registry
/// suffix, and those the original signed in part.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, kind: &FileKind, bytes: Vec<u8>| {
        let name = format!("{name} {}{}", kind.item_type, kind.extension);
        cases.push(Case { name, kind: kind.clone(), bytes });
    };
    for kind in file_kinds() {
        let text = sample(&kind);
        add("plain", &kind, sign_with_vector_key(text.as_bytes(), &kind.format));
    }
    for kind in [
        file_kind(ItemType::Tool, ".py"),
        file_kind(ItemType::Directive, ".md"),
        file_kind(ItemType::Knowledge, ".md"),
    ] {
        let text = sample(&kind);
        add("crlf", &kind, sign_with_vector_key(text.replace('\n', "\r\n").as_bytes(), &kind.format));
        let shebang = format!("#!/usr/bin/env run\n{text}");
        add("empty", &kind, sign_with_vector_key(b"", &kind.format));
        add("one line", &kind, sign_with_vector_key(b"x", &kind.format));
        add("no final line break", &kind, sign_with_vector_key(text.trim_end().as_bytes(), &kind.format));
        add("shebang", &kind, sign_with_vector_key(shebang.as_bytes(), &kind.format));
        add(
            "shebang crlf",
            &kind,
            sign_with_vector_key(shebang.replace('\n', "\r\n").as_bytes(), &kind.format),
        );
        add("shebang only", &kind, sign_with_vector_key(b"#!/bin/sh\n", &kind.format));
        add("registry", &kind, with_registry(&sign_with_vector_key(text.as_bytes(), &kind.format), &kind));
        add("line breaks", &kind, sign_with_vector_key(b"\n\r\n\n\r\n", &kind.format));
    }
    let directive = file_kind(ItemType::Directive, ".md");
    add("xml only", &directive, sign_with_vector_key(b"<directive>x</directive>", &directive.format));
    let vectors: Value = serde_json::from_str(include_str!("../fixtures/vectors.json")).expect("vectors");
    for item in vectors["items"].as_array().expect("items") {
        let path = item["path"].as_str().expect("path");
        let item_type: ItemType = item["type"].as_str().expect("type").parse().expect("a type");
        let (_, extension) = path.rsplit_once('.').expect("an extension");
        let kind = file_kind(item_type, &format!(".{extension}"));
        add(path, &kind, item["signed"].as_str().expect("text").as_bytes().to_vec());
    }
    cases
}

fn line_of(bytes: &[u8], kind: &FileKind) -> SignatureLine {
    FileLayout::parse(bytes, &kind.format).signature.expect("a signature line")
}

/// The same file with other words in its signature line.
fn with_line(bytes: &[u8], kind: &FileKind, line: &SignatureLine) -> Vec<u8> {
    let layout = FileLayout::parse(bytes, &kind.format);
    let text = format_line(line, &kind.format, "\n");
    [&bytes[layout.shebang], text.as_bytes(), &bytes[layout.content]].concat()
}

fn with_registry(bytes: &[u8], kind: &FileKind) -> Vec<u8> {
    with_line(
        bytes,
        kind,
        &SignatureLine { registry: Some("hub@some-one".to_owned()), ..line_of(bytes, kind) },
    )
}

/// Runs a check on every case, on all cores: a signature takes its time to verify where nothing is optimised.
fn for_each_case(check: impl Fn(&Case, &TrustReport) + Sync) {
    let cases = cases();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for share in cases.chunks(cases.len().div_ceil(threads)) {
            let check = &check;
            scope.spawn(move || {
                share.iter().for_each(|case| check(case, &report_for(&case.kind, &case.bytes)))
            });
        }
    });
}

/// Checks that a change is seen: a good verdict rests on the very bytes it rested on before, so that whatever changed
/// is reported as uncovered. Gives back the verdict.
fn verdict_on(case: &Case, before: &TrustReport, changed: &[u8], what: &str) -> TrustVerdict {
    let after = report_for(&case.kind, changed);
    if is_good(after.verdict) {
        let to_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            to_text(&covered_bytes(changed, &after.uncovered)),
            to_text(&covered_bytes(&case.bytes, &before.uncovered)),
            "{}: {what} is {:?}",
            case.name,
            after.verdict
        );
    } else {
        assert!(after.reason.is_some() && after.owner.is_none() && after.basis.is_none());
    }
    after.verdict
}

#[test]
fn unchanged_files_verify() {
    let partial = [".ai/directives/demo/d.md directive.md", ".ai/knowledge/demo/dash.md knowledge.md"];
    for case in cases() {
        let expected =
            if partial.contains(&case.name.as_str()) { TrustVerdict::Partial } else { TrustVerdict::Full };
        assert_eq!(report_for(&case.kind, &case.bytes).verdict, expected, "{}", case.name);
    }
}

#[test]
fn changed_byte_is_detected() {
    for_each_case(|case, before| {
        for (index, old) in case.bytes.iter().copied().enumerate() {
            let is_uncovered = before.uncovered.iter().any(|range| range.contains(&index));
            for new in [old ^ 1, old ^ 0x20, b'\n', b'\r', b'=', 0, 0xff] {
                if new == old {
                    continue;
                }
                let mut changed = case.bytes.clone();
                changed[index] = new;
                let what = format!("byte {index} made {new:#04x}");
                let verdict = verdict_on(case, before, &changed, &what);
                assert!(is_uncovered || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
            }
        }
    });
}

#[test]
fn missing_byte_is_detected() {
    for_each_case(|case, before| {
        for index in 0..case.bytes.len() {
            let mut changed = case.bytes.clone();
            changed.remove(index);
            let what = format!("byte {index} removed");
            let verdict = verdict_on(case, before, &changed, &what);
            let is_uncovered = before.uncovered.iter().any(|range| range.contains(&index));
            assert!(is_uncovered || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
        }
    });
}

#[test]
fn added_byte_is_detected() {
    for_each_case(|case, before| {
        for index in 0..=case.bytes.len() {
            let double = case.bytes.get(index).copied();
            for new in double.into_iter().chain([b'\n', b'\r', b' ', b'=', b'0', b'#', 0, 0xff]) {
                let mut changed = case.bytes.clone();
                changed.insert(index, new);
                let what = format!("{new:#04x} added at {index}");
                let verdict = verdict_on(case, before, &changed, &what);
                // At the edge of an uncovered range an added byte joins it, and so does one at the edge of a run of
                // the same bytes that ends there: no one can tell where in the run it was added.
                let run = case.bytes[index..].iter().take_while(|byte| **byte == new).count();
                let is_beside =
                    before.uncovered.iter().any(|range| range.start <= index + run && index <= range.end);
                assert!(is_beside || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
            }
        }
    });
}

#[test]
fn truncated_file_is_detected() {
    for_each_case(|case, before| {
        for index in 0..case.bytes.len() {
            verdict_on(case, before, &case.bytes[..index], &format!("cut at {index}"));
            verdict_on(case, before, &case.bytes[index + 1..], &format!("begun behind {index}"));
        }
    });
}

#[test]
fn changed_line_endings_are_reported() {
    for kind in file_kinds() {
        let unix = sign_with_vector_key(sample(&kind).as_bytes(), &kind.format);
        let text = String::from_utf8(unix.clone()).expect("text");
        let windows = sign_with_vector_key(sample(&kind).replace('\n', "\r\n").as_bytes(), &kind.format);
        let windows_text = String::from_utf8(windows).expect("text");
        let line = FileLayout::parse(&unix, &kind.format).line;
        let (first, rest) = text.split_at(line.end - 1);
        let rest = &rest[1..];
        let variants = [
            ("all of LF to CRLF", text.replace('\n', "\r\n")),
            ("all of CRLF to LF", windows_text.replace("\r\n", "\n")),
            ("only the line's to CRLF", format!("{first}\r\n{rest}")),
            ("only the content's to CRLF", format!("{first}\n{}", rest.replace('\n', "\r\n"))),
            ("only the line's to LF", windows_text.replacen("\r\n", "\n", 1)),
        ];
        for (what, changed) in variants {
            let report = report_for(&kind, changed.as_bytes());
            assert_eq!(
                report.verdict,
                TrustVerdict::Tampered,
                "{}{}: {what}",
                kind.item_type,
                kind.extension
            );
            assert_eq!(
                report.reason.as_deref(),
                Some("only line endings differ from what was signed"),
                "{what}"
            );
        }
        for (what, changed) in [
            ("the line's to CR", format!("{first}\r{rest}")),
            ("the line's to nothing", format!("{first}{rest}")),
            ("the line's to two", format!("{first}\n\n{rest}")),
            ("the line's to CR CR LF", format!("{first}\r\r\n{rest}")),
            ("a space before the line's", format!("{first} \n{rest}")),
            ("a line separator", format!("{first}\u{2028}{rest}")),
        ] {
            let verdict = report_for(&kind, changed.as_bytes()).verdict;
            assert!(!is_good(verdict), "{}{}: {what} is {verdict:?}", kind.item_type, kind.extension);
        }
    }
    for bare in ["", "\r", "\r\n"] {
        let kind = file_kind(ItemType::Tool, ".py");
        let empty = String::from_utf8(sign_with_vector_key(b"", &kind.format)).expect("text");
        let changed = format!("{}{bare}", empty.trim_end());
        assert_eq!(report_for(&kind, changed.as_bytes()).verdict, TrustVerdict::Tampered, "{bare:?}");
    }
}

#[test]
fn base64_has_two_spellings_and_no_more() {
    let kind = file_kind(ItemType::Tool, ".py");
    let file = String::from_utf8(sign_with_vector_key(b"x = 1\n", &kind.format)).expect("text");
    let line = line_of(file.as_bytes(), &kind);
    let verdict_with =
        |text: &str| report_for(&kind, file.replace(&line.signature_text, text).as_bytes()).verdict;
    let text = &line.signature_text;
    assert_eq!(verdict_with(text), TrustVerdict::Full);
    assert_eq!(verdict_with(&format!("{text}==")), TrustVerdict::Full);
    let standard = text.replace('-', "+").replace('_', "/");
    assert_ne!(&standard, text);
    for other in [format!("{text}="), format!("{text}==="), format!("={text}"), standard, format!("{text}A")]
    {
        assert_eq!(verdict_with(&other), TrustVerdict::Unsigned, "{other}");
    }
    // The last character holds four bits that no byte of the signature uses.
    let (head, last) = text.split_at(text.len() - 1);
    for other in ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']) {
        if last != other.to_string() {
            assert_ne!(verdict_with(&format!("{head}{other}")), TrustVerdict::Full, "{other}");
        }
    }
}

#[test]
fn signature_line_from_elsewhere_is_invalid() {
    let (key, other) = (vector_key(), lillux::SecretKey::generate().expect("randomness"));
    for kind in file_kinds() {
        let ours = sign_with_vector_key(sample(&kind).as_bytes(), &kind.format);
        let foreign = sign_with_vector_key(b"something else\n", &kind.format);
        let verdict = |bytes: &[u8]| report_for(&kind, bytes).verdict;
        let (ours_line, foreign_line) = (line_of(&ours, &kind), line_of(&foreign, &kind));

        assert_eq!(verdict(&with_line(&ours, &kind, &foreign_line)), TrustVerdict::Tampered);
        let mixed = SignatureLine { hash: ours_line.hash, ..foreign_line };
        assert_eq!(verdict(&with_line(&ours, &kind, &mixed)), TrustVerdict::Tampered);
        let theirs = sign_bytes(&ours, &kind.format, &other);
        assert_eq!(verdict(&theirs), TrustVerdict::Untrusted);
        let claimed =
            SignatureLine { fingerprint: key.public_key().fingerprint(), ..line_of(&theirs, &kind) };
        assert_eq!(verdict(&with_line(&theirs, &kind, &claimed)), TrustVerdict::Tampered);

        assert_eq!(verdict(sample(&kind).as_bytes()), TrustVerdict::Unsigned);
        assert_eq!(verdict(&[b"\n", &ours[..]].concat()), TrustVerdict::Unsigned);
        assert_eq!(verdict(&[b" ", &ours[..]].concat()), TrustVerdict::Unsigned);
        assert_eq!(verdict(&[b"\xef\xbb\xbf", &ours[..]].concat()), TrustVerdict::Unsigned);
        assert_eq!(verdict(&[&ours[..], &ours[..]].concat()), TrustVerdict::Tampered);
    }
}

#[test]
fn foreign_comment_syntax_is_unsigned() {
    let formats: Vec<_> = ["#", "//", "<!--"]
        .into_iter()
        .map(|prefix| {
            file_kinds().into_iter().find(|kind| kind.format.prefix == prefix).expect("a kind").format
        })
        .collect();
    for kind in file_kinds() {
        for format in &formats {
            let verdict = report_for(&kind, &sign_with_vector_key(sample(&kind).as_bytes(), format)).verdict;
            let expected =
                if kind.format.prefix == format.prefix { TrustVerdict::Full } else { TrustVerdict::Unsigned };
            assert_eq!(verdict, expected, "{kind:?} {format:?}");
        }
    }
}

#[test]
fn unsignable_files_never_verify() {
    let kind = file_kind(ItemType::Tool, ".py");
    let file = File::new(&kind, Space::User, sign_with_vector_key(b"{}", &kind.format));
    let report = verify::evaluate(&File { format: None, ..file }, vector_ring());
    assert_eq!((report.verdict, report.signature), (TrustVerdict::Unsigned, None));
}

#[test]
fn rejected_files_return_with_a_report() {
    let kind = file_kind(ItemType::Tool, ".py");
    let good = File::new(&kind, Space::User, sign_with_vector_key(b"x = 1\n", &kind.format));
    let verified = verify(good, vector_ring()).unwrap_or_else(|rejection| panic!("{:?}", rejection.report));
    assert!(verified.is_fully_covered());
    let good = verified.into_subject();
    for (bytes, misplacement, verdict) in [
        (b"x = 1\n".to_vec(), None, TrustVerdict::Unsigned),
        ([&good.bytes[..], b"y"].concat(), None, TrustVerdict::Tampered),
        (good.bytes.clone(), Some("it lies elsewhere".to_owned()), TrustVerdict::Misplaced),
    ] {
        let file =
            File { misplacement: misplacement.clone(), ..File::new(&kind, Space::User, bytes.clone()) };
        let Err(rejection) = verify(file, vector_ring()) else { panic!("{verdict:?} passed") };
        assert_eq!((rejection.report.verdict, &rejection.subject.bytes), (verdict, &bytes));
        assert!(misplacement.is_none() || rejection.report.reason == misplacement);
    }
}
