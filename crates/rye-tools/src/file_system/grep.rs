//! `file_system.grep`: lines that match a regular expression, in text files of any size.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use globset::GlobMatcher;
use lillux::CancelToken;
use lillux::dir::{DirEntryKind, OpenFile};
use regex::bytes::{Regex, RegexBuilder};
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Map, Value, json};

use super::patterns::{build_matcher, relative_to, walk_note, walk_options};
use crate::display::{is_binary, path_text, push_truncated};
use crate::parameters;
use crate::path_access::ProjectAccess;
use crate::walk::{WalkControl, WalkReport, walk};

const DEFAULT_LIMIT: usize = 200;
const MAX_LIMIT: usize = 5000;
const MAX_CONTEXT: usize = 20;
const MAX_CONTENT_BYTES: usize = 200 * 1024;
const MAX_LINE_CHARS: usize = 500;
const CHUNK_SIZE: usize = 8 * 1024 * 1024;
/// Patterns come from outside: they may not eat the memory.
const MAX_REGEX_SIZE: usize = 8 * 1024 * 1024;

/// Searches in files.
#[derive(Clone, Copy, Debug)]
pub struct Grep;

/// What the answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputMode {
    Content,
    Files,
    Count,
}

struct GrepSearch<'a> {
    regex: Regex,
    /// Whether the whole text may be searched at once instead of line by line.
    is_local: bool,
    output: OutputMode,
    context: usize,
    limit: usize,
    cancel: &'a CancelToken,
    content: String,
    files: Vec<Value>,
    matches: usize,
    is_truncated: bool,
    buffer: Vec<u8>,
}

impl NativeTool for Grep {
    fn name(&self) -> &'static str {
        "file_system.grep"
    }

    fn may_block(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = ProjectAccess::open(call)?;
        let mut search = GrepSearch::new(call)?;
        let given = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let relative = project.to_relative(given)?;
        let include = IncludeFilter::new(parameters::optional_text(call.parameters, "include")?)?;
        let mut report = WalkReport::default();
        match project.open_folder(&relative) {
            Ok(start) => {
                let base = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
                let options = walk_options(call, &format!("{given}/{}", include.text))?;
                report = walk(&project, &start, options, call.cancel, &mut |entry| {
                    if entry.kind != DirEntryKind::File || !include.is_match(relative_to(entry.path, &base)) {
                        return Ok(WalkControl::Continue);
                    }
                    match entry.folder.open_child_file(entry.name) {
                        Ok(opened) => search.search_file(opened, entry.path),
                        // It vanished or may not be read by this user: as if it were not there.
                        Err(_) => Ok(WalkControl::Continue),
                    }
                })?;
            }
            Err(error) => match project.open_file(&relative) {
                Ok(opened) => {
                    search.search_file(opened, &relative)?;
                }
                Err(_) => return Err(error),
            },
        }
        Ok(search.into_response(call.parameters, report))
    }
}

/// Which files are searched.
struct IncludeFilter {
    text: String,
    matcher: Option<GlobMatcher>,
}

impl IncludeFilter {
    fn new(pattern: Option<&str>) -> Result<Self, NativeError> {
        let text = pattern.unwrap_or_default().to_owned();
        let matcher = if text.is_empty() { None } else { Some(build_matcher(&text)?) };
        Ok(Self { text, matcher })
    }

    /// A pattern without `/` is about names, one with it about paths.
    fn is_match(&self, path: &Path) -> bool {
        self.matcher.as_ref().is_none_or(|matcher| {
            if self.text.contains('/') {
                matcher.is_match(path)
            } else {
                path.file_name().is_some_and(|name| matcher.is_match(PathBuf::from(name)))
            }
        })
    }
}

