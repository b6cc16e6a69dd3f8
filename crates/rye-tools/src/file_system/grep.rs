//! `file_system.grep`: lines that match a regular expression, in text files of any size.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use globset::GlobMatcher;
use lillux::Cancel;
use lillux::beneath::{Kind, OpenFile};
use regex::bytes::{Regex, RegexBuilder};
use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Map, Value, json};

use super::search::{below, matcher, note, options};
use crate::parameters;
use crate::place::Project;
use crate::show::{is_binary, path_text, push_cut};
use crate::walk::{Flow, Walked, walk};

const DEFAULT_LIMIT: usize = 200;
const MOST_LIMIT: usize = 5000;
const MOST_CONTEXT: usize = 20;
const MOST_SHOWN: usize = 200 * 1024;
const LINE_LIMIT: usize = 500;
const PIECE: usize = 8 * 1024 * 1024;
/// Patterns come from outside: they may not eat the memory.
const MOST_REGEX: usize = 8 * 1024 * 1024;

/// Searches in files.
#[derive(Clone, Copy, Debug)]
pub struct Grep;

/// What the answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Content,
    Files,
    Count,
}

struct Search<'a> {
    regex: Regex,
    /// Whether the whole text may be searched at once instead of line by line.
    is_local: bool,
    output: Output,
    context: usize,
    limit: usize,
    cancel: &'a Cancel,
    content: String,
    files: Vec<Value>,
    matches: usize,
    is_cut: bool,
    buffer: Vec<u8>,
}

impl NativeTool for Grep {
    fn name(&self) -> &'static str {
        "file_system.grep"
    }

    fn may_take_long(&self) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let project = Project::open(call)?;
        let mut search = Search::new(call)?;
        let given = parameters::optional_text(call.parameters, "path")?.unwrap_or("");
        let relative = project.relative(given)?;
        let include = Include::new(parameters::optional_text(call.parameters, "include")?)?;
        let mut walked = Walked::default();
        match project.folder(&relative) {
            Ok(start) => {
                let base = start.path().strip_prefix(project.root.path()).unwrap_or(Path::new("")).to_owned();
                let options = options(call, &format!("{given}/{}", include.text))?;
                walked = walk(&project, &start, options, call.cancel, &mut |found| {
                    if found.kind != Kind::File || !include.accepts(below(found.path, &base)) {
                        return Ok(Flow::Continue);
                    }
                    match found.folder.child_file(found.name) {
                        Ok(opened) => search.file(opened, found.path),
                        // It vanished or may not be read by this user: as if it were not there.
                        Err(_) => Ok(Flow::Continue),
                    }
                })?;
            }
            Err(error) => match project.file(&relative) {
                Ok(opened) => {
                    search.file(opened, &relative)?;
                }
                Err(_) => return Err(error),
            },
        }
        Ok(search.answer(call.parameters, walked))
    }
}

/// Which files are searched.
struct Include {
    text: String,
    matcher: Option<GlobMatcher>,
}

impl Include {
    fn new(pattern: Option<&str>) -> Result<Self, NativeError> {
        let text = pattern.unwrap_or_default().to_owned();
        let matcher = if text.is_empty() { None } else { Some(matcher(&text)?) };
        Ok(Self { text, matcher })
    }

    /// A pattern without `/` is about names, one with it about paths.
    fn accepts(&self, path: &Path) -> bool {
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
        .size_limit(MOST_REGEX)
        .build()
        .map_err(|error| match error {
            regex::Error::Syntax(text) => {
                let caret = text.lines().find(|line| line.trim_start().starts_with('^'));
                // The expression is printed with four spaces before it, the mark below it.
                let column = caret.and_then(|line| line.find('^')).map(|index| index.saturating_sub(4) + 1);
                NativeError::failed(format!(
                    "the pattern is not a regular expression; escape it, or set `fixed` for plain text:\n{text}"
                ))
                .with(json!({"pattern": pattern, "column": column}))
            }
            other => NativeError::failed(format!("the pattern cannot be used: {other}")),
        })
}

impl<'a> Search<'a> {
    fn new(call: &NativeCall<'a>) -> Result<Self, NativeError> {
        let pattern = parameters::text(call.parameters, "pattern")?;
        if pattern.is_empty() || pattern.contains('\n') {
            return Err(NativeError::failed("the pattern must be one line that is not empty"));
        }
        let is_fixed = parameters::boolean(call.parameters, "fixed", false)?;
        let ignores_case = parameters::boolean(call.parameters, "case_insensitive", false)?;
        let output = match parameters::optional_text(call.parameters, "output_mode")?.unwrap_or("content") {
            "content" => Output::Content,
            "files" => Output::Files,
            "count" => Output::Count,
            _ => return Err(NativeError::failed("`output_mode` must be `content`, `files` or `count`")),
        };
        Ok(Self {
            regex: compile(pattern, is_fixed, ignores_case)?,
            is_local: is_fixed
                || !(pattern.contains("\\A") || pattern.contains("\\z") || pattern.contains("(?")),
            output,
            context: parameters::optional_number(call.parameters, "context")?.unwrap_or(0).min(MOST_CONTEXT),
            limit: parameters::limit(call.parameters, "limit", DEFAULT_LIMIT, MOST_LIMIT)?,
            cancel: call.cancel,
            content: String::new(),
            files: Vec::new(),
            matches: 0,
            is_cut: false,
            buffer: Vec::new(),
        })
    }

