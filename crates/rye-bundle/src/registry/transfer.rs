//! Pushing and pulling: blobs that are checked while they stream, and the OCI manifest that names them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::Digest;
use lillux::digest::Hasher;
use lillux::file::TemporaryFolder;
use lillux::http::Method;
use url::Url;

use super::artifact::{self, Blob, Config, MAX_ARCHIVE_BYTES, MAX_INDEX_BYTES, OCI_MANIFEST_TYPE, Parts};
use super::session::{Session, Sink, plain, short};
use super::{Access, OnBytes, Reference, RegistryError, Version};

/// How long moving one blob, or one piece of it, may take, and how long the other side may say nothing.
const LONG: Duration = Duration::from_secs(3600);
const SILENCE: Duration = Duration::from_secs(60);
/// How much is sent in one request: what fits goes in one, which every registry understands.
const PIECE: usize = 8 << 20;

/// A bundle that is to be pushed.
pub struct Outgoing<'a> {
    /// What is said about it.
    pub config: Config,
    /// Its signed `manifest.yaml`.
    pub manifest: &'a [u8],
    /// Its archive.
    pub archive: &'a Path,
}

/// A bundle that was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The digest of the OCI manifest: what a pin names.
    pub digest: Digest,
    /// How many bytes the bundle has there.
    pub bytes: u64,
    /// How many of them the registry had already.
    pub bytes_reused: u64,
}

/// What a registry says of a bundle, without its archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The digest of the OCI manifest: what a pin names.
    pub digest: Digest,
    /// The signed `manifest.yaml`. Whose signature it is nobody has looked at yet.
    pub manifest: Vec<u8>,
    /// The length of the archive in bytes.
    pub archive_bytes: u64,
}

/// A bundle that was pulled: nothing in it has been judged yet.
#[derive(Debug)]
pub struct Pulled {
    /// What the registry says of it.
    pub described: Described,
    /// The archive, inside `folder`.
    pub archive: PathBuf,
    /// Goes with all that is in it when dropped.
    pub folder: TemporaryFolder,
}

/// Reads what a registry says of a bundle, without its archive.
///
/// # Errors
/// When it is not reached, not there, no bundle, or not what it should be.
pub fn describe(reference: &Reference, access: &Access<'_>) -> Result<Described, RegistryError> {
    let mut session = Session::open(reference, access, false)?;
    let (digest, parts) = read_index(&mut session, reference)?;
    described(&mut session, reference, digest, &parts)
}

/// Pulls a bundle into a new folder below `parent`.
///
/// # Errors
/// As [`describe`]. Then nothing is left below `parent`.
pub fn pull(
    reference: &Reference,
    access: &Access<'_>,
    parent: &Path,
    on_bytes: OnBytes<'_>,
) -> Result<Pulled, RegistryError> {
    let mut session = Session::open(reference, access, false)?;
    let (digest, parts) = read_index(&mut session, reference)?;
    let described = described(&mut session, reference, digest, &parts)?;
    let folder = TemporaryFolder::new(parent, "pull-").map_err(unkept)?;
    let file = folder.new_file("archive.tar.zst").map_err(unkept)?;
    let mut sink = Incoming::new(Some(file), &parts.archive, on_bytes);
    read_blob(&mut session, reference, &parts.archive, &mut sink)?;
    let archive = folder.path().join("archive.tar.zst");
    Ok(Pulled { described, archive, folder })
}

/// Pushes a bundle under a tag.
///
/// # Errors
/// When the registry is not reached, refuses, or does not behave like one. The tag then means what it meant before.
pub fn push(
    reference: &Reference,
    outgoing: &Outgoing<'_>,
    access: &Access<'_>,
    on_bytes: OnBytes<'_>,
) -> Result<Pushed, RegistryError> {
    let Version::Tag(tag) = reference.version() else {
        return Err(RegistryError::PushToDigest(reference.to_string()));
    };
    let archive = blob_of_file(outgoing.archive)?;
    let in_memory = |bytes: &[u8]| Blob { digest: Digest::of(bytes), size: bytes.len() as u64 };
    let config = serde_json::to_vec(&outgoing.config).map_err(unkept)?;
    let parts = Parts { manifest: in_memory(outgoing.manifest), archive };
    let index = artifact::write(&outgoing.config, &in_memory(&config), &parts).map_err(unkept)?;
    let mut session = Session::open(reference, access, true)?;
    let mut counted =
        Counted { done: 0, total: parts.manifest.size + parts.archive.size, reused: 0, on_bytes };
    send_blob(
        &mut session,
        &in_memory(&config),
        &mut config.as_slice(),
        &mut Counted::silent(&mut |_, _| {}),
    )?;
    send_blob(&mut session, &parts.manifest, &mut &*outgoing.manifest, &mut counted)?;
    let mut file = open(outgoing.archive)?;
    send_blob(&mut session, &parts.archive, &mut file, &mut counted)?;

    let url = session.url("manifests", tag)?;
    let mut request = short(Method::Put, &url);
    request.headers.push(plain("Content-Type", OCI_MANIFEST_TYPE));
    let digest = Digest::of(&index);
    request.body = Some(index);
    let answer = session.exchange(&request, &url, None)?;
    match answer.status {
        200 | 201 => {}
        _ => return Err(session.unexpected(&answer, "it does not take the manifest")),
    }
    check_header(reference, &answer, digest)?;
    Ok(Pushed { digest, bytes: counted.total, bytes_reused: counted.reused })
}

