//! Repositories that marketplaces and manifests name, as addresses that can be fetched.

use serde_json::Value;

use crate::plan::{RemoteSource, UnitContext};

/// A repository as people write it, as an address: `owner/name`, `https://…`, `git@host:path`, `ssh://…`.
pub(super) fn repository_address(text: &str) -> Option<String> {
    let is_plain = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/@:+".contains(&byte))
            && !text.contains("..")
    };
    if !is_plain(text) {
        return None;
    }
    if let Some(rest) = text.strip_prefix("git+") {
        return ["https://", "ssh://", "file:///"]
            .iter()
            .any(|scheme| rest.starts_with(scheme))
            .then(|| text.to_owned());
    }
    if text.starts_with("https://") || text.starts_with("ssh://") {
        return Some(format!("git+{text}"));
    }
    if text.contains("://") {
        return None;
    }
    if let Some((login, path)) = text.split_once(':') {
        return login.contains('@').then(|| format!("git+ssh://{login}/{path}"));
    }
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [owner, name] if !owner.is_empty() && !name.is_empty() && !text.contains('@') => {
            Some(format!("git+https://github.com/{text}"))
        }
        // A host is known by its dot.
        [host, owner, name] if host.contains('.') && !owner.is_empty() && !name.is_empty() => {
            Some(format!("git+https://{text}"))
        }
        _ => None,
    }
}

/// An address that this manifest may name: what came from the web names nothing on this machine.
pub(super) fn address_for(context: &UnitContext<'_>, text: &str) -> Option<String> {
    let is_local = |address: &String| address.starts_with("git+file:");
    repository_address(text).filter(|address| context.listing.origin.is_none() || !is_local(address))
}

/// The source of a marketplace's entry, if it is a repository.
pub(super) fn of_marketplace(context: &UnitContext<'_>, name: &str, entry: &Value) -> Option<RemoteSource> {
    let address = entry["url"].as_str().or(entry["repo"].as_str())?;
    let rev = ["sha", "commit", "ref"].iter().find_map(|key| entry[key].as_str());
    Some(RemoteSource {
        name: name.to_owned(),
        source: context.listing.display_path(context.unit.path.as_str()),
        address: address_for(context, address)?,
        rev: rev.map(str::to_owned),
        path: entry["path"].as_str().map(plain_path).filter(|path| !path.is_empty()),
    })
}

/// A folder without `./` and `/` around it.
pub(super) fn plain_path(path: &str) -> String {
    path.trim_start_matches("./").trim_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_become_addresses() {
        for (text, expected) in [
            ("team/kit", Some("git+https://github.com/team/kit")),
            ("gitlab.com/team/kit", Some("git+https://gitlab.com/team/kit")),
            ("https://a.example/team/kit.git", Some("git+https://a.example/team/kit.git")),
            ("git@a.example:team/kit.git", Some("git+ssh://git@a.example/team/kit.git")),
            ("git+file:///srv/kit", Some("git+file:///srv/kit")),
            ("http://a.example/x", None),
            ("ext::sh -c x", None),
            ("file:///etc", None),
            ("../x", None),
            ("a/b c", None),
            ("a/../b", None),
            ("-x", None),
        ] {
            assert_eq!(repository_address(text).as_deref(), expected, "{text}");
        }
    }
}
