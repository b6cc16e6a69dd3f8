//! The bearer token of the HTTP server: made on first use, kept beside the signing key, where no tool can read.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rye_engine::{Code, Error, Result};

/// Its file's name in the folder of the signing key.
const TOKEN_FILE: &str = "mcp_token";
const TOKEN_BYTES: usize = 32;

/// Where the token is kept.
#[must_use]
pub(crate) fn token_path(signing_keys: &Path) -> PathBuf {
    signing_keys.join(TOKEN_FILE)
}

/// A token; it is never shown.
#[derive(Clone)]
pub(crate) struct Token(String);

impl Token {
    /// The token in this folder, made if there is none.
    ///
    /// # Errors
    /// When others can read it, it is not a token, or it cannot be written.
    pub(crate) fn load_or_create(signing_keys: &Path) -> Result<Self> {
        let path = token_path(signing_keys);
        match Self::read(&path) {
            Err(error) if error.code == Code::PathNotFound => {}
            read => return read,
        }
        let mut random = [0; TOKEN_BYTES];
        getrandom::fill(&mut random).map_err(|error| Error::new(Code::Io, error.to_string()))?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        file::create_dirs(signing_keys, true)?;
        match file::write_new(&path, format!("{token}\n").as_bytes(), FileMode::Private) {
            Ok(()) => Ok(Self(token)),
            // Another server was faster: its token counts.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Self::read(&path),
            Err(error) => Err(error.into()),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let (bytes, metadata) = file::read_bounded(path, 4096).map_err(|error| Error::read(&error))?;
        let invalid = |problem: &str| {
            Error::new(Code::LooseToken, format!("`{}` {problem}", path.display()))
                .detail("path", path.display().to_string())
                .hint("remove it and start again: a new token is made")
        };
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(invalid(&format!("has mode {mode:04o}: others can read the token")));
        }
        let token = String::from_utf8(bytes).unwrap_or_default().trim().to_owned();
        let is_token = token.len() == 2 * TOKEN_BYTES && token.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_token { Ok(Self(token)) } else { Err(invalid("does not contain a token")) }
    }

    /// Whether a header brings this token. It takes as long for a wrong one as for the right one.
    pub(crate) fn is_valid_header(&self, header: Option<&[u8]>) -> bool {
        let sent = header.and_then(|header| header.split_at_checked(7));
        let Some((scheme, sent)) = sent else {
            return false;
        };
        let own = self.0.as_bytes();
        let difference = own.iter().zip(sent).fold(0, |sum, (own, sent)| sum | (own ^ sent));
        scheme.eq_ignore_ascii_case(b"bearer ") && sent.len() == own.len() && difference == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_created_once_and_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = folder.path().join("keys");
        let first = Token::load_or_create(&keys).expect("a token");
        let second = Token::load_or_create(&keys).expect("the same");
        assert_eq!(first.0, second.0);
        let mode = std::fs::metadata(token_path(&keys)).expect("a file").mode() & 0o777;
        assert_eq!(mode, 0o600);
        file::set_mode(&token_path(&keys), 0o640).expect("loosened");
        assert_eq!(Token::load_or_create(&keys).err().expect("refused").code, Code::LooseToken);
    }

    #[test]
    fn invalid_token_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        for text in ["", "short", &"g".repeat(64)] {
            file::write_atomic(&token_path(folder.path()), text.as_bytes(), FileMode::Private)
                .expect("written");
            assert_eq!(
                Token::load_or_create(folder.path()).err().expect("refused").code,
                Code::LooseToken,
                "{text}"
            );
        }
    }

    #[test]
    fn only_the_exact_token_matches() {
        let token = Token("ab".repeat(32));
        let header = |text: &str| token.is_valid_header(Some(text.as_bytes()));
        assert!(header(&format!("Bearer {}", "ab".repeat(32))));
        assert!(header(&format!("bearer {}", "ab".repeat(32))));
        for wrong in [
            String::new(),
            "Bearer".to_owned(),
            "Bearer ".to_owned(),
            format!("Basic {}", "ab".repeat(32)),
            format!("Bearer {}", "ab".repeat(31)),
            format!("Bearer {}", "ab".repeat(33)),
            format!("Bearer {}", "AB".repeat(32)),
            format!("Bearer  {}", "ab".repeat(32)),
        ] {
            assert!(!header(&wrong), "{wrong}");
        }
        assert!(!token.is_valid_header(None));
    }
}
