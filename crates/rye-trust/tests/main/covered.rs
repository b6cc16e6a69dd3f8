//! What parsers and interpreters read of a signed file: no byte outside the hashed range decides anything of it.

use proptest::prelude::*;
use rye_item::extractor::Parser;
use rye_item::{ItemType, ParsedItem, parse};
use rye_trust::signature::FileLayout;
use rye_trust::{Coverage, TrustVerdict, covered_form, display_form};

use crate::support::{FileKind, file_kind, file_kinds, report_for, sample, sign_with_vector_key};

const SHEBANG: &[u8] = b"#!/usr/bin/env interpreter\n";

fn parse_as(kind: &FileKind, bytes: &[u8]) -> ParsedItem {
    let parser = match (kind.item_type, kind.extension.as_str()) {
        (ItemType::Directive, _) => Parser::MarkdownXml,
        (ItemType::Knowledge, _) => Parser::MarkdownFrontmatter,
        (_, ".py") => Parser::Python,
        (_, ".js" | ".mjs" | ".cjs") => Parser::JavaScript,
        (_, ".ts") => Parser::TypeScript,
        (_, ".toml") => Parser::Toml,
        (_, ".sh" | ".pl" | ".rb") => Parser::Shell,
        _ => Parser::Yaml,
    };
    parse::parse(parser, &kind.extension, bytes)
}

/// The forms a signed content may be read in: without a shebang, and with one where the format allows it.
fn expected_forms(kind: &FileKind, content: &[u8]) -> Vec<Vec<u8>> {
    let mut forms =
        vec![covered_form(&sign_with_vector_key(content, &kind.format), &kind.format).into_owned()];
    if kind.format.after_shebang {
        let bytes = sign_with_vector_key(&[SHEBANG, content].concat(), &kind.format);
        forms.push(covered_form(&bytes, &kind.format).into_owned());
    }
    forms
}

/// Holds a file against the forms its content may be read in.
fn assert_covered_form(kind: &FileKind, content: &[u8], bytes: &[u8]) {
    if report_for(kind, bytes).coverage != Coverage::Full {
        return;
    }
    let forms = expected_forms(kind, content);
    let read = covered_form(bytes, &kind.format);
    assert!(forms.iter().any(|form| *form == *read), "{}: {:?}", kind.extension, bytes.escape_ascii());
    let expected = parse_as(kind, &forms[0]);
    let actual = parse_as(kind, &read);
    assert_eq!(actual.fields, expected.fields, "{}: {:?}", kind.extension, bytes.escape_ascii());
    assert_eq!(actual.problems.len(), expected.problems.len(), "{}", kind.extension);
}

fn is_tampered(extension: &str, first: &str) -> bool {
    let kind = file_kind(ItemType::Tool, extension);
    let file = [first.as_bytes(), &sign_with_vector_key(sample(&kind).as_bytes(), &kind.format)].concat();
    let report = report_for(&kind, &file);
    report.verdict == TrustVerdict::Tampered
        && report.reason.is_some_and(|reason| reason.contains("`#!` line"))
}

