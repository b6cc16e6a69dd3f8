//! The certificates https is checked with: the system's, or those of a file that is passed in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

const MAX_CERTIFICATE_BYTES: u64 = 16 << 20;

/// Where the distributions keep their certificates. The environment is not asked: it is passed in.
const CERTIFICATE_FILES: [&str; 7] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
    "/opt/etc/ssl/certs/ca-certificates.crt",
];

fn client_config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The file of certificates that the user trusts instead of the system's, as curl and OpenSSL read it.
#[must_use]
pub fn certificate_file<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<PathBuf> {
    variable("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Settings that trust no certificate, for plain HTTP.
pub(super) fn without_certificates() -> Result<ClientConfig, String> {
    client_config(RootCertStore::empty())
}

/// Settings for other protocols under TLS: the certificates of this file are trusted, or the system's.
///
/// # Errors
/// When there is no certificate.
pub fn tls_client_config(file: Option<&Path>) -> Result<ClientConfig, String> {
    with_certificates(file)
}

/// Settings that trust the certificates of this file, or the system's.
pub(super) fn with_certificates(file: Option<&Path>) -> Result<ClientConfig, String> {
    let bytes = match file {
        Some(path) => crate::file::read_bounded(path, MAX_CERTIFICATE_BYTES)
            .map(|(bytes, _)| bytes)
            .map_err(|error| format!("`{}`: {error}", path.display()))?,
        None => CERTIFICATE_FILES
            .iter()
            .find_map(|path| Some(crate::file::read_bounded(Path::new(path), MAX_CERTIFICATE_BYTES).ok()?.0))
            .ok_or("the system has no certificate file; pass one as SSL_CERT_FILE")?,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).flatten());
    if roots.is_empty() {
        return Err("the certificate file holds no certificate".to_owned());
    }
    client_config(roots)
}
