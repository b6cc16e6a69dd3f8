//! Pushing and pulling: blobs that are checked while they stream, and the OCI manifest that names them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::Digest;
use lillux::digest::Hasher;
use lillux::file::LockedTempDir;
use lillux::http::HttpMethod;
use url::Url;

use super::artifact::{
    self, ArtifactConfig, ArtifactParts, Blob, MAX_ARCHIVE_BYTES, MAX_OCI_MANIFEST_BYTES, OCI_MANIFEST_TYPE,
};
use super::session::{BodySink, RegistrySession, plain_header, short_request};
use super::{OnBytes, Reference, ReferenceVersion, RegistryAccess, RegistryError};

/// How long moving one blob, or one piece of it, may take, and how long the other side may say nothing.
const BLOB_TIMEOUT: Duration = Duration::from_secs(3600);
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How much is sent in one request: what fits goes in one, which every registry understands.
const CHUNK_BYTES: usize = 8 << 20;

/// A bundle that is to be pushed.
pub struct PushRequest<'a> {
    /// What is said about it.
    pub config: ArtifactConfig,
    /// Its signed `manifest.yaml`.
    pub manifest: &'a [u8],
    /// Its archive.
    pub archive: &'a Path,
}

/// A bundle that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedArtifact {
    /// The digest of the OCI manifest: what a pin names.
    pub digest: Digest,
    /// How many bytes the bundle has there.
    pub bytes: u64,
    /// How many of them the registry had already.
    pub bytes_reused: u64,
}

/// What a registry says of a bundle, without its archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactDescription {
    /// The digest of the OCI manifest: what a pin names.
    pub digest: Digest,
    /// The signed `manifest.yaml`. The signature has not been verified yet.
    pub manifest: Vec<u8>,
    /// The length of the archive in bytes.
    pub archive_bytes: u64,
}

/// A bundle that was pulled: nothing in it has been judged yet.
#[derive(Debug)]
pub struct PulledArtifact {
    /// What the registry says of it.
    pub description: ArtifactDescription,
    /// The archive, inside `folder`.
    pub archive: PathBuf,
    /// Goes with all that is in it when dropped.
    pub folder: LockedTempDir,
}

/// Reads what a registry says of a bundle, without its archive.
///
/// # Errors
/// When it is not reached, not there, no bundle, or not what it should be.
pub fn describe(
    reference: &Reference,
    access: &RegistryAccess<'_>,
) -> Result<ArtifactDescription, RegistryError> {
    let mut session = RegistrySession::open(reference, access, false)?;
    let (digest, parts) = fetch_manifest(&mut session, reference)?;
    fetch_description(&mut session, reference, digest, &parts)
}

/// Pulls a bundle into a new folder below `parent`.
///
/// # Errors
/// As [`describe`]. Then nothing is left below `parent`.
pub fn pull(
    reference: &Reference,
    access: &RegistryAccess<'_>,
    parent: &Path,
    on_bytes: OnBytes<'_>,
) -> Result<PulledArtifact, RegistryError> {
    let mut session = RegistrySession::open(reference, access, false)?;
    let (digest, parts) = fetch_manifest(&mut session, reference)?;
    let description = fetch_description(&mut session, reference, digest, &parts)?;
    let folder = LockedTempDir::new(parent, "pull-").map_err(local_error)?;
    let file = folder.create_file("archive.tar.zst").map_err(local_error)?;
    let mut sink = BlobDownload::new(Some(file), &parts.archive, on_bytes);
    fetch_blob(&mut session, reference, &parts.archive, &mut sink)?;
    let archive = folder.path().join("archive.tar.zst");
    Ok(PulledArtifact { description, archive, folder })
}