fn unkept(error: impl std::fmt::Display) -> RegistryError {
    RegistryError::Unkept(rye_item::text::one_line(&error.to_string()))
}

fn unsound(reference: &Reference, said: String) -> RegistryError {
    RegistryError::Unsound { registry: reference.authority(), said }
}

/// The OCI manifest, held against its digest, and the parts it names.
fn read_index(session: &mut Session<'_>, reference: &Reference) -> Result<(Digest, Parts), RegistryError> {
    let name = match reference.version() {
        Version::Tag(tag) => tag.clone(),
        Version::Digest(digest) => format!("sha256:{digest}"),
    };
    let url = session.url("manifests", &name)?;
    let mut request = short(Method::Get, &url);
    request.headers.push(plain("Accept", OCI_MANIFEST_TYPE));
    request.max_body_bytes = MAX_INDEX_BYTES;
    let answer = session.exchange(&request, &url, None)?;
    match answer.status {
        200 => {}
        404 => return Err(RegistryError::NotFound(reference.to_string())),
        _ => return Err(session.unexpected(&answer, "it does not give the manifest")),
    }
    if answer.is_truncated {
        return Err(unsound(reference, format!("its manifest is larger than {MAX_INDEX_BYTES} bytes")));
    }
    let digest = Digest::of(&answer.body);
    if let Version::Digest(wanted) = reference.version()
        && *wanted != digest
    {
        return Err(unsound(
            reference,
            format!("the manifest sha256:{wanted} was asked for, sha256:{digest} came"),
        ));
    }
    check_header(reference, &answer, digest)?;
    let parts = artifact::read(&answer.body)
        .map_err(|reason| RegistryError::NotABundle { reference: reference.to_string(), reason })?;
    Ok((digest, parts))
}

/// What the registry itself says the digest is must be what it is.
fn check_header(
    reference: &Reference,
    answer: &lillux::http::Response,
    digest: Digest,
) -> Result<(), RegistryError> {
    match answer.header("docker-content-digest").and_then(|told| told.strip_prefix("sha256:")) {
        Some(told) if told != digest.to_hex() => Err(unsound(
            reference,
            format!(
                "it calls the manifest sha256:{}, which is sha256:{digest}",
                rye_item::text::one_line(told)
            ),
        )),
        Some(_) | None => Ok(()),
    }
}

fn described(
    session: &mut Session<'_>,
    reference: &Reference,
    digest: Digest,
    parts: &Parts,
) -> Result<Described, RegistryError> {
    let mut ignore = |_, _| {};
    let mut sink = Incoming::new(None, &parts.manifest, &mut ignore);
    read_blob(session, reference, &parts.manifest, &mut sink)?;
    Ok(Described { digest, manifest: sink.bytes, archive_bytes: parts.archive.size })
}

/// A blob on its way in: into a file or into memory, never more of it than was said.
struct Incoming<'a> {
    file: Option<File>,
    bytes: Vec<u8>,
    size: u64,
    seen: u64,
    hasher: Hasher,
    on_bytes: OnBytes<'a>,
}

impl<'a> Incoming<'a> {
    fn new(file: Option<File>, blob: &Blob, on_bytes: OnBytes<'a>) -> Self {
        Self { file, bytes: Vec::new(), size: blob.size, seen: 0, hasher: Hasher::default(), on_bytes }
    }
}

impl Sink for Incoming<'_> {
    fn restart(&mut self) -> Result<(), String> {
        (self.seen, self.hasher) = (0, Hasher::default());
        self.bytes.clear();
        match &mut self.file {
            Some(file) => file.set_len(0).and_then(|()| file.rewind()).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        self.seen += piece.len() as u64;
        // Too much of it is noticed by the caller, who knows what was promised; it is not kept.
        if self.seen > self.size {
            return Err(String::new());
        }
        self.hasher.update(piece);
        match &mut self.file {
            Some(file) => {
                file.write_all(piece).map_err(|error| format!("what came could not be kept: {error}"))?
            }
            None => self.bytes.extend_from_slice(piece),
        }
        (self.on_bytes)(self.seen, self.size);
        Ok(())
    }
}

