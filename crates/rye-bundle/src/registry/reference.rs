//! Where an artifact is kept: `oci://host[:port]/repository[:tag|@sha256:…]`. A text that a registry would read
//! differently does not exist past this module.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use lillux::Digest;
use rye_item::text::one_line;

const SCHEME: &str = "oci://";
const MAX_NAME_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;
const DEFAULT_TAG: &str = "latest";

/// Why a text is not a reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid registry reference `{}`: {reason}", one_line(.text))]
pub struct InvalidReference {
    /// The text as given.
    pub text: String,
    /// The rule it breaks.
    pub reason: &'static str,
}

/// Which version of a repository is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReferenceVersion {
    /// A name that may mean something else tomorrow.
    Tag(String),
    /// Exactly these bytes.
    Digest(Digest),
}

/// One artifact in one registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    host: String,
    port: Option<u16>,
    repository: String,
    version: ReferenceVersion,
}

impl Reference {
    /// Whether `text` says itself that it is a reference.
    #[must_use]
    pub fn has_scheme(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The host with its port, as written.
    #[must_use]
    pub fn authority(&self) -> String {
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}", self.host)
    }

    /// The host, without its port; an IPv6 address in brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, if one is written.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The repository.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Which version of it is meant.
    #[must_use]
    pub fn version(&self) -> &ReferenceVersion {
        &self.version
    }

    /// Whether the host is this machine, going by its name.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        self.host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The same repository, at exactly these bytes.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { version: ReferenceVersion::Digest(digest), ..self.clone() }
    }

    /// The same repository under another tag, if that is one.
    #[must_use]
    pub fn with_tag(&self, tag: &str) -> Option<Self> {
        is_tag(tag).then(|| Self { version: ReferenceVersion::Tag(tag.to_owned()), ..self.clone() })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}/{}", self.authority(), self.repository)?;
        match &self.version {
            ReferenceVersion::Tag(tag) => write!(formatter, ":{tag}"),
            ReferenceVersion::Digest(digest) => write!(formatter, "@sha256:{digest}"),
        }
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        parse_reference(text).map_err(|reason| InvalidReference { text: text.to_owned(), reason })
    }
}

fn parse_reference(text: &str) -> Result<Reference, &'static str> {
    let rest = text.strip_prefix(SCHEME).unwrap_or(text);
    if rest.contains("://") {
        return Err("only `oci://` or no scheme at all is understood");
    }
    let (authority, path) = rest.split_once('/').ok_or("it has no repository")?;
    let (host, port) = parse_authority(authority)?;
    let (path, digest) = match path.split_once('@') {
        None => (path, None),
        Some((path, digest)) => {
            let hex = digest.strip_prefix("sha256:").ok_or("a digest begins with `sha256:`")?;
            (path, Some(hex.parse().map_err(|_| "a digest is 64 lower-case hex characters")?))
        }
    };
    let (repository, tag) = match path.split_once(':') {
        None => (path, DEFAULT_TAG),
        Some((repository, tag)) => (repository, tag),
    };
    if repository.len() > MAX_NAME_BYTES || !repository.split('/').all(is_plain_segment) {
        return Err(
            "a repository is lower-case letters and digits in segments, with single `.`, `_` or `-` between",
        );
    }
    if !is_tag(tag) {
        return Err(
            "a tag is at most 128 letters, digits, `.`, `_` and `-`, and begins with none of the last two",
        );
    }
    let version = match digest {
        Some(digest) => ReferenceVersion::Digest(digest),
        None => ReferenceVersion::Tag(tag.to_owned()),
    };
    Ok(Reference { host, port, repository: repository.to_owned(), version })
}

fn parse_authority(text: &str) -> Result<(String, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or("an IPv6 address must be in brackets")?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| "an IPv6 address must be in brackets")?;
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').ok_or("the port after the host is not valid")?),
            };
            (format!("[{address}]"), port)
        }
        None => match text.split_once(':') {
            None => (text.to_ascii_lowercase(), None),
            Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
        },
    };
    let is_label = |label: &str| {
        let is_plain = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && is_plain && !label.starts_with('-') && !label.ends_with('-')
    };
    let is_named = host.starts_with('[') || host.len() <= MAX_NAME_BYTES && host.split('.').all(is_label);
    if !is_named {
        return Err("its host is not a valid name or address");
    }
    // A word alone would be a folder to some and a repository of the largest registry to others.
    if port.is_none() && host != "localhost" && !host.contains(['.', '[']) {
        return Err("it begins with no host; write `host/repository`, the host with a dot or a port");
    }
    let port = match port {
        None => None,
        Some(port) if port.starts_with(|first: char| first.is_ascii_digit() && first != '0') => {
            Some(port.parse().map_err(|_| "its port is not a number up to 65535")?)
        }
        Some(_) => return Err("its port is not a number up to 65535"),
    };
    Ok((host, port))
}

