//! Every way to change a signed file: no change of a byte that is said to be covered goes unseen.

use rye_item::{ItemType, Space};
use rye_trust::signature::{Layout, SignatureLine, write_line};
use rye_trust::{Report, Verdict, verify};
use serde_json::Value;

use crate::support::{
    File, Kind, covered, is_good, judge, kind, kinds, sample, signed, signed_by, vector_key, vector_ring,
};

/// A signed file that is good as it stands.
struct Case {
    name: String,
    kind: Kind,
    bytes: Vec<u8>,
}

/// Small signed files of every kind: plain, with shebang, with CRLF, empty, without a final line break, with a registry
/// suffix, and those the original signed in part.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name: &str, kind: &Kind, bytes: Vec<u8>| {
        let name = format!("{name} {}{}", kind.item_type, kind.extension);
        cases.push(Case { name, kind: kind.clone(), bytes });
    };
    for kind in kinds() {
        let text = sample(&kind);
        add("plain", &kind, signed(text.as_bytes(), &kind.format));
    }
    for kind in
        [kind(ItemType::Tool, ".py"), kind(ItemType::Directive, ".md"), kind(ItemType::Knowledge, ".md")]
    {
        let text = sample(&kind);
        add("crlf", &kind, signed(text.replace('\n', "\r\n").as_bytes(), &kind.format));
        let shebang = format!("#!/usr/bin/env run\n{text}");
        add("empty", &kind, signed(b"", &kind.format));
        add("one line", &kind, signed(b"x", &kind.format));
        add("no final line break", &kind, signed(text.trim_end().as_bytes(), &kind.format));
        add("shebang", &kind, signed(shebang.as_bytes(), &kind.format));
        add("shebang crlf", &kind, signed(shebang.replace('\n', "\r\n").as_bytes(), &kind.format));
        add("shebang only", &kind, signed(b"#!/bin/sh\n", &kind.format));
        add("registry", &kind, with_registry(&signed(text.as_bytes(), &kind.format), &kind));
        add("line breaks", &kind, signed(b"\n\r\n\n\r\n", &kind.format));
    }
    let directive = kind(ItemType::Directive, ".md");
    add("xml only", &directive, signed(b"<directive>x</directive>", &directive.format));
    let vectors: Value = serde_json::from_str(include_str!("../fixtures/vectors.json")).expect("vectors");
    for item in vectors["items"].as_array().expect("items") {
        let path = item["path"].as_str().expect("path");
        let item_type: ItemType = item["type"].as_str().expect("type").parse().expect("a type");
        let (_, extension) = path.rsplit_once('.').expect("an extension");
        let kind = kind(item_type, &format!(".{extension}"));
        add(path, &kind, item["signed"].as_str().expect("text").as_bytes().to_vec());
    }
    cases
}

fn line_of(bytes: &[u8], kind: &Kind) -> SignatureLine {
    Layout::of(bytes, &kind.format).signature.expect("a signature line")
}

/// The same file with other words in its signature line.
fn with_line(bytes: &[u8], kind: &Kind, line: &SignatureLine) -> Vec<u8> {
    let layout = Layout::of(bytes, &kind.format);
    let text = write_line(line, &kind.format, "\n");
    [&bytes[layout.shebang], text.as_bytes(), &bytes[layout.content]].concat()
}

fn with_registry(bytes: &[u8], kind: &Kind) -> Vec<u8> {
    with_line(
        bytes,
        kind,
        &SignatureLine { registry: Some("hub@some-one".to_owned()), ..line_of(bytes, kind) },
    )
}

/// Runs a check on every case, on all cores: a signature takes its time to verify where nothing is optimised.
fn for_each_case(check: impl Fn(&Case, &Report) + Sync) {
    let cases = cases();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for share in cases.chunks(cases.len().div_ceil(threads)) {
            let check = &check;
            scope.spawn(move || share.iter().for_each(|case| check(case, &judge(&case.kind, &case.bytes))));
        }
    });
}

/// Checks that a change is seen: a good verdict rests on the very bytes it rested on before, so that whatever changed
/// is reported as uncovered. Gives back the verdict.
fn verdict_on(case: &Case, before: &Report, changed: &[u8], what: &str) -> Verdict {
    let after = judge(&case.kind, changed);
    if is_good(after.verdict) {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            shown(&covered(changed, &after.uncovered)),
            shown(&covered(&case.bytes, &before.uncovered)),
            "{}: {what} is {:?}",
            case.name,
            after.verdict
        );
    } else {
        assert!(after.reason.is_some() && after.owner.is_none() && after.vouch.is_none());
    }
    after.verdict
}