fn read_blob(
    session: &mut Session<'_>,
    reference: &Reference,
    blob: &Blob,
    sink: &mut Incoming<'_>,
) -> Result<(), RegistryError> {
    let name = blob.name();
    let url = session.url("blobs", &name)?;
    let mut request = short(Method::Get, &url);
    (request.timeout, request.idle_timeout) = (LONG, Some(SILENCE));
    request.max_body_bytes = blob.size.saturating_add(1);
    let outcome = session.exchange(&request, &url, Some(sink));
    if sink.seen > blob.size {
        return Err(unsound(reference, format!("the blob {name} has more than its {} bytes", blob.size)));
    }
    let answer = outcome?;
    match answer.status {
        200 => {}
        404 => {
            return Err(unsound(
                reference,
                format!("the blob {name}, which the manifest names, is not there"),
            ));
        }
        _ => return Err(session.unexpected(&answer, "it does not give a blob")),
    }
    if sink.seen < blob.size {
        return Err(unsound(
            reference,
            format!("the blob {name} has {} of its {} bytes", sink.seen, blob.size),
        ));
    }
    let found = std::mem::take(&mut sink.hasher).finish();
    if found != blob.digest {
        return Err(unsound(reference, format!("the blob {name} has the digest sha256:{found}")));
    }
    Ok(())
}

/// How much of a push is done.
struct Counted<'a> {
    done: u64,
    total: u64,
    reused: u64,
    on_bytes: OnBytes<'a>,
}

impl<'a> Counted<'a> {
    fn silent(on_bytes: OnBytes<'a>) -> Self {
        Self { done: 0, total: 0, reused: 0, on_bytes }
    }

    fn add(&mut self, count: u64) {
        self.done += count;
        (self.on_bytes)(self.done, self.total);
    }
}

/// Sends a blob unless the registry has it already.
fn send_blob(
    session: &mut Session<'_>,
    blob: &Blob,
    source: &mut dyn Read,
    counted: &mut Counted<'_>,
) -> Result<(), RegistryError> {
    let url = session.url("blobs", &blob.name())?;
    let answer = session.exchange(&short(Method::Head, &url), &url, None)?;
    if answer.status == 200 {
        counted.reused += blob.size;
        counted.add(blob.size);
        return Ok(());
    }
    let url = session.url("blobs", "uploads/")?;
    let answer = session.exchange(&empty(Method::Post, &url), &url, None)?;
    if answer.status != 202 {
        return Err(session.unexpected(&answer, "it begins no upload"));
    }
    let mut next = session.location(&url, &answer)?;
    let mut sent = 0;
    let mut last = piece(source)?;
    while sent + (last.len() as u64) < blob.size {
        let mut request = empty(Method::Patch, &next);
        let length = last.len() as u64;
        let range = format!("{sent}-{}", sent + length.saturating_sub(1));
        request
            .headers
            .extend([plain("Content-Type", "application/octet-stream"), plain("Content-Range", &range)]);
        request.body = Some(last);
        let answer = session.exchange(&request, &next, None)?;
        if answer.status != 202 {
            return Err(session.unexpected(&answer, "it does not take a piece of an upload"));
        }
        next = session.location(&next, &answer)?;
        sent += length;
        counted.add(length);
        last = piece(source)?;
        if last.is_empty() {
            return Err(RegistryError::Unkept("the archive changed while it was pushed".to_owned()));
        }
    }
    next.query_pairs_mut().append_pair("digest", &blob.name());
    let mut request = empty(Method::Put, &next);
    let length = last.len() as u64;
    request.headers.push(plain("Content-Type", "application/octet-stream"));
    if sent > 0 {
        let range = format!("{sent}-{}", sent + length.saturating_sub(1));
        request.headers.push(plain("Content-Range", &range));
    }
    request.body = Some(last);
    let answer = session.exchange(&request, &next, None)?;
    if answer.status != 201 {
        return Err(session.unexpected(&answer, "it does not take an upload"));
    }
    counted.add(length);
    Ok(())
}

/// A request that says it has no body, if it gets none, and may take as long as a piece needs.
fn empty(method: Method, url: &Url) -> lillux::http::Request {
    let mut request = short(method, url);
    request.timeout = LONG;
    request.body = Some(Vec::new());
    request
}

/// The next piece of what is sent; empty at its end.
fn piece(source: &mut dyn Read) -> Result<Vec<u8>, RegistryError> {
    let mut bytes = Vec::new();
    source.take(PIECE as u64).read_to_end(&mut bytes).map_err(unkept)?;
    Ok(bytes)
}

fn open(path: &Path) -> Result<File, RegistryError> {
    Ok(fs_err::File::open(path).map_err(unkept)?.into_parts().0)
}

/// Digest and length of a file.
fn blob_of_file(path: &Path) -> Result<Blob, RegistryError> {
    let mut file = open(path)?.take(MAX_ARCHIVE_BYTES + 1);
    let (mut hasher, mut size, mut buffer) = (Hasher::default(), 0, vec![0; 64 << 10]);
    loop {
        let count = file.read(&mut buffer).map_err(unkept)?;
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
