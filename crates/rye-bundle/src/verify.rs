//! Judging a bundle against its manifest, layer by layer: the manifest's signature, each file's hash, each file's own
//! signature, what is missing, what is not listed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lillux::file::ReadError;
use lillux::{Fingerprint, PublicKey};
use rye_item::text::one_line;
use rye_item::{BundleId, ExtractorSet, ItemId, ItemRef, Space};
use rye_space::bundle::BundleOrigin;
use rye_space::installed::{LOCKFILE_NAME, SIGNER_FILE};
use rye_space::manifest::{Manifest, ManifestFile, ManifestFileEntry, is_never_installed};
use rye_space::{AI_FOLDER, BundlePath, ItemFile, keys};
use rye_trust::{Identity, KeyRing, TrustVerdict, verify::evaluate};
use serde::Serialize;

use crate::object;

/// More files than this below one `.ai/` are not looked at.
const MAX_SCANNED_FILES: usize = 200_000;
const MAX_WORKERS: usize = 8;
/// What may lie in a bundle's folder and is not part of it: stores of objects, which nothing reads, and lockfiles, which
/// can only forbid.
const IGNORED_FOLDERS: [&str; 3] = [".ai/objects/", ".ai/state/", ".ai/lockfiles/"];

/// How a bundle lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleScope {
    /// The folder holds this bundle and nothing else: every file must be listed.
    Standalone,
    /// Its files lie among those of a project or user space; only its own folder belongs to it alone.
    Installed,
}

/// A bundle to judge.
#[derive(Clone, Copy, Debug)]
pub struct VerifyTarget<'a> {
    /// Where its files are.
    pub origin: &'a BundleOrigin,
    /// Its manifest.
    pub manifest: &'a ManifestFile,
    /// Whose keys vouch for it, beside those the user trusts: what it ships, or what is pinned for it.
    pub identities: &'a [Identity],
    /// How it lies there.
    pub scope: BundleScope,
}

/// By what to judge.
#[derive(Clone, Copy, Debug)]
pub struct VerifyContext<'a> {
    /// The keys the user trusts; the bundle's own are added for the bundle alone.
    pub keys: &'a KeyRing,
    /// How items are read and signed.
    pub extractors: &'a Arc<ExtractorSet>,
    /// The largest file that is read.
    pub limit: u64,
}

/// Called with how many of how many files are done, from any thread.
pub type VerifyFileProgress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Whose signature the manifest carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestSigner {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner, as its document says.
    pub owner: String,
    /// Whether the user trusts the key everywhere.
    pub trusted: bool,
    /// The whole key.
    #[serde(skip)]
    pub key: PublicKey,
}

/// The report on a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct BundleReport {
    /// `verified` or `failed`.
    pub status: &'static str,
    /// Whether the manifest can be read and its signature holds.
    pub manifest_valid: bool,
    /// How many files the manifest lists.
    pub files_checked: usize,
    /// How many of them are as they should be.
    pub files_ok: usize,
    /// Listed, but not there.
    pub files_missing: Vec<BundlePath>,
    /// Changed, or their own signature is invalid.
    pub files_tampered: Vec<BundlePath>,
    /// There, but not listed.
    pub files_unlisted: Vec<String>,
    /// Why the manifest is not valid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest_error: Option<String>,
    /// Why each bad file is bad.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, String>,
    /// The bundle.
    pub bundle_id: BundleId,
    /// Its version, if the manifest can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Who signed the manifest, if the signature holds.
    pub signer: Option<ManifestSigner>,
    /// The keys that signed its items.
    #[serde(skip)]
    pub item_signers: BTreeSet<Fingerprint>,
}

impl BundleReport {
    /// Whether every layer holds.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.status == "verified"
    }
}

/// What is wrong with one file.
enum FileFault {
    Missing,
    Tampered(String),
}

