//! Hints in the words of an agent: where a hint names a command that agents have as a call, the call with its arguments;
//! every other command is said to be for the user.

use serde_json::{Map, Value};

/// Subcommands of `rye`: what follows the program's name in a hint is a command only if it is one of these.
const SUBCOMMANDS: [&str; 39] = [
    "add",
    "bundle",
    "ci",
    "completions",
    "config",
    "doctor",
    "execute",
    "explain",
    "export",
    "fetch",
    "help",
    "import",
    "init",
    "install",
    "join",
    "keys",
    "list",
    "load",
    "lock",
    "mcp",
    "new",
    "outdated",
    "remove",
    "run",
    "schedule",
    "search",
    "self",
    "sign",
    "store",
    "sync",
    "test",
    "thread",
    "top",
    "trust",
    "ui",
    "uninstall",
    "verify",
    "why",
    "worker",
];
const ITEM_TYPES: [&str; 4] = ["tool", "directive", "knowledge", "config"];

/// The hint as an agent can follow it; `None` if it only points to a page that agents cannot read.
pub(crate) fn translate_hint(text: &str) -> Option<String> {
    if text.strip_prefix("rye explain ").is_some_and(|code| !code.contains(' ')) {
        return None;
    }
    let mut out = String::new();
    let mut rest = text;
    let mut is_for_user = false;
    while let Some(start) = find_command(rest) {
        let (before, command) = rest.split_at(start);
        out.push_str(before);
        match translate_command(command) {
            Some((call, length)) => {
                out.push_str(&call);
                rest = &command[length..];
            }
            None => {
                is_for_user = true;
                out.push_str("rye ");
                rest = &command["rye ".len()..];
            }
        }
    }
    out.push_str(rest);
    match is_for_user && !out.contains("the user") {
        true => Some(format!("for the user to run: {out}")),
        false => Some(out),
    }
}

/// Where a command begins: `rye` as a word, and a subcommand after it.
fn find_command(text: &str) -> Option<usize> {
    text.match_indices("rye ").map(|(at, _)| at).find(|at| {
        let is_word = text[..*at].chars().next_back().is_none_or(|before| " (`\"'".contains(before));
        let next = text[at + "rye ".len()..].split(|character: char| !character.is_ascii_lowercase()).next();
        is_word && next.is_some_and(|next| SUBCOMMANDS.contains(&next))
    })
}

/// The call that does what a command does, and how long the command is.
fn translate_command(command: &str) -> Option<(String, usize)> {
    let mut words = Words { text: command, at: "rye ".len() };
    let subcommand = words.next()?;
    let call = match subcommand.as_str() {
        "search" => {
            let query = words.next()?;
            let mut arguments = Map::new();
            arguments.insert("query".to_owned(), query.into());
            if words.peek().as_deref() == Some("--type") {
                words.next();
                arguments.insert("scope".to_owned(), words.next()?.into());
            }
            ("rye_search", arguments)
        }
        "load" | "fetch" => {
            let name = if subcommand == "load" { "rye_load" } else { "rye_fetch" };
            (name, Map::from_iter([("item_id".to_owned(), Value::String(words.item()?))]))
        }
        "execute" | "run" => {
            let mut arguments = Map::from_iter([("item_id".to_owned(), Value::String(words.item()?))]);
            let mut parameters = Map::new();
            while let Some((key, value)) = words.peek().as_deref().and_then(|word| word.split_once('=')) {
                parameters.insert(key.to_owned(), value.into());
                words.next();
            }
            if !parameters.is_empty() {
                arguments.insert("parameters".to_owned(), Value::Object(parameters));
            }
            ("rye_execute", arguments)
        }
        _ => return None,
    };
    // What only the command line has.
    if words.peek().is_some_and(|word| word.starts_with('-')) {
        return None;
    }
    let (name, arguments) = call;
    Some((format!("{name} {}", Value::Object(arguments)), words.at))
}

/// The words of a command, as a shell would read them.
struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl Words<'_> {
    /// `TYPE ID` or an id.
    fn item(&mut self) -> Option<String> {
        let first = self.next()?;
        match ITEM_TYPES.contains(&first.as_str()) {
            true => Some(format!("{first}:{}", self.next()?)),
            false => Some(first),
        }
    }

    fn peek(&self) -> Option<String> {
        Words { text: self.text, at: self.at }.next()
    }

    fn next(&mut self) -> Option<String> {
        let rest = &self.text[self.at..];
        let word = rest.trim_start_matches(' ');
        let skipped = rest.len() - word.len();
        if let Some(quoted) = word.strip_prefix('\'') {
            let end = quoted.find('\'')?;
            self.at += skipped + end + 2;
            return Some(quoted[..end].to_owned());
        }
        let end = word.find([' ', ')', '`', ';', ',', '"', '\'', '(', '\n']).unwrap_or(word.len());
        let word = &word[..end];
        // A colon ends a sentence's part, a dot a sentence.
        let word = word.trim_end_matches([':', '.']);
        self.at += skipped + word.len();
        (!word.is_empty()).then(|| word.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_become_calls() {
        for (hint, expected) in [
            ("rye search greet", r#"rye_search {"query":"greet"}"#),
            (
                "rye search '*' --type tool lists tools",
                r#"rye_search {"query":"*","scope":"tool"} lists tools"#,
            ),
            ("look for it: rye search greet", r#"look for it: rye_search {"query":"greet"}"#),
            (
                "see what it takes: rye load tool examples/hello",
                r#"see what it takes: rye_load {"item_id":"tool:examples/hello"}"#,
            ),
            (
                "`examples/greet` is a directive: rye run examples/greet",
                r#"`examples/greet` is a directive: rye_execute {"item_id":"examples/greet"}"#,
            ),
            (
                "such as (rye execute team/x name=Ada)",
                r#"such as (rye_execute {"item_id":"team/x","parameters":{"name":"Ada"}})"#,
            ),
            ("did you mean `name`?", "did you mean `name`?"),
            ("items of rye itself stay", "items of rye itself stay"),
        ] {
            assert_eq!(translate_hint(hint).as_deref(), Some(expected), "{hint}");
        }
    }

    #[test]
    fn other_commands_are_for_the_user() {
        for (hint, expected) in [
            ("rye doctor", "for the user to run: rye doctor"),
            ("see the chain: rye why tool a/b", "for the user to run: see the chain: rye why tool a/b"),
            ("ask the user to run: rye sign tool a", "ask the user to run: rye sign tool a"),
            ("rye run a/b --offline", "for the user to run: rye run a/b --offline"),
            ("ask the user: rye load tool a/b --to user", "ask the user: rye load tool a/b --to user"),
        ] {
            assert_eq!(translate_hint(hint).as_deref(), Some(expected), "{hint}");
        }
        assert_eq!(translate_hint("rye explain RYE0104"), None);
    }
}