/// Pushes a bundle under a tag.
///
/// # Errors
/// When the registry is not reached, refuses, or does not behave like one. The tag then means what it meant before.
pub fn push(
    reference: &Reference,
    push_request: &PushRequest<'_>,
    access: &RegistryAccess<'_>,
    on_bytes: OnBytes<'_>,
) -> Result<PushedArtifact, RegistryError> {
    let ReferenceVersion::Tag(tag) = reference.version() else {
        return Err(RegistryError::PushToDigest(reference.to_string()));
    };
    let archive = hash_file(push_request.archive)?;
    let in_memory = |bytes: &[u8]| Blob { digest: Digest::of(bytes), size: bytes.len() as u64 };
    let config = serde_json::to_vec(&push_request.config).map_err(local_error)?;
    let parts = ArtifactParts { manifest: in_memory(push_request.manifest), archive };
    let manifest_bytes =
        artifact::write_manifest(&push_request.config, &in_memory(&config), &parts).map_err(local_error)?;
    let mut session = RegistrySession::open(reference, access, true)?;
    let mut progress =
        UploadProgress { done: 0, total: parts.manifest.size + parts.archive.size, reused: 0, on_bytes };
    send_blob(
        &mut session,
        &in_memory(&config),
        &mut config.as_slice(),
        &mut UploadProgress::without_total(&mut |_, _| {}),
    )?;
    send_blob(&mut session, &parts.manifest, &mut &*push_request.manifest, &mut progress)?;
    let mut file = open(push_request.archive)?;
    send_blob(&mut session, &parts.archive, &mut file, &mut progress)?;

    let url = session.url("manifests", tag)?;
    let mut request = short_request(HttpMethod::Put, &url);
    request.headers.push(plain_header("Content-Type", OCI_MANIFEST_TYPE));
    let digest = Digest::of(&manifest_bytes);
    request.body = Some(manifest_bytes);
    let response = session.send(&request, &url, None)?;
    match response.status {
        200 | 201 => {}
        _ => return Err(session.unexpected(&response, "it does not take the manifest")),
    }
    check_digest_header(reference, &response, digest)?;
    Ok(PushedArtifact { digest, bytes: progress.total, bytes_reused: progress.reused })
}

fn local_error(error: impl std::fmt::Display) -> RegistryError {
    RegistryError::LocalIo(rye_item::text::one_line(&error.to_string()))
}

fn mismatch_error(reference: &Reference, detail: String) -> RegistryError {
    RegistryError::ContentMismatch { registry: reference.authority(), detail }
}

/// The OCI manifest, held against its digest, and the parts it names.
fn fetch_manifest(
    session: &mut RegistrySession<'_>,
    reference: &Reference,
) -> Result<(Digest, ArtifactParts), RegistryError> {
    let name = match reference.version() {
        ReferenceVersion::Tag(tag) => tag.clone(),
        ReferenceVersion::Digest(digest) => format!("sha256:{digest}"),
    };
    let url = session.url("manifests", &name)?;
    let mut request = short_request(HttpMethod::Get, &url);
    request.headers.push(plain_header("Accept", OCI_MANIFEST_TYPE));
    request.max_body_bytes = MAX_OCI_MANIFEST_BYTES;
    let response = session.send(&request, &url, None)?;
    match response.status {
        200 => {}
        404 => return Err(RegistryError::NotFound(reference.to_string())),
        _ => return Err(session.unexpected(&response, "it does not give the manifest")),
    }
    if response.is_truncated {
        return Err(mismatch_error(
            reference,
            format!("its manifest is larger than {MAX_OCI_MANIFEST_BYTES} bytes"),
        ));
    }
    let digest = Digest::of(&response.body);
    if let ReferenceVersion::Digest(expected) = reference.version()
        && *expected != digest
    {
        return Err(mismatch_error(
            reference,
            format!("the manifest sha256:{expected} was asked for, sha256:{digest} came"),
        ));
    }
    check_digest_header(reference, &response, digest)?;
    let parts = artifact::parse_manifest(&response.body)
        .map_err(|reason| RegistryError::NotABundle { reference: reference.to_string(), reason })?;
    Ok((digest, parts))
}