#[test]
fn only_a_strict_shebang_is_accepted() {
    for extension in [".py", ".sh", ".js", ".yaml", ".pl", ".rb", ".toml", ".ts", ".mjs", ".cjs", ".yml"] {
        for first in [
            "#!/usr/bin/env python3\rimport os\n",
            "#!/x\r\r\n",
            "#!/x\u{2028}code()\n",
            "#!/x\u{2029}code()\n",
            "#!/x\u{85}code: 1\n",
            "#!/x\u{b}y\n",
            "#!/x\u{c}y\n",
            "#!/x\0y\n",
            "#!/x\ty\n",
            "#!/x\u{7f}\n",
            "#!/é\n",
            "#!/x coding: raw_unicode_escape\n",
            "#!/x -*- Coding=utf-7 -*-\n",
            "#!/x vim:fileencoding=latin-1\n",
            &format!("#!{}\n", "x".repeat(255)),
        ] {
            assert!(is_tampered(extension, first), "{extension} {first:?}");
        }
        for first in ["#!/usr/bin/env python3\n", "#!/x\r\n", "#! /x -w\n", "#!\n", "#!/x encoding\n"] {
            let kind = file_kind(ItemType::Tool, extension);
            let content = sample(&kind).as_bytes();
            let file = [first.as_bytes(), &sign_with_vector_key(content, &kind.format)].concat();
            assert_eq!(report_for(&kind, &file).verdict, TrustVerdict::Full, "{extension} {first:?}");
            let read = covered_form(&file, &kind.format).into_owned();
            assert!(!read.windows(2).any(|pair| pair == b"#!"), "{}", read.escape_ascii());
            assert!(read.ends_with(&[b"\n\n", content].concat()[..]), "{}", read.escape_ascii());
            assert!(display_form(&file, &kind.format).starts_with(b"\n"));
        }
    }
    let unended = b"#!/x no line end";
    assert_eq!(report_for(&file_kind(ItemType::Tool, ".py"), unended).verdict, TrustVerdict::Tampered);
}

#[test]
fn shebang_needs_a_format_with_one() {
    for kind in file_kinds().into_iter().filter(|kind| !kind.format.after_shebang) {
        let file = [SHEBANG, &sign_with_vector_key(sample(&kind).as_bytes(), &kind.format)].concat();
        assert_eq!(report_for(&kind, &file).verdict, TrustVerdict::Unsigned, "{}", kind.extension);
    }
}

#[test]
fn signature_line_allows_nothing_else() {
    for kind in file_kinds() {
        let content = sample(&kind).as_bytes();
        let bytes = sign_with_vector_key(content, &kind.format);
        let layout = FileLayout::parse(&bytes, &kind.format);
        let line = String::from_utf8(bytes[layout.line.clone()].to_vec()).expect("text");
        let line = line.trim_end();
        let inner = match &kind.format.suffix {
            Some(suffix) => line.strip_suffix(suffix.as_str()).expect("suffix").trim_end(),
            None => line,
        };
        let end = &line[inner.len()..];
        let long = "a".repeat(65);
        for changed in [
            format!("{inner} code(){end}"),
            format!("{inner}\rcode(){end}"),
            format!("{inner}\u{85}code(){end}"),
            format!("{inner}\u{2028}code(){end}"),
            format!("{inner}\u{2029}code(){end}"),
            format!("{inner}\u{b}code(){end}"),
            format!("{inner}\u{c}code(){end}"),
            format!("{inner}\0{end}"),
            format!("{inner}|a@coding:utf-7{end}"),
            format!("{inner}|a@b -*- coding: utf-7 -*-{end}"),
            format!("{inner}|vim:set fileencoding=utf-7@b{end}"),
            format!("{inner}|a@b-->code<!--{end}"),
            format!("{inner}|a@b*/code/*{end}"),
            format!("{inner}|{long}@b{end}"),
            format!("{inner}|a@{long}{end}"),
            format!("{line} code"),
            format!("{line} "),
            format!("{line}{end}"),
            format!("\u{feff}{line}"),
            format!(" {line}"),
            format!("\n{line}"),
            format!("\r{line}"),
            format!("{line}\r"),
        ] {
            if changed == line {
                continue;
            }
            let file = [changed.as_bytes(), b"\n", content].concat();
            let verdict = report_for(&kind, &file).verdict;
            assert!(
                matches!(verdict, TrustVerdict::Unsigned | TrustVerdict::Tampered),
                "{}: {changed:?} is {verdict:?}",
                kind.extension
            );
        }
    }
}

