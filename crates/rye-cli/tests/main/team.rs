//! Members of a team: each with a home of their own, at clones of one repository.

use std::ffi::OsStr;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::support::{Run, User};

/// A user with a name, at a repository.
pub struct Member {
    pub user: User,
}

impl Deref for Member {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

impl Member {
    /// A member who has nothing yet.
    pub fn new(name: &'static str) -> Self {
        Self { user: User::named(name) }
    }

    /// A member who set up a project with a tool `team/hi`, and committed it.
    pub fn founder(name: &'static str) -> Self {
        let member = Self::new(name);
        member.ok(["init"]);
        member.write_tool("hi", "{\"said\": \"hi\"}");
        member.ok(["sign", "tool", "team/hi"]);
        member.git(["init", "--quiet", "--initial-branch", "main"]);
        member.commit();
        member
    }

    /// A member with a clone of the founder's repository.
    pub fn clone_of(founder: &Self, name: &'static str) -> Self {
        let member = Self::new(name);
        let source = founder.user.project();
        member.git(["clone".as_ref(), "--quiet".as_ref(), source.as_os_str(), ".".as_ref()]);
        member
    }

    /// Writes the tool `team/<name>`, which answers `result`.
    pub fn write_tool(&self, name: &str, result: &str) -> PathBuf {
        let source = rye_test::tool("team", "A tool").replace("return {}", &format!("return {result}"));
        self.user.write(&format!("tools/team/{name}.py"), source)
    }

    /// Commits everything in the project.
    pub fn commit(&self) {
        self.git(["add", "--all"]);
        self.git(["commit", "--quiet", "--allow-empty", "--message", "work"]);
    }

    /// Brings the founder's commits here.
    pub fn pull(&self, founder: &Self) {
        let source = founder.user.project();
        self.git([
            "pull".as_ref(),
            "--quiet".as_ref(),
            "--no-rebase".as_ref(),
            source.as_os_str(),
            "main".as_ref(),
        ]);
    }

    /// Runs git in the project.
    pub fn git<W: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = W>) -> String {
        let mut command = self.user.program("git");
        let name = format!("user.name={}", self.name);
        command.env("GIT_CONFIG_NOSYSTEM", "1").args(["-c", &name, "-c", "user.email=a@example.org"]);
        let output = command.args(words).output().expect("git runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// What the tool `team/<name>` answers.
    pub fn execute(&self, name: &str) -> Run {
        self.run(["execute", &format!("team/{name}"), "--json"])
    }

    /// Asserts that the tool `team/hi` runs.
    pub fn assert_runs(&self) {
        let run = self.execute("hi");
        assert_eq!(run.exit, 0, "{run}");
        assert_eq!(run.json()["data"]["said"], "hi", "{run}");
    }

    /// The own private key in PEM.
    pub fn private_key(&self) -> String {
        self.user.context.text("home/.ai/config/keys/signing/private_key.pem")
    }

    /// The path of a key's identity in the project.
    pub fn published(&self, fingerprint: &str) -> PathBuf {
        self.user.project().join(format!(".ai/config/keys/trusted/{fingerprint}.toml"))
    }
}

/// The identity document in `path` with another owner, signed by the key in `private_pem`.
pub fn document_with_owner(path: &Path, owner: &str, private_pem: &str) -> String {
    let document = std::fs::read_to_string(path).expect("a document");
    let body = document.split_once('\n').expect("a signature line").1;
    let lines: Vec<String> = body
        .lines()
        .map(
            |line| {
                if line.starts_with("owner = ") { format!("owner = \"{owner}\"") } else { line.to_owned() }
            },
        )
        .collect();
    let body = format!("{}\n", lines.join("\n"));
    format!("# {}\n{body}", rye_test::signature(private_pem, body.as_bytes()))
}
