//! What to call the user where the environment has no name: as git does, or else as the account is called.

use std::path::{Path, PathBuf};

use lillux::{file, owner};
use rye_space::accounts::Accounts;

/// The largest git config that is read for a name.
const MAX_GIT_CONFIG_BYTES: u64 = 1 << 20;

/// The name in the user's git config, or of the account; `config_home` is `$XDG_CONFIG_HOME`.
pub fn find(home: &Path, config_home: Option<PathBuf>) -> Option<String> {
    let config_home = config_home.unwrap_or_else(|| home.join(".config"));
    // What the second one says, git reads last.
    let files = [home.join(".gitconfig"), config_home.join("git/config")];
    let read = |path: &PathBuf| {
        let (bytes, _) = file::read_bounded(path, MAX_GIT_CONFIG_BYTES).ok()?;
        git_user_name(&String::from_utf8_lossy(&bytes))
    };
    files
        .iter()
        .find_map(read)
        .or_else(|| Accounts::read().name_of(owner::effective_uid()).map(str::to_owned))
}

/// The last `user.name` of a git config.
fn git_user_name(text: &str) -> Option<String> {
    let mut is_user = false;
    let mut name = None;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            is_user = section.split(']').next().is_some_and(|name| name.trim().eq_ignore_ascii_case("user"));
        } else if is_user
            && let Some((key, value)) = line.split_once('=')
            && key.trim().eq_ignore_ascii_case("name")
        {
            let value = value.trim();
            let value = match value.strip_prefix('"').and_then(|value| value.split_once('"')) {
                Some((quoted, _)) => quoted,
                None => value.split(['#', ';']).next().unwrap_or_default().trim(),
            };
            name = (!value.is_empty()).then(|| value.to_owned());
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_read_from_git_config() {
        for (text, expected) in [
            ("[user]\n\temail = a@b\n\tname = Ann Lee\n", Some("Ann Lee")),
            ("[USER]\nName=\"Ann # Lee\" ; me\n", Some("Ann # Lee")),
            ("[user]\nname = Ann ; me\n[core]\nname = x\n", Some("Ann")),
            ("[user]\nname = Ann\n[user]\nname = Bo\n", Some("Bo")),
            ("[user \"work\"]\nname = Ann\n", None),
            ("name = Ann\n", None),
            ("[user]\nname =\n", None),
        ] {
            assert_eq!(git_user_name(text).as_deref(), expected, "{text}");
        }
    }
}
