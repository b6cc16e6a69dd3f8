//! What wrong usage is answered with: clap's own words, and the command that was likely meant.

mod hints;

use std::ffi::OsString;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use rye_engine::{Code, Error};
use rye_item::text::{nearest, one_line, shell_word};

use crate::arguments::Arguments;
use crate::global::GlobalArguments;
use crate::output::Output;

/// What clap suggests.
const SUGGESTIONS: [ContextKind; 4] = [
    ContextKind::SuggestedSubcommand,
    ContextKind::SuggestedArg,
    ContextKind::SuggestedValue,
    ContextKind::Suggested,
];

/// Options of every command that take a value, which is not a command.
const VALUE_OPTIONS: [&str; 4] = ["-p", "--project", "--user-space", "--color"];

/// Help and versions are results; anything else is wrong usage, told in JSON if JSON was asked for. Gives the exit code.
pub fn print_usage_error(mut error: clap::Error) -> u8 {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let words: Vec<String> = words(std::env::args_os());
    let wants_json = words.iter().any(|word| word == "--json");
    let hint = usage_hint(&error, &words);
    if hint.is_some() {
        // One way on is enough, and clap goes by letters alone.
        for kind in SUGGESTIONS {
            error.remove(kind);
        }
    }
    if is_help || !wants_json {
        // A broken pipe while printing help is not an error.
        let _ = error.print();
        if let Some(hint) = hint {
            let global = GlobalArguments { json: false, ..global_defaults() };
            Output::new(&global, None, false).note(format_args!("hint: {hint}"));
        }
        return if is_help { 0 } else { 2 };
    }
    let text = error.to_string();
    // The first paragraph says what is wrong, the rest how it is used.
    let message = text.lines().take_while(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" ");
    let message = one_line(message.trim_start_matches("error: "));
    let hint = hint.unwrap_or_else(|| "rye --help".to_owned());
    let failure = Error::new(Code::InvalidArgument, message).hint(hint);
    let _ = Output::new(&global_defaults(), None, false).print_error(&failure, None);
    2
}

/// What was typed after the program's name.
fn words(arguments: impl Iterator<Item = OsString>) -> Vec<String> {
    arguments.skip(1).map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The options of a command that could not be read.
fn global_defaults() -> GlobalArguments {
    GlobalArguments { project: None, user_space: None, json: true, verbose: false, quiet: false, color: None }
}

/// The command that was likely meant, or the one that says more.
fn usage_hint(error: &clap::Error, words: &[String]) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        Some(ContextValue::Strings(words)) => words.first().map(String::as_str),
        _ => None,
    };
    let path = command_path(words);
    let path = path.join(" ");
    let found = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            hint_for_command(&path, context(ContextKind::InvalidSubcommand).unwrap_or_default(), words)
        }
        ErrorKind::MissingRequiredArgument => hints::for_missing(&path).map(str::to_owned),
        ErrorKind::UnknownArgument => {
            let option = context(ContextKind::InvalidArg).unwrap_or_default();
            // What clap found itself is the better answer, unless another option is known to be meant.
            let suggested = context(ContextKind::SuggestedArg);
            let is_suggested = suggested.and_then(|known| nearest(option, [known])).is_some();
            hint_for_option(&path, option, words, is_suggested)
        }
        ErrorKind::InvalidValue if path == "new" => {
            let kind = context(ContextKind::InvalidValue).unwrap_or_default();
            let id = words.iter().skip_while(|word| *word != kind).nth(1);
            Some(hint_for_kind(kind, id.map(String::as_str)))
        }
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return None,
        _ => None,
    };
    let has_tip = SUGGESTIONS.into_iter().any(|kind| context(kind).is_some());
    found.or_else(|| match (has_tip, path.as_str()) {
        (true, _) => None,
        (false, "") => Some("rye --help lists all commands".to_owned()),
        (false, path) => Some(format!("rye {path} --help shows what it takes")),
    })
}

/// The names of the command and its subcommands that were typed.
fn command_path(words: &[String]) -> Vec<String> {
    let mut root = Arguments::command();
    root.build();
    let (mut command, mut path) = (&root, Vec::new());
    let mut is_value = false;
    for word in words {
        if std::mem::take(&mut is_value) {
            continue;
        }
        if word.starts_with('-') {
            is_value = VALUE_OPTIONS.contains(&word.as_str());
            continue;
        }
        match command.find_subcommand(word) {
            Some(below) => {
                path.push(below.get_name().to_owned());
                command = below;
            }
            None => break,
        }
    }
    path
}

/// What is meant by a word that is not a command below `path`.
fn hint_for_command(path: &str, word: &str, words: &[String]) -> Option<String> {
    if path.is_empty() && word == "rye" {
        let rest = words.iter().skip_while(|given| *given != word).skip(1);
        let rest: Vec<String> = rest.map(|word| shell_word(&one_line(word))).collect();
        return Some(format!("rye {}", rest.join(" ")));
    }
    if path == "help" {
        let similar = similar_commands(word);
        return Some(match similar.is_empty() {
            true => "rye --help lists all commands".to_owned(),
            false => {
                similar.iter().map(|name| format!("rye {name} --help")).collect::<Vec<_>>().join(", or ")
            }
        });
    }
    if let Some(hint) = hints::for_command(path, word) {
        return Some(hint.to_owned());
    }
    if !word.contains('/') {
        return None;
    }
    let id = shell_word(&one_line(word));
    match path {
        "" => Some(format!("a tool: rye execute {id}; a directive: rye run {id}")),
        "lock" => Some(format!("rye lock show {id}, or rye lock update {id}")),
        "schedule" => Some(format!("rye schedule add {id} --every 1h")),
        "bundle" => Some(format!("rye bundle inspect {id}, or rye install {id}")),
        "mcp" => Some(format!("rye mcp --expose {id}")),
        _ => None,
    }
}

