//! `verify`: the verdict on items, one by one, by path, or on everything below a folder as if it were a bundle.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::Fingerprint;
use rye_item::{BundleId, Diagnostic, ItemId, ItemRef, ItemType, Space, metadata};
use rye_space::scan::{InvalidItemFile, split_extension};
use rye_space::{AI_FOLDER, CandidatePath, ItemFile, LocateError, ManifestFile, Roots, Spaces, keys, roots};
use rye_trust::verify::evaluate;
use rye_trust::{Identity, Subject, TrustReport, TrustVerdict};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::bundles::SignerTrust;

/// The verdict on one file.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyRow {
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its type; `bundle` for a manifest.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its id.
    pub item_id: String,
    /// Its space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub space: Option<Space>,
    /// The verdict.
    pub verdict: TrustVerdict,
    /// How much the signature covers.
    pub coverage: &'static str,
    /// The key the signature names.
    pub fingerprint: Option<Fingerprint>,
    /// The key's owner, if it counts.
    pub owner: Option<String>,
    /// Why the verdict is not good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Byte ranges that the signature does not cover.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uncovered: Vec<ByteSpan>,
    /// What is wrong with its text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Diagnostic>,
    /// Its metadata, when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// A byte range.
#[derive(Clone, Debug, Serialize)]
pub struct ByteSpan {
    /// First byte.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

impl From<Range<usize>> for ByteSpan {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

/// A key that a verified folder ships.
#[derive(Clone, Debug, Serialize)]
pub struct FolderSignerRow {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner, as the document says.
    pub owner: String,
    /// Whether the user trusts it, everywhere or for this bundle.
    pub approved: bool,
    /// For what it is trusted.
    pub trust: SignerTrust,
}

/// The answer of a verify.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// How many files were looked at.
    pub checked: usize,
    /// Signed whole by a key that counts.
    pub full: usize,
    /// Signed in part.
    pub partial: usize,
    /// Not signed.
    pub unsigned: usize,
    /// Changed since signing.
    pub tampered: usize,
    /// Signed for another place.
    pub misplaced: usize,
    /// Signed by a key that is not trusted.
    pub untrusted: usize,
    /// Signed by a revoked key.
    pub revoked: usize,
    /// Files that cannot carry a signature line; a bundle's manifest covers them, and they are not counted above.
    pub assets: usize,
    /// Files whose text has problems, whatever their verdict.
    pub invalid: usize,
    /// Files that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableFile>,
    /// The keys a verified folder ships.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signers: Option<Vec<FolderSignerRow>>,
    /// Each file.
    pub items: Vec<VerifyRow>,
}

/// A file that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableFile {
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// The error's code.
    pub code: &'static str,
    /// Why.
    pub reason: String,
}

impl VerifyReport {
    fn add_row(&mut self, row: VerifyRow) {
        self.checked += 1;
        *match row.verdict {
            TrustVerdict::Full => &mut self.full,
            TrustVerdict::Partial => &mut self.partial,
            TrustVerdict::Unsigned => &mut self.unsigned,
            TrustVerdict::Tampered => &mut self.tampered,
            TrustVerdict::Misplaced => &mut self.misplaced,
            TrustVerdict::Untrusted => &mut self.untrusted,
            TrustVerdict::Revoked => &mut self.revoked,
        } += 1;
        self.invalid += usize::from(!row.problems.is_empty());
        self.items.push(row);
    }

    fn add_error(&mut self, path: PathBuf, error: &Error) {
        self.checked += 1;
        self.unreadable.push(UnreadableFile {
            path,
            code: error.code.as_str(),
            reason: error.message.clone(),
        });
    }

    fn add_invalid_files(&mut self, files: Vec<InvalidItemFile>) {
        for invalid in files {
            let code = if invalid.path.is_symlink() { Code::LinkEscapes } else { Code::NotAnItem };
            self.add_error(invalid.path, &Error::new(code, invalid.reason));
        }
    }

    fn add_unreadable(&mut self, folders: &[InvalidItemFile]) {
        for folder in folders {
            self.add_error(folder.path.clone(), &Error::unreadable_folder(folder));
        }
    }

