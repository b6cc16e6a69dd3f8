//! `new`: an item that runs at once. Written from a template, signed with the own key, with a test if it is a tool;
//! nothing that exists is overwritten.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::AI_FOLDER;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign;

/// The languages a tool can be begun in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolLanguage {
    /// A Python function.
    Python,
    /// A JavaScript function.
    Js,
    /// A TypeScript program.
    Ts,
    /// A shell script.
    Bash,
}

impl ToolLanguage {
    /// All of them, the preferred ones first.
    pub const ALL: [Self; 4] = [Self::Python, Self::Js, Self::Ts, Self::Bash];

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Js => "js",
            Self::Ts => "ts",
            Self::Bash => "bash",
        }
    }

    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::Python => ".py",
            Self::Js => ".js",
            Self::Ts => ".ts",
            Self::Bash => ".sh",
        }
    }

    pub(super) fn template(self) -> &'static str {
        match self {
            Self::Python => include_str!("../../templates/tool.py"),
            Self::Js => include_str!("../../templates/tool.js"),
            Self::Ts => include_str!("../../templates/tool.ts"),
            Self::Bash => include_str!("../../templates/tool.sh"),
        }
    }

    /// The programs it runs on; one of them is enough.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "python"],
            Self::Js | Self::Ts => &["node"],
            Self::Bash => &["bash"],
        }
    }
}

