//! Where a bundle of a project comes from. A source that another program could read differently, or that leads out of the
//! project, does not exist past this module.

use std::fmt;

use lillux::Digest;
use rye_item::text::one_line;

use crate::path::BundlePath;
use crate::registry::Reference;

const MAX_SOURCE_BYTES: usize = 1024;
const MAX_REVISION_BYTES: usize = 200;

/// Why a text is not a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid source `{}`: {reason}", one_line(.text))]
pub struct InvalidSource {
    /// The text as given.
    pub text: String,
    /// The rule it breaks.
    pub reason: &'static str,
}

/// What is written beside the address of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFields {
    /// `sha256`: the digest of an archive behind a URL.
    pub sha256: Option<String>,
    /// `rev`: a tag, branch or commit of a git repository.
    pub rev: Option<String>,
    /// `path`: the folder of a git repository that holds `.ai`.
    pub path: Option<String>,
}

/// Where a bundle comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequirementSource {
    /// A folder or an archive in the project, by its path there.
    Path(String),
    /// A repository of an OCI registry.
    Registry(RegistrySource),
    /// An archive behind a URL.
    Url {
        /// `https://…`, or `http://…` on this machine.
        url: String,
        /// What its bytes must be.
        sha256: Digest,
    },
    /// A git repository.
    Git(GitSource),
}

/// A repository of an OCI registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrySource {
    /// The reference; without a tag of its own it has `latest`.
    pub reference: Reference,
    /// Whether a tag or a digest is written.
    pub has_version: bool,
}

/// A git repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitSource {
    /// Its address, without `git+`.
    pub url: String,
    /// A tag, branch or commit.
    pub rev: Option<String>,
    /// The folder that holds `.ai`, if it is not the repository's own.
    pub path: Option<String>,
}

impl GitSource {
    /// The protocols that git may speak for this address.
    #[must_use]
    pub fn allowed_protocols(&self) -> &'static str {
        match self.url.split_once("://") {
            Some(("file", _)) => "file",
            _ => "https:ssh",
        }
    }
}

impl RequirementSource {
    /// Reads a source and what is written beside it.
    ///
    /// # Errors
    /// When it is not one of the known kinds, leads out of the project, holds a password, or lacks its digest.
    pub fn parse(text: &str, fields: &SourceFields) -> Result<Self, InvalidSource> {
        parse_source(text, fields).map_err(|reason| InvalidSource { text: text.to_owned(), reason })
    }

    /// Whether the source names one version, so that a range chooses nothing.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        match self {
            Self::Path(_) | Self::Url { .. } => true,
            Self::Registry(source) => source.has_version,
            Self::Git(source) => source.rev.is_some(),
        }
    }
}

impl fmt::Display for RequirementSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => formatter.write_str(path),
            Self::Registry(source) if source.has_version => write!(formatter, "{}", source.reference),
            Self::Registry(source) => {
                write!(formatter, "oci://{}/{}", source.reference.authority(), source.reference.repository())
            }
            Self::Url { url, .. } => formatter.write_str(url),
            Self::Git(source) => write!(formatter, "git+{}", source.url),
        }
    }
}

fn parse_source(text: &str, fields: &SourceFields) -> Result<RequirementSource, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.len() > MAX_SOURCE_BYTES {
        return Err("it is longer than 1024 bytes");
    }
    if text.starts_with('-') {
        return Err("it begins with `-`");
    }
    if text.chars().any(|character| character.is_control() || character.is_whitespace() && character != ' ') {
        return Err("it has control characters or line breaks");
    }
    let is_git = text.starts_with("git+");
    if !is_git && (fields.rev.is_some() || fields.path.is_some()) {
        return Err("`rev` and `path` are for git sources only");
    }
    let is_url = text.starts_with("https://") || text.starts_with("http://");
    if !is_url && fields.sha256.is_some() {
        return Err("`sha256` is for https sources only");
    }
    if let Some(url) = text.strip_prefix("git+") {
        return parse_git(url, fields);
    }
    if is_url {
        return parse_url(text, fields);
    }
    if Reference::has_scheme(text) {
        let reference: Reference =
            text.parse().map_err(|error: crate::registry::InvalidReference| error.reason)?;
        let repository = text.rsplit('/').next().unwrap_or_default();
        let has_version = repository.contains([':', '@']);
        return Ok(RequirementSource::Registry(RegistrySource { reference, has_version }));
    }
    if text.contains("://") || text.contains("::") {
        return Err("use a path in the project, oci://, https://, git+https://, git+ssh:// or git+file://");
    }
    parse_path(text).map(RequirementSource::Path)
}

