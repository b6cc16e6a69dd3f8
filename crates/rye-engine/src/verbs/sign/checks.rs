//! What is checked before an item is signed: structure, place, schemas and executors, all problems in one go.

use std::convert::Infallible;
use std::path::Path;

use rye_exec::chain::{self, ChainError, Trail};
use rye_exec::parameters::{ParameterError, Violation};
use rye_item::diagnostic::attach_snippets;
use rye_item::{Diagnostic, ItemRef, ItemType, SourcePosition, interpolate, text};
use rye_space::ItemFile;
use rye_trust::Subject;
use rye_trust::signature::FileLayout;
use serde_json::{Map, Value};

use crate::chain_cache;
use crate::engine::Engine;
use crate::error::Error;
use crate::missing_executor;

/// Problems of one schema that are listed.
const MAX_SCHEMA_PROBLEMS: usize = 20;

/// What the checks before signing found.
#[derive(Debug, Default)]
pub(super) struct SignChecks {
    /// What keeps the item from being signed.
    pub(super) problems: Vec<Diagnostic>,
    /// What works but should be changed, or does not work yet.
    pub(super) warnings: Vec<Diagnostic>,
}

impl SignChecks {
    /// The refusal to sign, with the warnings: they are worth fixing in the same go.
    pub(super) fn into_error(self, item: &ItemRef, path: &Path) -> Error {
        let error = Error::invalid(item, path, &self.problems);
        if self.warnings.is_empty() {
            return error;
        }
        error.detail("warnings", serde_json::to_value(&self.warnings).unwrap_or_default())
    }
}

/// Everything there is to say about an item before it is signed, each with the line it stands on.
pub(super) fn check_item(engine: &Engine, located: &ItemFile) -> SignChecks {
    let mut checks =
        SignChecks { problems: find_problems(engine, located), warnings: located.parsed().warnings.clone() };
    if located.item().item_type == ItemType::Tool {
        check_schema(located, &mut checks);
        check_executor(engine, located, &mut checks);
    }
    let source = String::from_utf8_lossy(located.bytes());
    if located.item().item_type == ItemType::Directive {
        check_references(located, &source, &mut checks);
    }
    for list in [&mut checks.problems, &mut checks.warnings] {
        list.sort_by_key(|diagnostic| (diagnostic.position.is_none(), diagnostic.position));
        attach_snippets(list, &source);
    }
    // Of a text that could not be read, it is not known whether it states a name.
    let parsed = located.parsed();
    let name_line = located.missing_name_line().filter(|_| parsed.problems.is_empty() || parsed.is_complete);
    checks.warnings.extend(name_line.map(|line| {
        Diagnostic::new(format!(
            "it has no name, so a copy under another id of its category may verify too; add the line: {line}"
        ))
        .with_position(SourcePosition { line: 1, column: 1 })
    }));
    checks
}

/// A tool's schema must be one, or every call of the tool fails.
fn check_schema(located: &ItemFile, checks: &mut SignChecks) {
    let declared =
        located.fields().get("config_schema").map(|schema| (schema, ["CONFIG_SCHEMA", "config_schema"]));
    let foreign = || located.parsed().fields.get("input_schema").map(|schema| (schema, ["input_schema"; 2]));
    let Some((schema, names)) = declared.filter(|(schema, _)| !schema.is_null()).or_else(foreign) else {
        return;
    };
    let position = names.iter().find_map(|name| located.parsed().positions.get(*name)).copied();
    let found = rye_exec::parameters::schema_problems(schema);
    checks.problems.extend(found.into_iter().take(MAX_SCHEMA_PROBLEMS).map(|one| {
        let message = format!("the schema of its parameters is not valid: {}: {}", one.path, one.message);
        Diagnostic { position, ..Diagnostic::new(message).with_field(names[1]) }
    }));
}

/// What a directive's text calls an input must be one: otherwise it stays in the prompt as it is written. A directive that
/// declares none takes any.
fn check_references(located: &ItemFile, source: &str, checks: &mut SignChecks) {
    let declared = located.fields().get("inputs").and_then(Value::as_array);
    let declared =
        declared.into_iter().flatten().filter_map(|input| input.get("name").and_then(Value::as_str));
    let declared: Vec<&str> = declared.collect();
    if declared.is_empty() {
        return;
    }
    let mut named: Vec<&str> = Vec::new();
    for (offset, name) in interpolate::input_references(source) {
        if declared.contains(&name) || named.contains(&name) {
            continue;
        }
        named.push(name);
        let meant = text::nearest(name, declared.iter().copied());
        let rest = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("its inputs are: {}", declared.join(", ")),
        };
        let diagnostic = Diagnostic::new(format!("`{name}` is not an input of this directive; {rest}"))
            .with_position(SourcePosition::from_offset(source, offset));
        // Far from every input, it may be an example of how such references are written.
        let list = if meant.is_some() { &mut checks.problems } else { &mut checks.warnings };
        list.push(diagnostic);
    }
}

