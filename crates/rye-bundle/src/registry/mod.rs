//! Bundles in OCI registries: pushing an archive, pulling it back, and nothing believed on the way.
//!
//! Everything goes through `lillux::http`: bounded bodies, checked addresses, no credentials across hosts. Every blob is
//! held against its digest and size while it streams; whether it is a bundle with a trusted signature is checked
//! afterwards, by others.

mod artifact;
mod auth_challenge;
pub mod credentials;
mod reference;
mod session;
mod tags;
#[cfg(test)]
mod tests;
mod transfer;

use std::path::PathBuf;
use std::time::Duration;

use lillux::CancelToken;
use lillux::http::{HttpError, ProxyConfig};

pub use artifact::{ARCHIVE_LAYER_TYPE, ARTIFACT_TYPE, ArtifactConfig, MAX_ARCHIVE_BYTES, NotABundle};
pub use credentials::{CredentialsError, RegistryCredentials};
pub use reference::{InvalidReference, Reference, ReferenceVersion};
pub use tags::list_tags;
pub use transfer::{ArtifactDescription, PulledArtifact, PushRequest, PushedArtifact, describe, pull, push};

/// Finds the credentials for a reference; asked only when a registry wants some.
pub type FindCredentials<'a> =
    &'a dyn Fn(&Reference) -> Result<Option<RegistryCredentials>, CredentialsError>;

/// Hears how many bytes of how many have passed.
pub type OnBytes<'a> = &'a mut dyn FnMut(u64, u64);

/// How registries are reached.
pub struct RegistryAccess<'a> {
    /// The user's proxies.
    pub proxies: ProxyConfig,
    /// Certificates to check https with instead of the system's.
    pub certificate_file: Option<PathBuf>,
    /// Hosts beside the registry that may be at private addresses.
    pub allowed_hosts: Vec<String>,
    /// Whether the registry is asked without TLS though it is not on this machine.
    pub allows_plain_http: bool,
    /// Who asks.
    pub credentials: FindCredentials<'a>,
    /// Ends everything early.
    pub cancel: &'a CancelToken,
    /// How long to wait before the first repetition.
    pub retry_interval: Duration,
}

/// Why nothing was pushed or pulled. No message holds a credential.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry, or a place it leads to, is not reached.
    #[error("the registry is not reached: {0}")]
    Unreachable(HttpError),
    /// The user may not, or did not say who they are.
    #[error("`{registry}` refuses access to `{repository}` ({detail})")]
    AccessDenied {
        /// The registry.
        registry: String,
        /// The repository.
        repository: String,
        /// What it said.
        detail: String,
        /// Whether there were credentials to send.
        has_credentials: bool,
    },
    /// The credentials cannot be read.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// There is no such artifact.
    #[error("`{0}` is not in the registry")]
    NotFound(String),
    /// An answer the protocol does not know.
    #[error("`{registry}` does not behave like a registry: {detail}")]
    UnexpectedResponse {
        /// The registry.
        registry: String,
        /// What is wrong.
        detail: String,
    },
    /// It is there, but no bundle.
    #[error("`{reference}` is not a bundle: {reason}")]
    NotABundle {
        /// What was asked for.
        reference: String,
        /// What is wrong with it.
        reason: NotABundle,
    },
    /// The bytes are not those that were named.
    #[error("`{registry}` sent something else than it should: {detail}")]
    ContentMismatch {
        /// The registry.
        registry: String,
        /// What differs.
        detail: String,
    },
    /// A push to a digest.
    #[error("`{0}` names a digest; a push needs a tag")]
    PushToDigest(String),
    /// What is to be pushed is too large.
    #[error("the archive has {size} bytes; at most {MAX_ARCHIVE_BYTES} are pushed")]
    TooLarge {
        /// Its size.
        size: u64,
    },
    /// What came in could not be kept, or what goes out not be read.
    #[error("{0}")]
    LocalIo(String),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<HttpError> for RegistryError {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::Cancelled => Self::Cancelled,
            HttpError::BodyRejected(reason) => Self::LocalIo(reason),
            other => Self::Unreachable(other),
        }
    }
}