/// `[a-z0-9]+` with single `.` or `_`, two `_`, or any number of `-` between.
fn is_plain_segment(segment: &str) -> bool {
    let is_edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = segment.as_bytes();
    let is_plain = bytes
        .iter()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-'));
    let mut between = segment.split(|character: char| character.is_ascii_alphanumeric());
    let is_separated = between.all(|separator| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    });
    is_plain && is_separated && is_edge(bytes.first()) && is_edge(bytes.last())
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG_BYTES
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_and_format(text: &str) -> Result<String, &'static str> {
        text.parse::<Reference>().map(|reference| reference.to_string()).map_err(|error| error.reason)
    }

    #[test]
    fn reference_scheme_is_optional() {
        let digest = "a".repeat(64);
        for (text, expected) in [
            ("ghcr.io/team/tools:1.2.0", "oci://ghcr.io/team/tools:1.2.0"),
            ("oci://GHCR.io/team/tools", "oci://ghcr.io/team/tools:latest"),
            ("localhost/a", "oci://localhost/a:latest"),
            ("registry:5000/a__b/c-d.e:V1", "oci://registry:5000/a__b/c-d.e:V1"),
            ("[::1]:5000/a", "oci://[::1]:5000/a:latest"),
            ("127.0.0.1:5000/a--b", "oci://127.0.0.1:5000/a--b:latest"),
        ] {
            assert_eq!(parse_and_format(text).as_deref(), Ok(expected), "{text}");
            assert_eq!(parse_and_format(expected).as_deref(), Ok(expected));
        }
        let pinned = format!("oci://a.example/b@sha256:{digest}");
        assert_eq!(parse_and_format(&pinned).as_deref(), Ok(pinned.as_str()));
        // With both, the digest decides.
        assert_eq!(
            parse_and_format(&format!("a.example/b:1@sha256:{digest}")).as_deref(),
            Ok(pinned.as_str())
        );
    }

    #[test]
    fn invalid_references_are_refused() {
        for text in [
            "",
            "a",
            "team/tools",
            "https://a.example/b",
            "oci://oci://a.example/b",
            "a.example/",
            "a.example/B",
            "a.example/a//b",
            "a.example/../b",
            "a.example/a..b",
            "a.example/a._b",
            "a.example/a___b",
            "a.example/-a",
            "a.example/a-",
            "a.example/a:",
            "a.example/a:-x",
            "a.example/a:b:c",
            "a.example/a?x=1",
            "a.example/a#x",
            "a.example/a@md5:00",
            "a.example/a@sha256:00",
            "a.example:0/a",
            "a.example:70000/a",
            "a.example:+1/a",
            "a.example:/a",
            "user:pass@a.example/a",
            "a_b.example/a",
            "a..example/a",
            "[::1/a",
            "[::1]x/a",
            "[zz]/a",
            "a.example/a\n",
            "a.example/é",
        ] {
            assert!(parse_and_format(text).is_err(), "{text:?}: {:?}", parse_and_format(text));
        }
        assert!(parse_and_format(&format!("a.example/{}", "a".repeat(256))).is_err());
        assert!(parse_and_format(&format!("a.example/a:{}", "a".repeat(129))).is_err());
    }

    proptest::proptest! {
        #[test]
        fn parsed_references_round_trip(text in "(oci://)?[a-z.]{1,9}(:[0-9]{1,6})?/[a-z0-9._/-]{0,12}(:[A-Za-z0-9._-]{0,5})?|\\PC{0,30}") {
            if let Ok(reference) = text.parse::<Reference>() {
                let written = reference.to_string();
                assert_eq!(written.parse::<Reference>(), Ok(reference.clone()));
                let url = url::Url::parse(&format!("https://{}/v2/", reference.authority())).expect("a URL");
                let joined = url.join(&format!("{}/manifests/x", reference.repository())).expect("a URL");
                assert_eq!(joined.path(), format!("/v2/{}/manifests/x", reference.repository()));
                assert_eq!((joined.origin(), joined.query(), joined.fragment()), (url.origin(), None, None));
            }
        }
    }

    #[test]
    fn loopback_is_detected_by_name() {
        let is = |text: &str| text.parse::<Reference>().expect("a reference").is_loopback();
        assert!(is("localhost/a") && is("127.1.2.3:80/a") && is("[::1]:80/a"));
        assert!(!is("localhost.example/a") && !is("128.0.0.1/a") && !is("a.localhost/a"));
    }
}
