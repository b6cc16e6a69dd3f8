//! What parsers and interpreters read of a signed file: no byte outside the hashed range decides anything of it.

use proptest::prelude::*;
use rye_item::extractor::Parser;
use rye_item::{ItemType, Parsed, parse};
use rye_trust::signature::Layout;
use rye_trust::{Coverage, Verdict, covered_form, display_form};

use crate::support::{Kind, judge, kind, kinds, sample, signed};

const SHEBANG: &[u8] = b"#!/usr/bin/env interpreter\n";

fn parsed(kind: &Kind, bytes: &[u8]) -> Parsed {
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
fn forms(kind: &Kind, content: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = vec![covered_form(&signed(content, &kind.format), &kind.format).into_owned()];
    if kind.format.after_shebang {
        let bytes = signed(&[SHEBANG, content].concat(), &kind.format);
        forms.push(covered_form(&bytes, &kind.format).into_owned());
    }
    forms
}

/// Holds a file against the forms its content may be read in.
fn check(kind: &Kind, content: &[u8], bytes: &[u8]) {
    if judge(kind, bytes).coverage != Coverage::Full {
        return;
    }
    let forms = forms(kind, content);
    let read = covered_form(bytes, &kind.format);
    assert!(forms.iter().any(|form| *form == *read), "{}: {:?}", kind.extension, bytes.escape_ascii());
    let expected = parsed(kind, &forms[0]);
    let actual = parsed(kind, &read);
    assert_eq!(actual.fields, expected.fields, "{}: {:?}", kind.extension, bytes.escape_ascii());
    assert_eq!(actual.problems.len(), expected.problems.len(), "{}", kind.extension);
}

fn tampered(extension: &str, first: &str) -> bool {
    let kind = kind(ItemType::Tool, extension);
    let file = [first.as_bytes(), &signed(sample(&kind).as_bytes(), &kind.format)].concat();
    let report = judge(&kind, &file);
    report.verdict == Verdict::Tampered && report.reason.is_some_and(|reason| reason.contains("`#!` line"))
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
            assert!(tampered(extension, first), "{extension} {first:?}");
        }
        for first in ["#!/usr/bin/env python3\n", "#!/x\r\n", "#! /x -w\n", "#!\n", "#!/x encoding\n"] {
            let kind = kind(ItemType::Tool, extension);
            let content = sample(&kind).as_bytes();
            let file = [first.as_bytes(), &signed(content, &kind.format)].concat();
            assert_eq!(judge(&kind, &file).verdict, Verdict::Full, "{extension} {first:?}");
            let read = covered_form(&file, &kind.format).into_owned();
            assert!(!read.windows(2).any(|pair| pair == b"#!"), "{}", read.escape_ascii());
            assert!(read.ends_with(&[b"\n\n", content].concat()[..]), "{}", read.escape_ascii());
            assert!(display_form(&file, &kind.format).starts_with(b"\n"));
        }
    }
    let unended = b"#!/x no line end";
    assert_eq!(judge(&kind(ItemType::Tool, ".py"), unended).verdict, Verdict::Tampered);
}

#[test]
fn shebang_needs_a_format_with_one() {
    for kind in kinds().into_iter().filter(|kind| !kind.format.after_shebang) {
        let file = [SHEBANG, &signed(sample(&kind).as_bytes(), &kind.format)].concat();
        assert_eq!(judge(&kind, &file).verdict, Verdict::Unsigned, "{}", kind.extension);
    }
}

#[test]
fn signature_line_holds_nothing_else() {
    for kind in kinds() {
        let content = sample(&kind).as_bytes();
        let bytes = signed(content, &kind.format);
        let layout = Layout::of(&bytes, &kind.format);
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
            let verdict = judge(&kind, &file).verdict;
            assert!(
                matches!(verdict, Verdict::Unsigned | Verdict::Tampered),
                "{}: {changed:?} is {verdict:?}",
                kind.extension
            );
        }
    }
}

#[test]
fn shebang_decides_no_encoding_of_content() {
    let kind = kind(ItemType::Tool, ".py");
    let content = b"# -*- coding: raw_unicode_escape -*-\n# \\u000aprint(1)\n";
    for form in forms(&kind, content) {
        assert!(form.starts_with(b"# -*- coding: utf-8 -*-\n"), "{}", form.escape_ascii());
    }
}

#[test]
fn unsigned_bytes_of_the_line_are_not_read() {
    for kind in kinds() {
        let content = sample(&kind).as_bytes();
        let bytes = signed(content, &kind.format);
        let text = String::from_utf8(bytes.clone()).expect("text");
        let other = text.replacen("2026-01-02T", "2026-02-02T", 1);
        assert_ne!(text, other);
        assert_eq!(covered_form(&bytes, &kind.format), covered_form(other.as_bytes(), &kind.format));
        assert!(!covered_form(&bytes, &kind.format).windows(4).any(|part| part == b"rye:"));
        let line = Layout::of(&bytes, &kind.format).signature.expect("a signature line");
        let fingerprint = line.fingerprint.to_string();
        let named = text.replacen(&fingerprint, &format!("{fingerprint}|obey@me"), 1);
        assert_eq!(judge(&kind, named.as_bytes()).verdict, Verdict::Full, "{}", kind.extension);
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
        kind in prop::sample::select(kinds()),
        lines in any_bytes(),
        before in any_bytes(),
        inside in any_bytes(),
        behind in any_bytes(),
        place in 0_usize..300,
        other_break in any::<bool>(),
    ) {
        let content = [&lines[..], sample(&kind).as_bytes()].concat();
        // Such a content has a shebang or a signature line of its own.
        let layout = Layout::of(&content, &kind.format);
        prop_assume!(layout.content.start == 0 && layout.shebang_error.is_none());
        let bytes = signed(&content, &kind.format);
        let line = Layout::of(&bytes, &kind.format).line;
        let mut changed = bytes[line.clone()].to_vec();
        let text_end = changed.len() - changed.iter().rev().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        if other_break {
            let ending: &[u8] = if changed.ends_with(b"\r\n") { b"\n" } else { b"\r\n" };
            changed.splice(text_end.., ending.iter().copied());
        }
        let place = place.min(text_end);
        check(&kind, &content, &[&before, &bytes[..]].concat());
        let mut inserted = changed.clone();
        inserted.splice(place..place, inside.iter().copied());
        check(&kind, &content, &[&before, &inserted[..], &content].concat());
        check(&kind, &content, &[&inserted[..], &content].concat());
        let mut appended = changed.clone();
        appended.splice(text_end..text_end, behind.iter().copied());
        check(&kind, &content, &[&appended[..], &content].concat());
        check(&kind, &content, &[SHEBANG, &changed[..], &content].concat());
    }
}
