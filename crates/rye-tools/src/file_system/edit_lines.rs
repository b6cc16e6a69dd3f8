//! `file_system.edit_lines`: changes lines by their ids. All changes of a call refer to the file as it was read.

use std::ops::Range;
use std::path::Path;

use lillux::Digest;
use lillux::dir::Durability;
use lillux::file::FileMode;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::edit_plan::{EditContext, LineChange, resolve};
use super::text::{MAX_FILE_BYTES, check_expected, read_whole, reject_redacted, update_track};
use crate::diff::unified_diff;
use crate::display::{display_path, path_text};
use crate::line_id::{Track, content_hash, match_lines};
use crate::line_id_store::LockedTrack;
use crate::lines::{Line, LineEnding, Lines, push_numbered};
use crate::parameters;
use crate::path_access::{MissingParents, ProjectAccess};

const MAX_CHANGES: usize = 500;
const MAX_PRINTED_LINES: usize = 200;
const CONTEXT_LINES: usize = 2;

/// Edits a file by line.
#[derive(Clone, Copy, Debug)]
pub struct EditLines;

impl NativeTool for EditLines {
    fn name(&self) -> &'static str {
        "file_system.edit_lines"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let relative = project.to_relative(parameters::required_text(call.parameters, "path")?)?;
        let expected = parameters::optional_text(call.parameters, "expected_hash")?;
        let changes = match call.parameters.get("changes") {
            Some(Value::Array(changes)) if !changes.is_empty() && changes.len() <= MAX_CHANGES => changes,
            _ => {
                return Err(NativeError::failed(format!(
                    "`changes` must be a list of 1 to {MAX_CHANGES} changes"
                )));
            }
        };
        changes.iter().try_for_each(reject_redacted_in)?;
        if call.cancel.is_cancelled() {
            return Err(NativeError::failed("cancelled"));
        }
        let target = project.open_target(&relative, MissingParents::Refuse)?;
        let locked = LockedTrack::acquire(call.cache, &target.folder.path().join(&target.name));
        let opened = target
            .folder
            .open_child_file(&target.name)
            .map_err(|error| project.to_native_error(&error, &relative))?;
        let bytes = read_whole(&opened, &relative)?.ok_or_else(|| {
            NativeError::failed(format!(
                "`{}` is larger than {} MiB and cannot be edited by line",
                display_path(&relative),
                MAX_FILE_BYTES / (1024 * 1024)
            ))
        })?;
        let text = to_editable_text(&bytes, &relative)?;
        let hash = Digest::of(&bytes);
        check_expected(expected, Some(&hash), &relative)?;

        let lines = Lines::parse(text);
        let old_track = update_track(locked.as_ref(), hash, &lines);
        let context =
            EditContext { lines: &lines, track: old_track.as_ref(), is_version_known: expected.is_some() };
        let edited = apply_changes(&lines, &resolve(changes, &context)?);
        let new_text = edited.lines.to_text();
        let new_hash = Digest::of(new_text.as_bytes());
        if new_hash != hash {
            target
                .folder
                // The rename is enough: readers never see half a file, and project files are not a journal.
                .write_atomic(&target.name, new_text.as_bytes(), FileMode::Preserve, Durability::Renamed)
                .map_err(|error| project.to_native_error(&error, &relative))?;
        }
        let new_track = old_track.map(|old| {
            let contents = edited.lines.list.iter().map(|line| content_hash(line.text)).collect();
            let new = old.carry_over(new_hash, contents, &edited.sources);
            if let Some(locked) = &locked {
                locked.save(&new);
            }
            new
        });
        let path = path_text(&relative);
        let (diff, is_cut) = unified_diff(&path, text, &new_text);
        let (regions, is_all) = render_regions(&edited, new_track.as_ref());
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
fn reject_redacted_in(value: &Value) -> Result<(), NativeError> {
    match value {
        Value::String(text) => reject_redacted(text),
        Value::Array(list) => list.iter().try_for_each(reject_redacted_in),
        Value::Object(map) => map.values().try_for_each(reject_redacted_in),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn to_editable_text<'a>(bytes: &'a [u8], relative: &Path) -> Result<&'a str, NativeError> {
    if bytes.contains(&0) {
        return Err(NativeError::failed(format!(
            "`{}` is a binary file and cannot be edited by line",
            display_path(relative)
        )));
    }
    std::str::from_utf8(bytes).map_err(|error| {
        NativeError::failed(format!(
            "`{}` is not UTF-8 (byte {}) and cannot be edited by line without damage: convert it first",
            display_path(relative),
            error.valid_up_to() + 1
        ))
    })
}

/// A file after its changes: for each new line the old line it is, and which new lines to show.
struct EditResult<'a> {
    lines: Lines<'a>,
    sources: Vec<Option<usize>>,
    regions: Vec<Range<usize>>,
}

fn apply_changes<'a>(old: &Lines<'a>, changes: &[LineChange<'a>]) -> EditResult<'a> {
    let dominant = old.dominant_ending();
    let mut list: Vec<Line<'a>> = Vec::with_capacity(old.list.len());
    let mut sources: Vec<Option<usize>> = Vec::with_capacity(old.list.len());
    let mut regions = Vec::new();
    let mut next = 0;
    for change in changes {
        list.extend_from_slice(&old.list[next..change.range.start]);
        sources.extend((next..change.range.start).map(Some));
        let neighbour = if change.range.is_empty() {
            change.range.start.checked_sub(1).and_then(|index| old.list.get(index)).or(old.list.first())
        } else {
            old.list.get(change.range.start)
        };
        let ending = match neighbour.map(|line| line.ending) {
            None | Some(LineEnding::None) => dominant,
            Some(ending) => ending,
        };
        let start = list.len();
        list.extend(change.new.iter().map(|text| Line { text, ending }));
        // What is written again as it was stays the same line.
        let before: Vec<u64> =
            old.list[change.range.clone()].iter().map(|line| content_hash(line.text)).collect();
        let after: Vec<u64> = change.new.iter().map(|text| content_hash(text)).collect();
        let offset = change.range.start;
        sources.extend(match_lines(&before, &after).into_iter().map(|line| line.map(|index| offset + index)));
        regions.push(start..list.len());
        next = change.range.end;
    }
    list.extend_from_slice(&old.list[next..]);
    sources.extend((next..old.list.len()).map(Some));
    EditResult { lines: old.with_lines(list), sources, regions }
}

/// The changed lines with their new numbers and ids, and whether these are all.
fn render_regions(edited: &EditResult<'_>, track: Option<&Track>) -> (String, bool) {
    let total = edited.lines.list.len();
    let mut out = String::new();
    let (mut line_count, mut next) = (0, 0);
    for region in &edited.regions {
        let start = region.start.saturating_sub(CONTEXT_LINES).max(next);
        let end = (region.end + CONTEXT_LINES).min(total);
        if start > next && next > 0 {
            out.push_str("…\n");
        }
        for index in start..end {
            if line_count >= MAX_PRINTED_LINES {
                return (out, false);
            }
            let id = track.and_then(|track| track.ids.get(index).copied());
            push_numbered(&mut out, index + 1, id, edited.lines.list[index].text);
            line_count += 1;
        }
        next = end.max(next);
    }
    (out, true)
}
