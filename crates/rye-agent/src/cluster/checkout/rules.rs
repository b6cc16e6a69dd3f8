//! Which paths are a project's own files: neither what git and rye keep, nor what looks like a secret, nor what the settings hide
//! from tools. What a patch changes is held to more: it changes nothing that no tool may.

use rye_engine::{Engine, Result};
use rye_exec::sandbox::{ProjectLimit, ProjectLimits};
use rye_item::file_name::fold_name;
use rye_item::repository::is_repository_folder;
use rye_item::text::is_unsafe;

/// The most bytes of a path.
pub(super) const MAX_PATH_BYTES: usize = 1024;
/// How deep folders may lie in each other.
pub(super) const MAX_DEPTH: usize = 64;

/// Folders of rye and of version control, beside those that are repositories, and those that hold keys.
const RESERVED_FOLDERS: [&str; 3] = [".ai", ".svn", "lockfiles"];
const SECRET_FOLDERS: [&str; 4] = [".ssh", ".gnupg", ".aws", ".kube"];
const SECRET_NAMES: [&str; 9] = [
    ".env",
    ".envrc",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".git-credentials",
    ".htpasswd",
    ".dockercfg",
];
const SECRET_STARTS: [&str; 5] = [".env.", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"];
const SECRET_ENDINGS: [&str; 8] = [".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk"];

/// How a private key begins in a file, behind `-----BEGIN `.
const KEY_MARK: &[u8] = b"PRIVATE KEY-----";

/// Why a file does not travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exclusion {
    /// Git's or rye's own.
    Reserved,
    /// It looks like a secret.
    Secret,
    /// Its name is not plain.
    Name,
    /// No tool sees it.
    Hidden,
    /// No tool changes it.
    Protected,
    /// It is only read.
    ReadOnly,
    /// With it, a folder would be a repository that git obeys.
    Repository,
}

impl Exclusion {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Reserved => "belongs to git or rye",
            Self::Secret => "looks like a secret",
            Self::Name => "has a name that is not portable",
            Self::Hidden => "is hidden from tools by the sandbox settings",
            Self::Protected => "is protected by the sandbox settings",
            Self::ReadOnly => "is read-only by the sandbox settings",
            Self::Repository => "belongs to a folder that git takes for a repository",
        }
    }
}

/// What may travel to a worker, and what a patch may change: the one rule for patches that are made, read and applied.
#[derive(Clone, Debug, Default)]
pub struct CheckoutRules(ProjectLimits);

impl CheckoutRules {
    /// The rules of the engine's project.
    ///
    /// # Errors
    /// When the sandbox settings are not what they must be.
    pub fn from_engine(engine: &Engine) -> Result<Self> {
        engine.project_limits().map(Self::from)
    }

    /// Why a path below the project does not travel, if it does not.
    pub(super) fn exclusion(&self, path: &str) -> Option<Exclusion> {
        exclusion(path).or_else(|| self.0.is_hidden(path).then_some(Exclusion::Hidden))
    }

    /// Why a patch may not change a path below the project, if it may not.
    pub(super) fn change_exclusion(&self, path: &str) -> Option<Exclusion> {
        let limit = || match self.0.change_limit(path)? {
            ProjectLimit::Hidden => Some(Exclusion::Hidden),
            ProjectLimit::Protected => Some(Exclusion::Protected),
            ProjectLimit::ReadOnly => Some(Exclusion::ReadOnly),
        };
        exclusion(path).or_else(limit)
    }
}

impl From<ProjectLimits> for CheckoutRules {
    fn from(limits: ProjectLimits) -> Self {
        Self(limits)
    }
}

