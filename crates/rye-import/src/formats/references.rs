//! References to variables in the values of servers: `${NAME}`, `${env:NAME}`, `${input:name}`, `${NAME:-default}`. What
//! only refers to variables is not a secret; a default may be one.

use super::credentials::{CredentialFilter, is_secret_name};
use crate::plan::{ImportNote, NoteKind};

/// Words that stand before a credential in a header.
const SCHEMES: [&str; 8] = ["bearer", "basic", "token", "apikey", "api-key", "key", "bot", "oauth"];
/// What clients call the project's folder.
const PROJECT_FOLDERS: [&str; 3] = ["workspaceFolder", "workspaceRoot", "CLAUDE_PROJECT_DIR"];

/// A part of a value.
enum ValuePart<'a> {
    Text(&'a str),
    Variable { name: String, default: Option<&'a str> },
}

fn parts(text: &str) -> Vec<ValuePart<'_>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let Some(end) = rest[start..].find('}').map(|end| start + end) else { break };
        if start > 0 {
            all.push(ValuePart::Text(&rest[..start]));
        }
        let word = rest[start + 2..end].trim_start_matches("env:");
        let (name, default) =
            word.split_once(":-").map_or((word, None), |(name, default)| (name, Some(default)));
        let name = match name.strip_prefix("input:") {
            Some(input) => super::credentials::variable_name(input),
            None => name.to_owned(),
        };
        all.push(ValuePart::Variable { name, default });
        rest = &rest[end + 1..];
    }
    if !rest.is_empty() {
        all.push(ValuePart::Text(rest));
    }
    all
}

/// Whether a value is made of references alone: besides them it has punctuation and at most the scheme of a header before
/// the first.
pub(super) fn is_reference(text: &str) -> bool {
    let parts = parts(text);
    let is_plain = |(index, part): (usize, &ValuePart<'_>)| match part {
        ValuePart::Variable { name, .. } => is_variable_name(name),
        ValuePart::Text(text) => {
            let is_scheme =
                text.ends_with(' ') && SCHEMES.contains(&text.trim().to_ascii_lowercase().as_str());
            let is_punctuation = text.chars().all(|character| " :;,/@.=-_|".contains(character));
            is_punctuation || (index == 0 && is_scheme)
        }
    };
    let has_variable = parts.iter().any(|part| matches!(part, ValuePart::Variable { .. }));
    has_variable && parts.iter().enumerate().all(is_plain)
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A value with its variables as they are written here, and a note of each. `holder`: the name that the value stands under.
/// A default stays unless it looks like a secret or stands where one does.
pub(super) fn variables(holder: &str, text: &str, notes: &mut Vec<ImportNote>) -> String {
    rewrite(holder, text, notes, is_plain_default)
}

/// As [`variables`], for places whose values stay out: a default would be such a value.
pub(super) fn variables_without_defaults(holder: &str, text: &str, notes: &mut Vec<ImportNote>) -> String {
    rewrite(holder, text, notes, |_| false)
}

fn rewrite(
    holder: &str,
    text: &str,
    notes: &mut Vec<ImportNote>,
    keeps_default: impl Fn(&str) -> bool,
) -> String {
    let mut out = String::new();
    let mut before = "";
    for part in parts(text) {
        match part {
            ValuePart::Text(text) => {
                out.push_str(text);
                before = text;
            }
            ValuePart::Variable { name, .. } if PROJECT_FOLDERS.contains(&name.as_str()) => {
                out.push_str("{project_path}");
            }
            ValuePart::Variable { name, default } => {
                let is_secret = [holder, before, &name].into_iter().any(is_secret_name);
                let (written, noted) = match default {
                    None => (String::new(), String::new()),
                    Some("") => (":-".to_owned(), " (empty unless set)".to_owned()),
                    Some(default) if !is_secret && keeps_default(default) => {
                        (format!(":-{default}"), format!(" (`{default}` unless set)"))
                    }
                    Some(_) => (String::new(), " (its default is not imported)".to_owned()),
                };
                notes.push(ImportNote::new(NoteKind::AsksFor, format!("the variable {name}{noted}")));
                out.push_str(&format!("${{{name}{written}}}"));
            }
        }
    }
    out
}

/// Whether a default is a text without a secret.
fn is_plain_default(default: &str) -> bool {
    let mut found = Vec::new();
    let kept = CredentialFilter::new("", &mut found).arguments(&[default.to_owned()]);
    !default.contains(['$', '{']) && found.is_empty() && kept == [default]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(holder: &str, text: &str) -> String {
        variables(holder, text, &mut Vec::new())
    }

    #[test]
    fn values_of_references_hold_no_text() {
        for good in [
            "${A}",
            "${env:A}",
            "${input:my-key}",
            "Bearer ${GITHUB_TOKEN}",
            "${USER}:${PASS}",
            "${A:-x y}",
            "token ${A}",
        ] {
            assert!(is_reference(good), "{good}");
        }
        for bad in [
            "",
            "abc",
            "Bearer abc",
            "hunter2${A}",
            "${A}hunter2",
            "hunter2 ${A}",
            "${A",
            "${A} key ",
            "${1}",
        ] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    #[test]
    fn defaults_stay_unless_they_are_secrets() {
        for (holder, given, expected) in [
            ("DSN", "${DB_DSN:-sqlite://x}", "${DB_DSN:-sqlite://x}"),
            ("DSN", "${DB_DSN:-postgres://u:hunter2@db/x}", "${DB_DSN}"),
            ("DSN", "${DB_DSN:-ghp_16C7e42F292c6912E7710c838347Ae178B4a}", "${DB_DSN}"),
            ("X", "${DB_PASSWORD:-hunter2}", "${DB_PASSWORD}"),
            ("--api-key", "${X:-hunter2}", "${X}"),
            ("--api-key", "${X:-}", "${X:-}"),
            (
                "",
                "--a=${A:-b} Authorization: Basic ${X:-dXNlcjpwYXNz}",
                "--a=${A:-b} Authorization: Basic ${X}",
            ),
            ("", "https://a.example/?api_key=${X:-hunter2}", "https://a.example/?api_key=${X}"),
            ("X", "${workspaceFolder}/a ${env:B}", "{project_path}/a ${B}"),
        ] {
            assert_eq!(written(holder, given), expected);
        }
        let mut notes = Vec::new();
        let value = variables_without_defaults("LD_PRELOAD", "${X:-/tmp/x.so}${Y:-}", &mut notes);
        assert_eq!((value.as_str(), notes.len()), ("${X}${Y:-}", 2));
    }
}