impl std::str::FromStr for ToolLanguage {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        match word {
            "python" | "py" => Ok(Self::Python),
            "js" | "javascript" | "node" => Ok(Self::Js),
            "ts" | "typescript" => Ok(Self::Ts),
            "bash" | "sh" | "shell" => Ok(Self::Bash),
            other => {
                let known = Self::ALL.map(Self::as_str);
                let message = format!("unknown language `{}`", rye_item::text::one_line(other));
                let hint = match rye_item::text::nearest(other, known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("languages are: {}", known.join(", ")),
                };
                Err(Error::new(Code::InvalidArgument, message)
                    .hint(hint)
                    .hint("any other program: write a runtime of your own, see docs/writing-runtimes.md"))
            }
        }
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct NewItemRequest {
    /// The item.
    pub item: ItemRef,
    /// The language of a tool; the first whose program is there if not given.
    pub language: Option<ToolLanguage>,
    /// Where: project or user space.
    pub tier: SpaceTier,
    /// The author's name, for a directive.
    pub author: String,
}

/// What was made.
#[derive(Clone, Debug, Serialize)]
pub struct NewItemResponse {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// The language of a tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<ToolLanguage>,
    /// The file of its test.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rye_space::serde_path::option")]
    pub test: Option<PathBuf>,
    /// Why it does not run here yet, if it does not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// An item that is checked and signed, and not written yet.
struct PlannedItem {
    item: ItemRef,
    language: Option<ToolLanguage>,
    notes: Vec<String>,
    /// Its file below `.ai`, and the signed text.
    file: (PathBuf, Vec<u8>),
    /// The file of its test, and the text.
    test: Option<(PathBuf, String)>,
}

/// Makes an item and signs it.
///
/// # Errors
/// When there is no such space, the item or its test exists, its name is not one for its type, no program for the tool is
/// there, or there is no key. Nothing is written then.
pub fn create(engine: &Engine, request: &NewItemRequest) -> Result<NewItemResponse> {
    let planned = plan(engine, request)?;
    let mut written = write_all(engine, request.tier, vec![planned])?;
    written.pop().ok_or_else(|| Error::new(Code::Io, "nothing was written"))
}

/// The items of a new bundle: a tool, a directive and a page of knowledge in a category of the bundle's name.
///
/// # Errors
/// As [`create`]; nothing is made if any of them exists.
pub fn create_bundle_items(
    engine: &Engine,
    category: &ItemId,
    request: &NewItemRequest,
) -> Result<Vec<NewItemResponse>> {
    let names = [(ItemType::Tool, "hello"), (ItemType::Directive, "start"), (ItemType::Knowledge, "readme")];
    let planned = names
        .into_iter()
        .map(|(item_type, name)| {
            let item = ItemRef::new(item_type, ItemId::new(format!("{category}/{name}"))?);
            plan(engine, &NewItemRequest { item, ..request.clone() })
        })
        .collect::<Result<Vec<_>>>()?;
    write_all(engine, request.tier, planned)
}

/// Works out an item and checks it as signing does, before anything is written.
fn plan(engine: &Engine, request: &NewItemRequest) -> Result<PlannedItem> {
    let item = &request.item;
    let ai = space_folder(engine, request.tier)?;
    refuse_existing(engine, item, request.tier)?;
    // An item that cannot be signed does not run.
    engine.signing_key()?;
    let mut notes = Vec::new();
    let (extension, template, language) = match item.item_type {
        ItemType::Tool => {
            let language = choose_language(engine, request.language, &mut notes)?;
            (language.extension(), language.template(), Some(language))
        }
        ItemType::Directive => (".md", include_str!("../../templates/directive.md"), None),
        ItemType::Knowledge => (".md", include_str!("../../templates/knowledge.md"), None),
        ItemType::Config => {
            return Err(Error::new(Code::InvalidArgument, "config is not made from a template")
                .hint("set a value instead: rye config set KEY VALUE"));
        }
    };
    let test = (item.item_type == ItemType::Tool && request.tier == SpaceTier::Project)
        .then(|| PathBuf::from(format!("tests/{}.test.yaml", item.id)));
    if let Some(test) = test.as_ref().filter(|test| ai.join(test).symlink_metadata().is_ok()) {
        return Err(exists_error(&ai.join(test)));
    }
    let sign_text = |item: &ItemRef| {
        let text = fill(template, item, &request.author);
        sign::sign_unwritten(engine, item, request.tier, extension, text)
    };
    let signed = sign_text(item).map_err(|error| match error.code {
        Code::Invalid => invalid_name_error(item, error, |other| sign_text(other).is_ok()),
        _ => error,
    })?;
    let test =
        test.map(|test| (test, fill(include_str!("../../templates/tool.test.yaml"), item, &request.author)));
    let relative = PathBuf::from(format!("{}/{}{extension}", item.item_type.folder(), item.id));
    Ok(PlannedItem { item: item.clone(), language, notes, file: (relative, signed), test })
}

/// The refusal of an item that its own check would refuse, with the name that it takes.
fn invalid_name_error(item: &ItemRef, error: Error, is_valid: impl Fn(&ItemRef) -> bool) -> Error {
    let problem = error.details.get("problems").and_then(|problems| problems.get(0)).cloned();
    let text = |key: &str| problem.as_ref().and_then(|problem| problem.get(key)?.as_str());
    let suggestion = snake_case_id(item).filter(|other| other != item).filter(is_valid);
    if suggestion.is_none() && text("field") != Some("name") {
        let hints = vec!["nothing was written; write the file yourself, then sign it".to_owned()];
        return Error { hints, ..error };
    }
    let reason = text("message").unwrap_or_default();
    let message = format!("a {} cannot be called `{}`: {reason}", item.item_type, item.id.name());
    let failure = Error::new(Code::InvalidId, message).for_item(item);
    match suggestion {
        Some(other) => failure.hint(format!("did you mean: rye new {} {}", item.item_type, other.id)),
        None => failure.hint("nothing was written; choose another id"),
    }
}

/// The same item, its name of lower case letters, digits and `_`, beginning with a letter.
fn snake_case_id(item: &ItemRef) -> Option<ItemRef> {
    let mut name = String::new();
    let mut previous: Option<char> = None;
    for character in item.id.name().chars() {
        let begins_word = character.is_ascii_uppercase()
            && previous.is_some_and(|before| before.is_ascii_lowercase() || before.is_ascii_digit());
        if begins_word || !character.is_ascii_alphanumeric() {
            name.push('_');
        }
        if character.is_ascii_alphanumeric() {
            name.push(character.to_ascii_lowercase());
        }
        previous = Some(character);
    }
    let name = name.trim_start_matches(|first: char| !first.is_ascii_lowercase());
    let id = match item.id.category() {
        "" => name.to_owned(),
        category => format!("{category}/{name}"),
    };
    Some(ItemRef::new(item.item_type, ItemId::new(id).ok()?))
}

/// Writes all, or leaves no file.
fn write_all(engine: &Engine, tier: SpaceTier, planned: Vec<PlannedItem>) -> Result<Vec<NewItemResponse>> {
    let ai = space_folder(engine, tier)?;
    let mut written = Vec::new();
    let responses: Result<Vec<_>> =
        planned.into_iter().map(|planned| write_item(engine, &ai, tier, planned, &mut written)).collect();
    if responses.is_err() {
        for path in &written {
            // The failure that led here is the one to report.
            let _ = file::remove(path);
        }
    }
    responses
}

fn write_item(
    engine: &Engine,
    ai: &Path,
    tier: SpaceTier,
    planned: PlannedItem,
    written: &mut Vec<PathBuf>,
) -> Result<NewItemResponse> {
    let PlannedItem { item, language, notes, file: (relative, signed), test } = planned;
    let path = write_new(ai, &relative, &signed)?;
    written.push(path.clone());
    let test = match test {
        Some((test, text)) => {
            let test = write_new(ai, &test, text.as_bytes())?;
            written.push(test.clone());
            Some(test)
        }
        None => None,
    };
    // Its bytes are signed already: what else signing does follows.
    sign::sign_item(engine, &item, Some(tier))?;
    Ok(NewItemResponse {
        item_type: item.item_type,
        item_id: item.id.to_string(),
        path,
        language,
        test,
        notes,
    })
}

/// The `.ai` folder of a space that exists.
///
/// # Errors
/// When there is no project, or the space cannot be written.
pub fn space_folder(engine: &Engine, tier: SpaceTier) -> Result<PathBuf> {
    let space = match tier {
        SpaceTier::Project => Space::Project,
        SpaceTier::User => Space::User,
        SpaceTier::System => return Err(Error::new(Code::SystemImmutable, "system space cannot be written")),
    };
    let folder = engine.workspace.spaces.folder(&space);
    match folder {
        Some(folder) if space == Space::User || folder.is_dir() => Ok(folder),
        Some(_) | None => Err(no_project_error(engine)),
    }
}

/// The failure of a command that needs a project where there is none.
#[must_use]
pub fn no_project_error(engine: &Engine) -> Error {
    let folder = engine.workspace.roots.project.as_deref().unwrap_or(Path::new("."));
    Error::new(
        Code::PathNotFound,
        format!("`{}` is not a project: it has no `{AI_FOLDER}` folder", folder.display()),
    )
    .hint("make it one: rye init")
}

fn refuse_existing(engine: &Engine, item: &ItemRef, tier: SpaceTier) -> Result<()> {
    let candidates = engine.workspace.spaces.candidate_paths(item);
    match candidates.into_iter().find(|candidate| candidate.is_found && candidate.space.tier() == tier) {
        Some(candidate) => Err(exists_error(&candidate.path).for_item(item)),
        None => Ok(()),
    }
}

fn exists_error(path: &Path) -> Error {
    Error::new(Code::InvalidArgument, format!("`{}` already exists", path.display()))
        .detail("path", path.display().to_string())
        .hint("choose another id, or edit that file and sign it: rye sign PATH")
}

/// The language that was asked for, or the first whose program is there.
fn choose_language(
    engine: &Engine,
    wanted: Option<ToolLanguage>,
    notes: &mut Vec<String>,
) -> Result<ToolLanguage> {
    let Some(language) = wanted else {
        let choices = [ToolLanguage::Python, ToolLanguage::Js, ToolLanguage::Bash];
        return choices.into_iter().find(|language| is_present(engine, *language)).ok_or_else(|| {
            Error::new(Code::NoInterpreter, "neither Python, Node nor bash was found on PATH")
                .hint("install one of them, or choose the language yourself: --lang bash")
        });
    };
    if !is_present(engine, language) {
        let programs = language.programs().join(" or ");
        notes.push(format!("{programs} is not on your PATH: the tool runs once it is installed"));
    }
    let project = engine.workspace.roots.project.as_deref();
    let has_tsx = project.is_some_and(|folder| folder.join("node_modules/.bin/tsx").exists());
    if language == ToolLanguage::Ts && !has_tsx {
        notes.push("TypeScript needs Node 22.18 or later, or `tsx` in the project's node_modules".to_owned());
    }
    Ok(language)
}

/// Whether tools in a language run here.
pub(super) fn is_present(engine: &Engine, language: ToolLanguage) -> bool {
    language.programs().iter().any(|program| has_program(engine, program))
}

/// Whether a program is on the PATH of the caller, with what it needs to run tools.
fn has_program(engine: &Engine, program: &str) -> bool {
    let path = engine.host.variables.get("PATH").map(String::as_str).unwrap_or_default();
    let mut found = std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .filter(|program| program.is_file());
    found.next().is_some_and(|program| !lacks_python_library(&program))
}

/// Whether a program is a Python that came without its library, such as Debian's `python3-minimal`: it cannot read JSON.
fn lacks_python_library(program: &Path) -> bool {
    let Ok(real) = fs_err::canonicalize(program) else { return false };
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let prefix = real.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let library = prefix.join("lib").join(name);
    name.starts_with("python3.") && library.is_dir() && !library.join("json").is_dir()
}

pub(super) fn fill(template: &str, item: &ItemRef, author: &str) -> String {
    let title = item.id.name().replace(['_', '-'], " ");
    let mut letters = title.chars();
    let title = letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>());
    let author: String = author.chars().filter(|character| !"<>&\"'".contains(*character)).collect();
    let title = title.unwrap_or_default();
    template
        .replace("{yaml:id}", &yaml_text(item.id.as_str()))
        .replace("{yaml:name}", &yaml_text(item.id.name()))
        .replace("{yaml:category}", &yaml_text(item.id.category()))
        .replace("{yaml:title}", &yaml_text(&title))
        .replace("{id}", item.id.as_str())
        .replace("{name}", item.id.name())
        .replace("{category}", item.id.category())
        .replace("{title}", &title)
        .replace("{author}", &author)
}

/// A part of an id as YAML reads it: in quotes where it would be nothing, a number or another word without.
fn yaml_text(text: &str) -> String {
    let is_plain = rye_item::yaml::parse(&format!("key: {text}\n")).is_ok_and(|document| {
        document.warnings.is_empty() && document.value.get("key").and_then(Value::as_str) == Some(text)
    });
    if is_plain { text.to_owned() } else { format!("\"{text}\"") }
}

fn write_new(ai: &Path, relative: &Path, bytes: &[u8]) -> Result<PathBuf> {
    file::create_dirs(ai, false)?;
    file::create_folders_beneath(ai, relative.parent().unwrap_or(Path::new("")), false)?;
    let path = ai.join(relative);
    match file::write_new(&path, bytes, FileMode::Preserve) {
        Ok(()) => Ok(path),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Err(exists_error(&path)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_suggested_in_snake_case() {
        let suggested = |id: &str| {
            let item = ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id"));
            snake_case_id(&item).map(|item| item.id.to_string())
        };
        for (id, expected) in [
            ("team-x/my-flow", Some("team-x/my_flow")),
            ("Foo", Some("foo")),
            ("a/myFlow2Go", Some("a/my_flow2_go")),
            ("a.b", Some("a_b")),
            ("9nine", Some("nine")),
            ("_x", Some("x")),
            ("12", None),
        ] {
            assert_eq!(suggested(id).as_deref(), expected, "{id}");
        }
    }

    #[test]
    fn ids_are_texts_in_yaml() {
        for (text, expected) in [
            ("team/greet", "team/greet"),
            ("", "\"\""),
            ("12", "\"12\""),
            ("null", "\"null\""),
            ("on", "\"on\""),
        ] {
            assert_eq!(yaml_text(text), expected);
        }
    }

    #[test]
    fn python_without_its_library_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let prefix = folder.path();
        for path in ["bin", "lib/python3.9", "lib/python3.10/json"] {
            fs_err::create_dir_all(prefix.join(path)).expect("made");
        }
        for name in ["python3.9", "python3.10", "python3.11", "node"] {
            file::write_new(&prefix.join("bin").join(name), b"", FileMode::Private).expect("written");
        }
        let lacks = |name: &str| lacks_python_library(&prefix.join("bin").join(name));
        assert!(lacks("python3.9"));
        assert!(!lacks("python3.10") && !lacks("python3.11") && !lacks("node") && !lacks("absent"));
        std::os::unix::fs::symlink("python3.9", prefix.join("bin/python3")).expect("linked");
        assert!(lacks("python3"));
    }
}
