//! `file_system.edit_lines`: changes lines by their ids. All changes of a call refer to the file as it was read.

use std::ops::Range;
use std::path::Path;

use lillux::Digest;
use lillux::beneath::Durability;
use lillux::file::Mode;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::change::{Change, Ground, resolve};
use super::text::{MOST_BYTES, check_expected, read_whole, refuse_redacted, track};
use crate::diff::unified;
use crate::line_id::{Track, content, recognise};
use crate::line_id_store::Held;
use crate::lines::{Ending, Line, Lines, push_numbered};
use crate::parameters;
use crate::place::{Missing, Project};
use crate::show::{path_text, shown};

const MOST_CHANGES: usize = 500;
const MOST_SHOWN: usize = 200;
const CONTEXT: usize = 2;

/// Edits a file by line.
#[derive(Clone, Copy, Debug)]
pub struct EditLines;

impl NativeTool for EditLines {
    fn name(&self) -> &'static str {
        "file_system.edit_lines"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let relative = project.relative(parameters::text(call.parameters, "path")?)?;
        let expected = parameters::optional_text(call.parameters, "expected_hash")?;
        let changes = match call.parameters.get("changes") {
            Some(Value::Array(changes)) if !changes.is_empty() && changes.len() <= MOST_CHANGES => changes,
            _ => {
                return Err(NativeError::failed(format!(
                    "`changes` must be a list of 1 to {MOST_CHANGES} changes"
                )));
            }
        };
        changes.iter().try_for_each(refuse_redacted_in)?;
        if call.cancel.is_cancelled() {
            return Err(NativeError::failed("cancelled"));
        }
        let target = project.target(&relative, Missing::Refused)?;
        let held = Held::acquire(call.cache, &target.folder.path().join(&target.name));
        let opened =
            target.folder.child_file(&target.name).map_err(|error| project.failure(&error, &relative))?;
        let bytes = read_whole(&opened, &relative)?.ok_or_else(|| {
            NativeError::failed(format!(
                "`{}` is larger than {} MiB and cannot be edited by line",
                shown(&relative),
                MOST_BYTES / (1024 * 1024)
            ))
        })?;
        let text = editable(&bytes, &relative)?;
        let hash = Digest::of(&bytes);
        check_expected(expected, Some(&hash), &relative)?;

        let lines = Lines::of(text);
        let old_track = track(held.as_ref(), hash, &lines);
        let ground =
            Ground { lines: &lines, track: old_track.as_ref(), is_version_known: expected.is_some() };
        let edited = apply(&lines, &resolve(changes, &ground)?);
        let new_text = edited.lines.to_text();
        let new_hash = Digest::of(new_text.as_bytes());
        if new_hash != hash {
            target
                .folder
                // The rename alone is enough: nobody sees half a file, and project files are not a journal.
                .write_atomic(&target.name, new_text.as_bytes(), Mode::Kept, Durability::Renamed)
                .map_err(|error| project.failure(&error, &relative))?;
        }
        let new_track = old_track.map(|old| {
            let contents = edited.lines.list.iter().map(|line| content(line.text)).collect();
            let new = old.carried(new_hash, contents, &edited.kept);
            if let Some(held) = &held {
                held.save(&new);
            }
            new
        });
        let path = path_text(&relative);
        let (diff, is_cut) = unified(&path, text, &new_text);
        let (regions, is_all) = show_regions(&edited, new_track.as_ref());
        Ok(json!({
            "path": path,
            "changed": new_hash != hash,
            "changes_applied": changes.len(),
            "total_lines": edited.lines.list.len(),
            "bytes": new_text.len(),
            "hash": new_hash.to_hex(),
            "content": regions,
            "truncated": !is_all,
            "diff": diff,
            "diff_truncated": is_cut,
        }))
    }
}

/// Refuses a change whose texts hold a marker that stands for a secret.
fn refuse_redacted_in(value: &Value) -> Result<(), NativeError> {
    match value {
        Value::String(text) => refuse_redacted(text),
        Value::Array(list) => list.iter().try_for_each(refuse_redacted_in),
        Value::Object(map) => map.values().try_for_each(refuse_redacted_in),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn editable<'a>(bytes: &'a [u8], relative: &Path) -> Result<&'a str, NativeError> {
    if bytes.contains(&0) {
        return Err(NativeError::failed(format!(
            "`{}` is a binary file and cannot be edited by line",
            shown(relative)
        )));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        NativeError::failed(format!(
            "`{}` is not UTF-8 (byte {}) and cannot be edited by line without damage: convert it first",
            shown(relative),
            error.valid_up_to() + 1
        ))
    })
}

/// A file after its changes: for each new line the old line it is, and which new lines to show.
struct Edited<'a> {
    lines: Lines<'a>,
    kept: Vec<Option<usize>>,
    regions: Vec<Range<usize>>,
}

fn apply<'a>(old: &Lines<'a>, changes: &[Change<'a>]) -> Edited<'a> {
    let usual = old.usual_ending();
    let mut list: Vec<Line<'a>> = Vec::with_capacity(old.list.len());
    let mut kept: Vec<Option<usize>> = Vec::with_capacity(old.list.len());
    let mut regions = Vec::new();
    let mut next = 0;
    for change in changes {
        list.extend_from_slice(&old.list[next..change.range.start]);
        kept.extend((next..change.range.start).map(Some));
        let neighbour = if change.range.is_empty() {
            change.range.start.checked_sub(1).and_then(|index| old.list.get(index)).or(old.list.first())
        } else {
            old.list.get(change.range.start)
        };
        let ending = match neighbour.map(|line| line.ending) {
            None | Some(Ending::None) => usual,
            Some(ending) => ending,
        };
        let start = list.len();
        list.extend(change.new.iter().map(|text| Line { text, ending }));
        // What is written again as it was stays the same line.
        let before: Vec<u64> = old.list[change.range.clone()].iter().map(|line| content(line.text)).collect();
        let after: Vec<u64> = change.new.iter().map(|text| content(text)).collect();
        let offset = change.range.start;
        kept.extend(recognise(&before, &after).into_iter().map(|line| line.map(|index| offset + index)));
        regions.push(start..list.len());
        next = change.range.end;
    }
    list.extend_from_slice(&old.list[next..]);
    kept.extend((next..old.list.len()).map(Some));
    Edited { lines: old.with(list), kept, regions }
}

/// The changed lines with their new numbers and ids, and whether these are all.
fn show_regions(edited: &Edited<'_>, track: Option<&Track>) -> (String, bool) {
    let total = edited.lines.list.len();
    let mut out = String::new();
    let (mut shown, mut next) = (0, 0);
    for region in &edited.regions {
        let start = region.start.saturating_sub(CONTEXT).max(next);
        let end = (region.end + CONTEXT).min(total);
        if start > next && next > 0 {
            out.push_str("…\n");
        }
        for index in start..end {
            if shown >= MOST_SHOWN {
                return (out, false);
            }
            let id = track.and_then(|track| track.ids.get(index).copied());
            push_numbered(&mut out, index + 1, id, edited.lines.list[index].text);
            shown += 1;
        }
        next = end.max(next);
    }
    (out, true)
}