#[test]
fn shebang_decides_no_encoding_of_content() {
    let kind = file_kind(ItemType::Tool, ".py");
    let content = b"# -*- coding: raw_unicode_escape -*-\n# \\u000aprint(1)\n";
    for form in expected_forms(&kind, content) {
        assert!(form.starts_with(b"# -*- coding: utf-8 -*-\n"), "{}", form.escape_ascii());
    }
}

#[test]
fn unsigned_bytes_of_the_line_are_not_read() {
    for kind in file_kinds() {
        let content = sample(&kind).as_bytes();
        let bytes = sign_with_vector_key(content, &kind.format);
        let text = String::from_utf8(bytes.clone()).expect("text");
        let other = text.replacen("2026-01-02T", "2026-02-02T", 1);
        assert_ne!(text, other);
        assert_eq!(covered_form(&bytes, &kind.format), covered_form(other.as_bytes(), &kind.format));
        assert!(!covered_form(&bytes, &kind.format).windows(4).any(|part| part == b"rye:"));
        let line = FileLayout::parse(&bytes, &kind.format).signature.expect("a signature line");
        let fingerprint = line.fingerprint.to_string();
        let named = text.replacen(&fingerprint, &format!("{fingerprint}|obey@me"), 1);
        assert_eq!(report_for(&kind, named.as_bytes()).verdict, TrustVerdict::Full, "{}", kind.extension);
        assert_eq!(covered_form(named.as_bytes(), &kind.format), covered_form(&bytes, &kind.format));
        assert_eq!(display_form(named.as_bytes(), &kind.format), &bytes[..], "{}", kind.extension);
    }
}

/// Pieces of what could stand before or in a signature line.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static [u8]> = vec![
        b"\n",
        b"\r\n",
        b"\r",
        b"#!",
        b"#!/usr/bin/env python3",
        b"# ",
        b"// ",
        b"<!-- ",
        b" -->",
        b"|a@b",
        b" coding: utf-7 ",
        b"-*- coding=latin-1 -*-",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xef\xbb\xbf",
        b"\0",
        b"\x0b",
        b"\x0c",
        b" ",
        b"---",
        b"name: x",
        b"import os",
        b"/* ",
        b"SANDBOX = {}",
        b"x",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(pieces).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is put before the signature line, into it and behind it: a file that still counts as signed whole is
    /// read as it was signed.
    #[test]
    fn nothing_outside_the_hash_is_read(
        kind in prop::sample::select(file_kinds()),
        lines in any_bytes(),
        before in any_bytes(),
        inside in any_bytes(),
        behind in any_bytes(),
        place in 0_usize..300,
        other_break in any::<bool>(),
    ) {
        let content = [&lines[..], sample(&kind).as_bytes()].concat();
        // Such a content has a shebang or a signature line of its own.
        let layout = FileLayout::parse(&content, &kind.format);
        prop_assume!(layout.content.start == 0 && layout.shebang_error.is_none());
        let bytes = sign_with_vector_key(&content, &kind.format);
        let line = FileLayout::parse(&bytes, &kind.format).line;
        let mut changed = bytes[line.clone()].to_vec();
        let text_end = changed.len() - changed.iter().rev().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if other_break {
            let ending: &[u8] = if changed.ends_with(b"\r\n") { b"\n" } else { b"\r\n" };
            changed.splice(text_end.., ending.iter().copied());
        }
        let place = place.min(text_end);
        assert_covered_form(&kind, &content, &[&before, &bytes[..]].concat());
        let mut inserted = changed.clone();
        inserted.splice(place..place, inside.iter().copied());
        assert_covered_form(&kind, &content, &[&before, &inserted[..], &content].concat());
        assert_covered_form(&kind, &content, &[&inserted[..], &content].concat());
        let mut appended = changed.clone();
        appended.splice(text_end..text_end, behind.iter().copied());
        assert_covered_form(&kind, &content, &[&appended[..], &content].concat());
        assert_covered_form(&kind, &content, &[SHEBANG, &changed[..], &content].concat());
    }
}
