//! Git's config files, as far as the sandbox asks: where a submodule's files are, and whether a file names only what runs
//! nothing. What is not understood counts as running something.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use lillux::{canonicalize_existing, file};

/// The largest config that is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Settings that name no program, no other file and no other folder: the section, and its keys. All in lower case.
const HARMLESS_KEYS: [(&str, &[&str]); 7] = [
    (
        "core",
        &[
            "repositoryformatversion",
            "filemode",
            "bare",
            "logallrefupdates",
            "ignorecase",
            "precomposeunicode",
            "symlinks",
            "autocrlf",
            "eol",
            "safecrlf",
            "quotepath",
        ],
    ),
    ("remote", &["url", "pushurl", "fetch", "tagopt", "prune"]),
    ("branch", &["remote", "merge", "rebase", "description"]),
    ("user", &["name", "email"]),
    ("submodule", &["url", "active"]),
    ("extensions", &["objectformat", "refstorage"]),
    ("pull", &["rebase", "ff"]),
];

/// One setting of a config file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConfigEntry {
    /// In lower case.
    section: String,
    /// In lower case.
    key: String,
    /// `None` if there is no `=`.
    value: Option<Vec<u8>>,
}

/// Whether a config file holds only settings that run nothing. A file that is absent does.
pub(super) fn is_harmless(config: &Path) -> bool {
    let bytes = match file::read_bounded(config, MAX_CONFIG_BYTES) {
        Ok((bytes, _)) => bytes,
        Err(error) => return error.is_absent(),
    };
    let is_known = |entry: &ConfigEntry| {
        HARMLESS_KEYS
            .iter()
            .any(|(section, keys)| entry.section == *section && keys.contains(&entry.key.as_str()))
    };
    parse(&bytes).is_some_and(|entries| entries.iter().all(is_known))
}

/// The folder that `core.worktree` names, for a config in the git folder `folder`.
pub(super) fn worktree(config: &Path, folder: &Path) -> Option<PathBuf> {
    let named = last_value(config, "core", "worktree")?;
    Some(canonicalize_existing(&folder.join(OsString::from_vec(named))))
}

/// How many bytes an object's name has in the repository with this config.
pub(super) fn object_name_len(config: &Path) -> usize {
    match last_value(config, "extensions", "objectformat") {
        Some(format) if format.eq_ignore_ascii_case(b"sha256") => 32,
        Some(_) | None => 20,
    }
}

fn last_value(config: &Path, section: &str, key: &str) -> Option<Vec<u8>> {
    let (bytes, _) = file::read_bounded(config, MAX_CONFIG_BYTES).ok()?;
    let entries = parse(&bytes)?;
    entries.into_iter().rev().find(|entry| entry.section == section && entry.key == key)?.value
}

/// Reads the file as git does. `None` where git would refuse it, or might read it in another way.
fn parse(bytes: &[u8]) -> Option<Vec<ConfigEntry>> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut reader = ConfigReader { bytes, at: 0 };
    let (mut entries, mut section) = (Vec::new(), None);
    while let Some(byte) = reader.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'#' | b';' => reader.skip_line(),
            b'[' => section = Some(reader.section()?),
            byte if byte.is_ascii_alphabetic() => {
                let key = reader.key(byte);
                let value = reader.value()?;
                entries.push(ConfigEntry { section: section.clone()?, key, value });
            }
            _ => return None,
        }
    }
    Some(entries)
}

