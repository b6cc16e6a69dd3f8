//! Archives behind URLs: fetched into a private folder, and thrown away unless they have the digest that the manifest names.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use lillux::digest::Hasher;
use lillux::file::{self, LockedTempDir};
use lillux::http::{AddressPolicy, HttpClient, HttpError, HttpMethod, HttpRequest, ProxyConfig};
use lillux::{CancelToken, Digest};
use rye_bundle::registry::{MAX_ARCHIVE_BYTES, OnBytes};
use rye_item::text::one_line;
use url::Url;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3600);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const ARCHIVE_NAME: &str = "archive";

/// An archive that has the digest it should.
pub(super) struct DownloadedArchive {
    /// The archive, in `folder`.
    pub(super) path: PathBuf,
    /// Goes with the archive when dropped.
    pub(super) folder: LockedTempDir,
}

/// Fetches the archive at `url`.
///
/// # Errors
/// When the host is not reached, or sends something else than `sha256` names. Then nothing is kept.
pub(super) fn download(
    engine: &Engine,
    url: &str,
    sha256: &Digest,
    cancel: &CancelToken,
    on_bytes: OnBytes<'_>,
) -> Result<DownloadedArchive> {
    let cache = &engine.workspace.roots.cache;
    file::create_dirs(cache, true)?;
    let folder = LockedTempDir::new(cache, "download-")?;
    let mut archive = folder.create_file(ARCHIVE_NAME)?;
    let client = http_client(engine, url)?;
    let mut request = HttpRequest::new(HttpMethod::Get, url);
    request.timeout = DOWNLOAD_TIMEOUT;
    request.idle_timeout = Some(IDLE_TIMEOUT);
    request.max_body_bytes = MAX_ARCHIVE_BYTES;
    let (mut hasher, mut received) = (Hasher::default(), 0_u64);
    let response = client.stream_body(&request, cancel, &mut |piece| {
        received += piece.len() as u64;
        if received > MAX_ARCHIVE_BYTES {
            return Err(format!("it has more than {MAX_ARCHIVE_BYTES} bytes"));
        }
        hasher.update(piece);
        archive.write_all(piece).map_err(|error| format!("what came could not be kept: {error}"))?;
        on_bytes(received, received);
        Ok(())
    });
    let response = response.map_err(|error| download_error(url, &error))?;
    if response.status != 200 {
        let message = format!("`{url}` answers HTTP {} {}", response.status, one_line(&response.reason));
        return Err(
            Error::new(Code::SourceUnreachable, message.trim_end().to_owned()).hint("check the address")
        );
    }
    if response.is_truncated {
        return Err(Error::new(Code::TooLarge, format!("`{url}` has more than {MAX_ARCHIVE_BYTES} bytes"))
            .hint("a bundle holds items, not data"));
    }
    let found = hasher.finish();
    if found != *sha256 {
        let message = format!("`{url}` does not match its digest: its sha256 is {found}");
        return Err(Error::new(Code::SourceMismatch, message)
            .detail("expected", sha256.to_string())
            .detail("found", found.to_string())
            .hint("nothing was kept; ask the publisher what changed before you update the digest"));
    }
    Ok(DownloadedArchive { path: folder.path().join(ARCHIVE_NAME), folder })
}

/// A client that reaches the host itself wherever it is, and what it redirects to only if that is public or named by the
/// user.
fn http_client(engine: &Engine, url: &str) -> Result<HttpClient> {
    let failure = |error: &HttpError| download_error(url, error);
    let parsed = Url::parse(url).map_err(|error| failure(&HttpError::Url(error.to_string())))?;
    let host = parsed.host_str().unwrap_or_default();
    let mut allowed = vec![format!("{host}:{}", parsed.port_or_known_default().unwrap_or(443))];
    allowed.extend(engine.workspace.settings.texts("bundles.registry_hosts"));
    let variables = &engine.host.variables;
    let variable = |name: &str| variables.get(name).map(String::as_str);
    let mut client = HttpClient::new(AddressPolicy::new(&allowed).map_err(|error| failure(&error))?);
    if parsed.scheme() == "https" {
        client = client.with_proxies(ProxyConfig::from_variables(variable));
    }
    Ok(client.with_certificates_of(variable))
}

fn download_error(url: &str, error: &HttpError) -> Error {
    let failed = |reason: &str| {
        Error::new(Code::SourceUnreachable, format!("`{url}` cannot be fetched: {}", one_line(reason)))
    };
    match error {
        HttpError::Cancelled => Error::new(Code::ToolCancelled, "cancelled; nothing was changed"),
        HttpError::AddressRefused { host, address, kind } => failed(&format!(
            "it redirects to `{host}` at `{address}`, a {} address, which is refused",
            kind.as_str()
        ))
        .hint("if you trust that host, add it to `bundles.registry_hosts` of your user config"),
        HttpError::Connect { cause, .. } | HttpError::Transport { cause, .. }
            if cause.contains("certificate") =>
        {
            failed(&error.to_string()).hint(super::CERTIFICATE_HINT)
        }
        HttpError::InvalidRedirect { .. } => failed(&error.to_string())
            .hint("name the address that it leads to, if that is where its maker publishes"),
        other => failed(&other.to_string())
            .hint(format!("check access: curl -sI {}", rye_item::text::shell_word(url))),
    }
}
