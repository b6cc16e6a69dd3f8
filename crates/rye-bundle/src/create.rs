//! Making a bundle: the items of some categories with what lies beside them, each vouched for, in a folder of their own
//! with a signed manifest.
//!
//! Nothing here writes outside the folder it is given, which the caller keeps out of sight until it is whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::{self, FileMode};
use lillux::{Digest, Fingerprint, SecretKey};
use rye_item::text::one_line;
use rye_item::{BundleId, ExtractorSet, ItemId, ItemRef, ItemType, Space};
use rye_space::manifest::{Entrypoint, MAX_MANIFEST_FILES, Manifest};
use rye_space::{AI_FOLDER, BundlePath, ItemFile};
use rye_trust::signature::Timestamp;
use rye_trust::{KeyRing, SignOutcome, Subject, TrustBasis, TrustVerdict, sign, verify::evaluate};
use semver::Version;
use serde::Serialize;

use crate::install::allowed_paths;
use crate::object;

const MAX_DEPTH: usize = 64;
/// Folders that are recreated when needed.
const GENERATED_FOLDERS: [&str; 3] = ["__pycache__", "node_modules", "venv"];
/// Ends of names that are left out: compiled files, editors' copies, keys and secrets.
const EXCLUDED_SUFFIXES: [&str; 11] =
    [".pyc", ".pyo", "~", ".swp", ".orig", ".rej", ".pem", ".key", ".p12", ".secret", ".secrets"];
const EXCLUDED_NAMES: [&str; 6] =
    ["Thumbs.db", "desktop.ini", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json"];

/// What the bundle is to be.
#[derive(Clone, Debug)]
pub struct BundleSpec {
    /// Its id.
    pub id: BundleId,
    /// Its version.
    pub version: Version,
    /// What it is for.
    pub description: String,
    /// What `rye bundle run` executes.
    pub entrypoint: Option<Entrypoint>,
    /// The id prefixes whose items it holds.
    pub categories: Vec<ItemId>,
}

/// Where its files come from, and by what they are judged.
#[derive(Clone, Copy, Debug)]
pub struct BundleSource<'a> {
    /// The `.ai` folder.
    pub ai: &'a Path,
    /// The space that is.
    pub space: &'a Space,
    /// The keys that count.
    pub keys: &'a KeyRing,
    /// How items are read and signed.
    pub extractors: &'a Arc<ExtractorSet>,
    /// The largest file that is read.
    pub limit: u64,
}

/// A file that cannot be part of a bundle as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InvalidContent {
    /// The file, from `.ai/` on.
    pub path: String,
    /// Why.
    pub reason: String,
    /// Whether signing it would be enough.
    #[serde(skip)]
    pub is_unsigned: bool,
}

/// A file that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExcludedFile {
    /// The file or folder, from `.ai/` on.
    pub path: String,
    /// Why.
    pub reason: &'static str,
}

/// What was collected.
#[derive(Clone, Debug, Default)]
pub struct CollectedContents {
    /// The files with their bytes.
    pub files: BTreeMap<BundlePath, Vec<u8>>,
    /// The keys that signed items among them.
    pub signers: BTreeSet<Fingerprint>,
    /// What was left out.
    pub excluded: Vec<ExcludedFile>,
    /// What cannot be part of it.
    pub invalid: Vec<InvalidContent>,
}

impl CollectedContents {
    fn add_invalid(&mut self, path: &str, reason: impl Into<String>) {
        self.invalid.push(InvalidContent {
            path: one_line(path),
            reason: one_line(&reason.into()),
            is_unsigned: false,
        });
    }
}

/// Collects the files of the recipe's categories. What cannot be part of a bundle is all named in the answer.
#[must_use]
pub fn collect(source: BundleSource<'_>, spec: &BundleSpec) -> CollectedContents {
    let mut collected = CollectedContents::default();
    let categories: Vec<String> = spec.categories.iter().map(ToString::to_string).collect();
    for item_type in ItemType::ALL {
        for category in &spec.categories {
            collect_category(source, item_type, category, &categories, &mut collected);
        }
    }
    collected
}

