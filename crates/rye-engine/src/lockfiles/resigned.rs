//! Lockfiles and rotated keys. A pin of a file that a tool may import is over all its bytes, the signature line included.
//! When an author signs it again with a new key, only that line changes: the former lines are kept beside the hand-over, and
//! with one of them in its place the file has its former digest again. That proves that nothing else changed, the one that wrote
//! the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_exec::lock::{BundleProvider, LockComparison, Lockfile, LockfilePart, ResolvedTool, compare};
use rye_item::SignatureFormat;
use rye_space::handovers::HANDOVERS_FOLDER;
use rye_trust::Subject;
use rye_trust::signature::FileLayout;

use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::verify::item_at_path;

/// How the name of a list of former signature lines ends.
const SIGNATURES_SUFFIX: &str = ".signatures";
/// The largest list that is read.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// How many lines of all lists are looked at.
const MAX_LINES: usize = 10_000;

/// As [`compare`], but a file that was only signed again is the one that was pinned.
pub(crate) fn compare_resigned(
    engine: &Engine,
    pinned: &Lockfile,
    found: &ResolvedTool,
    providers: &[BundleProvider],
) -> LockComparison {
    let compared = compare(pinned, found, providers);
    let LockComparison::Differs(differences) = &compared else { return compared };
    if !differences.iter().any(|difference| difference.part == LockfilePart::File) {
        return compared;
    }
    let former = former_digests(engine);
    let mut translated = pinned.clone();
    for file in translated.verified_deps.iter_mut().flatten() {
        if let Some(current) = former.get(&file.integrity) {
            file.integrity.clone_from(current);
        }
    }
    compare(&translated, found, providers)
}

/// The digests that files had under former signature lines, and those they have now.
fn former_digests(engine: &Engine) -> BTreeMap<String, String> {
    let roots = &engine.workspace.roots;
    let mut digests = BTreeMap::new();
    for ai in [roots.project_ai(), Some(roots.user_ai())].into_iter().flatten() {
        for (path, line) in read_lists(&ai) {
            let Ok((item, candidate)) = item_at_path(engine, &ai.join(&path)) else { continue };
            let Ok(located) = engine.workspace.spaces.read(&item, &candidate) else { continue };
            let Some(format) = located.format() else { continue };
            if let Some(former) = with_line(located.bytes(), &line, format) {
                digests.insert(Digest::of(&former).to_hex(), Digest::of(located.bytes()).to_hex());
            }
        }
    }
    digests
}

/// The file with another signature line; `None` if it has none, or the other is not a signature line.
fn with_line(bytes: &[u8], line: &str, format: &SignatureFormat) -> Option<Vec<u8>> {
    let layout = FileLayout::parse(bytes, format);
    layout.signature.as_ref()?;
    let line = format!("{line}{}", layout.line_break(bytes));
    let former = [&bytes[layout.shebang.clone()], line.as_bytes(), &bytes[layout.content.clone()]].concat();
    let is_signature_line = FileLayout::parse(&former, format).line.len() == line.len();
    is_signature_line.then_some(former)
}

/// The paths and lines of all lists of a space.
fn read_lists(ai: &Path) -> Vec<(String, String)> {
    let folder = ai.join(HANDOVERS_FOLDER);
    let Ok(entries) = fs_err::read_dir(&folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(SIGNATURES_SUFFIX)).collect();
    names.sort();
    let lists = names.iter().filter_map(|name| {
        let read = file::read_beneath_no_symlinks(&folder, Path::new(name), MAX_LIST_BYTES);
        String::from_utf8(read.ok()?.0).ok()
    });
    let mut lines = Vec::new();
    for list in lists {
        let pairs = list.lines().filter_map(|line| line.split_once('\t'));
        lines.extend(pairs.map(|(path, line)| (path.to_owned(), line.to_owned())));
    }
    lines.truncate(MAX_LINES);
    lines
}

/// The signature line of a file, without its line break, as it goes into a list.
pub(crate) fn signature_line(bytes: &[u8], format: &SignatureFormat) -> Option<String> {
    let layout = FileLayout::parse(bytes, format);
    layout.signature.as_ref()?;
    let line = std::str::from_utf8(&bytes[layout.line.clone()]).ok()?;
    Some(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Adds former signature lines, each with its path below `ai`, to the list that is named after the former key.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn add_former_lines(ai: &Path, key: &str, lines: &[(String, String)]) -> Result<()> {
    let folder = file::create_folders_beneath(ai, Path::new(HANDOVERS_FOLDER), false)?;
    let name = format!("{key}{SIGNATURES_SUFFIX}");
    let read = file::read_beneath_no_symlinks(&folder, Path::new(&name), MAX_LIST_BYTES);
    let present = read.ok().and_then(|(bytes, _)| String::from_utf8(bytes).ok()).unwrap_or_default();
    let mut all: BTreeSet<String> = present.lines().map(str::to_owned).collect();
    all.extend(lines.iter().map(|(path, line)| format!("{path}\t{line}")));
    let text = all.iter().map(|line| format!("{line}\n")).collect::<String>();
    Ok(file::write_atomic(&folder.join(name), text.as_bytes(), FileMode::Preserve)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "rye:signed:2026-01-02T03:04:05Z:8ab20818b2ddd5a71bf7d6d5fe6ca0c295c89c4815fd370d60cb4e26226f6a50:a_KtlPKxI3_c03zXlYc5683ugeYGDk4LPbAVEperBq_OM-EDwQt6r3cpO3r0dgwCDgVLC37irl1eC7g-XTOVCQ:f0ff50dacf109dea";

    #[test]
    fn only_signature_lines_are_put_back() {
        let format = SignatureFormat { prefix: "#".into(), suffix: None, after_shebang: true };
        let current = format!("#!/bin/sh\n# {}\nbody\n", LINE.replace("2026", "2027"));
        let former = with_line(current.as_bytes(), &format!("# {LINE}"), &format);
        assert_eq!(former, Some(format!("#!/bin/sh\n# {LINE}\nbody\n").into_bytes()));
        assert_eq!(
            signature_line(current.as_bytes(), &format),
            Some(format!("# {}", LINE.replace("2026", "2027")))
        );
        for other in ["rm -rf x", "", "# comment", &format!("# {LINE}\nrm -rf x")] {
            assert_eq!(with_line(current.as_bytes(), other, &format), None, "{other}");
        }
        assert_eq!(with_line(b"body\n", &format!("# {LINE}"), &format), None, "a file that is not signed");
    }
}
