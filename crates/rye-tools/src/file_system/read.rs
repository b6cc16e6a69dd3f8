//! `file_system.read`: a part of a text file with numbers and ids, or what a binary file is.

use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use lillux::Digest;
use lillux::dir::OpenFile;
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

use super::text::{MAX_FILE_BYTES, read_whole, update_track};
use crate::display::{binary_type, display_path, is_binary, path_text};
use crate::line_id::Track;
use crate::line_id_store::LockedTrack;
use crate::lines::{Lines, push_numbered};
use crate::parameters;
use crate::path_access::ProjectAccess;

const MAX_LINES: usize = 2000;
const MAX_CONTENT_BYTES: usize = 200 * 1024;
/// How far a file that does not fit into memory is looked through.
const MAX_SCAN_BYTES: u64 = 256 * 1024 * 1024;
/// A longer line is shown cut; what follows is only skipped.
const MAX_LINE_BYTES: u64 = 64 * 1024;

/// Reads a file.
#[derive(Clone, Copy, Debug)]
pub struct Read;

impl NativeTool for Read {
    fn name(&self) -> &'static str {
        "file_system.read"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let relative = project.to_relative(parameters::required_text(call.parameters, "path")?)?;
        let offset = parameters::optional_number(call.parameters, "offset")?.unwrap_or(1).max(1);
        let limit = parameters::limit(call.parameters, "limit", MAX_LINES, MAX_LINES)?;
        let wants_ids = parameters::boolean(call.parameters, "line_ids", true)?;
        let window = Window { offset, limit };

        let opened = project.open_file(&relative)?;
        // Held before the bytes are read, so that file and ids are of one version.
        let locked = wants_ids.then(|| LockedTrack::acquire(call.cache, &opened.path)).flatten();
        let Some(bytes) = read_whole(&opened, &relative)? else {
            return read_large(call, opened, &relative, &window);
        };
        if is_binary(&bytes) {
            return Ok(describe_binary(&relative, &bytes, bytes.len() as u64));
        }
        let hash = Digest::of(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        let is_exact = matches!(text, std::borrow::Cow::Borrowed(_));
        let lines = Lines::parse(&text);
        let track = (wants_ids && is_exact).then(|| update_track(locked.as_ref(), hash, &lines)).flatten();
        drop(locked);

        let mut page = ReadPage::new(&window);
        for (index, line) in lines.list.iter().enumerate().skip(offset - 1) {
            let id = track.as_ref().and_then(|track: &Track| track.ids.get(index).copied());
            if !page.push(index + 1, |out| push_numbered(out, index + 1, id, line.text)) {
                break;
            }
        }
        let mut response = page.into_response(&relative, Some(lines.list.len()));
        response["bytes"] = json!(bytes.len());
        response["hash"] = json!(hash.to_hex());
        response["line_ids"] = json!(track.is_some());
        response["line_ending"] = json!(lines.ending_name());
        response["final_newline"] = json!(lines.has_final_newline());
        if !is_exact {
            response["note"] = json!(
                "the file is not UTF-8: odd bytes are shown as \u{fffd}, and it cannot be edited by line"
            );
        } else if wants_ids && track.is_none() {
            response["note"] = json!("the file has too many lines for line ids: edit it by line numbers");
        }
        Ok(response)
    }
}

fn describe_binary(relative: &Path, head: &[u8], size: u64) -> Value {
    let kind = binary_type(head);
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
struct ReadPage<'a> {
    window: &'a Window,
    content: String,
    line_count: usize,
    is_full: bool,
}

impl<'a> ReadPage<'a> {
    fn new(window: &'a Window) -> Self {
        Self { window, content: String::new(), line_count: 0, is_full: false }
    }

    /// Adds a line if there is room; says whether there was.
    fn push(&mut self, number: usize, write: impl FnOnce(&mut String)) -> bool {
        if number < self.window.offset {
            return true;
        }
        if self.line_count >= self.window.limit || self.content.len() >= MAX_CONTENT_BYTES {
            self.is_full = true;
            return false;
        }
        write(&mut self.content);
        self.line_count += 1;
        true
    }

    fn into_response(self, relative: &Path, total: Option<usize>) -> Value {
        let first = self.window.offset;
        let next = first + self.line_count;
        let mut response = json!({
            "path": path_text(relative),
            "content": self.content,
            "total_lines": total,
            "first_line": if self.line_count == 0 { Value::Null } else { json!(first) },
            "last_line": if self.line_count == 0 { Value::Null } else { json!(next - 1) },
            "truncated": self.is_full,
        });
        if self.is_full {
            response["next_offset"] = json!(next);
        }
        if let Some(total) = total
            && self.line_count == 0
            && first > 1
        {
            response["note"] = json!(format!(
                "line {first} is out of range: the file has {}",
                rye_item::text::counted(total, "line")
            ));
        }
        response
    }
}

/// Shows a part of a file that is too large to hold.
fn read_large(
    call: &NativeCall<'_>,
    opened: OpenFile,
    relative: &Path,
    window: &Window,
) -> Result<Value, NativeError> {
    let size = opened.metadata.len();
    let failed = |error: std::io::Error| {
        NativeError::failed(format!("failed to read `{}`: {error}", display_path(relative)))
    };
    let mut reader = BufReader::with_capacity(256 * 1024, opened.file.take(MAX_SCAN_BYTES));
    let head = reader.fill_buf().map_err(failed)?;
    if is_binary(head) {
        return Ok(describe_binary(relative, head, size));
    }
    let mut page = ReadPage::new(window);
    let (mut number, mut scanned) = (0, 0_u64);
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
        scanned += length;
        number += 1;
        if !page.is_full {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            page.push(number, |out| push_numbered(out, number, None, text));
        }
    }
    let is_whole = scanned >= size;
    let mut response = page.into_response(relative, is_whole.then_some(number));
    response["bytes"] = json!(size);
    response["line_ids"] = json!(false);
    response["note"] = json!(format!(
        "the file is larger than {} MiB: its lines have no ids and it cannot be edited by line{}",
        MAX_FILE_BYTES / (1024 * 1024),
        if is_whole { "" } else { "; only its first 256 MiB were looked through" }
    ));
    if !is_whole {
        response["truncated"] = json!(true);
    }
    Ok(response)
}

/// Reads one line, keeps at most [`MAX_LINE_BYTES`] bytes of it, and returns how long it was.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<u64> {
    let mut length = 0;
    loop {
        let available = reader.fill_buf()?;
        let end = available.iter().position(|byte| *byte == b'\n').map(|index| index + 1);
        let used = end.unwrap_or(available.len());
        let capacity = usize::try_from(MAX_LINE_BYTES).unwrap_or(0).saturating_sub(line.len());
        line.extend_from_slice(&available[..used.min(capacity)]);
        reader.consume(used);
        length += used as u64;
        if end.is_some() || used == 0 {
            return Ok(length);
        }
    }
}