fn compile(pattern: &str, is_fixed: bool, ignores_case: bool) -> Result<Regex, NativeError> {
    let source = if is_fixed { regex::escape(pattern) } else { pattern.to_owned() };
    RegexBuilder::new(&source)
        .case_insensitive(ignores_case)
        .multi_line(true)
        .crlf(true)
        .size_limit(MAX_REGEX_SIZE)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let caret = text.lines().find(|line| line.trim_start().starts_with('^'));
                // The expression is printed with four spaces before it, the mark below it.
                let column = caret.and_then(|line| line.find('^')).map(|index| index.saturating_sub(4) + 1);
                NativeError::failed(format!(
                    "the pattern is not a regular expression; escape it, or set `fixed` for plain text:\n{text}"
                ))
                .with_data(json!({"pattern": pattern, "column": column}))
            }
            other => NativeError::failed(format!("the pattern cannot be used: {other}")),
        })
}

impl<'a> GrepSearch<'a> {
    fn new(call: &NativeCall<'a>) -> Result<Self, NativeError> {
        let pattern = parameters::required_text(call.parameters, "pattern")?;
        if pattern.is_empty() || pattern.contains('\n') {
            return Err(NativeError::failed("the pattern must be one line that is not empty"));
        }
        let is_fixed = parameters::boolean(call.parameters, "fixed", false)?;
        let ignores_case = parameters::boolean(call.parameters, "case_insensitive", false)?;
        let output = match parameters::optional_text(call.parameters, "output_mode")?.unwrap_or("content") {
            "content" => OutputMode::Content,
            "files" => OutputMode::Files,
            "count" => OutputMode::Count,
            _ => return Err(NativeError::failed("`output_mode` must be `content`, `files` or `count`")),
        };
        Ok(Self {
            regex: compile(pattern, is_fixed, ignores_case)?,
            is_local: is_fixed
                || !(pattern.contains("\\A") || pattern.contains("\\z") || pattern.contains("(?")),
            output,
            context: parameters::optional_number(call.parameters, "context")?.unwrap_or(0).min(MAX_CONTEXT),
            limit: parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MAX_LIMIT)?,
            cancel: call.cancel,
            content: String::new(),
            files: Vec::new(),
            matches: 0,
            is_truncated: false,
            buffer: Vec::new(),
        })
    }

    fn is_full(&self) -> bool {
        let used = match self.output {
            OutputMode::Content => self.matches,
            OutputMode::Files | OutputMode::Count => self.files.len(),
        };
        used >= self.limit || self.content.len() >= MAX_CONTENT_BYTES
    }

    /// Searches one file, a large piece at a time; context does not reach from one piece into the next.
    fn search_file(&mut self, mut opened: OpenFile, path: &Path) -> Result<WalkControl, NativeError> {
        if self.is_full() {
            self.is_truncated = true;
            return Ok(WalkControl::Stop);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut hits = FileMatches { path, number: 1, count: 0 };
        let mut is_first = true;
        loop {
            if self.cancel.is_cancelled() {
                return Err(NativeError::failed("cancelled"));
            }
            let capacity = (CHUNK_SIZE - buffer.len()) as u64;
            let Ok(read) = (&mut opened.file).take(capacity).read_to_end(&mut buffer) else { break };
            if std::mem::take(&mut is_first) && is_binary(&buffer) {
                break;
            }
            let is_last = (read as u64) < capacity;
            let end = match buffer.iter().rposition(|byte| *byte == b'\n') {
                _ if is_last => buffer.len(),
                Some(index) => index + 1,
                None => buffer.len(),
            };
            let flow = self.search_chunk(&buffer[..end], &mut hits);
            if is_last || flow == WalkControl::Stop {
                break;
            }
            buffer.drain(..end);
        }
        self.buffer = buffer;
        if hits.count > 0 {
            match self.output {
                OutputMode::Files => self.files.push(json!(path_text(path))),
                OutputMode::Content | OutputMode::Count => {
                    self.files.push(json!({"path": path_text(path), "count": hits.count}));
                }
            }
        }
        Ok(if self.is_truncated { WalkControl::Stop } else { WalkControl::Continue })
    }

    fn search_chunk(&mut self, text: &[u8], hits: &mut FileMatches<'_>) -> WalkControl {
        let (mut position, mut counted_until) = (0, 0);
        let mut printed_until = 0;
        while position < text.len() {
            let from = if self.is_local {
                match self.regex.find_at(text, position) {
                    None => break,
                    Some(found) => found.start(),
                }
            } else {
                position
            };
            let start = text[position..from]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(position, |index| position + index + 1);
            let end = line_end(text, start);
            if start >= text.len() {
                break;
            }
            if self.regex.is_match(trim_newline(&text[start..end])) {
                if self.output == OutputMode::Content && self.is_full() {
                    self.is_truncated = true;
                    return WalkControl::Stop;
                }
                hits.number += count_newlines(&text[counted_until..start]);
                counted_until = start;
                hits.count += 1;
                self.matches += 1;
                match self.output {
                    OutputMode::Content => {
                        printed_until = self.push_match(text, start..end, printed_until, hits)
                    }
                    OutputMode::Files => return WalkControl::Stop,
                    OutputMode::Count => {}
                }
            }
            position = end;
        }
        hits.number += count_newlines(&text[counted_until..]);
        WalkControl::Continue
    }

    /// Writes a hit with its context, and returns up to where the text has been shown.
    fn push_match(
        &mut self,
        text: &[u8],
        line: std::ops::Range<usize>,
        printed_until: usize,
        hits: &FileMatches<'_>,
    ) -> usize {
        if hits.count == 1 {
            if !self.content.is_empty() {
                self.content.push('\n');
            }
            self.content.push_str(&path_text(hits.path));
            self.content.push('\n');
        }
        // The context after the hit before this one may have shown this line already, as context.
        let mut before = Vec::new();
        let mut start = line.start;
        while before.len() < self.context && start > printed_until {
            let previous =
                text[..start - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
            before.push(previous..start);
            start = previous;
        }
        if self.context > 0 && start > printed_until && hits.count > 1 {
            self.content.push_str("--\n");
        }
        let first = hits.number - before.len();
        for (offset, range) in before.into_iter().rev().enumerate() {
            self.push_line(first + offset, '-', &text[range]);
        }
        self.push_line(hits.number, ':', &text[line.clone()]);
        let mut end = line.end;
        for offset in 1..=self.context {
            if end >= text.len() {
                break;
            }
            let next = line_end(text, end);
            // A line that matches too is shown as a hit, in its turn.
            if self.regex.is_match(trim_newline(&text[end..next])) {
                break;
            }
            self.push_line(hits.number + offset, '-', &text[end..next]);
            end = next;
        }
        end
    }

    fn push_line(&mut self, number: usize, mark: char, line: &[u8]) {
        self.content.push_str(&format!("{number}{mark}"));
        push_truncated(&mut self.content, &String::from_utf8_lossy(trim_newline(line)), MAX_LINE_CHARS);
        self.content.push('\n');
    }

    fn into_response(self, parameters: &Map<String, Value>, report: WalkReport) -> Value {
        let mut response = json!({
            "pattern": parameters.get("pattern"),
            "files": self.files,
            "file_count": self.files.len(),
            "truncated": self.is_truncated || report.is_truncated,
        });
        match self.output {
            OutputMode::Content => {
                response["content"] = json!(self.content);
                response["matches"] = json!(self.matches);
            }
            OutputMode::Count => response["matches"] = json!(self.matches),
            OutputMode::Files => {}
        }
        if let Some(note) = walk_note(report) {
            response["note"] = json!(note);
        }
        response
    }
}

/// Where the search in one file stands.
struct FileMatches<'a> {
    path: &'a Path,
    /// The number of the line at the last counted place.
    number: usize,
    count: usize,
}

fn line_end(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |index| start + index + 1)
}

fn trim_newline(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn count_newlines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}