#[test]
fn the_files_are_good_before_they_are_changed() {
    let partial = [".ai/directives/demo/d.md directive.md", ".ai/knowledge/demo/dash.md knowledge.md"];
    for case in cases() {
        let expected = if partial.contains(&case.name.as_str()) { Verdict::Partial } else { Verdict::Full };
        assert_eq!(judge(&case.kind, &case.bytes).verdict, expected, "{}", case.name);
    }
}

#[test]
fn a_changed_byte_is_seen() {
    for_each_case(|case, before| {
        for (place, old) in case.bytes.iter().copied().enumerate() {
            let is_uncovered = before.uncovered.iter().any(|range| range.contains(&place));
            for new in [old ^ 1, old ^ 0x20, b'\n', b'\r', b'=', 0, 0xff] {
                if new == old {
                    continue;
                }
                let mut changed = case.bytes.clone();
                changed[place] = new;
                let what = format!("byte {place} made {new:#04x}");
                let verdict = verdict_on(case, before, &changed, &what);
                assert!(is_uncovered || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
            }
        }
    });
}

#[test]
fn a_missing_byte_is_seen() {
    for_each_case(|case, before| {
        for place in 0..case.bytes.len() {
            let mut changed = case.bytes.clone();
            changed.remove(place);
            let what = format!("byte {place} removed");
            let verdict = verdict_on(case, before, &changed, &what);
            let is_uncovered = before.uncovered.iter().any(|range| range.contains(&place));
            assert!(is_uncovered || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
        }
    });
}

#[test]
fn an_added_byte_is_seen() {
    for_each_case(|case, before| {
        for place in 0..=case.bytes.len() {
            let double = case.bytes.get(place).copied();
            for new in double.into_iter().chain([b'\n', b'\r', b' ', b'=', b'0', b'#', 0, 0xff]) {
                let mut changed = case.bytes.clone();
                changed.insert(place, new);
                let what = format!("{new:#04x} added at {place}");
                let verdict = verdict_on(case, before, &changed, &what);
                // At the edge of an uncovered range an added byte joins it, and so does one at the edge of a run of
                // the same bytes that ends there: nobody can tell where in the run it was added.
                let run = case.bytes[place..].iter().take_while(|byte| **byte == new).count();
                let is_beside =
                    before.uncovered.iter().any(|range| range.start <= place + run && place <= range.end);
                assert!(is_beside || verdict != before.verdict, "{}: {what} is {verdict:?}", case.name);
            }
        }
    });
}

#[test]
fn a_file_cut_short_is_seen() {
    for_each_case(|case, before| {
        for place in 0..case.bytes.len() {
            verdict_on(case, before, &case.bytes[..place], &format!("cut at {place}"));
            verdict_on(case, before, &case.bytes[place + 1..], &format!("begun behind {place}"));
        }
    });
}

#[test]
fn other_line_ends_are_seen_and_named() {
    for kind in kinds() {
        let unix = signed(sample(&kind).as_bytes(), &kind.format);
        let text = String::from_utf8(unix.clone()).expect("text");
        let windows = signed(sample(&kind).replace('\n', "\r\n").as_bytes(), &kind.format);
        let windows_text = String::from_utf8(windows).expect("text");
        let line = Layout::of(&unix, &kind.format).line;
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
            let report = judge(&kind, changed.as_bytes());
            assert_eq!(report.verdict, Verdict::Tampered, "{}{}: {what}", kind.item_type, kind.extension);
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
            let verdict = judge(&kind, changed.as_bytes()).verdict;
            assert!(!is_good(verdict), "{}{}: {what} is {verdict:?}", kind.item_type, kind.extension);
        }
    }
    for bare in ["", "\r", "\r\n"] {
        let kind = kind(ItemType::Tool, ".py");
        let empty = String::from_utf8(signed(b"", &kind.format)).expect("text");
        let changed = format!("{}{bare}", empty.trim_end());
        assert_eq!(judge(&kind, changed.as_bytes()).verdict, Verdict::Tampered, "{bare:?}");
    }
}

#[test]
fn base64_has_two_spellings_and_no_more() {
    let kind = kind(ItemType::Tool, ".py");
    let file = String::from_utf8(signed(b"x = 1\n", &kind.format)).expect("text");
    let line = line_of(file.as_bytes(), &kind);
    let spelt = |text: &str| judge(&kind, file.replace(&line.signature_text, text).as_bytes()).verdict;
    let text = &line.signature_text;
    assert_eq!(spelt(text), Verdict::Full);
    assert_eq!(spelt(&format!("{text}==")), Verdict::Full);
    let standard = text.replace('-', "+").replace('_', "/");
    assert_ne!(&standard, text);
    for other in [format!("{text}="), format!("{text}==="), format!("={text}"), standard, format!("{text}A")]
    {
        assert_eq!(spelt(&other), Verdict::Unsigned, "{other}");
    }
    // The last character holds four bits that no byte of the signature uses.
    let (head, last) = text.split_at(text.len() - 1);
    for other in ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['-', '_']) {
        if last != other.to_string() {
            assert_ne!(spelt(&format!("{head}{other}")), Verdict::Full, "{other}");
        }
    }
}