/// Judges a bundle.
#[must_use]
pub fn verify(
    target: VerifyTarget<'_>,
    context: VerifyContext<'_>,
    progress: VerifyFileProgress<'_>,
) -> BundleReport {
    let id = target.manifest.id().clone();
    let mut ring = context.keys.clone();
    ring.replace_bundle(&id, target.identities.iter().cloned());

    let manifest_error = manifest_error(target.manifest, &ring);
    let signer =
        manifest_signer(target.manifest, target.identities, &ring).filter(|_| manifest_error.is_none());
    let mut bundle_report = BundleReport {
        status: "failed",
        manifest_valid: manifest_error.is_none(),
        files_checked: 0,
        files_ok: 0,
        files_missing: Vec::new(),
        files_tampered: Vec::new(),
        files_unlisted: Vec::new(),
        manifest_error,
        reasons: BTreeMap::new(),
        bundle_id: id,
        version: None,
        signer,
        item_signers: BTreeSet::new(),
    };
    let Ok(manifest) = &target.manifest.parsed else {
        return bundle_report;
    };
    bundle_report.version = Some(manifest.version.to_string());
    let listed: Vec<(&BundlePath, &ManifestFileEntry)> = manifest
        .files
        .iter()
        .filter(|(path, _)| target.scope == BundleScope::Standalone || !is_never_installed(path))
        .collect();
    let checker = FileChecker { target, ring: &ring, context };
    let (faults, signers) = checker.check_all(&listed, progress);
    bundle_report.files_checked = listed.len();
    bundle_report.files_ok = listed.len() - faults.len();
    for (index, fault) in faults {
        let path = listed[index].0;
        match fault {
            FileFault::Missing => bundle_report.files_missing.push(path.clone()),
            FileFault::Tampered(reason) => {
                bundle_report.reasons.insert(path.to_string(), one_line(&reason));
                bundle_report.files_tampered.push(path.clone());
            }
        }
    }
    bundle_report.files_unlisted = find_unlisted(target, manifest, &signers, bundle_report.signer.as_ref());
    let is_whole =
        bundle_report.files_ok == bundle_report.files_checked && bundle_report.files_unlisted.is_empty();
    if bundle_report.manifest_valid && is_whole {
        bundle_report.status = "verified";
    }
    bundle_report.item_signers = signers;
    bundle_report
}

fn manifest_error(manifest: &ManifestFile, ring: &KeyRing) -> Option<String> {
    if let Err(problems) = &manifest.parsed {
        let list = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        return Some(one_line(&list.join("; ")));
    }
    let report = evaluate(manifest, ring);
    match report.verdict {
        TrustVerdict::Full => None,
        verdict => Some(match report.reason {
            Some(reason) => format!("{}: {}", verdict.as_str(), one_line(&reason)),
            None => verdict.as_str().to_owned(),
        }),
    }
}

fn manifest_signer(
    manifest: &ManifestFile,
    identities: &[Identity],
    ring: &KeyRing,
) -> Option<ManifestSigner> {
    let line = manifest.signature()?;
    let known = ring.find(&line.fingerprint, &Space::System(manifest.id().clone()))?;
    let document = identities.iter().find(|identity| identity.key == known.key);
    Some(ManifestSigner {
        fingerprint: line.fingerprint,
        owner: one_line(document.map_or(known.owner.as_str(), |document| document.owner.as_str())),
        trusted: ring.is_trusted_everywhere(&known.key),
        key: known.key.clone(),
    })
}

/// The self-signed identity documents a bundle ships.
#[must_use]
pub fn shipped_identities(origin: &BundleOrigin) -> Vec<Identity> {
    let found: Vec<Identity> = match origin {
        BundleOrigin::Embedded(embedded) => embedded
            .files
            .iter()
            .filter(|(path, _)| path.starts_with(".ai/config/keys/trusted/"))
            .filter_map(|(_, bytes)| Identity::parse(bytes).ok())
            .collect(),
        BundleOrigin::Folder(folder) => {
            keys::identities_in(&folder.join(AI_FOLDER).join(keys::TRUSTED_FOLDER))
                .into_iter()
                .filter_map(|found| found.identity.ok())
                .collect()
        }
    };
    found.into_iter().filter(Identity::is_self_signed).collect()
}

/// Reads a file of a bundle. No link is followed below its `.ai/`.
///
/// # Errors
/// When it is missing, too large, or reached through a link.
pub fn read_file(origin: &BundleOrigin, path: &BundlePath, limit: u64) -> Result<Vec<u8>, ReadError> {
    match origin {
        BundleOrigin::Embedded(embedded) => embedded
            .file(path.as_str())
            .map(<[u8]>::to_vec)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound).into()),
        BundleOrigin::Folder(folder) => {
            let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
            let (bytes, _) =
                lillux::file::read_beneath_no_symlinks(&folder.join(AI_FOLDER), Path::new(relative), limit)?;
            Ok(bytes)
        }
    }
}

struct FileChecker<'a> {
    target: VerifyTarget<'a>,
    ring: &'a KeyRing,
    context: VerifyContext<'a>,
}

/// What one worker found: faults by index, and the keys that signed items.
type CheckResults = (Vec<(usize, FileFault)>, BTreeSet<Fingerprint>);