struct ConfigReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl ConfigReader<'_> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_line(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    /// The name of a section, after `[`. Its part in quotes does not matter here; the older form with a dot is refused.
    fn section(&mut self) -> Option<String> {
        let mut name = String::new();
        loop {
            match self.next()? {
                b']' => return Some(name),
                b' ' | b'\t' => break,
                byte if byte.is_ascii_alphanumeric() || byte == b'-' => {
                    name.push(char::from(byte.to_ascii_lowercase()));
                }
                _ => return None,
            }
        }
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        if self.next()? != b'"' {
            return None;
        }
        loop {
            match self.next()? {
                b'\n' => return None,
                b'\\' => drop(self.next().filter(|byte| *byte != b'\n')?),
                b'"' => break,
                _ => {}
            }
        }
        (self.next()? == b']').then_some(name)
    }

    fn key(&mut self, first: u8) -> String {
        let mut key = String::from(char::from(first.to_ascii_lowercase()));
        while let Some(byte) = self.peek().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
            key.push(char::from(byte.to_ascii_lowercase()));
            self.at += 1;
        }
        key
    }

    /// What follows a key: `= value`, or the end of the line.
    #[allow(clippy::option_option, reason = "not understood, no value, and a value are three cases")]
    fn value(&mut self) -> Option<Option<Vec<u8>>> {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        match self.next() {
            None | Some(b'\n') => return Some(None),
            Some(b'\r') if self.peek() == Some(b'\n') => return Some(None),
            Some(b'=') => {}
            Some(_) => return None,
        }
        let (mut value, mut is_quoted, mut kept) = (Vec::new(), false, 0);
        loop {
            let byte = match self.next() {
                Some(b'\r') if self.peek() == Some(b'\n') => continue,
                Some(byte) => byte,
                None if is_quoted => return None,
                None => break,
            };
            match byte {
                b'\n' if is_quoted => return None,
                b'\n' => break,
                b'#' | b';' if !is_quoted => {
                    self.skip_line();
                    break;
                }
                b' ' | b'\t' if !is_quoted => {
                    if kept > 0 {
                        value.push(byte);
                    }
                    continue;
                }
                b'"' => is_quoted = !is_quoted,
                b'\\' => match self.next()? {
                    b'\n' => continue,
                    b'\r' if self.peek() == Some(b'\n') => {
                        self.at += 1;
                        continue;
                    }
                    b't' => value.push(b'\t'),
                    b'n' => value.push(b'\n'),
                    b'b' => value.push(8),
                    escaped @ (b'\\' | b'"') => value.push(escaped),
                    _ => return None,
                },
                byte => value.push(byte),
            }
            kept = value.len();
        }
        // Blanks at the end count only in quotes.
        value.truncate(kept);
        Some(Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Option<Vec<(String, String, String)>> {
        let entries = parse(text.as_bytes())?;
        let text = |entry: ConfigEntry| {
            let value = entry.value.map_or("-".to_owned(), |value| String::from_utf8(value).expect("text"));
            (entry.section, entry.key, value)
        };
        Some(entries.into_iter().map(text).collect())
    }

    fn one(section: &str, key: &str, value: &str) -> Option<Vec<(String, String, String)>> {
        Some(vec![(section.to_owned(), key.to_owned(), value.to_owned())])
    }

    #[test]
    fn values_are_read_as_git_does() {
        assert_eq!(values("[core]\n\tworkTree = \"a#b \" # no\n"), one("core", "worktree", "a#b "));
        assert_eq!(values("[Core] bare\n"), one("core", "bare", "-"));
        assert_eq!(values("[a \"b\\\"]c\"]\nk = one\\\n two ; x"), one("a", "k", "one two"));
        assert_eq!(values("[a]\r\nk = x \r\n"), one("a", "k", "x"));
        assert_eq!(values("[a]\nk = \"\\\\\\\"\\t\"\n"), one("a", "k", "\\\"\t"));
        assert_eq!(values("# only\n; this\n"), Some(Vec::new()));
        for broken in
            ["k = 1\n", "[a\nk = 1\n", "[a.b]\nk=1\n", "[a]\nk = \"x\n", "[a]\nk = \\q\n", "[a]\n=\n"]
        {
            assert_eq!(values(broken), None, "{broken}");
        }
    }

    #[test]
    fn settings_that_run_something_are_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let is_harmless = |text: &str| {
            file::write_atomic(&path, text.as_bytes(), file::FileMode::Private).expect("a file");
            is_harmless(&path)
        };
        assert!(is_harmless(
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = u\n\tfetch = f\n"
        ));
        for text in [
            "[core]\nfsmonitor = evil\n",
            "[core]\nhooksPath = evil\n",
            "[core]\nworktree = ..\n",
            "[include]\npath = ../evil\n",
            "[includeIf \"gitdir:/\"]\npath = ../evil\n",
            "[filter \"x\"]\nclean = evil\n",
            "[submodule \"x\"]\nupdate = !evil\n",
            "[extensions]\nworktreeConfig = true\n",
            "[remote \"x\"]\nuploadpack = evil\n",
            "[core]\nbare = \"unfinished\n",
        ] {
            assert!(!is_harmless(text), "{text}");
        }
        assert!(super::is_harmless(&folder.path().join("none")));
    }
}