#[test]
fn a_line_of_another_file_key_or_place_does_not_count() {
    let (key, other) = (vector_key(), lillux::SecretKey::generate().expect("randomness"));
    for kind in kinds() {
        let ours = signed(sample(&kind).as_bytes(), &kind.format);
        let foreign = signed(b"something else\n", &kind.format);
        let verdict = |bytes: &[u8]| judge(&kind, bytes).verdict;
        let (ours_line, foreign_line) = (line_of(&ours, &kind), line_of(&foreign, &kind));

        assert_eq!(verdict(&with_line(&ours, &kind, &foreign_line)), Verdict::Tampered);
        let mixed = SignatureLine { hash: ours_line.hash, ..foreign_line };
        assert_eq!(verdict(&with_line(&ours, &kind, &mixed)), Verdict::Tampered);
        let theirs = signed_by(&ours, &kind.format, &other);
        assert_eq!(verdict(&theirs), Verdict::Untrusted);
        let claimed = SignatureLine { fingerprint: key.public().fingerprint(), ..line_of(&theirs, &kind) };
        assert_eq!(verdict(&with_line(&theirs, &kind, &claimed)), Verdict::Tampered);

        assert_eq!(verdict(sample(&kind).as_bytes()), Verdict::Unsigned);
        assert_eq!(verdict(&[b"\n", &ours[..]].concat()), Verdict::Unsigned);
        assert_eq!(verdict(&[b" ", &ours[..]].concat()), Verdict::Unsigned);
        assert_eq!(verdict(&[b"\xef\xbb\xbf", &ours[..]].concat()), Verdict::Unsigned);
        assert_eq!(verdict(&[&ours[..], &ours[..]].concat()), Verdict::Tampered);
    }
}

#[test]
fn a_line_in_another_comment_syntax_does_not_count() {
    let formats: Vec<_> = ["#", "//", "<!--"]
        .into_iter()
        .map(|prefix| kinds().into_iter().find(|kind| kind.format.prefix == prefix).expect("a kind").format)
        .collect();
    for kind in kinds() {
        for format in &formats {
            let verdict = judge(&kind, &signed(sample(&kind).as_bytes(), format)).verdict;
            let expected =
                if kind.format.prefix == format.prefix { Verdict::Full } else { Verdict::Unsigned };
            assert_eq!(verdict, expected, "{kind:?} {format:?}");
        }
    }
}

#[test]
fn files_that_cannot_be_signed_are_never_good() {
    let kind = kind(ItemType::Tool, ".py");
    let file = File::new(&kind, Space::User, signed(b"{}", &kind.format));
    let report = verify::report(&File { format: None, ..file }, vector_ring());
    assert_eq!((report.verdict, report.signature), (Verdict::Unsigned, None));
}

#[test]
fn only_verified_files_pass_and_others_come_back_with_a_report() {
    let kind = kind(ItemType::Tool, ".py");
    let good = File::new(&kind, Space::User, signed(b"x = 1\n", &kind.format));
    let verified = verify(good, vector_ring()).unwrap_or_else(|refusal| panic!("{:?}", refusal.report));
    assert!(verified.is_fully_covered());
    let good = verified.into_subject();
    for (bytes, misplacement, verdict) in [
        (b"x = 1\n".to_vec(), None, Verdict::Unsigned),
        ([&good.bytes[..], b"y"].concat(), None, Verdict::Tampered),
        (good.bytes.clone(), Some("it lies elsewhere".to_owned()), Verdict::Misplaced),
    ] {
        let file =
            File { misplacement: misplacement.clone(), ..File::new(&kind, Space::User, bytes.clone()) };
        let Err(refusal) = verify(file, vector_ring()) else { panic!("{verdict:?} passed") };
        assert_eq!((refusal.report.verdict, &refusal.subject.bytes), (verdict, &bytes));
        assert!(misplacement.is_none() || refusal.report.reason == misplacement);
    }
}
