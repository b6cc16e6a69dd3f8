//! What a lockfile is called: `<tool id>@<version>.lock.json`. An id's slashes make folders.

use std::path::PathBuf;

use lillux::Digest;
use rye_item::ItemId;

use crate::error::{Code, Error, Result};

/// How every lockfile's name ends.
pub(crate) const LOCKFILE_EXTENSION: &str = ".lock.json";
/// How long a mark is.
pub(crate) const MARK_LENGTH: usize = 8;
const MAX_VERSION_BYTES: usize = 64;

/// The path of a lockfile below its folder. `owner` marks a second tool of the same id and version, by where it is.
///
/// # Errors
/// When the version cannot be part of a file name.
pub(crate) fn lockfile_path(id: &ItemId, version: &str, owner: Option<&str>) -> Result<PathBuf> {
    check_version(id, version)?;
    let owner = owner.map(|owner| format!("+{}", mark(owner)));
    Ok(PathBuf::from(format!("{id}@{version}{}{LOCKFILE_EXTENSION}", owner.unwrap_or_default())))
}

/// The mark of a place in a name.
pub(crate) fn mark(place: &str) -> String {
    Digest::of(place.as_bytes()).to_hex()[..MARK_LENGTH].to_owned()
}

/// Refuses a version that could lead elsewhere, or that two systems would write differently.
fn check_version(id: &ItemId, version: &str) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+');
    let starts_alphanumeric = version.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_alphanumeric && version.len() <= MAX_VERSION_BYTES && version.bytes().all(is_plain) {
        return Ok(());
    }
    let clean_version: String = rye_item::text::one_line(version).chars().take(80).collect();
    let message = format!("tool:{id} has the version `{clean_version}`, which cannot name a lockfile");
    let mut error = Error::new(Code::UnsafeVersion, message)
        .hint("write a version such as 1.0.0: letters, digits, `.`, `_`, `-` and `+`, at most 64");
    error.item = Some(id.to_string());
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_text(id: &str, version: &str, owner: Option<&str>) -> Result<String> {
        let id = ItemId::new(id).expect("id");
        lockfile_path(&id, version, owner).map(|path| path.to_str().expect("text").to_owned())
    }

    #[test]
    fn name_has_id_version_and_owner_suffix() {
        assert_eq!(path_text("hello", "1.0.0", None).expect("name"), "hello@1.0.0.lock.json");
        assert_eq!(path_text("demo/hello", "0.0.0", None).expect("name"), "demo/hello@0.0.0.lock.json");
        assert_eq!(path_text("a/b", "2.0.0-rc.1+b5", None).expect("name"), "a/b@2.0.0-rc.1+b5.lock.json");
        let one = path_text("a", "1", Some("/one")).expect("name");
        let mark =
            one.strip_prefix("a@1+").and_then(|rest| rest.strip_suffix(LOCKFILE_EXTENSION)).expect("mark");
        assert_eq!(mark.len(), 8);
        assert_ne!(one, path_text("a", "1", Some("/two")).expect("name"));
    }

    #[test]
    fn path_like_version_is_refused() {
        let long = "1".repeat(65);
        for bad in ["", ".", "..", "../1", "1/2", "1\\2", "/etc", "1 0", "1\n", "é", "-1", "1@2", &long] {
            let refused = path_text("a", bad, None).expect_err(bad);
            assert_eq!((refused.code, refused.item.as_deref()), (Code::UnsafeVersion, Some("a")), "{bad}");
        }
    }
}
