//! Scripts of skills as tools: the script as it is, with the metadata of a tool and a few lines that pass arguments on.

use rye_item::ItemType;
use rye_item::text::quote;

use crate::detect::SourceFormat;
use crate::names::segments;
use crate::plan::{ImportNote, NoteKind, PlannedItem, UnitContext, UnitPlan};
use crate::provenance::PROVENANCE_KEY;
use crate::render::{DEFAULT_VERSION, item_ref, with_provenance};
use crate::tree::SourcePath;

/// Endings of programs.
const PROGRAM_ENDINGS: [&str; 12] =
    [".py", ".sh", ".bash", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".ps1", ".bat", ".cmd"];

/// The arguments a tool made of a script takes.
const SCHEMA: &str = r#"{"type": "object", "additionalProperties": false, "properties": {"args": {"type": "string", "default": "", "description": "The arguments, one per line"}}}"#;

/// Whether a file is a program.
pub(super) fn is_script(relative: &str, text: &str, is_executable: bool) -> bool {
    is_executable || text.starts_with("#!") || PROGRAM_ENDINGS.iter().any(|ending| relative.ends_with(ending))
}

/// Plans a tool for a script of a kind that can be one.
pub(super) fn plan_tool(
    context: &UnitContext<'_>,
    home: &str,
    relative: &str,
    path: &SourcePath,
    text: &str,
    plan: &mut UnitPlan,
    notes: &mut Vec<ImportNote>,
) -> Result<(), String> {
    let (stem, extension): (&str, &'static str) = if let Some(stem) = relative.strip_suffix(".py") {
        (stem, ".py")
    } else if let Some(stem) = relative.strip_suffix(".sh") {
        (stem, ".sh")
    } else {
        notes.push(ImportNote::new(
            NoteKind::Lost,
            format!("`{relative}` does not become a tool: only .py and .sh scripts do"),
        ));
        return Ok(());
    };
    let item = item_ref(ItemType::Tool, &format!("{home}/{}", segments(stem)))?;
    let (name, category) = (item.id.name().to_owned(), item.id.category().to_owned());
    let description = format!("Runs {relative}; its arguments are in `args`, one per line");
    let mut provenance = context.provenance(SourceFormat::SkillScript, relative, path, text.as_bytes());
    let text = with_provenance(&mut provenance, |provenance| {
        let record = serde_json::to_string(provenance).unwrap_or_default();
        match extension {
            ".py" => python(text, &name, &category, &description, &record),
            _ => shell(text, &name, &category, &description, &record),
        }
    });
    let tool_notes =
        vec![ImportNote::new(NoteKind::Script, "runs in the sandbox; it finds no file beside itself")];
    plan.items.push(PlannedItem { item, extension, text, provenance, notes: tool_notes });
    Ok(())
}

/// Splits off the shebang.
fn split_start(text: &str) -> (&str, &str) {
    let end = match text.starts_with("#!") {
        true => text.find('\n').map_or(text.len(), |end| end + 1),
        false => 0,
    };
    text.split_at(end)
}

/// The script is a text in the tool: none of its own lines is read as the tool's metadata.
fn python(text: &str, name: &str, category: &str, description: &str, record: &str) -> String {
    // A JSON text is a Python text as well.
    let source = serde_json::to_string(text).unwrap_or_default();
    format!(
        "__version__ = \"{DEFAULT_VERSION}\"\n__tool_type__ = \"python\"\n__executor_id__ = \"rye/core/runtimes/python/script\"\n\
         __category__ = {}\n__tool_name__ = {}\n__tool_description__ = {}\n\
         CONFIG_SCHEMA = {}\nCONFIG = {{\"result\": \"streams\"}}\n# {PROVENANCE_KEY}: {record}\n\n\
         import json as _rye_json, sys as _rye_sys\n\
         # The arguments of the tool become those of the script.\n\
         _rye_sys.argv[1:] = [line for line in str(_rye_json.load(_rye_sys.stdin).get(\"args\") or \"\").split(\"\\n\") if line]\n\
         _rye_script = {source}\n\
         exec(compile(_rye_script, {}, \"exec\"), {{\"__name__\": \"__main__\", \"__file__\": _rye_sys.argv[0]}})\n",
        quote(category),
        quote(name),
        quote(description),
        SCHEMA.replace("false", "False"),
        quote(&format!("{name}.py")),
    )
}

fn shell(text: &str, name: &str, category: &str, description: &str, record: &str) -> String {
    let (start, rest) = split_start(text);
    format!(
        "{start}# version: {DEFAULT_VERSION}\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: {category}\n\
         # name: {name}\n# description: {description}\n# config_schema: {SCHEMA}\n# config: {{\"result\": \"streams\"}}\n# {PROVENANCE_KEY}: {record}\n\
         \nmapfile -t _rye_args <<< \"$RYE_PARAM_ARGS\"; set -- \"${{_rye_args[@]}}\"; [[ -n \"$RYE_PARAM_ARGS\" ]] || set --\n\
         {rest}"
    )
}