#[cfg(test)]
impl CheckoutRules {
    /// The rules of a project under these sandbox settings.
    pub(super) fn from_settings(project: &std::path::Path, settings: &serde_json::Value) -> Self {
        use rye_exec::sandbox::{HomeDirs, SandboxPaths, SandboxPolicy};
        let paths = SandboxPaths {
            project: project.to_owned(),
            project_ai: project.join(".ai"),
            user_ai: "/home/.ai".into(),
            home: "/home".into(),
            homes: HomeDirs { own: Vec::new(), all: Vec::new() },
            approved_projects: Vec::new(),
            program_folders: Vec::new(),
            cache: "/cache".into(),
            key_files: vec!["/home/keys".into()],
            temporary: None,
            required: Vec::new(),
        };
        let policy = SandboxPolicy::from_settings(settings).expect("a policy");
        ProjectLimits::new(&policy, &paths, &std::collections::BTreeMap::new()).expect("limits").into()
    }
}

/// The names in a path, as file systems could compare them.
pub(super) fn fold_path(path: &str) -> String {
    path.split('/').map(fold_name).collect::<Vec<_>>().join("/")
}

/// Whether a path below the project is left out whatever the settings say, and why. Names are compared as the file systems do
/// that tell the fewest apart.
pub(super) fn exclusion(path: &str) -> Option<Exclusion> {
    let parts: Vec<&str> = path.split('/').collect();
    let is_plain = |part: &&str| {
        !part.is_empty()
            && !matches!(*part, "." | "..")
            && !part.ends_with(['.', ' '])
            && !part.contains(['\\', '"', ':'])
            && !part.chars().any(|character| character.is_control() || is_unsafe(character))
            // What is left of it is a name.
            && !fold_name(part).trim_matches(['.', ' ']).is_empty()
    };
    if path.len() > MAX_PATH_BYTES || parts.len() > MAX_DEPTH || !parts.iter().all(is_plain) {
        return Some(Exclusion::Name);
    }
    let mut secret = None;
    for (index, part) in parts.iter().enumerate() {
        let name = fold_name(part);
        let is_reserved = match name.as_str() {
            "lockfiles" => index == 0,
            name => RESERVED_FOLDERS.contains(&name) || is_repository_folder(name),
        };
        if is_reserved {
            return Some(Exclusion::Reserved);
        }
        let is_last = index + 1 == parts.len();
        let is_secret = SECRET_FOLDERS.contains(&name.as_str())
            || SECRET_NAMES.contains(&name.as_str())
            || (is_last
                && (SECRET_STARTS.iter().any(|start| name.starts_with(start))
                    || SECRET_ENDINGS.iter().any(|end| name.ends_with(end))));
        if is_secret {
            secret = Some(Exclusion::Secret);
        }
    }
    secret
}

/// Whether a file holds a private key, whatever its name.
pub(super) fn holds_private_key(bytes: &[u8]) -> bool {
    bytes.windows(KEY_MARK.len()).any(|window| window == KEY_MARK)
        && bytes.windows(11).any(|window| window == b"-----BEGIN ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_reserved_paths_are_left_out() {
        for path in [
            ".git/config",
            "a/.GIT/hooks/x",
            "sub/.ai/tools/x",
            "lockfiles/a",
            "GIT~1/config",
            ".Ai/x",
            "a/.git",
            ".g\u{200c}it/x",
            "\u{feff}.git",
        ] {
            assert_eq!(exclusion(path), Some(Exclusion::Reserved), "{path}");
        }
        for path in [
            ".env",
            "web/.env.local",
            ".ENV",
            "certs/server.key",
            "home/.\u{17f}sh/config",
            "id_rsa",
            "a.PEM",
            ".e\u{ad}nv",
        ] {
            assert_eq!(exclusion(path), Some(Exclusion::Secret), "{path}");
        }
        for path in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "a/./b",
            "a\\b",
            "a\nb",
            "x.",
            "c:x",
            "a\"b",
            "a\u{202e}b",
            "a/.\u{200c}.",
        ] {
            assert_eq!(exclusion(path), Some(Exclusion::Name), "{path}");
        }
        for path in ["src/main.rs", ".gitignore", "a/lockfiles/b", "environment.ts", "keys.md", "a b/ü.txt"]
        {
            assert_eq!(exclusion(path), None, "{path}");
        }
    }

    #[test]
    fn private_keys_are_known_by_content() {
        assert!(holds_private_key(b"text\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"));
        assert!(!holds_private_key(b"-----BEGIN PUBLIC KEY-----\nMCow"));
    }
}