/// Commands whose names are like a word, as clap finds them; another name of a command stands for the command.
fn similar_commands(word: &str) -> Vec<String> {
    let Err(error) = Arguments::command().try_get_matches_from(["rye", word]) else { return Vec::new() };
    let found = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    };
    let mut root = Arguments::command();
    root.build();
    let mut names: Vec<String> = Vec::new();
    for command in found.iter().filter_map(|name| root.find_subcommand(name)) {
        if !names.iter().any(|known| known == command.get_name()) {
            names.push(command.get_name().to_owned());
        }
    }
    names
}

/// What is meant by an option that the command does not have, or by a word too many.
fn hint_for_option(path: &str, option: &str, words: &[String], is_suggested: bool) -> Option<String> {
    if let Some(hint) = hints::for_option(path, option) {
        return Some(hint.to_owned());
    }
    let takes_parameters = ["execute", "run", "bundle run"].contains(&path);
    if is_suggested || !takes_parameters {
        return None;
    }
    let name = option.strip_prefix("--").filter(|name| !name.is_empty())?;
    let joined = words.iter().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    let after = words.iter().skip_while(|word| *word != option).nth(1).filter(|word| !word.starts_with('-'));
    let value = joined.or(after.map(String::as_str)).unwrap_or("true");
    let parameter = format!("{}={value}", name.replace('-', "_"));
    Some(format!("parameters are KEY=VALUE: {}", shell_word(&one_line(&parameter))))
}

/// What is meant by something that `rye new` does not make.
fn hint_for_kind(kind: &str, id: Option<&str>) -> String {
    let made = match kind {
        "script" | "function" | "python" | "bash" | "js" => Some("tool"),
        "agent" | "command" | "prompt" | "workflow" => Some("directive"),
        "skill" | "doc" | "document" | "page" | "rule" => Some("knowledge"),
        "package" | "plugin" => Some("bundle"),
        _ => None,
    };
    match made {
        Some(made) => format!("rye new {made} {}", shell_word(&one_line(id.unwrap_or("team/greet")))),
        // The type was left out.
        None if kind.contains('/') => format!("rye new tool {}", shell_word(&one_line(kind))),
        None => "rye new tool team/greet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let given = std::iter::once("rye".to_owned()).chain(words.iter().cloned());
        let error = Arguments::command().try_get_matches_from(given).expect_err("wrong usage");
        usage_hint(&error, &words).unwrap_or_else(|| error.to_string())
    }

    #[test]
    fn wrong_usage_names_what_was_meant() {
        for (line, expected) in [
            ("help excute", "rye execute --help"),
            ("rye init", "rye init"),
            ("team/greet", "a tool: rye execute team/greet; a directive: rye run team/greet"),
            ("execute team/greet --name Ada", "parameters are KEY=VALUE: name=Ada"),
            ("execute team/greet --to-whom=Ada", "parameters are KEY=VALUE: to_whom=Ada"),
            ("run team/greet --budget 5", "a limit: --limit spend=0.10, --limit turns=5"),
            ("lock team/greet", "rye lock show team/greet, or rye lock update team/greet"),
            ("-p . config list", "rye config show"),
            ("new team/greet", "rye new tool team/greet"),
            ("new skill team/greet", "rye new knowledge team/greet"),
            ("execute", "rye execute examples/hello name=Ada; tools are listed by: rye list tool"),
            ("thread kill", "ids are listed by: rye thread list"),
            ("doctor keys", "rye doctor --help shows what it takes"),
            ("zzzzz", "rye --help lists all commands"),
        ] {
            assert_eq!(hint(line), expected, "{line}");
        }
    }

    #[test]
    fn hinted_commands_exist() {
        let mut root = Arguments::command();
        root.build();
        for hint in hints::known_hints() {
            for command in hint.split("rye ").skip(1) {
                let mut words = command.split([' ', ',', ';', ':']);
                let first = words.next().unwrap_or_default();
                if first.starts_with('-') || matches!(first, "COMMAND" | "itself" | "needs") {
                    continue;
                }
                let found = root.find_subcommand(first);
                let found = found.unwrap_or_else(|| panic!("no command `{first}`: {hint}"));
                let second = words.next().filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
                if found.has_subcommands()
                    && let Some(second) = second.filter(|word| word.len() > 2)
                {
                    let is_known = found.find_subcommand(second).is_some() || second == "alone";
                    assert!(is_known, "no command `{first} {second}`: {hint}");
                }
            }
        }
    }

    #[test]
    fn every_hint_is_for_a_wrong_command() {
        for (path, word) in hints::known_words() {
            let mut root = Arguments::command();
            root.build();
            let command = path
                .split(' ')
                .filter(|name| !name.is_empty())
                .try_fold(&root, |command, name| command.find_subcommand(name));
            let command = command.unwrap_or_else(|| panic!("no command `{path}`"));
            assert!(
                word == "help" || command.find_subcommand(word).is_none(),
                "`{path} {word}` is a command"
            );
        }
    }
}
