//! Judging a bundle against its manifest, layer by layer: the manifest's signature, each file's hash, each file's own
//! signature, what is missing, what nobody listed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lillux::file::ReadError;
use lillux::{Fingerprint, PublicKey};
use rye_item::text::one_line;
use rye_item::{BundleId, ExtractorSet, ItemId, ItemRef, Space};
use rye_space::bundle::Origin;
use rye_space::installed::{LOCKFILE, SIGNER_FILE};
use rye_space::manifest::{Entry, Manifest, ManifestFile, is_left_behind};
use rye_space::{AI_FOLDER, FilePath, Located, keys};
use rye_trust::{Identity, KeyRing, Verdict, verify::report};
use serde::Serialize;

use crate::object;

/// More files than this below one `.ai/` are not looked at.
const MAX_WALKED: usize = 200_000;
const MAX_WORKERS: usize = 8;
/// What may lie in a bundle's folder and is no part of it: stores of objects, which nothing reads, and lockfiles, which
/// can only forbid.
const NOT_PARTS: [&str; 3] = [".ai/objects/", ".ai/state/", ".ai/lockfiles/"];

/// How a bundle lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The folder holds this bundle and nothing else: every file must be listed.
    Standalone,
    /// Its files lie among those of a project or user space; only its own folder belongs to it alone.
    Installed,
}

/// A bundle to judge.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Where its files are.
    pub origin: &'a Origin,
    /// Its manifest.
    pub manifest: &'a ManifestFile,
    /// Whose keys vouch for it, beside those the user trusts: what it ships, or what is pinned for it.
    pub vouchers: &'a [Identity],
    /// How it lies there.
    pub scope: Scope,
}

/// By what to judge.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    /// The keys the user trusts; the bundle's own are added for the bundle alone.
    pub keys: &'a KeyRing,
    /// How items are read and signed.
    pub extractors: &'a Arc<ExtractorSet>,
    /// The largest file that is read.
    pub limit: u64,
}

/// Called with how many of how many files are done, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Whose signature the manifest carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signer {
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
pub struct Report {
    /// `verified` or `failed`.
    pub status: &'static str,
    /// Whether the manifest can be read and its signature holds.
    pub manifest_valid: bool,
    /// How many files the manifest lists.
    pub files_checked: usize,
    /// How many of them are as they should be.
    pub files_ok: usize,
    /// Listed, but not there.
    pub files_missing: Vec<FilePath>,
    /// Changed, or their own signature does not hold.
    pub files_tampered: Vec<FilePath>,
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
    pub signer: Option<Signer>,
}

impl Report {
    /// Whether every layer holds.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.status == "verified"
    }
}

/// What is wrong with one file.
enum Fault {
    Missing,
    Tampered(String),
}

/// Judges a bundle.
#[must_use]
pub fn verify(target: Target<'_>, judge: Judge<'_>, progress: Progress<'_>) -> Report {
    let id = target.manifest.id().clone();
    let mut ring = judge.keys.clone();
    ring.replace_bundle(&id, target.vouchers.iter().cloned());

    let manifest_error = manifest_error(target.manifest, &ring);
    let signer = signer(target.manifest, target.vouchers, &ring).filter(|_| manifest_error.is_none());
    let mut all = Report {
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
    };
    let Ok(manifest) = &target.manifest.parsed else {
        return all;
    };
    all.version = Some(manifest.version.to_string());
    let listed: Vec<(&FilePath, &Entry)> = manifest
        .files
        .iter()
        .filter(|(path, _)| target.scope == Scope::Standalone || !is_left_behind(path))
        .collect();
    let checker = Checker { target, ring: &ring, judge };
    let (faults, signers) = checker.check_all(&listed, progress);
    all.files_checked = listed.len();
    all.files_ok = listed.len() - faults.len();
    for (index, fault) in faults {
        let path = listed[index].0;
        match fault {
            Fault::Missing => all.files_missing.push(path.clone()),
            Fault::Tampered(reason) => {
                all.reasons.insert(path.to_string(), one_line(&reason));
                all.files_tampered.push(path.clone());
            }
        }
    }
    all.files_unlisted = unlisted(target, manifest, &signers, all.signer.as_ref());
    let is_whole = all.files_ok == all.files_checked && all.files_unlisted.is_empty();
    if all.manifest_valid && is_whole {
        all.status = "verified";
    }
    all
}

fn manifest_error(manifest: &ManifestFile, ring: &KeyRing) -> Option<String> {
    if let Err(problems) = &manifest.parsed {
        let list = problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        return Some(one_line(&list.join("; ")));
    }
    let report = report(manifest, ring);
    match report.verdict {
        Verdict::Full => None,
        verdict => Some(match report.reason {
            Some(reason) => format!("{}: {}", verdict.as_str(), one_line(&reason)),
            None => verdict.as_str().to_owned(),
        }),
    }
}

fn signer(manifest: &ManifestFile, vouchers: &[Identity], ring: &KeyRing) -> Option<Signer> {
    let line = manifest.signature()?;
    let known = ring.find(&line.fingerprint, &Space::System(manifest.id().clone()))?;
    let document = vouchers.iter().find(|identity| identity.key == known.key);
    Some(Signer {
        fingerprint: line.fingerprint,
        owner: one_line(document.map_or(known.owner.as_str(), |document| document.owner.as_str())),
        trusted: ring.is_general(&known.key),
        key: known.key.clone(),
    })
}

