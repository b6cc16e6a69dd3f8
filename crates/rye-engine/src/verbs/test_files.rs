//! Which test files the user has run as they are. Test files are not signed: anyone who may write to the project can leave one behind
//! that has the next `rye test` run a tool with the user's rights and with parameters of their choice. So a file whose tool asks for
//! more than the default runs only if the user agreed to that very file.

use std::collections::BTreeMap;
use std::path::Path;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_item::space::SpaceTier;
use rye_item::text::one_line;
use rye_item::{ItemRef, text};
use rye_trust::Subject;
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::natives::test_runner;
use crate::verbs::sign::consent::requests_beyond_default;

/// Below the user's `.ai/`: the record. Its extension is not one of a config, so that it is not an item itself.
const RECORD_FILE: &str = "config/trust/tests.txt";
const MAX_RECORD_BYTES: u64 = 4 << 20;
/// How many files are remembered, of all projects.
const MAX_RECORDED_FILES: usize = 20_000;

/// A test file that the user has not run as it is.
#[derive(Clone, Debug, Serialize)]
pub struct NewTestFile {
    /// Its path below `.ai/tests`.
    pub file: String,
    /// The tool it runs.
    pub tool: String,
    /// The user ran it before, with other content or for a tool that asked for something else.
    pub is_changed: bool,
    /// What its tool asks for beyond the default, a line each: the user must agree to run it.
    pub asks: Vec<String>,
    #[serde(skip)]
    entry: (String, String),
}

/// Which files were run, and with which content: hash by hash.
#[derive(Debug, Default)]
pub(crate) struct TestRecord {
    entries: BTreeMap<String, String>,
}

impl TestRecord {
    /// The record of the user. One that is not there or cannot be read knows no file.
    pub(crate) fn read(engine: &Engine) -> Self {
        let path = engine.workspace.roots.user_ai().join(RECORD_FILE);
        let bytes = file::read_bounded(&path, MAX_RECORD_BYTES).map(|(bytes, _)| bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let entries = text.lines().filter_map(|line| line.split_once(' '));
        Self { entries: entries.map(|(file, content)| (file.to_owned(), content.to_owned())).collect() }
    }

    /// What is new about a file, if the user has not run it as it is.
    pub(crate) fn find_new(
        &self,
        engine: &Engine,
        file: &Path,
        tool: &ItemRef,
        content: &Digest,
    ) -> Option<NewTestFile> {
        let asks = tool_requests(engine, tool);
        let name = one_line(&file.display().to_string());
        let project = engine.workspace.roots.project_key().unwrap_or_default();
        let key = digest([project.as_str(), &name]);
        let value = digest([content.to_hex().as_str(), &asks.join("\n")]);
        let known = self.entries.get(&key);
        (known != Some(&value)).then(|| NewTestFile {
            file: name,
            tool: tool.id.to_string(),
            is_changed: known.is_some(),
            asks,
            entry: (key, value),
        })
    }
}

impl NewTestFile {
    /// Why it is not run, in words.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "not run: you have not run this file as it is, and {} asks for {}; read the file, then: rye test --file {} --yes",
            self.tool,
            self.asks.join(", "),
            text::shell_word(&self.file)
        )
    }
}

/// The test files of an approved project that the user has not run as they are: of one tool, and whose path contains a text, if these
/// are given.
#[must_use]
pub fn new_test_files(engine: &Engine, tool: Option<&str>, part: Option<&str>) -> Vec<NewTestFile> {
    let Some(ai) = engine.workspace.roots.project_ai().filter(|_| engine.workspace.is_project_approved)
    else {
        return Vec::new();
    };
    let record = TestRecord::read(engine);
    let root = ai.join("tests");
    let mut found = Vec::new();
    for file in test_runner::test_files(&root) {
        let name = one_line(&file.display().to_string());
        if part.is_some_and(|part| !name.contains(part)) {
            continue;
        }
        // What cannot be read does not run; the runner says why.
        let Ok(read) = test_runner::read_test_file(&root, &file) else { continue };
        if tool.is_none_or(|tool| tool == read.tool.id.as_str()) {
            found.extend(record.find_new(engine, &file, &read.tool, &read.digest));
        }
    }
    found
}

/// Records that the user has run these files as they are.
///
/// # Errors
/// When the record cannot be written.
pub fn record_test_files(engine: &Engine, files: &[NewTestFile]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let user_ai = engine.workspace.roots.user_ai();
    let path = user_ai.join(RECORD_FILE);
    let _lock = rye_space::keys::lock_records(&user_ai).map_err(Error::from)?;
    if let Some(folder) = path.parent() {
        file::create_dirs(folder, true)?;
    }
    let mut record = TestRecord::read(engine);
    if record.entries.len() + files.len() > MAX_RECORDED_FILES {
        // What is dropped is asked about again.
        record.entries.clear();
    }
    record.entries.extend(files.iter().map(|file| file.entry.clone()));
    let lines: String = record.entries.iter().map(|(file, content)| format!("{file} {content}\n")).collect();
    Ok(file::write_atomic(&path, lines.as_bytes(), FileMode::Private)?)
}

/// What a tool asks for beyond the default. A tool of rye itself does what its parameters say.
fn tool_requests(engine: &Engine, tool: &ItemRef) -> Vec<String> {
    let Ok(located) = engine.locate(tool, None) else { return Vec::new() };
    let mut requests = requests_beyond_default(tool, &located);
    if located.space().tier() == SpaceTier::System {
        requests.push("parameters: what they say to a tool of rye or of a bundle".to_owned());
    }
    requests
}

fn digest<'a>(pieces: impl IntoIterator<Item = &'a str>) -> String {
    let pieces = pieces.into_iter().flat_map(|piece| [piece.as_bytes(), b"\0".as_slice()]);
    Digest::of_pieces(pieces).to_hex()
}