/// What the registry itself says the digest is must be what it is.
fn check_digest_header(
    reference: &Reference,
    response: &lillux::http::HttpResponse,
    digest: Digest,
) -> Result<(), RegistryError> {
    match response.header("docker-content-digest").and_then(|stated| stated.strip_prefix("sha256:")) {
        Some(stated) if stated != digest.to_hex() => Err(mismatch_error(
            reference,
            format!(
                "it calls the manifest sha256:{}, which is sha256:{digest}",
                rye_item::text::one_line(stated)
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

fn fetch_description(
    session: &mut RegistrySession<'_>,
    reference: &Reference,
    digest: Digest,
    parts: &ArtifactParts,
) -> Result<ArtifactDescription, RegistryError> {
    let mut ignore = |_, _| {};
    let mut sink = BlobDownload::new(None, &parts.manifest, &mut ignore);
    fetch_blob(session, reference, &parts.manifest, &mut sink)?;
    Ok(ArtifactDescription { digest, manifest: sink.bytes, archive_bytes: parts.archive.size })
}

/// A blob on its way in: into a file or into memory, never more of it than was said.
struct BlobDownload<'a> {
    file: Option<File>,
    bytes: Vec<u8>,
    size: u64,
    received: u64,
    hasher: Hasher,
    on_bytes: OnBytes<'a>,
}

impl<'a> BlobDownload<'a> {
    fn new(file: Option<File>, blob: &Blob, on_bytes: OnBytes<'a>) -> Self {
        Self { file, bytes: Vec::new(), size: blob.size, received: 0, hasher: Hasher::default(), on_bytes }
    }
}

impl BodySink for BlobDownload<'_> {
    fn restart(&mut self) -> Result<(), String> {
        (self.received, self.hasher) = (0, Hasher::default());
        self.bytes.clear();
        match &mut self.file {
            Some(file) => file.set_len(0).and_then(|()| file.rewind()).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn write(&mut self, piece: &[u8]) -> Result<(), String> {
        self.received += piece.len() as u64;
        // Too much of it is noticed by the caller, who knows what was promised; it is not kept.
        if self.received > self.size {
            return Err(String::new());
        }
        self.hasher.update(piece);
        match &mut self.file {
            Some(file) => {
                file.write_all(piece).map_err(|error| format!("what came could not be kept: {error}"))?
            }
            None => self.bytes.extend_from_slice(piece),
        }
        (self.on_bytes)(self.received, self.size);
        Ok(())
    }
}

fn fetch_blob(
    session: &mut RegistrySession<'_>,
    reference: &Reference,
    blob: &Blob,
    sink: &mut BlobDownload<'_>,
) -> Result<(), RegistryError> {
    let name = blob.digest_text();
    let url = session.url("blobs", &name)?;
    let mut request = short_request(HttpMethod::Get, &url);
    (request.timeout, request.idle_timeout) = (BLOB_TIMEOUT, Some(IDLE_TIMEOUT));
    request.max_body_bytes = blob.size.saturating_add(1);
    let outcome = session.send(&request, &url, Some(sink));
    if sink.received > blob.size {
        return Err(mismatch_error(
            reference,
            format!("the blob {name} has more than its {} bytes", blob.size),
        ));
    }
    let response = outcome?;
    match response.status {
        200 => {}
        404 => {
            return Err(mismatch_error(
                reference,
                format!("the blob {name}, which the manifest names, is missing"),
            ));
        }
        _ => return Err(session.unexpected(&response, "it does not give a blob")),
    }
    if sink.received < blob.size {
        return Err(mismatch_error(
            reference,
            format!("the blob {name} has {} of its {} bytes", sink.received, blob.size),
        ));
    }
    let found = std::mem::take(&mut sink.hasher).finish();
    if found != blob.digest {
        return Err(mismatch_error(reference, format!("the blob {name} has the digest sha256:{found}")));
    }
    Ok(())
}

/// How much of a push is done.
struct UploadProgress<'a> {
    done: u64,
    total: u64,
    reused: u64,
    on_bytes: OnBytes<'a>,
}

impl<'a> UploadProgress<'a> {
    fn without_total(on_bytes: OnBytes<'a>) -> Self {
        Self { done: 0, total: 0, reused: 0, on_bytes }
    }

    fn add(&mut self, count: u64) {
        self.done += count;
        (self.on_bytes)(self.done, self.total);
    }
}

/// Sends a blob unless the registry has it already.
fn send_blob(
    session: &mut RegistrySession<'_>,
    blob: &Blob,
    source: &mut dyn Read,
    progress: &mut UploadProgress<'_>,
) -> Result<(), RegistryError> {
    let url = session.url("blobs", &blob.digest_text())?;
    let response = session.send(&short_request(HttpMethod::Head, &url), &url, None)?;
    if response.status == 200 {
        progress.reused += blob.size;
        progress.add(blob.size);
        return Ok(());
    }
    let url = session.url("blobs", "uploads/")?;
    let response = session.send(&upload_request(HttpMethod::Post, &url), &url, None)?;
    if response.status != 202 {
        return Err(session.unexpected(&response, "it begins no upload"));
    }
    let mut next = session.upload_location(&url, &response)?;
    let mut sent = 0;
    let mut last = read_chunk(source)?;
    while sent + (last.len() as u64) < blob.size {
        let mut request = upload_request(HttpMethod::Patch, &next);
        let length = last.len() as u64;
        let range = format!("{sent}-{}", sent + length.saturating_sub(1));
        request.headers.extend([
            plain_header("Content-Type", "application/octet-stream"),
            plain_header("Content-Range", &range),
        ]);
        request.body = Some(last);
        let response = session.send(&request, &next, None)?;
        if response.status != 202 {
            return Err(session.unexpected(&response, "it does not take a piece of an upload"));
        }
        next = session.upload_location(&next, &response)?;
        sent += length;
        progress.add(length);
        last = read_chunk(source)?;
        if last.is_empty() {
            return Err(RegistryError::LocalIo("the archive changed while it was pushed".to_owned()));
        }
    }
    next.query_pairs_mut().append_pair("digest", &blob.digest_text());
    let mut request = upload_request(HttpMethod::Put, &next);
    let length = last.len() as u64;
    request.headers.push(plain_header("Content-Type", "application/octet-stream"));
    if sent > 0 {
        let range = format!("{sent}-{}", sent + length.saturating_sub(1));
        request.headers.push(plain_header("Content-Range", &range));
    }
    request.body = Some(last);
    let response = session.send(&request, &next, None)?;
    if response.status != 201 {
        return Err(session.unexpected(&response, "it does not take an upload"));
    }
    progress.add(length);
    Ok(())
}

/// A request that says it has no body, if it gets none, and may take as long as a piece needs.
fn upload_request(method: HttpMethod, url: &Url) -> lillux::http::HttpRequest {
    let mut request = short_request(method, url);
    request.timeout = BLOB_TIMEOUT;
    request.body = Some(Vec::new());
    request
}

/// The next piece of what is sent; empty at its end.
fn read_chunk(source: &mut dyn Read) -> Result<Vec<u8>, RegistryError> {
    let mut bytes = Vec::new();
    source.take(CHUNK_BYTES as u64).read_to_end(&mut bytes).map_err(local_error)?;
    Ok(bytes)
}

fn open(path: &Path) -> Result<File, RegistryError> {
    lillux::file::open_regular(path).map_err(local_error)
}

/// Digest and length of a file.
fn hash_file(path: &Path) -> Result<Blob, RegistryError> {
    let mut file = open(path)?.take(MAX_ARCHIVE_BYTES + 1);
    let (mut hasher, mut size, mut buffer) = (Hasher::default(), 0, vec![0; 64 << 10]);
    loop {
        let count = file.read(&mut buffer).map_err(local_error)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        size += count as u64;
    }
    if size > MAX_ARCHIVE_BYTES {
        return Err(RegistryError::TooLarge { size });
    }
    Ok(Blob { digest: hasher.finish(), size })
}
