//! The `.env` file of an approved project: `NAME=value` lines, nothing expanded, nothing that decides what code runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use lillux::file::{self, ReadError};
use lillux::owner::{self, ForeignControl};
use rye_item::text::{one_line, shell_word};

use super::policy::EnvironmentPolicy;
use super::template::is_variable_name;

const FILE_NAME: &str = ".env";
const MAX_BYTES: u64 = 64 * 1024;
/// In a folder with this bit, only the owner of a file renames or removes it.
const STICKY_BIT: u32 = 0o1000;
/// How much of it is searched for secrets.
const MAX_SEARCHED_BYTES: u64 = 16 << 20;
/// How many names or lines one notice lists.
const MAX_LISTED_NAMES: usize = 20;

/// What an `.env` file says, and what of it was left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Dotenv {
    pub values: BTreeMap<String, String>,
    pub notices: Vec<String>,
}

/// Reads the project's `.env`. `interpreters` are the variables that say which interpreter runs: never from here.
pub(crate) fn load(project: &Path, policy: &EnvironmentPolicy, interpreters: &BTreeSet<String>) -> Dotenv {
    let bytes = match file::read_beneath(project, Path::new(FILE_NAME), MAX_BYTES) {
        Ok((bytes, found)) => match foreign_change(project, &found) {
            None => bytes,
            Some(reason) => return Dotenv::with_ignored_notice(&reason),
        },
        Err(error) if error.is_absent() => return Dotenv::default(),
        Err(error) => return Dotenv::with_ignored_notice(describe_read_error(&error)),
    };
    match String::from_utf8(bytes) {
        Ok(text) => filter_denied(&text, policy, interpreters),
        Err(_) => Dotenv::with_ignored_notice("it is not UTF-8"),
    }
}

/// Every pair that the file could be read as, whether or not a tool is given it: also where it is too long, not UTF-8, names a
/// variable twice or is written in another style. For taking secrets out of what is shown.
pub(crate) fn possible_pairs(project: &Path) -> Vec<(String, String)> {
    let path = project.join(FILE_NAME);
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let Some(file) = is_file.then(|| file::open_regular(&path).ok()).flatten() else { return Vec::new() };
    let mut bytes = Vec::new();
    // What was read until it failed counts.
    let _ = file.take(MAX_SEARCHED_BYTES).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let mut pairs = parse(&text).pairs;
    for line in text.lines() {
        let line = line.trim().trim_start_matches("export ");
        if let Some((name, value)) = line.split_once(['=', ':']) {
            let value = value.trim().trim_matches(['"', '\'', '`']);
            pairs.push((name.trim().to_owned(), value.to_owned()));
        }
    }
    pairs
}

/// The names that only tools which ask for them get, as long as no setting passes them. Secrets are always asked for.
pub(crate) fn unlisted_names(project: &Path, policy: &EnvironmentPolicy) -> Vec<String> {
    let names = load(project, policy, &BTreeSet::new()).values.into_keys();
    names.filter(|name| !policy.is_secret(name) && !policy.is_open_in_dotenv(name)).collect()
}

/// Whether the project has an `.env` at all.
pub(crate) fn exists(project: &Path) -> bool {
    project.join(FILE_NAME).symlink_metadata().is_ok()
}

/// Why another user could have written the file: its owner or mode, or that of the project's folder or the file's own.
fn foreign_change(project: &Path, found: &Metadata) -> Option<String> {
    let file = project.join(FILE_NAME);
    let real = lillux::canonicalize_existing(&file);
    let folders = std::iter::once(project).chain(real.parent());
    let open_folder = folders.filter_map(|folder| {
        let found = fs_err::metadata(folder).ok()?;
        // Where the bit is set, only owners rename and remove.
        let is_sticky = found.mode() & STICKY_BIT != 0;
        match owner::foreign_control(&found)? {
            ForeignControl::Mode(mode) if !is_sticky => Some((folder.to_owned(), ForeignControl::Mode(mode))),
            // Whose the project may be was decided when it was approved.
            ForeignControl::Mode(_) | ForeignControl::Owner(_) => None,
        }
    });
    let own = owner::foreign_control(found).map(|control| (file.clone(), control));
    let (path, control) = own.into_iter().chain(open_folder).next()?;
    let shown = one_line(&path.display().to_string());
    Some(match control {
        ForeignControl::Owner(owner) => format!("`{shown}` belongs to another user (uid {owner})"),
        ForeignControl::Mode(mode) => format!(
            "other users can change `{shown}` (mode {mode:04o}); if it is yours: chmod go-w {}",
            shell_word(&path.display().to_string())
        ),
    })
}

