//! `file_system.read`: a part of a text file with numbers and ids, or what a binary file is.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use lillux::Digest;
use lillux::beneath::OpenFile;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::text::{MOST_BYTES, read_whole, track};
use crate::line_id::Track;
use crate::line_id_store::Held;
use crate::lines::{Lines, push_numbered};
use crate::parameters;
use crate::place::Project;
use crate::show::{is_binary, kind_of_binary, path_text, shown};

const MOST_LINES: usize = 2000;
const MOST_SHOWN: usize = 200 * 1024;
/// How far a file that does not fit into memory is looked through.
const MOST_SCANNED: u64 = 256 * 1024 * 1024;
/// A longer line is shown cut; what follows is only skipped.
const MOST_LINE: u64 = 64 * 1024;

/// Reads a file.
#[derive(Clone, Copy, Debug)]
pub struct Read;

impl NativeTool for Read {
    fn name(&self) -> &'static str {
        "file_system.read"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let relative = project.relative(parameters::text(call.parameters, "path")?)?;
        let offset = parameters::optional_number(call.parameters, "offset")?.unwrap_or(1).max(1);
        let limit = parameters::limit(call.parameters, "limit", MOST_LINES, MOST_LINES)?;
        let wants_ids = parameters::boolean(call.parameters, "line_ids", true)?;
        let window = Window { offset, limit };

        let opened = project.file(&relative)?;
        // Held before the bytes are read, so that file and ids are of one version.
        let held = wants_ids.then(|| Held::acquire(call.cache, &opened.path)).flatten();
        let Some(bytes) = read_whole(&opened, &relative)? else {
            return scan(call, opened, &relative, &window);
        };
        if is_binary(&bytes) {
            return Ok(described(&relative, &bytes, bytes.len() as u64));
        }
        let hash = Digest::of(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        let is_exact = matches!(text, std::borrow::Cow::Borrowed(_));
        let lines = Lines::of(&text);
        let track = (wants_ids && is_exact).then(|| track(held.as_ref(), hash, &lines)).flatten();
        drop(held);

        let mut page = Page::new(&window);
        for (index, line) in lines.list.iter().enumerate().skip(offset - 1) {
            let id = track.as_ref().and_then(|track: &Track| track.ids.get(index).copied());
            if !page.push(index + 1, |out| push_numbered(out, index + 1, id, line.text)) {
                break;
            }
        }
        let mut answer = page.answer(&relative, Some(lines.list.len()));
        answer["bytes"] = json!(bytes.len());
        answer["hash"] = json!(hash.to_hex());
        answer["line_ids"] = json!(track.is_some());
        answer["line_ending"] = json!(lines.ending_name());
        answer["final_newline"] = json!(lines.has_final_newline());
        if !is_exact {
            answer["note"] = json!(
                "the file is not UTF-8: odd bytes are shown as \u{fffd}, and it cannot be edited by line"
            );
        } else if wants_ids && track.is_none() {
            answer["note"] = json!("the file has too many lines for line ids: edit it by line numbers");
        }
        Ok(answer)
    }
}

fn described(relative: &Path, head: &[u8], size: u64) -> Value {
    let kind = kind_of_binary(head);
    json!({
        "path": path_text(relative),
        "binary": true,
        "type": kind,
        "bytes": size,
        "content": format!("[binary file: {kind}, {size} bytes; not shown]"),
        "truncated": false,
    })
}

struct Window {
    offset: usize,
    limit: usize,
}

/// The lines that are shown.
struct Page<'a> {
    window: &'a Window,
    content: String,
    shown: usize,
    is_full: bool,
}

impl<'a> Page<'a> {
    fn new(window: &'a Window) -> Self {
        Self { window, content: String::new(), shown: 0, is_full: false }
    }

    /// Adds a line if there is room; says whether there was.
    fn push(&mut self, number: usize, write: impl FnOnce(&mut String)) -> bool {
        if number < self.window.offset {
            return true;
        }
        if self.shown >= self.window.limit || self.content.len() >= MOST_SHOWN {
            self.is_full = true;
            return false;
        }
        write(&mut self.content);
        self.shown += 1;
        true
    }

    fn answer(self, relative: &Path, total: Option<usize>) -> Value {
        let first = self.window.offset;
        let next = first + self.shown;
        let mut answer = json!({
            "path": path_text(relative),
            "content": self.content,
            "total_lines": total,
            "first_line": if self.shown == 0 { Value::Null } else { json!(first) },
            "last_line": if self.shown == 0 { Value::Null } else { json!(next - 1) },
            "truncated": self.is_full,
        });
        if self.is_full {
            answer["next_offset"] = json!(next);
        }
        if let Some(total) = total
            && self.shown == 0
            && first > 1
        {
            answer["note"] = json!(format!(
                "the file has {}: there is no line {first}",
                rye_item::text::counted(total, "line")
            ));
        }
        answer
    }
}

/// Shows a part of a file that is too large to hold.
fn scan(
    call: &NativeCall<'_>,
    opened: OpenFile,
    relative: &Path,
    window: &Window,
) -> Result<Value, NativeError> {
    let size = opened.metadata.len();
    let failed =
        |error: std::io::Error| NativeError::failed(format!("failed to read `{}`: {error}", shown(relative)));
    let mut reader = BufReader::with_capacity(256 * 1024, opened.file.take(MOST_SCANNED));
    let head = reader.fill_buf().map_err(failed)?;
    if is_binary(head) {
        return Ok(described(relative, head, size));
    }
    let mut page = Page::new(window);
    let (mut number, mut seen) = (0, 0_u64);
    let mut line = Vec::new();
    loop {
        if call.cancel.is_cancelled() {
            return Err(NativeError::failed("cancelled"));
        }
        line.clear();
        let length = read_line(&mut reader, &mut line).map_err(failed)?;
        if length == 0 {
            break;
        }
        seen += length;
        number += 1;
        if !page.is_full {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            page.push(number, |out| push_numbered(out, number, None, text));
        }
    }
    let is_whole = seen >= size;
    let mut answer = page.answer(relative, is_whole.then_some(number));
    answer["bytes"] = json!(size);
    answer["line_ids"] = json!(false);
    answer["note"] = json!(format!(
        "the file is larger than {} MiB: its lines have no ids and it cannot be edited by line{}",
        MOST_BYTES / (1024 * 1024),
        if is_whole { "" } else { "; only its first 256 MiB were looked through" }
    ));
    if !is_whole {
        answer["truncated"] = json!(true);
    }
    Ok(answer)
}

/// Reads one line, keeps at most [`MOST_LINE`] bytes of it, and returns how long it was.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<u64> {
    let mut length = 0;
    loop {
        let available = reader.fill_buf()?;
        let end = available.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
        let used = end.unwrap_or(available.len());
        let room = usize::try_from(MOST_LINE).unwrap_or(0).saturating_sub(line.len());
        line.extend_from_slice(&available[..used.min(room)]);
        reader.consume(used);
        length += used as u64;
        if end.is_some() || used == 0 {
            return Ok(length);
        }
    }
}
