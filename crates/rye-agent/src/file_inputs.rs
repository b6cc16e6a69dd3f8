//! Inputs that are files: read once when a thread is prepared, and kept under their digest from then on.
//!
//! The user at the command line names any file they can read. An MCP client and a thread name files of the project: without a
//! link on the way, and none whose path has a part that begins with a dot. A thread needs a grant to read files.

mod pdf;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use lillux::Digest;
use lillux::file::{ReadError, read_beneath_no_symlinks, read_bounded};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::text::one_line;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::{ChatMessage, FileContents, FileKind, FilePart, MediaType, ModelRequest};
use serde_json::{Map, Value, json};

use crate::action::Action;
use crate::capability::{Capabilities, Principal, permit};
use crate::models::ModelChoice;
use crate::redact::{RedactionTally, Redactor};
use crate::result_format::ArtifactStore;
use crate::spec::ThreadInstance;

/// How large a file may be.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

/// How many files a thread may be given.
const MAX_FILES: usize = 16;

/// The tool that a thread must be allowed to use to give a file to a child.
const READ_TOOL: &str = "rye/file-system/read";

/// The most tokens of the text on one page of a document; its picture is counted besides.
const PAGE_TEXT_TOKENS: u64 = 3000;

/// Where the files of a thread's inputs come from.
#[derive(Clone, Debug)]
pub enum FileAccess {
    /// The user names them, relative to this folder.
    User(PathBuf),
    /// They are files of the project.
    Project,
    /// They were read when another thread was prepared.
    Recorded(Vec<FilePart>),
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedFile {
    /// What is recorded of it.
    pub part: FilePart,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The secrets that were removed from it.
    pub redacted: RedactionTally,
}

/// Reads the files that a directive's inputs name.
///
/// # Errors
/// When one may not be read, is too large, is of a type that models are not shown, or the model does not take it.
pub(crate) fn read_files(
    engine: &Engine,
    access: &FileAccess,
    parent: Option<&Capabilities>,
    declared: &[Value],
    inputs: &Map<String, Value>,
) -> Result<Vec<LoadedFile>> {
    let mut files = Vec::new();
    let mut redactor = None;
    for (name, path) in file_paths(declared, inputs) {
        if files.len() == MAX_FILES {
            return Err(refused(name, path, &format!("a thread takes {MAX_FILES} files at most")));
        }
        let bytes = match access {
            FileAccess::Recorded(_) => continue,
            FileAccess::User(folder) => {
                read_bounded(&folder.join(path), MAX_FILE_BYTES)
                    .map_err(|error| read_error(name, path, &error))?
                    .0
            }
            FileAccess::Project => {
                check_grant(parent, name, path)?;
                read_project_file(engine, name, path)?
            }
        };
        let redactor = match &mut redactor {
            Some(redactor) => redactor,
            none => none.insert(Redactor::from_engine(engine)?),
        };
        files.push(load(name, path, bytes, redactor)?);
    }
    Ok(files)
}

/// The files that inputs name: the input and its path.
fn file_paths<'a>(
    declared: &'a [Value],
    inputs: &'a Map<String, Value>,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let is_file = |input: &&Value| input.get("type").and_then(Value::as_str) == Some("file");
    declared.iter().filter(is_file).filter_map(|input| {
        let name = input.get("name").and_then(Value::as_str)?;
        let path = inputs.get(name).and_then(Value::as_str)?;
        Some((name, path.strip_prefix('@').unwrap_or(path)))
    })
}

fn check_grant(parent: Option<&Capabilities>, name: &str, path: &str) -> Result<()> {
    let Some(capabilities) = parent else { return Ok(()) };
    let params = [("path".to_owned(), json!(path))].into_iter().collect();
    let read = Action::execute(&ItemRef::new(ItemType::Tool, ItemId::new(READ_TOOL)?), params);
    permit(capabilities, &read, Principal::Model).map(drop).map_err(|denied| {
        Error::new(Code::PermissionDenied, format!("`{name}`: {}", denied.message))
            .hint(format!("a thread that gives files to a child needs a grant for {READ_TOOL}"))
    })
}

fn read_project_file(engine: &Engine, name: &str, path: &str) -> Result<Vec<u8>> {
    let outside = || {
        refused(
            name,
            path,
            "only files of the project are read here: a path below it, without links or hidden folders",
        )
    };
    let project = engine.workspace.roots.project.as_ref().ok_or_else(outside)?;
    let below = Path::new(path);
    let below = if below.is_absolute() { below.strip_prefix(project).map_err(|_| outside())? } else { below };
    let is_plain = |component: Component<'_>| match component {
        Component::CurDir => true,
        Component::Normal(part) => !part.to_string_lossy().starts_with('.'),
        Component::ParentDir | Component::RootDir | Component::Prefix(_) => false,
    };
    if !below.components().all(is_plain) {
        return Err(outside());
    }
    let read = read_beneath_no_symlinks(project, below, MAX_FILE_BYTES);
    read.map(|(bytes, _)| bytes).map_err(|error| read_error(name, path, &error))
}

