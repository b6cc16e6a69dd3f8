//! What another client lets an agent use, as grants of a directive: never more than was declared, and what has no equal
//! comes in denied with a note that says how to grant it.

use std::collections::BTreeSet;

use crate::plan::{ImportNote, NoteKind};

/// Tools of other clients and the grant that does the same.
const EQUAL_TOOLS: [(&str, &str); 9] = [
    ("read", "rye.file-system.read"),
    ("write", "rye.file-system.write"),
    ("edit", "rye.file-system.edit_lines"),
    ("multiedit", "rye.file-system.edit_lines"),
    ("grep", "rye.file-system.grep"),
    ("glob", "rye.file-system.glob"),
    ("ls", "rye.file-system.ls"),
    ("read_file", "rye.file-system.read"),
    ("list_dir", "rye.file-system.ls"),
];

/// Tools whose equal runs commands or reaches the network: the user has to say that this is wanted.
const ELEVATED_TOOLS: [(&str, &str); 3] =
    [("bash", "rye.bash"), ("webfetch", "rye.web.fetch.fetch"), ("websearch", "rye.web.search.search")];

/// The grants of a directive, and what was not granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// Tools it may execute, as they stand in `<permissions>`.
    pub tools: BTreeSet<String>,
    pub notes: Vec<ImportNote>,
}

/// The grants for the tools that were declared, less those that were denied. `None` means that nothing was declared, which is
/// everything there and nothing here.
pub(crate) fn translate(declared: Option<&[String]>, denied: &[String]) -> Grants {
    let mut grants = Grants::default();
    let Some(declared) = declared else {
        grants.notes.push(ImportNote::new(
            NoteKind::Denied,
            "no `tools` declared: all of them there, none here; grant what it needs in <permissions>",
        ));
        return grants;
    };
    // A denied pattern has no equal: what it is a part of stays denied as a whole.
    let is_denied = |name: &str| {
        denied.iter().any(|entry| base_name(entry).eq_ignore_ascii_case(name) || entry.trim() == "*")
    };
    for entry in declared {
        let entry = entry.trim();
        let name = base_name(entry);
        let has_pattern = entry != name && !entry.ends_with("(*)");
        let key = name.to_ascii_lowercase();
        let equal = EQUAL_TOOLS.iter().find(|(known, _)| *known == key).map(|(_, grant)| *grant);
        let elevated =
            ELEVATED_TOOLS.iter().find(|(known, _)| *known == key).map(|(_, grant)| (*grant).to_owned());
        let elevated = elevated.or_else(|| server_tool(name));
        let shown = rye_item::text::one_line(entry);
        let text = match (equal, elevated) {
            _ if is_denied(name) => format!("`{shown}` is denied by the source as well"),
            (Some(grant), _) if !has_pattern => {
                grants.tools.insert(grant.to_owned());
                continue;
            }
            (Some(grant), _) => format!(
                "`{shown}` comes in denied: patterns have no equal; all of it would be <execute><tool>{grant}</tool></execute>"
            ),
            (None, Some(grant)) => format!(
                "`{shown}` comes in denied; to grant it{}: <execute><tool>{grant}</tool></execute> and <acknowledge risk=\"elevated\">why</acknowledge> in <permissions>",
                if has_pattern { " without its pattern" } else { "" }
            ),
            (None, None) => format!("`{shown}` comes in denied: it has no equal here"),
        };
        grants.notes.push(ImportNote::new(NoteKind::Denied, text));
    }
    grants
}

/// The tools of Claude Code that capabilities stand for, where there is one that does the same.
pub(crate) fn tools_of(capabilities: &[String]) -> Vec<&'static str> {
    let names = [
        ("Read", "read"),
        ("Write", "write"),
        ("Edit", "edit"),
        ("Grep", "grep"),
        ("Glob", "glob"),
        ("LS", "ls"),
    ];
    let is_granted = |key: &str| {
        let grant = EQUAL_TOOLS.iter().find(|(known, _)| *known == key).map(|(_, grant)| *grant);
        grant.is_some_and(|grant| {
            capabilities.iter().any(|capability| *capability == format!("rye.execute.tool.{grant}"))
        })
    };
    names.into_iter().filter(|(_, key)| is_granted(key)).map(|(name, _)| name).collect()
}

/// The name before the pattern: `Bash` of `Bash(git:*)`.
fn base_name(entry: &str) -> &str {
    entry.split('(').next().unwrap_or(entry).trim()
}

/// The grant for `mcp__server__tool`.
fn server_tool(name: &str) -> Option<String> {
    let (server, tool) =
        name.strip_prefix("mcp__").map(|rest| rest.split_once("__").unwrap_or((rest, "*")))?;
    let is_plain = |text: &str| {
        text.chars().all(|character| character.is_ascii_alphanumeric() || "_-".contains(character))
    };
    let tool_grant = if tool == "*" || is_plain(tool) { tool } else { return None };
    (!server.is_empty() && is_plain(server) && !tool.is_empty()).then(|| format!("mcp.{server}.{tool_grant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[&str]) -> Vec<String> {
        list.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn grants_are_never_wider() {
        let declared = words(&[
            "Read",
            "Grep",
            "Edit",
            "Bash",
            "Bash(git:*)",
            "WebFetch",
            "Task",
            "mcp__github__search",
            "Read(src/**)",
        ]);
        let grants = translate(Some(&declared), &words(&["Edit"]));
        assert_eq!(
            grants.tools,
            ["rye.file-system.grep", "rye.file-system.read"].map(str::to_owned).into_iter().collect()
        );
        let notes = grants.notes.iter().map(|note| note.text.as_str()).collect::<Vec<_>>().join("\n");
        for part in [
            "`Bash(git:*)` comes in denied",
            "rye.bash",
            "`Task`",
            "mcp.github.search",
            "`Edit` is denied",
            "`Read(src/**)`",
        ] {
            assert!(notes.contains(part), "{part}: {notes}");
        }
        let omitted = translate(None, &[]);
        assert!(omitted.tools.is_empty() && omitted.notes.len() == 1);
        assert!(translate(Some(&[]), &[]).tools.is_empty());
    }

    #[test]
    fn denied_patterns_deny_the_tool() {
        let grants = translate(Some(&words(&["Write"])), &words(&["Write(secrets/**)"]));
        assert!(grants.tools.is_empty());
        assert!(translate(Some(&words(&["Read", "Glob"])), &words(&["*"])).tools.is_empty());
    }
}
