//! Which paths are a project's own files: neither what git and rye keep, nor what looks like a secret. The same rules hold for
//! what travels to a worker and for what a patch may change.

/// The most bytes of a path.
const MAX_PATH_BYTES: usize = 1024;
/// How deep folders may lie in each other.
pub(super) const MAX_DEPTH: usize = 64;

/// Folders that belong to version control and to rye, and those that hold keys.
const RESERVED_FOLDERS: [&str; 6] = [".git", ".ai", ".hg", ".svn", ".jj", "lockfiles"];
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
}

impl Exclusion {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Reserved => "belongs to git or rye",
            Self::Secret => "looks like a secret",
            Self::Name => "has a name that is not portable",
        }
    }
}

/// Whether a path below the project is left out, and why. Upper and lower case are the
/// same: some file systems do not tell them apart.
pub(super) fn exclusion(path: &str) -> Option<Exclusion> {
    let parts: Vec<&str> = path.split('/').collect();
    let is_plain = |part: &&str| {
        !part.is_empty()
            && !matches!(*part, "." | "..")
            && !part.ends_with(['.', ' '])
            && !part.contains(['\\', '"', ':'])
            && !part.chars().any(char::is_control)
    };
    if path.len() > MAX_PATH_BYTES || parts.len() > MAX_DEPTH || !parts.iter().all(is_plain) {
        return Some(Exclusion::Name);
    }
    let mut secret = None;
    for (index, part) in parts.iter().enumerate() {
        let name = part.to_lowercase();
        // The short name that some file systems give `.git`.
        let is_reserved = match name.as_str() {
            "lockfiles" => index == 0,
            name => RESERVED_FOLDERS.contains(&name) || name.starts_with("git~"),
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
        for path in
            [".git/config", "a/.GIT/hooks/x", "sub/.ai/tools/x", "lockfiles/a", "GIT~1/config", ".Ai/x"]
        {
            assert_eq!(exclusion(path), Some(Exclusion::Reserved), "{path}");
        }
        for path in
            [".env", "web/.env.local", ".ENV", "certs/server.key", "home/.ssh/config", "id_rsa", "a.PEM"]
        {
            assert_eq!(exclusion(path), Some(Exclusion::Secret), "{path}");
        }
        for path in
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a\\b", "a\nb", "x.", "c:x", "a\"b"]
        {
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