fn load(name: &str, path: &str, bytes: Vec<u8>, redactor: &Redactor) -> Result<LoadedFile> {
    let Some(media_type) = MediaType::detect(&bytes) else {
        return Err(refused(name, path, "it is not a PNG, JPEG, GIF, WebP, PDF or UTF-8 text file"));
    };
    if bytes.is_empty() {
        return Err(refused(name, path, "it is empty"));
    }
    let mut redacted = RedactionTally::default();
    let bytes = match media_type.kind() {
        // What is sent and kept holds no secret.
        FileKind::Text => {
            redactor.redact_with(String::from_utf8_lossy(&bytes).into_owned(), &mut redacted).into_bytes()
        }
        FileKind::Image | FileKind::Pdf => bytes,
    };
    let pages = match media_type.kind() {
        FileKind::Pdf => Some(pdf::count_pages(&bytes).ok_or_else(|| {
            refused(name, path, "it cannot be told how many pages it has: it may be encrypted or damaged")
        })?),
        FileKind::Image | FileKind::Text => None,
    };
    let file_name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    let part = FilePart {
        input: name.to_owned(),
        name: one_line(&file_name),
        media_type,
        digest: Digest::of(&bytes).to_string(),
        bytes: bytes.len() as u64,
        pages,
        tokens: 0,
    };
    Ok(LoadedFile { part, bytes, redacted })
}

/// Checks that a model and its fallbacks take a file, and counts it.
///
/// # Errors
/// When one of them does not take it.
pub(crate) fn check_file(part: &mut FilePart, choice: &ModelChoice) -> Result<()> {
    let kind = part.media_type.kind();
    let mut tokens = 0;
    for model in std::iter::once(choice).chain(&choice.fallbacks) {
        if !model.file.takes_file(&model.model, kind) {
            let why = format!(
                "`{}` of `{}` takes no {} files",
                one_line(&model.model),
                model.provider_id,
                kind.as_str()
            );
            return Err(refused(&part.input, &part.name, &why)
                .hint("ask a model that does: --model NAME")
                .hint("or add the kind to `files` in your own copy of the provider's file"));
        }
        let image = model.file.image_tokens(&model.model);
        tokens = tokens.max(match kind {
            FileKind::Image => image,
            FileKind::Pdf => part.pages.unwrap_or(1).saturating_mul(image.saturating_add(PAGE_TEXT_TOKENS)),
            // Most text has three bytes or more for each token.
            FileKind::Text => part.bytes.div_ceil(2),
        });
    }
    part.tokens = tokens;
    Ok(())
}

/// What was said in another thread, its files counted for this thread's model.
///
/// # Errors
/// When the model does not take one of them.
pub(crate) fn check_history(
    history: &[Arc<ChatMessage>],
    choice: &ModelChoice,
) -> Result<Vec<Arc<ChatMessage>>> {
    let mut checked = history.to_vec();
    for message in checked.iter_mut().filter(|message| !message.files().is_empty()) {
        if let ChatMessage::User { files, .. } = Arc::make_mut(message) {
            for file in files {
                check_file(file, choice)?;
            }
        }
    }
    Ok(checked)
}

/// The files that a thread shows or showed: the store keeps them as long as the thread.
pub(crate) fn shown_digests(own: &ThreadInstance) -> Vec<Digest> {
    let history = own.history.iter().flat_map(|message| message.files());
    let mut digests: Vec<Digest> =
        own.files.iter().chain(history).filter_map(|file| file.digest.parse().ok()).collect();
    digests.sort_unstable();
    digests.dedup();
    digests
}

/// Puts the bytes of the files that a request shows into it.
///
/// # Errors
/// When one is missing, or is not what was recorded.
pub(crate) fn attach_files(
    request: &mut ModelRequest,
    store: Option<&dyn ArtifactStore>,
) -> std::result::Result<(), String> {
    let mut contents = FileContents::default();
    for file in request.messages.iter().flat_map(|message| message.files()) {
        if contents.get(file).is_some() {
            continue;
        }
        let bytes = match store {
            Some(store) => store.get(&file.digest)?,
            None => None,
        };
        let bytes = bytes.filter(|bytes| Digest::of(bytes).to_string() == file.digest);
        let bytes = bytes.ok_or_else(|| format!(
                "the file `{}` is missing from the store, or was changed there; `rye run` with the file keeps it again",
                file.name
            ))?;
        contents.insert(file.digest.clone(), bytes);
    }
    request.files = Arc::new(contents);
    Ok(())
}

fn refused(name: &str, path: &str, why: &str) -> Error {
    Error::new(Code::FileInputRefused, format!("`{name}` cannot be `{}`: {why}", one_line(path))).hint(
        format!("give a PNG, JPEG, GIF, WebP, PDF or text file of at most {} MiB", MAX_FILE_BYTES >> 20),
    )
}

fn read_error(name: &str, path: &str, error: &ReadError) -> Error {
    let path_text = one_line(path);
    match error {
        ReadError::TooLarge { limit, .. } => {
            refused(name, path, &format!("it is larger than {} MiB", limit >> 20))
        }
        ReadError::Escapes { .. } => refused(name, path, "a link is on the way to it"),
        ReadError::NotAFile { .. } => refused(name, path, "it is not a regular file"),
        ReadError::Io(_) if error.is_absent() => {
            Error::new(Code::PathNotFound, format!("`{name}`: there is no file `{path_text}`")).hint(
                "at the command line, paths are relative to the current folder; elsewhere, to the project",
            )
        }
        ReadError::Io(error) => Error::new(Code::Io, format!("`{name}`: cannot read `{path_text}`: {error}")),
    }
}