impl FileChecker<'_> {
    /// Checks every file, on as many threads as there are cores.
    fn check_all(
        &self,
        listed: &[(&BundlePath, &ManifestFileEntry)],
        progress: VerifyFileProgress<'_>,
    ) -> CheckResults {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let mut found = CheckResults::default();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((path, entry)) = listed.get(index) else {
                    return found;
                };
                match self.check(path, entry) {
                    Ok(signer) => found.1.extend(signer),
                    Err(fault) => found.0.push((index, fault)),
                }
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if done % 32 == 0 {
                    progress(done, listed.len());
                }
            }
        };
        let mut found = CheckResults::default();
        let mut add = |part: CheckResults| {
            found.0.extend(part.0);
            found.1.extend(part.1);
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..cores.min(MAX_WORKERS)).map(|_| scope.spawn(work)).collect();
            add(work());
            for other in others {
                match other.join() {
                    Ok(part) => add(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        progress(listed.len(), listed.len());
        found.0.sort_by_key(|(index, _)| *index);
        found
    }

    /// Checks one file; gives the key that signed it, if it carries a signature that has to hold.
    fn check(&self, path: &BundlePath, entry: &ManifestFileEntry) -> Result<Option<Fingerprint>, FileFault> {
        let bytes = read_file(self.target.origin, path, self.context.limit).map_err(|error| {
            if error.is_absent() { FileFault::Missing } else { FileFault::Tampered(error.to_string()) }
        })?;
        object::compare_entry(path, entry, &bytes, self.context.extractors).map_err(FileFault::Tampered)?;
        if !entry.inline_signed {
            return Ok(None);
        }
        self.check_signature(path, bytes).map(Some).map_err(FileFault::Tampered)
    }

    fn check_signature(&self, path: &BundlePath, bytes: Vec<u8>) -> Result<Fingerprint, String> {
        let extractors = self.context.extractors;
        let (Some(item_type), Some(extension)) =
            (object::item_type(path, extractors), object::extension(path))
        else {
            return Err("the manifest says it is signed, but such a file cannot be".to_owned());
        };
        let (_, id) = object::object_name(path);
        let item = ItemRef::new(item_type, ItemId::new(id).map_err(|error| error.to_string())?);
        let located = ItemFile::new(
            item,
            Space::System(self.target.manifest.id().clone()),
            PathBuf::from(path.as_str()),
            extension.to_owned(),
            Cow::Owned(bytes),
            Arc::clone(extractors),
        );
        let report = evaluate(&located, self.ring);
        match (report.verdict, report.fingerprint()) {
            // What its own signature leaves uncovered, the manifest covers.
            (TrustVerdict::Full | TrustVerdict::Partial, Some(signer)) => Ok(signer),
            (verdict, _) => Err(match report.reason {
                Some(reason) => format!("{}: {reason}", verdict.as_str()),
                None => verdict.as_str().to_owned(),
            }),
        }
    }
}

/// The files that are there and not listed.
fn find_unlisted(
    target: VerifyTarget<'_>,
    manifest: &Manifest,
    signers: &BTreeSet<Fingerprint>,
    signer: Option<&ManifestSigner>,
) -> Vec<String> {
    let own = format!(".ai/bundles/{}/", target.manifest.id());
    let is_expected = |path: &str| {
        // Other bundles' manifests are signed for themselves.
        let is_manifest = path
            .strip_prefix(".ai/bundles/")
            .and_then(|rest| rest.split_once('/'))
            .is_some_and(|(id, name)| BundleId::new(id).is_ok() && name == "manifest.yaml");
        // The document of a key that signed something here says nothing but who that is.
        let fingerprint = path
            .strip_prefix(".ai/config/keys/trusted/")
            .and_then(|name| name.strip_suffix(".toml"))
            .and_then(|name| name.parse::<Fingerprint>().ok());
        let is_signer = fingerprint.is_some_and(|fingerprint| {
            signers.contains(&fingerprint) || signer.is_some_and(|signer| signer.fingerprint == fingerprint)
        });
        is_manifest
            || is_signer
            || IGNORED_FOLDERS.iter().any(|folder| path.starts_with(folder))
            || path.strip_prefix(&own).is_some_and(|name| [LOCKFILE_NAME, SIGNER_FILE].contains(&name))
    };
    let is_listed = |path: &str| BundlePath::new(path).is_ok_and(|path| manifest.files.contains_key(&path));
    let present = match (target.origin, target.scope) {
        (BundleOrigin::Embedded(embedded), _) => {
            embedded.files.iter().map(|(path, _)| (*path).to_owned()).collect()
        }
        (BundleOrigin::Folder(folder), BundleScope::Standalone) => list_files(folder, AI_FOLDER),
        (BundleOrigin::Folder(folder), BundleScope::Installed) => {
            list_files(folder, own.trim_end_matches('/'))
        }
    };
    let mut unlisted: Vec<String> =
        present.into_iter().filter(|path| !is_listed(path) && !is_expected(path)).collect();
    unlisted.sort();
    unlisted.iter().map(|path| one_line(path)).collect()
}

/// Every path below `start`, links and odd files included, folders not. Links are not entered.
fn list_files(folder: &Path, start: &str) -> Vec<String> {
    let mut files = Vec::new();
    let mut pending = vec![start.to_owned()];
    while let Some(relative) = pending.pop() {
        let Ok(entries) = fs_err::read_dir(folder.join(&relative)) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = format!("{relative}/{}", entry.file_name().to_string_lossy());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path);
            } else {
                files.push(path);
            }
            if files.len() + pending.len() > MAX_SCANNED_FILES {
                return files;
            }
        }
    }
    files
}