    fn is_full(&self) -> bool {
        let used = match self.output {
            Output::Content => self.matches,
            Output::Files | Output::Count => self.files.len(),
        };
        used >= self.limit || self.content.len() >= MOST_SHOWN
    }

    /// Searches one file, a large piece at a time; context does not reach from one piece into the next.
    fn file(&mut self, mut opened: OpenFile, path: &Path) -> Result<Flow, NativeError> {
        if self.is_full() {
            self.is_cut = true;
            return Ok(Flow::Stop);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut hits = Hits { path, number: 1, count: 0 };
        let mut is_first = true;
        loop {
            if self.cancel.is_cancelled() {
                return Err(NativeError::failed("cancelled"));
            }
            let wanted = (PIECE - buffer.len()) as u64;
            let Ok(read) = (&mut opened.file).take(wanted).read_to_end(&mut buffer) else { break };
            if std::mem::take(&mut is_first) && is_binary(&buffer) {
                break;
            }
            let is_last = (read as u64) < wanted;
            let end = match buffer.iter().rposition(|byte| *byte == b'\n') {
                _ if is_last => buffer.len(),
                Some(index) => index + 1,
                None => buffer.len(),
            };
            let flow = self.piece(&buffer[..end], &mut hits);
            if is_last || flow == Flow::Stop {
                break;
            }
            buffer.drain(..end);
        }
        self.buffer = buffer;
        if hits.count > 0 {
            match self.output {
                Output::Files => self.files.push(json!(path_text(path))),
                Output::Content | Output::Count => {
                    self.files.push(json!({"path": path_text(path), "count": hits.count}));
                }
            }
        }
        Ok(if self.is_cut { Flow::Stop } else { Flow::Continue })
    }

    fn piece(&mut self, text: &[u8], hits: &mut Hits<'_>) -> Flow {
        let (mut position, mut counted) = (0, 0);
        let mut shown = 0;
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
            if self.regex.is_match(bare(&text[start..end])) {
                if self.output == Output::Content && self.is_full() {
                    self.is_cut = true;
                    return Flow::Stop;
                }
                hits.number += newlines(&text[counted..start]);
                counted = start;
                hits.count += 1;
                self.matches += 1;
                match self.output {
                    Output::Content => shown = self.show(text, start..end, shown, hits),
                    Output::Files => return Flow::Stop,
                    Output::Count => {}
                }
            }
            position = end;
        }
        hits.number += newlines(&text[counted..]);
        Flow::Continue
    }

    /// Writes a hit with its context, and returns up to where the text has been shown.
    fn show(&mut self, text: &[u8], line: std::ops::Range<usize>, shown: usize, hits: &Hits<'_>) -> usize {
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
        while before.len() < self.context && start > shown {
            let previous =
                text[..start - 1].iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
            before.push(previous..start);
            start = previous;
        }
        if self.context > 0 && start > shown && hits.count > 1 {
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
            if self.regex.is_match(bare(&text[end..next])) {
                break;
            }
            self.push_line(hits.number + offset, '-', &text[end..next]);
            end = next;
        }
        end
    }

    fn push_line(&mut self, number: usize, mark: char, line: &[u8]) {
        self.content.push_str(&format!("{number}{mark}"));
        push_cut(&mut self.content, &String::from_utf8_lossy(bare(line)), LINE_LIMIT);
        self.content.push('\n');
    }

    fn answer(self, parameters: &Map<String, Value>, walked: Walked) -> Value {
        let mut answer = json!({
            "pattern": parameters.get("pattern"),
            "files": self.files,
            "file_count": self.files.len(),
            "truncated": self.is_cut || walked.is_cut,
        });
        match self.output {
            Output::Content => {
                answer["content"] = json!(self.content);
                answer["matches"] = json!(self.matches);
            }
            Output::Count => answer["matches"] = json!(self.matches),
            Output::Files => {}
        }
        if let Some(note) = note(walked) {
            answer["note"] = json!(note);
        }
        answer
    }
}

/// Where the search in one file stands.
struct Hits<'a> {
    path: &'a Path,
    /// The number of the line at the last counted place.
    number: usize,
    count: usize,
}

fn line_end(text: &[u8], start: usize) -> usize {
    text[start..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |index| start + index + 1)
}

fn bare(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn newlines(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte == b'\n').count()
}