/// An executor that is not there yet is a warning, since it may be signed later; a function runtime needs a function.
fn check_executor(engine: &Engine, located: &ItemFile, checks: &mut SignChecks) {
    let Some(executor) = located.fields().get("executor_id").and_then(Value::as_str) else {
        checks.warnings.extend(missing_executor::missing_line(located).map(|line| {
            Diagnostic::new(format!("it cannot run: nothing says what runs it; add the line: {line}"))
                .with_position(SourcePosition { line: 1, column: 1 })
                .with_field("executor_id")
        }));
        return;
    };
    let names = ["__executor_id__", "executor_id"];
    let position = names.iter().find_map(|name| located.parsed().positions.get(*name)).copied();
    let spaces = &engine.workspace.spaces;
    let aliases = chain_cache::executor_aliases(engine);
    let trail = Trail(vec![located.item().id.to_string()]);
    let at = |message: String| Diagnostic { position, ..Diagnostic::new(message).with_field("executor_id") };
    match chain::find_executor::<Infallible>(executor, located, spaces, &aliases, &trail) {
        Ok(runtime) => {
            if aliases.is_function_runtime(runtime.item().id.as_str()) && !located.may_define_execute() {
                checks.problems.push(at(format!(
                    "`{executor}` calls the function `execute`, and the file defines none"
                )));
            }
        }
        Err(error) => {
            let meant = match &error {
                ChainError::ExecutorNotFound { executor, .. } => engine.meant_executor(executor),
                _ => None,
            };
            let meant = meant.map_or_else(String::new, |meant| format!("; {meant}"));
            checks.warnings.push(at(format!("it cannot run yet: {error}{meant}")));
        }
    }
}

/// Everything that keeps an item from being signed, its config schema included.
fn find_problems(engine: &Engine, located: &ItemFile) -> Vec<Diagnostic> {
    let mut problems = located.problems();
    let item = located.item();
    if located.bytes().starts_with(b"\xef\xbb\xbf") {
        // The signature line comes first, and a mark in the middle of a file breaks what reads it.
        problems.push(Diagnostic::new("the file begins with a byte order mark: save it as plain UTF-8"));
    }
    if located.bytes().iter().all(u8::is_ascii_whitespace) {
        return vec![Diagnostic::new("the file is empty")];
    }
    problems.extend(first_line_problem(located));
    problems.extend(located.indentation_problem());
    if item.item_type == ItemType::Config
        && let Some(schema) = engine.workspace.schema_for(&item.id)
    {
        problems.extend(schema.problems(&located.parsed().fields).into_iter().map(|(key, message)| {
            let problem = Diagnostic::new(format!("{}.{key}: {message}", item.id)).with_field(&key);
            match located.parsed().positions.get(&key) {
                Some(position) => problem.with_position(*position),
                None => problem,
            }
        }));
        if problems.is_empty() {
            problems.extend(schema_problems(located, schema));
        }
    }
    // What verification would call misplaced is not signed in the first place.
    if problems.is_empty() {
        problems.extend(located.misplacement().map(Diagnostic::new));
        if located.reads_as_config() {
            problems.push(Diagnostic::new(
                "it reads as a config as well, and its signature would count for that too: write it as code",
            ));
        }
    }
    problems
}

/// What is wrong with the lines an interpreter reads before all others: no signature covers a shebang, and what is
/// signed is always read as UTF-8.
fn first_line_problem(located: &ItemFile) -> Option<Diagnostic> {
    let layout = FileLayout::parse(located.bytes(), located.format()?);
    let first = SourcePosition { line: 1, column: 1 };
    if let Some(error) = layout.shebang_error {
        return Some(Diagnostic::new(error.to_string()).with_position(first));
    }
    if located.extension != ".py" {
        return None;
    }
    let content = String::from_utf8_lossy(&located.bytes()[layout.content]);
    let encoding = content.lines().take(2).find_map(declared_encoding)?;
    let is_utf8 = matches!(encoding.to_ascii_lowercase().as_str(), "utf-8" | "utf8" | "utf_8" | "ascii");
    (!is_utf8).then(|| {
        Diagnostic::new(format!("the file declares the encoding `{encoding}`: save it as plain UTF-8"))
    })
}

/// The encoding that Python reads from a comment line (PEP 263).
fn declared_encoding(line: &str) -> Option<&str> {
    let comment = line.trim_start_matches([' ', '\t', '\u{c}']).strip_prefix('#')?;
    let mut rest = comment;
    while let Some(index) = rest.find("coding") {
        rest = &rest[index + "coding".len()..];
        if let Some(after) = rest.strip_prefix([':', '=']) {
            let name = after.trim_start_matches([' ', '\t']);
            let is_part = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
            let end = name.find(|character| !is_part(character)).unwrap_or(name.len());
            if end > 0 {
                return Some(&name[..end]);
            }
        }
    }
    None
}

/// What the schema of a config says about what is inside its settings, with the place of every key.
fn schema_problems(located: &ItemFile, schema: &rye_space::schema::ConfigSchema) -> Vec<Diagnostic> {
    let fields = &located.parsed().fields;
    let found = match schema_violations(fields, schema) {
        Ok(found) if found.is_empty() => return Vec::new(),
        Ok(found) => found,
        Err(error) => return vec![Diagnostic::new(error.to_string())],
    };
    let text = String::from_utf8_lossy(located.bytes());
    let positions = rye_item::yaml::parse_with_key_positions(&text).map(|document| document.positions);
    let positions = positions.unwrap_or_default();
    found
        .into_iter()
        .map(|one| {
            let problem = Diagnostic::new(format!("{}: {}", one.path, one.message)).with_field(&one.path);
            match positions.get(&one.path) {
                Some(position) => problem.with_position(*position),
                None => problem,
            }
        })
        .collect()
}

/// Everything in the settings of a config that its schema does not allow, however deep; paths as `hooks[0].event`.
///
/// # Errors
/// When the schema itself cannot be used.
pub fn schema_violations(
    fields: &Map<String, Value>,
    schema: &rye_space::schema::ConfigSchema,
) -> Result<Vec<Violation>, ParameterError> {
    let mut settings = fields.clone();
    settings.retain(|key, _| !rye_space::schema::is_description_key(key));
    let mut closed = schema.document().clone();
    if let Value::Object(closed) = &mut closed {
        closed.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    let mut found = rye_exec::parameters::violations(&Value::Object(settings), &closed)?;
    for one in &mut found {
        one.path = one.path.trim_start_matches(['$', '.']).to_owned();
    }
    Ok(found)
}
