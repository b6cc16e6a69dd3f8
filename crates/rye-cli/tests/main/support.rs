//! A user with a home and a project, the command they run, and what it did to their files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use assert_cmd::Command;
use rye_test::TestContext;
use serde_json::Value;

/// A user at a project.
pub struct User {
    pub context: TestContext,
    /// The account's name.
    pub name: &'static str,
}

impl User {
    /// A user who has nothing yet.
    pub fn new() -> Self {
        Self::named("tester")
    }

    /// A user of this name who has nothing yet.
    pub fn named(name: &'static str) -> Self {
        Self { context: TestContext::new(), name }
    }

    /// A user who has run `rye init` in their project.
    pub fn initialized() -> Self {
        let user = Self::new();
        user.ok(["init"]);
        user
    }

    pub fn home(&self) -> PathBuf {
        self.context.home()
    }

    pub fn project(&self) -> PathBuf {
        self.context.project()
    }

    /// The command in the project, with this user's surroundings and nothing else of the environment.
    pub fn command(&self) -> Command {
        let mut command = assert_cmd::cargo::cargo_bin_cmd!("rye");
        self.set_environment(|name, value| {
            command.env(name, value);
        });
        command.current_dir(self.project()).timeout(Duration::from_secs(300));
        command
    }

    /// Another program in the project, with the same surroundings.
    pub fn program(&self, name: &str) -> std::process::Command {
        let mut command = std::process::Command::new(name);
        command.env_clear().current_dir(self.project());
        self.set_environment(|name, value| {
            command.env(name, value);
        });
        command
    }

    fn set_environment(&self, mut set: impl FnMut(&str, &OsStr)) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        set("PATH", &path);
        set("HOME", self.home().as_os_str());
        set("XDG_CACHE_HOME", self.context.cache().as_os_str());
        set("USER", OsStr::new(self.name));
    }

    /// Runs the command with these words.
    pub fn run<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Run {
        run(self.command().args(words))
    }

    /// Runs the command, which must work, for its human output.
    pub fn ok<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Run {
        let run = self.run(words);
        assert_eq!(run.exit, 0, "{run}");
        run
    }

    /// Runs the command with `--json`, which must work, and gives its `data`.
    pub fn data<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> Value {
        let run = run(self.command().arg("--json").args(words));
        assert_eq!(run.exit, 0, "{run}");
        let response = run.json();
        assert_eq!(response["status"], "success", "{run}");
        response["data"].clone()
    }

    /// Runs the command with `--json`, which must be refused with this exit and error code and a hint, and must leave
    /// home and project as they are, to the byte. Gives the error object.
    pub fn assert_refused<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
        exit: i32,
        code: &str,
    ) -> Value {
        self.assert_command_refused(self.command().arg("--json").args(words), exit, code)
    }

    /// As [`User::assert_refused`], of a prepared command that asks for JSON.
    pub fn assert_command_refused(&self, command: &mut Command, exit: i32, code: &str) -> Value {
        let before = self.snapshot();
        let run = run(command);
        let after = self.snapshot();
        assert_eq!(differences(&before, &after), Vec::<String>::new(), "{run}");
        run.error(exit, code)
    }

    /// Home and project as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let mut all = snapshot(&self.home());
        all.extend(snapshot(&self.project()));
        all
    }

    /// Writes a file below the project's `.ai/`.
    pub fn write(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.context.write(&format!("project/.ai/{relative}"), content)
    }

    /// Writes a file below the user's `.ai/`.
    pub fn write_user(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.context.write(&format!("home/.ai/{relative}"), content)
    }

    /// Reads a file below the project's `.ai/`.
    pub fn read(&self, relative: &str) -> Vec<u8> {
        self.context.read(&format!("project/.ai/{relative}"))
    }

    /// Writes a tool `team/<name>` into the project and signs it.
    pub fn signed_tool(&self, name: &str, description: &str) -> PathBuf {
        let path = self.write(&format!("tools/team/{name}.py"), rye_test::tool("team", description));
        self.ok(["sign", "tool", &format!("team/{name}")]);
        path
    }

    /// The own key's fingerprint.
    pub fn fingerprint(&self) -> String {
        text(&self.data(["keys", "show"])["fingerprint"])
    }

    /// The path of the own public key.
    pub fn public_key(&self) -> PathBuf {
        self.home().join(".ai/config/keys/signing/public_key.pem")
    }

    /// The path of the own key's identity document.
    pub fn identity_document(&self) -> PathBuf {
        self.home().join(format!(".ai/config/keys/trusted/{}.toml", self.fingerprint()))
    }

    /// The fingerprint an identity document is named after.
    pub fn fingerprint_in(&self, document: &Path) -> String {
        let stem = document.file_stem().and_then(OsStr::to_str);
        stem.expect("a fingerprint").to_owned()
    }

    /// The ids a search finds, best first.
    pub fn search_ids(&self, query: &str) -> Vec<String> {
        rows(&self.data(["search", query])).iter().map(|row| text(&row["item_id"])).collect()
    }
}

/// What a command did.
pub struct Run {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
}