    /// The code of the worst verdict, if not every file is signed whole by a trusted key.
    #[must_use]
    pub fn most_severe_code(&self) -> Code {
        let counts = [
            (self.tampered, Code::Tampered),
            (self.revoked, Code::Revoked),
            (self.untrusted, Code::Untrusted),
            (self.misplaced, Code::Misplaced),
            (self.unsigned, Code::Unsigned),
            (self.partial, Code::Partial),
        ];
        // An item that cannot be read is not verified.
        counts.into_iter().find(|(count, _)| *count > 0).map_or(Code::Unsigned, |(_, code)| code)
    }

    /// Whether every file is signed whole by a key that counts.
    #[must_use]
    pub fn is_fully_verified(&self) -> bool {
        self.full == self.checked
    }
}

/// Called with how many of how many files are done.
pub type VerifyProgress<'a> = &'a mut dyn FnMut(usize, usize);

/// How to verify.
#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions {
    /// Add each item's metadata.
    pub metadata: bool,
}

fn verify_row(located: &ItemFile, report: TrustReport, options: VerifyOptions) -> VerifyRow {
    let item = located.item();
    VerifyRow {
        path: located.path.clone(),
        kind: item.item_type.to_string(),
        item_id: item.id.to_string(),
        space: Some(located.space().clone()),
        verdict: report.verdict,
        coverage: report.coverage.as_str(),
        fingerprint: report.fingerprint(),
        owner: report.owner.as_deref().map(rye_item::text::one_line),
        reason: report.reason,
        uncovered: report.uncovered.into_iter().map(ByteSpan::from).collect(),
        problems: located.parsed().problems.clone(),
        metadata: options.metadata.then(|| metadata::display_metadata(item.item_type, located.fields())),
    }
}

/// Verifies the winning file of an item.
///
/// # Errors
/// When it is not found or cannot be read.
pub fn verify_item(engine: &Engine, item: &ItemRef, options: VerifyOptions) -> Result<VerifyReport> {
    let located = engine.locate(item, None)?;
    let report = evaluate(&located, &engine.workspace.keys);
    let mut verify_report = VerifyReport::default();
    verify_report.add_row(verify_row(&located, report, options));
    Ok(verify_report)
}

/// Verifies every item of project and user space.
#[must_use]
pub fn verify_all(engine: &Engine, options: VerifyOptions, progress: VerifyProgress<'_>) -> VerifyReport {
    verify_spaces(engine, &[Space::Project, Space::User], options, progress)
}

/// Verifies every item of one space, project or user.
#[must_use]
pub fn verify_space(
    engine: &Engine,
    space: &Space,
    options: VerifyOptions,
    progress: VerifyProgress<'_>,
) -> VerifyReport {
    verify_spaces(engine, std::slice::from_ref(space), options, progress)
}

fn verify_spaces(
    engine: &Engine,
    selected: &[Space],
    options: VerifyOptions,
    progress: VerifyProgress<'_>,
) -> VerifyReport {
    let spaces = &engine.workspace.spaces;
    let (mut invalid_files, mut unreadable) = (Vec::new(), Vec::new());
    let mut targets = Vec::new();
    for space in selected {
        let Some(folder) = spaces.folder(space) else {
            continue;
        };
        let walk = spaces.scan(space, &ItemType::ALL);
        invalid_files.extend(walk.invalid_files);
        unreadable.extend(walk.unreadable);
        for entry in walk.entries {
            // Identity documents are not items: `rye keys list` judges them.
            if entry.item.is_key_document() {
                continue;
            }
            let path = folder.join(&entry.relative);
            targets.push((
                entry.item,
                CandidatePath { space: space.clone(), path, extension: entry.extension, is_found: true },
            ));
        }
    }
    let mut verify_report = verify_targets(engine, &targets, options, progress);
    verify_report.add_invalid_files(invalid_files);
    verify_report.add_unreadable(&unreadable);
    verify_report
}

/// Verifies files by path.
///
/// # Errors
/// When a path is not an item.
pub fn verify_paths(
    engine: &Engine,
    paths: &[PathBuf],
    options: VerifyOptions,
    progress: VerifyProgress<'_>,
) -> Result<VerifyReport> {
    let targets = paths.iter().map(|path| item_at_path(engine, path)).collect::<Result<Vec<_>>>()?;
    Ok(verify_targets(engine, &targets, options, progress))
}