/// A path in the project, in plain segments.
fn parse_path(text: &str) -> Result<String, &'static str> {
    if text.starts_with('/') || text.starts_with('~') {
        return Err("a path is relative to the project, so that it means the same for everyone");
    }
    let segments: Vec<&str> =
        text.split('/').filter(|segment| !segment.is_empty() && *segment != ".").collect();
    if segments.contains(&"..") {
        return Err("a path stays in the project: it has a segment `..`");
    }
    if segments.is_empty() {
        return Err("a path names a folder or an archive in the project");
    }
    if segments.iter().any(|segment| segment.contains(['\\', ':'])) {
        return Err("a path has no `\\` and no `:`");
    }
    Ok(segments.join("/"))
}

fn parse_url(text: &str, fields: &SourceFields) -> Result<RequirementSource, &'static str> {
    let url = url::Url::parse(text).map_err(|_| "the URL cannot be read")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL holds a user name or password, which everyone with the project could read");
    }
    if url.fragment().is_some() {
        return Err("the URL has a fragment");
    }
    let is_loopback = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => return Err("the URL has no host"),
    };
    if url.scheme() != "https" && !is_loopback {
        return Err("http is for this machine only; use https");
    }
    let sha256 = fields.sha256.as_deref().ok_or("`sha256` is missing: what is behind a URL may change")?;
    let hex = sha256.strip_prefix("sha256:").unwrap_or(sha256);
    let sha256 = hex.parse().map_err(|_| "`sha256` is 64 lower-case hex characters")?;
    Ok(RequirementSource::Url { url: text.to_owned(), sha256 })
}

fn parse_git(url: &str, fields: &SourceFields) -> Result<RequirementSource, &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("write git+https://, git+ssh:// or git+file://")?;
    let is_plain = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/+@".contains(&byte))
            && !text.split('/').any(|segment| segment.starts_with('-'))
    };
    let path = match scheme {
        "https" | "ssh" => {
            let (authority, path) = rest.split_once('/').ok_or("the URL names no repository")?;
            check_git_authority(authority, scheme)?;
            path
        }
        "file" => rest.strip_prefix('/').ok_or("a file URL has three slashes: git+file:///path")?,
        _ => return Err("only git+https://, git+ssh:// and git+file:// are fetched"),
    };
    if path.is_empty() || !is_plain(path) || path.contains("..") {
        return Err(
            "a repository's path has letters, digits and `- . _ ~ / + @`, no `..`, and no segment that begins with `-`",
        );
    }
    if let Some(rev) = &fields.rev {
        check_revision(rev)?;
    }
    if let Some(path) = &fields.path {
        BundlePath::new(format!(".ai/{path}"))
            .map_err(|_| "`path` is a plain folder of the repository, without `..`")?;
    }
    let (rev, path) = (fields.rev.clone(), fields.path.clone());
    Ok(RequirementSource::Git(GitSource { url: url.to_owned(), rev, path }))
}

