//! Tools that are written to be run, and do not say on what. Modules that others import name no executor either, so only
//! a file that looks like a program is meant.

use rye_space::ItemFile;
use rye_trust::Subject;
use serde_json::Value;

/// The line that lets a file run, if it is a program whose author forgot it.
pub(crate) fn missing_line(located: &ItemFile) -> Option<String> {
    let parsed = located.parsed();
    let is_stated = ["executor_id", "__executor_id__"].iter().any(|name| parsed.fields.contains_key(*name));
    if is_stated || !parsed.problems.is_empty() {
        return None;
    }
    let is_function = located.may_define_execute();
    let has_schema = located.fields().get("config_schema").is_some_and(|schema| !schema.is_null());
    let text = located.text();
    let line = match located.extension.as_str() {
        ".py" if is_function => "__executor_id__ = \"rye/core/runtimes/python/function\"",
        ".py" if has_schema || has_main(&text) => "__executor_id__ = \"rye/core/runtimes/python/script\"",
        ".js" | ".mjs" | ".ts" if is_function => {
            "export const __executor_id__ = \"rye/core/runtimes/node/function\";"
        }
        ".js" | ".mjs" | ".ts" if has_schema => {
            "export const __executor_id__ = \"rye/core/runtimes/node/node\";"
        }
        ".sh" if text.starts_with("#!") => "# executor_id: rye/core/runtimes/bash/bash",
        _ => return None,
    };
    Some(line.to_owned())
}

/// Whether a Python file does something when it is run.
fn has_main(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("if __name__") && line.contains("__main__"))
}

/// What to say of a tool that names no executor where one is needed.
pub(crate) fn hint(located: &ItemFile) -> String {
    let is_null = located.fields().get("executor_id").is_none_or(Value::is_null);
    match missing_line(located) {
        Some(line) => {
            format!("nothing says what runs `{}`: add the line {line}, and sign it again", located.item().id)
        }
        None if is_null => format!(
            "`{}` names no executor, so nothing can run it: it is a module for other tools, or needs an executor_id",
            located.item().id
        ),
        None => "it has no executor_id, and is not a primitive".to_owned(),
    }
}