/// The self-signed identity documents a bundle ships.
#[must_use]
pub fn identities(origin: &Origin) -> Vec<Identity> {
    let found: Vec<Identity> = match origin {
        Origin::Embedded(embedded) => embedded
            .files
            .iter()
            .filter(|(path, _)| path.starts_with(".ai/config/keys/trusted/"))
            .filter_map(|(_, bytes)| Identity::parse(bytes).ok())
            .collect(),
        Origin::Folder(folder) => keys::identities_in(&folder.join(AI_FOLDER).join(keys::TRUSTED_FOLDER))
            .into_iter()
            .filter_map(|found| found.identity.ok())
            .collect(),
    };
    found.into_iter().filter(Identity::is_self_signed).collect()
}

/// Reads a file of a bundle. No link is followed below its `.ai/`.
///
/// # Errors
/// When it is not there, too large, or reached through a link.
pub fn read(origin: &Origin, path: &FilePath, limit: u64) -> Result<Vec<u8>, ReadError> {
    match origin {
        Origin::Embedded(embedded) => embedded
            .file(path.as_str())
            .map(<[u8]>::to_vec)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound).into()),
        Origin::Folder(folder) => {
            let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
            let (bytes, _) =
                lillux::file::read_beneath_plainly(&folder.join(AI_FOLDER), Path::new(relative), limit)?;
            Ok(bytes)
        }
    }
}

struct Checker<'a> {
    target: Target<'a>,
    ring: &'a KeyRing,
    judge: Judge<'a>,
}

/// What one worker found: faults by index, and the keys that signed items.
type Found = (Vec<(usize, Fault)>, BTreeSet<Fingerprint>);

impl Checker<'_> {
    /// Checks every file, on as many threads as there are cores.
    fn check_all(&self, listed: &[(&FilePath, &Entry)], progress: Progress<'_>) -> Found {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let mut found = Found::default();
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
        let mut found = Found::default();
        let mut add = |part: Found| {
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
    fn check(&self, path: &FilePath, entry: &Entry) -> Result<Option<Fingerprint>, Fault> {
        let bytes = read(self.target.origin, path, self.judge.limit).map_err(|error| {
            if error.is_absent() { Fault::Missing } else { Fault::Tampered(error.to_string()) }
        })?;
        object::compare(path, entry, &bytes, self.judge.extractors).map_err(Fault::Tampered)?;
        if !entry.inline_signed {
            return Ok(None);
        }
        self.check_signature(path, bytes).map(Some).map_err(Fault::Tampered)
    }

    fn check_signature(&self, path: &FilePath, bytes: Vec<u8>) -> Result<Fingerprint, String> {
        let extractors = self.judge.extractors;
        let (Some(item_type), Some(extension)) =
            (object::item_type(path, extractors), object::extension(path))
        else {
            return Err("the manifest says it is signed, but such a file cannot be".to_owned());
        };
        let (_, id) = object::name(path);
        let item = ItemRef::new(item_type, ItemId::new(id).map_err(|error| error.to_string())?);
        let located = Located::new(
            item,
            Space::System(self.target.manifest.id().clone()),
            PathBuf::from(path.as_str()),
            extension.to_owned(),
            Cow::Owned(bytes),
            Arc::clone(extractors),
        );
        let report = report(&located, self.ring);
        match (report.verdict, report.fingerprint()) {
            // What its own signature leaves uncovered, the manifest covers.
            (Verdict::Full | Verdict::Partial, Some(signer)) => Ok(signer),
            (verdict, _) => Err(match report.reason {
                Some(reason) => format!("{}: {reason}", verdict.as_str()),
                None => verdict.as_str().to_owned(),
            }),
        }
    }
}

/// The files that are there and not listed.
fn unlisted(
    target: Target<'_>,
    manifest: &Manifest,
    signers: &BTreeSet<Fingerprint>,
    signer: Option<&Signer>,
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
            || NOT_PARTS.iter().any(|folder| path.starts_with(folder))
            || path.strip_prefix(&own).is_some_and(|name| [LOCKFILE, SIGNER_FILE].contains(&name))
    };
    let is_listed = |path: &str| FilePath::new(path).is_ok_and(|path| manifest.files.contains_key(&path));
    let present = match (target.origin, target.scope) {
        (Origin::Embedded(embedded), _) => {
            embedded.files.iter().map(|(path, _)| (*path).to_owned()).collect()
        }
        (Origin::Folder(folder), Scope::Standalone) => files_below(folder, AI_FOLDER),
        (Origin::Folder(folder), Scope::Installed) => files_below(folder, own.trim_end_matches('/')),
    };
    let mut unlisted: Vec<String> =
        present.into_iter().filter(|path| !is_listed(path) && !is_expected(path)).collect();
    unlisted.sort();
    unlisted.iter().map(|path| one_line(path)).collect()
}

/// Every path below `start`, links and odd files included, folders not. Links are not entered.
fn files_below(folder: &Path, start: &str) -> Vec<String> {
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
            if files.len() + pending.len() > MAX_WALKED {
                return files;
            }
        }
    }
    files
}