fn check_git_authority(authority: &str, scheme: &str) -> Result<(), &'static str> {
    let (user, host) = match authority.rsplit_once('@') {
        None => (None, authority),
        Some((user, host)) => (Some(user), host),
    };
    let is_word = |text: &str| {
        !text.is_empty()
            && !text.starts_with('-')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    match user {
        Some(_) if scheme == "https" => {
            return Err("the URL holds a user name or password, which everyone with the project could read");
        }
        Some(user) if !is_word(user) => return Err("the user name of the URL is not plain"),
        Some(_) | None => {}
    }
    let (host, port) = match host.split_once(':') {
        None => (host, None),
        Some((host, port)) => (host, Some(port)),
    };
    if !is_word(host) {
        return Err("the host of the URL is not a plain name");
    }
    match port {
        Some(port) if port.parse::<u16>().is_err() || port.starts_with('+') => {
            Err("the port of the URL is not a number up to 65535")
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses what git could take for an option, a range or an expression.
fn check_revision(rev: &str) -> Result<(), &'static str> {
    let is_plain = rev.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._/+".contains(&byte));
    let has_plain_segments =
        rev.split('/').all(|segment| !segment.is_empty() && !segment.starts_with(['-', '.']));
    match is_plain
        && has_plain_segments
        && !rev.contains("..")
        && !rev.ends_with(".lock")
        && !rev.ends_with('.')
        && rev.len() <= MAX_REVISION_BYTES
    {
        true => Ok(()),
        false => Err("`rev` is the plain name of a tag or branch, or a commit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, fields: &SourceFields) -> Result<String, &'static str> {
        RequirementSource::parse(text, fields).map(|source| source.to_string()).map_err(|error| error.reason)
    }

    fn with_digest() -> SourceFields {
        SourceFields { sha256: Some("a".repeat(64)), ..SourceFields::default() }
    }

    #[test]
    fn each_kind_of_source_is_read() {
        let none = SourceFields::default();
        for (text, expected) in [
            ("vendor/a.tar.zst", "vendor/a.tar.zst"),
            ("./vendor//a/", "vendor/a"),
            ("oci://ghcr.io/team/tools", "oci://ghcr.io/team/tools"),
            ("oci://ghcr.io/team/tools:1.0.0", "oci://ghcr.io/team/tools:1.0.0"),
            ("oci://localhost:5000/team/tools", "oci://localhost:5000/team/tools"),
            ("git+https://example.org/team/tools.git", "git+https://example.org/team/tools.git"),
            ("git+ssh://git@example.org:2222/team/tools", "git+ssh://git@example.org:2222/team/tools"),
            ("git+file:///srv/tools", "git+file:///srv/tools"),
        ] {
            assert_eq!(parse(text, &none).as_deref(), Ok(expected), "{text}");
            assert_eq!(parse(expected, &none).as_deref(), Ok(expected));
        }
        assert!(parse("https://example.org/a.tar.zst", &with_digest()).is_ok());
        assert!(parse("http://127.0.0.1:80/a.zip", &with_digest()).is_ok());
    }

    #[test]
    fn hostile_sources_are_refused() {
        let none = SourceFields::default();
        for text in [
            "",
            "-oProxyCommand=x",
            "--upload-pack=x",
            "/etc",
            "~/x",
            "../x",
            "a/../../x",
            ".",
            "a\\b",
            "a\nb",
            "ext::sh -c x",
            "file:///etc",
            "git+ext::sh",
            "git+ext://sh",
            "git+http://example.org/a",
            "git+git://example.org/a",
            "git+https://user:pass@example.org/a",
            "git+ssh://-oProxyCommand=x/a",
            "git+ssh://git@-oProxyCommand=x/a",
            "git+ssh://-l@example.org/a",
            "git+https://example.org/",
            "git+https://example.org/a b",
            "git+https://example.org/-x",
            "git+https://example.org/a?x=1",
            "git+https://example.org/a#b",
            "git+https://example.org:99999/a",
            "git+file://relative",
            "git+file:///a/../b",
            "https://example.org/a.tar.zst",
            "oci://UPPER/..",
        ] {
            assert!(parse(text, &none).is_err(), "{text:?}");
        }
        for text in ["http://example.org/a", "https://a:b@example.org/a", "https://example.org/a#b"] {
            assert!(parse(text, &with_digest()).is_err(), "{text:?}");
        }
        assert!(parse("vendor/a", &with_digest()).is_err());
    }

    #[test]
    fn revisions_are_plain_names() {
        let url = "git+https://example.org/a";
        let rev = |rev: &str| SourceFields { rev: Some(rev.to_owned()), ..SourceFields::default() };
        for good in ["v1.0.0", "main", "release/1.x", &"a".repeat(40)] {
            assert!(parse(url, &rev(good)).is_ok(), "{good}");
        }
        for bad in ["", "-x", "--all", "a..b", "a^{}", "HEAD~1", "a:b", "x/-y", "a b", "a.lock", ".a", "@{u}"]
        {
            assert!(parse(url, &rev(bad)).is_err(), "{bad}");
        }
        let path = |path: &str| SourceFields { path: Some(path.to_owned()), ..SourceFields::default() };
        assert!(parse(url, &path("bundles/team")).is_ok());
        for bad in ["..", "a/../b", "/a", "", "a\nb"] {
            assert!(parse(url, &path(bad)).is_err(), "{bad}");
        }
    }
}