fn verify_targets(
    engine: &Engine,
    targets: &[(ItemRef, CandidatePath)],
    options: VerifyOptions,
    progress: VerifyProgress<'_>,
) -> VerifyReport {
    let mut verify_report = VerifyReport::default();
    for (done, (item, path)) in targets.iter().enumerate() {
        if done % 16 == 0 {
            progress(done, targets.len());
        }
        match engine.workspace.spaces.read(item, path) {
            Ok(located) if located.format().is_none() => verify_report.assets += 1,
            Ok(located) => {
                let report = evaluate(&located, &engine.workspace.keys);
                verify_report.add_row(verify_row(&located, report, options));
            }
            Err(error) => verify_report.add_error(path.path.clone(), &Error::from(error)),
        }
    }
    progress(targets.len(), targets.len());
    verify_report
}

/// The item and place of a file, which must lie in a space of this workspace.
///
/// # Errors
/// When the file does not exist or is not an item.
pub fn item_at_path(engine: &Engine, path: &Path) -> Result<(ItemRef, CandidatePath)> {
    let path_text = path.display().to_string();
    if std::fs::symlink_metadata(path).is_err() {
        return Err(
            Error::new(Code::PathNotFound, format!("`{path_text}` does not exist")).detail("path", path_text)
        );
    }
    let not_an_item = |why: &str| {
        Error::new(Code::NotAnItem, format!("`{path_text}` is not an item: {why}"))
            .detail("path", path_text.clone())
            .hint("items are below `.ai/directives`, `.ai/tools`, `.ai/knowledge` or `.ai/config`")
    };
    // Resolve the folder, not the file: a link is judged where it stands.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| not_an_item("it has no name"))?;
    let real = roots::canonicalize_existing(parent).join(name);
    let spaces = &engine.workspace.spaces;
    for space in spaces.order() {
        let Some(folder) = spaces.folder(&space) else {
            continue;
        };
        let Ok(relative) = real.strip_prefix(roots::canonicalize_existing(&folder)) else {
            continue;
        };
        let relative = relative.to_str().ok_or_else(|| not_an_item("its path is not UTF-8"))?;
        let (item, extension) = parse_item_path(relative, spaces).map_err(|why| not_an_item(&why))?;
        let path = folder.join(relative);
        return Ok((item, CandidatePath { space, path, extension, is_found: true }));
    }
    Err(not_an_item("it is outside the project and user space"))
}

fn parse_item_path(relative: &str, spaces: &Spaces) -> std::result::Result<(ItemRef, String), String> {
    let (folder, rest) = relative.split_once('/').ok_or("it is not in the folder of an item type")?;
    let item_type = ItemType::from_folder(folder).ok_or("it is not in the folder of an item type")?;
    let (stem, extension) = split_extension(rest).ok_or("it has no extension")?;
    if !spaces.extractors().for_type(item_type).extensions.iter().any(|known| known == extension) {
        return Err(format!("a {item_type} has no extension `{extension}`"));
    }
    let id = ItemId::new(stem).map_err(|error| error.to_string())?;
    Ok((ItemRef::new(item_type, id), extension.to_owned()))
}