fn describe_read_error(error: &ReadError) -> &'static str {
    match error {
        ReadError::TooLarge { .. } => "it is larger than 64 KiB",
        ReadError::NotAFile { .. } => "it is not a regular file",
        ReadError::Escapes { .. } => "it is a link that leaves the project",
        ReadError::Io(_) => "it cannot be read",
    }
}

impl Dotenv {
    fn with_ignored_notice(reason: &str) -> Self {
        Self { values: BTreeMap::new(), notices: vec![format!("the project's `.env` is ignored: {reason}")] }
    }
}

fn filter_denied(text: &str, policy: &EnvironmentPolicy, interpreters: &BTreeSet<String>) -> Dotenv {
    let parsed = parse(text);
    let mut dotenv = Dotenv::default();
    let mut denied = BTreeSet::new();
    for (name, value) in parsed.pairs {
        if policy.is_denied_in_dotenv(&name) || interpreters.contains(&name) {
            denied.insert(name);
        } else {
            dotenv.values.insert(name, value);
        }
    }
    if !denied.is_empty() {
        let names = join_limited(denied.iter().map(|name| format!("`{name}`")), denied.len());
        dotenv.notices.push(format!(
            "the project's `.env` may not set {names}: ignored; set it in your own environment if you want it"
        ));
    }
    if !parsed.malformed.is_empty() {
        let lines = join_limited(parsed.malformed.iter().map(usize::to_string), parsed.malformed.len());
        let word = if parsed.malformed.len() == 1 { "line" } else { "lines" };
        dotenv.notices.push(format!("the project's `.env`, {word} {lines}: not `NAME=value`, ignored"));
    }
    dotenv
}