impl std::fmt::Display for Run {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "exit {}\n--- stdout\n{}\n--- stderr\n{}", self.exit, self.stdout, self.stderr)
    }
}

impl Run {
    /// The one JSON object on stdout.
    pub fn json(&self) -> Value {
        let value: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON: {error}\n{self}"));
        assert!(value.is_object(), "{self}");
        value
    }

    /// The error object on stdout, which must have this exit and error code, words and a hint.
    pub fn error(&self, exit: i32, code: &str) -> Value {
        let response = self.json();
        assert_eq!(
            (self.exit, response["status"].as_str(), response["code"].as_str()),
            (exit, Some("error"), Some(code)),
            "{self}"
        );
        assert!(!text(&response["error"]).is_empty(), "{self}");
        let hints = response["hints"].as_array().expect("hints");
        assert!(hints.iter().any(|hint| !hint.as_str().unwrap_or_default().is_empty()), "no hint: {self}");
        response
    }

    /// Asserts that no control character but line breaks and tabs is on either stream, and no bidirectional override.
    pub fn assert_plain(&self) {
        for (name, stream) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let bad = stream.chars().find(|character| {
                (character.is_control() && !matches!(character, '\n' | '\t'))
                    || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            });
            assert_eq!(bad, None, "{name} has a control character: {self}");
        }
    }
}

/// Runs a prepared command.
pub fn run(command: &mut Command) -> Run {
    let output = command.output().expect("the command runs");
    Run::from_output(&output)
}

impl Run {
    /// What a finished process did.
    pub fn from_output(output: &std::process::Output) -> Self {
        Self {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout.clone()).expect("UTF-8 on stdout"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The text of a JSON string.
#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

/// The rows of a search.
#[track_caller]
pub fn rows(data: &Value) -> Vec<Value> {
    data["results"].as_array().expect("results").clone()
}

/// Everything below a folder: path, and what is there.
pub type Snapshot = BTreeMap<PathBuf, Entry>;

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Folder {
        mode: u32,
    },
    File {
        mode: u32,
        modified: (i64, i64),
        bytes: Vec<u8>,
    },
    /// A file too large to compare byte by byte.
    Large {
        length: u64,
    },
    Link(PathBuf),
    Special,
}

/// Everything below `folder`, the bytes of every file included.
pub fn snapshot(folder: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(path) = pending.pop() {
        let metadata = fs::symlink_metadata(&path).expect("an entry");
        let mode = metadata.permissions().mode();
        let kind = metadata.file_type();
        let entry = if kind.is_dir() {
            for entry in fs::read_dir(&path).expect("a folder") {
                pending.push(entry.expect("an entry").path());
            }
            Entry::Folder { mode }
        } else if kind.is_symlink() {
            Entry::Link(fs::read_link(&path).expect("a link"))
        } else if !kind.is_file() {
            Entry::Special
        } else if metadata.len() > 16 << 20 {
            Entry::Large { length: metadata.len() }
        } else {
            Entry::File {
                mode,
                modified: (metadata.mtime(), metadata.mtime_nsec()),
                bytes: fs::read(&path).expect("a file"),
            }
        };
        all.insert(path, entry);
    }
    all
}

/// The paths at which two snapshots differ.
pub fn differences(before: &Snapshot, after: &Snapshot) -> Vec<String> {
    let mut paths: Vec<&PathBuf> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| path.display().to_string())
        .collect()
}

/// Copies a folder with everything in it, links as links.
pub fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            copy_tree(&entry.path(), &target);
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path()).expect("a link"), &target)
                .expect("a link");
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// Copies one file, making its folder.
pub fn copy_file(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
    fs::copy(from, to).expect("a copy");
}

/// A valid tool of each extension that can be signed, in the category `team`: extension and text.
pub const TOOLS: [(&str, &str); 9] = [
    (
        ".py",
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"team/runtime\"\n__category__ = \"team\"\n__tool_description__ = \"Does wonders\"\n\ndef execute(params, project_path):\n    return {}\n",
    ),
    (
        ".yaml",
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: team/runtime\ncategory: team\ndescription: Does wonders\n",
    ),
    (
        ".yml",
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: null\ncategory: team\ndescription: Does wonders\n",
    ),
    (
        ".js",
        "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"team/runtime\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Does wonders\";\n",
    ),
    (
        ".ts",
        "export const __version__: string = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"team/runtime\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Does wonders\";\n",
    ),
    (
        ".mjs",
        "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"team/runtime\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Does wonders\";\n",
    ),
    (
        ".cjs",
        "const __version__ = \"1.0.0\";\nconst __tool_type__ = \"javascript\";\nconst __executor_id__ = \"team/runtime\";\nconst __category__ = \"team\";\nconst __tool_description__ = \"Does wonders\";\n",
    ),
    (
        ".sh",
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: team/runtime\n# category: team\n# description: Does wonders\n\necho '{}'\n",
    ),
    (
        ".toml",
        "version = \"1.0.0\"\ntool_type = \"runtime\"\nexecutor_id = \"team/runtime\"\ncategory = \"team\"\ndescription = \"Does wonders\"\n",
    ),
];