/// Verifies everything below `folder`'s `.ai/` as a bundle: its own identity documents vouch for its items.
///
/// # Errors
/// When there is no `.ai/` folder.
pub fn verify_root(
    engine: &Engine,
    folder: &Path,
    options: VerifyOptions,
    progress: VerifyProgress<'_>,
) -> Result<VerifyReport> {
    let ai = folder.join(AI_FOLDER);
    if !ai.is_dir() {
        return Err(Error::new(Code::PathNotFound, format!("`{}` holds no `.ai` folder", folder.display()))
            .hint("name the folder that contains `.ai`"));
    }
    let bundle = BundleId::new("root")?;
    let space = Space::System(bundle.clone());
    let identities: Vec<Identity> = keys::identities_in(&ai.join(keys::TRUSTED_FOLDER))
        .into_iter()
        .filter_map(|found| found.identity.ok())
        .filter(Identity::is_self_signed)
        .collect();
    let mut ring = engine.workspace.keys.clone();
    ring.replace_bundle(&bundle, identities.iter().cloned());
    let known = rye_space::bundle::Bundle {
        id: bundle,
        version: String::new(),
        categories: Vec::new(),
        origin: rye_space::bundle::BundleOrigin::Folder(folder.to_owned()),
        trust: rye_space::bundle::BundleTrust::NotApproved,
        signers: identities.clone(),
        package: None,
        manifest: None,
        listed_files: None,
    };
    let roots = Roots { project: None, ..engine.workspace.roots.clone() };
    let limit = engine.workspace.max_item_bytes();
    let spaces = Spaces::new(&roots, vec![known], Arc::clone(engine.workspace.spaces.extractors()), limit);

    let walk = spaces.scan(&space, &ItemType::ALL);
    let manifests = rye_space::manifest::manifest_ids(&ai);
    let total = walk.entries.len() + manifests.len();
    let mut verify_report = VerifyReport::default();
    for (done, entry) in walk.entries.iter().enumerate() {
        if done % 16 == 0 {
            progress(done, total);
        }
        let path = ai.join(&entry.relative);
        let candidate = CandidatePath {
            space: space.clone(),
            path: path.clone(),
            extension: entry.extension.clone(),
            is_found: true,
        };
        match spaces.read(&entry.item, &candidate) {
            Ok(located) if located.format().is_none() => verify_report.assets += 1,
            Ok(located) => {
                let report = evaluate(&located, &ring);
                verify_report.add_row(VerifyRow { space: None, ..verify_row(&located, report, options) });
            }
            Err(LocateError::NotFound(_)) => {}
            Err(error) => verify_report.add_error(path, &Error::from(error)),
        }
    }
    verify_report.add_invalid_files(walk.invalid_files);
    verify_report.add_unreadable(&walk.unreadable);
    for id in manifests {
        match ManifestFile::read(&ai, &id).map(|manifest| manifest.with_space(space.clone())) {
            Ok(manifest) => verify_report.add_row(manifest_row(&ai, &manifest, &evaluate(&manifest, &ring))),
            Err(error) => {
                verify_report.add_error(ai.join(format!("bundles/{id}/manifest.yaml")), &Error::read(&error));
            }
        }
    }
    progress(total, total);
    verify_report.items.sort_by(|left, right| left.path.cmp(&right.path));
    let real = roots::canonicalize_existing(folder);
    let bundles = engine.workspace.spaces.bundles().iter();
    let same_folder = bundles.filter(
        |known| matches!(&known.origin, rye_space::bundle::BundleOrigin::Folder(path) if roots::canonicalize_existing(path) == real),
    );
    let ids: Vec<&BundleId> = same_folder.map(|known| &known.id).collect();
    let pins: Vec<_> =
        engine.workspace.approvals.pins.iter().filter(|pin| ids.contains(&&pin.bundle)).collect();
    verify_report.signers = Some(
        identities
            .iter()
            .map(|identity| {
                let trust = if engine.workspace.keys.is_trusted_everywhere(&identity.key) {
                    SignerTrust::Everywhere
                } else if pins.iter().any(|pin| pin.key == identity.key) {
                    SignerTrust::BundleOnly
                } else {
                    SignerTrust::None
                };
                FolderSignerRow {
                    fingerprint: identity.fingerprint,
                    owner: rye_item::text::one_line(&identity.owner),
                    approved: trust != SignerTrust::None,
                    trust,
                }
            })
            .collect(),
    );
    Ok(verify_report)
}

fn manifest_row(ai: &Path, manifest: &ManifestFile, report: &TrustReport) -> VerifyRow {
    VerifyRow {
        path: ai.join(format!("bundles/{}/manifest.yaml", manifest.id())),
        kind: "bundle".to_owned(),
        item_id: manifest.id().to_string(),
        space: None,
        verdict: report.verdict,
        coverage: report.coverage.as_str(),
        fingerprint: report.fingerprint(),
        owner: report.owner.as_deref().map(rye_item::text::one_line),
        reason: report.reason.clone(),
        uncovered: report.uncovered.iter().cloned().map(ByteSpan::from).collect(),
        problems: manifest.parsed.as_ref().err().cloned().unwrap_or_default(),
        metadata: None,
    }
}