fn join_limited(entries: impl Iterator<Item = String>, count: usize) -> String {
    let mut text = entries.take(MAX_LISTED_NAMES).collect::<Vec<_>>().join(", ");
    if count > MAX_LISTED_NAMES {
        text.push_str(&format!(" and {} more", count - MAX_LISTED_NAMES));
    }
    text
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ParsedDotenv {
    pairs: Vec<(String, String)>,
    /// Line numbers, from 1.
    malformed: Vec<usize>,
}

fn parse(text: &str) -> ParsedDotenv {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let mut parsed = ParsedDotenv::default();
    let (mut rest, mut line) = (text.as_str(), 1);
    while !rest.is_empty() {
        let first = rest.split_inclusive('\n').next().unwrap_or(rest);
        let length = match parse_statement(rest, first) {
            Statement::Blank => first.len(),
            Statement::Malformed => {
                parsed.malformed.push(line);
                first.len()
            }
            Statement::Pair { name, value, length } => {
                parsed.pairs.push((name, value));
                length
            }
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    parsed
}

enum Statement {
    Blank,
    Malformed,
    Pair { name: String, value: String, length: usize },
}

/// The statement that opens `rest`, whose first line is `first`. A quoted value may continue for several lines.
fn parse_statement(rest: &str, first: &str) -> Statement {
    let line = first.trim();
    if line.is_empty() || line.starts_with('#') {
        return Statement::Blank;
    }
    let Some(equals) = first.find('=') else {
        return Statement::Malformed;
    };
    let name = first[..equals].trim();
    let name = match name.strip_prefix("export") {
        Some(exported) if exported.starts_with([' ', '\t']) => exported.trim_start(),
        _ => name,
    };
    let blanks = first[equals + 1..].len() - first[equals + 1..].trim_start_matches([' ', '\t']).len();
    let start = equals + 1 + blanks;
    let value = match rest[start..].chars().next() {
        Some(quote @ ('"' | '\'')) => parse_quoted(&rest[start + 1..], quote).and_then(|(value, used)| {
            let after = rest[start + 1 + used..].split_inclusive('\n').next().unwrap_or("");
            let tail = after.trim();
            let is_line_end = tail.is_empty() || tail.starts_with('#');
            is_line_end.then(|| (value, start + 1 + used + after.len()))
        }),
        _ => Some((parse_unquoted(&first[start..]), first.len())),
    };
    match value {
        Some((value, length)) if is_variable_name(name) && !value.contains('\0') => {
            Statement::Pair { name: name.to_owned(), value, length }
        }
        _ => Statement::Malformed,
    }
}

/// The value up to a comment, which a blank sets apart: `a#b` holds none.
fn parse_unquoted(text: &str) -> String {
    let is_comment = |(place, _): &(usize, &str)| *place == 0 || text[..*place].ends_with([' ', '\t']);
    let end = text.match_indices('#').find(is_comment).map_or(text.len(), |(place, _)| place);
    text[..end].trim().to_owned()
}

/// The value up to the closing quote, and how many bytes it took with that quote.
fn parse_quoted(text: &str, quote: char) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((place, character)) = characters.next() {
        if character == quote {
            return Some((value, place + 1));
        }
        if character != '\\' || quote == '\'' {
            value.push(character);
            continue;
        }
        match characters.next()?.1 {
            'n' => value.push('\n'),
            'r' => value.push('\r'),
            't' => value.push('\t'),
            plain @ ('"' | '\\' | '$' | '`') => value.push(plain),
            other => value.extend(['\\', other]),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn common_dotenv_forms_are_parsed() {
        let text = "\u{feff}# comment\r\nA=1\r\n\n  export B = two words  # comment\nC=a#b\nD='single $X \\n' # c\n\
                    E=\"double \\\"q\\\" \\n\\t\\\\ \\$X \\z\"\nF=\nG=\"\"\nH=\"two\nlines\"\nI==x=\nexport\tJ=tab\nexportK=k\nA=again\n";
        let expected = [
            ("A", "1"),
            ("B", "two words"),
            ("C", "a#b"),
            ("D", "single $X \\n"),
            ("E", "double \"q\" \n\t\\ $X \\z"),
            ("F", ""),
            ("G", ""),
            ("H", "two\nlines"),
            ("I", "=x="),
            ("J", "tab"),
            ("exportK", "k"),
            ("A", "again"),
        ];
        assert_eq!(parse(text), ParsedDotenv { pairs: pairs(&expected), malformed: Vec::new() });
    }

    #[test]
    fn malformed_lines_are_reported_by_number() {
        let text = "A=1\nno equals\n2B=x\n=x\nC=\"open\nD='x' y\nE=\"a\nb\"\nF F=1\nG=\0\nH=1";
        let expected = [("A", "1"), ("E", "a\nb"), ("H", "1")];
        // The quote that `C` opens is closed by the one of `E`, with more behind it.
        assert_eq!(
            parse(text),
            ParsedDotenv { pairs: pairs(&expected), malformed: vec![2, 3, 4, 5, 6, 9, 10] }
        );
    }

    #[test]
    fn notices_never_contain_values() {
        let settings = serde_json::json!({
            "inherit": [], "pass": [], "secrets": [], "withheld": [], "dotenv_allowed": [], "dotenv_denied": ["BAD*"], "reserved": [],
        });
        let policy = EnvironmentPolicy::from_settings(&settings).expect("a policy");
        let many: String = (0..30).map(|index| format!("BAD{index:02}=hush\n")).collect();
        let dotenv = filter_denied(&format!("{many}hush\nA=1\n"), &policy, &BTreeSet::from(["A".to_owned()]));
        assert_eq!(dotenv.values, BTreeMap::new());
        assert_eq!(dotenv.notices.len(), 2);
        assert!(dotenv.notices[0].contains("`A`, `BAD00`") && dotenv.notices[0].contains("and 11 more"));
        assert_eq!(dotenv.notices[1], "the project's `.env`, line 31: not `NAME=value`, ignored");
        assert!(!dotenv.notices.concat().contains("hush"));
    }
}