fn collect_category(
    source: BundleSource<'_>,
    item_type: ItemType,
    category: &ItemId,
    categories: &[String],
    collected: &mut CollectedContents,
) {
    let start = format!("{AI_FOLDER}/{}", item_type.folder());
    // `team` is the folder `team/`, and an item that is called `team` itself.
    let parent_folder = match category.category() {
        "" => start.clone(),
        parent => format!("{start}/{parent}"),
    };
    for (name, kind) in sorted_entries(source, &parent_folder) {
        let path = format!("{parent_folder}/{name}");
        let is_named = name == category.name();
        let is_item =
            rye_space::scan::split_extension(&name).is_some_and(|(stem, _)| stem == category.name());
        if kind == EntryKind::Folder && is_named {
            collect_folder(source, &path, 0, categories, collected);
        } else if kind != EntryKind::Folder && (is_item || is_named) {
            collect_file(source, &path, kind, categories, collected);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EntryKind {
    File,
    Folder,
    Other,
}

/// The names in a folder, sorted.
fn sorted_entries(source: BundleSource<'_>, folder: &str) -> Vec<(String, EntryKind)> {
    let relative = folder.strip_prefix(AI_FOLDER).unwrap_or(folder).trim_start_matches('/');
    let Ok(found) = fs_err::read_dir(source.ai.join(relative)) else {
        return Vec::new();
    };
    let mut names: Vec<(String, EntryKind)> = found
        .flatten()
        .map(|entry| {
            let kind = match entry.file_type() {
                Ok(kind) if kind.is_file() => EntryKind::File,
                Ok(kind) if kind.is_dir() => EntryKind::Folder,
                Ok(_) | Err(_) => EntryKind::Other,
            };
            (entry.file_name().to_string_lossy().into_owned(), kind)
        })
        .collect();
    names.sort();
    names
}

fn collect_folder(
    source: BundleSource<'_>,
    folder: &str,
    depth: usize,
    categories: &[String],
    collected: &mut CollectedContents,
) {
    if depth > MAX_DEPTH {
        collected.add_invalid(folder, "folders are nested too deep");
        return;
    }
    for (name, kind) in sorted_entries(source, folder) {
        let path = format!("{folder}/{name}");
        if let Some(reason) = exclusion_reason(&name, kind) {
            collected.excluded.push(ExcludedFile { path: one_line(&path), reason });
        } else if kind == EntryKind::Folder {
            collect_folder(source, &path, depth + 1, categories, collected);
        } else {
            collect_file(source, &path, kind, categories, collected);
        }
    }
}

fn exclusion_reason(name: &str, kind: EntryKind) -> Option<&'static str> {
    if name.starts_with('.') {
        return Some("hidden files stay at home");
    }
    match kind {
        EntryKind::Folder => GENERATED_FOLDERS.contains(&name).then_some("it is generated"),
        EntryKind::File | EntryKind::Other => {
            let is_excluded = EXCLUDED_NAMES.contains(&name)
                || EXCLUDED_SUFFIXES.iter().any(|ending| name.to_lowercase().ends_with(ending));
            is_excluded.then_some("keys, secrets, compiled files and copies stay at home")
        }
    }
}

fn collect_file(
    source: BundleSource<'_>,
    path: &str,
    kind: EntryKind,
    categories: &[String],
    collected: &mut CollectedContents,
) {
    if kind != EntryKind::File {
        return collected.add_invalid(path, "it is a link or no regular file: put the file itself there");
    }
    let path = match BundlePath::new(path) {
        Ok(path) => path,
        Err(error) => return collected.add_invalid(path, error.reason),
    };
    // What installing would refuse is not packed.
    if let Some(reason) = allowed_paths::refusal_reason(&path, categories) {
        return collected.excluded.push(ExcludedFile { path: path.to_string(), reason });
    }
    if collected.files.len() >= MAX_MANIFEST_FILES {
        return collected
            .add_invalid(path.as_str(), format!("a bundle has at most {MAX_MANIFEST_FILES} files"));
    }
    let relative = path.as_str().strip_prefix(".ai/").unwrap_or(path.as_str());
    let bytes = match file::read_beneath_no_symlinks(source.ai, Path::new(relative), source.limit) {
        Ok((bytes, _)) => bytes,
        Err(error) => return collected.add_invalid(path.as_str(), error.to_string()),
    };
    if contains_private_key(&bytes) {
        return collected.add_invalid(path.as_str(), "it holds a private key");
    }
    match verify_signer(source, &path, &bytes) {
        Ok(signer) => {
            collected.signers.extend(signer);
            collected.files.insert(path, bytes);
        }
        Err(invalid) => collected.invalid.push(invalid),
    }
}

/// PEM blocks of private keys, whatever kind.
fn contains_private_key(bytes: &[u8]) -> bool {
    const MARK: &[u8] = b"PRIVATE KEY-----";
    let mut windows = bytes.windows(MARK.len());
    windows.any(|window| window == MARK) && bytes.windows(11).any(|window| window == b"-----BEGIN ")
}

/// The key that vouches for a file that can be signed; none for one that cannot, which the manifest will cover.
fn verify_signer(
    source: BundleSource<'_>,
    path: &BundlePath,
    bytes: &[u8],
) -> Result<Option<Fingerprint>, InvalidContent> {
    let invalid = |reason: String, is_unsigned: bool| InvalidContent {
        path: path.to_string(),
        reason: one_line(&reason),
        is_unsigned,
    };
    let (Some(item_type), Some(extension)) =
        (object::item_type(path, source.extractors), object::extension(path))
    else {
        return Ok(None);
    };
    let (_, id) = object::object_name(path);
    let id = ItemId::new(id).map_err(|error| invalid(error.to_string(), false))?;
    let located = ItemFile::new(
        ItemRef::new(item_type, id),
        source.space.clone(),
        PathBuf::from(path.as_str()),
        extension.to_owned(),
        Cow::Owned(bytes.to_vec()),
        Arc::clone(source.extractors),
    );
    if located.format().is_none() {
        return Ok(None);
    }
    let report = evaluate(&located, source.keys);
    match (report.verdict, report.basis) {
        (TrustVerdict::Full, Some(TrustBasis::Bundle)) => {
            Err(invalid("it belongs to another bundle: sign it yourself to make it yours".to_owned(), false))
        }
        (TrustVerdict::Full, _) => Ok(report.fingerprint()),
        (TrustVerdict::Partial, _) => {
            Err(invalid("its signature covers only a part of it".to_owned(), false))
        }
        (verdict, _) => {
            let reason = report.reason.unwrap_or_default();
            Err(invalid(format!("{}: {reason}", verdict.as_str()), verdict == TrustVerdict::Unsigned))
        }
    }
}

/// The item an entrypoint names among these files: the type it states, else the only type that has the id.
///
/// # Errors
/// In words, when there is none or several.
pub fn resolve_entrypoint<'a>(
    wanted: &Entrypoint,
    files: impl IntoIterator<Item = &'a BundlePath>,
    extractors: &ExtractorSet,
) -> Result<ItemRef, String> {
    let mut types: Vec<ItemType> = files
        .into_iter()
        .filter(|path| object::object_name(path).1 == wanted.id.as_str())
        .filter_map(|path| object::item_type(path, extractors))
        .filter(|item_type| *item_type != ItemType::Config)
        .filter(|item_type| wanted.item_type.is_none_or(|stated| stated == *item_type))
        .collect();
    types.sort();
    types.dedup();
    match types.as_slice() {
        [item_type] => Ok(ItemRef::new(*item_type, wanted.id.clone())),
        [] => Err(format!("the entrypoint `{wanted}` is not an item of the bundle")),
        several => {
            let list =
                several.iter().map(|item_type| format!("{item_type}:{}", wanted.id)).collect::<Vec<_>>();
            Err(format!("the entrypoint `{wanted}` may be {}", list.join(" or ")))
        }
    }
}

/// A bundle that is whole, in a folder.
#[derive(Clone, Debug)]
pub struct StagedBundle {
    /// Every file of the folder, the manifest and identity documents included: what an archive holds.
    pub files: Vec<BundlePath>,
    /// The manifest.
    pub manifest: Manifest,
    /// The digest of the manifest's bytes.
    pub manifest_hash: Digest,
}

/// Writes the bundle into `folder`: files, the signers' identity documents, the signed manifest.
///
/// # Errors
/// When something cannot be written.
pub fn stage(
    folder: &Path,
    spec: &BundleSpec,
    collected: &CollectedContents,
    documents: &[(Fingerprint, Vec<u8>)],
    extractors: &ExtractorSet,
    key: &SecretKey,
    now: &Timestamp,
) -> std::io::Result<StagedBundle> {
    let manifest = Manifest {
        id: spec.id.clone(),
        version: spec.version.clone(),
        entrypoint: spec.entrypoint.clone(),
        description: spec.description.clone(),
        created_at: Some(now.clone()),
        categories: spec.categories.iter().map(ToString::to_string).collect(),
        bundle_type: None,
        files: collected
            .files
            .iter()
            .map(|(path, bytes)| (path.clone(), object::manifest_entry(path, bytes, extractors)))
            .collect(),
    };
    let text = manifest.to_yaml().into_bytes();
    let signed = match sign(&text, &rye_trust::identity::signature_format(), key, now) {
        SignOutcome::Written { bytes, .. } => bytes,
        SignOutcome::Unchanged(_) => text,
    };
    let manifest_hash = Digest::of(&signed);
    let checked =
        |path: String| BundlePath::new(path).map_err(|error| std::io::Error::other(error.to_string()));
    let mut all: Vec<(BundlePath, &[u8])> =
        collected.files.iter().map(|(path, bytes)| (path.clone(), bytes.as_slice())).collect();
    for (fingerprint, document) in documents {
        all.push((checked(format!(".ai/config/keys/trusted/{fingerprint}.toml"))?, document));
    }
    all.push((checked(Manifest::path_for(&spec.id))?, &signed));
    for (path, bytes) in &all {
        let target = folder.join(path.as_path());
        if let Some(parent) = target.parent() {
            file::create_dirs(parent, false)?;
        }
        file::write_atomic(&target, bytes, FileMode::Preserve)?;
    }
    let mut files: Vec<BundlePath> = all.into_iter().map(|(path, _)| path).collect();
    files.sort();
    Ok(StagedBundle { files, manifest, manifest_hash })
}
