//! `load`: one item that may be trusted, or a copy of it in another space.

use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use lillux::{Digest, Fingerprint};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType, Space, metadata, parse};
use rye_space::bundle::BundleOrigin;
use rye_space::{CandidatePath, ItemFile};
use rye_trust::verify::evaluate;
use rye_trust::{SignOutcome, SignedId, Subject, TrustReport, TrustVerdict, sign};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How to load.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Only from this space.
    pub from: Option<SpaceTier>,
    /// Show it even if it is not trusted. For people at a terminal only.
    pub unverified: bool,
}

/// Who signed an item.
#[derive(Clone, Debug, Serialize)]
pub struct ItemSigner {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner.
    pub owner: Option<String>,
    /// Why the key counts.
    pub trusted_by: Option<&'static str>,
    /// When it was signed, as the signer says.
    pub signed_at: String,
}

impl ItemSigner {
    /// The signer a report names.
    #[must_use]
    pub fn from_report(report: &TrustReport) -> Option<Self> {
        let line = report.signature.as_ref()?;
        Some(Self {
            fingerprint: line.fingerprint,
            owner: report.owner.as_deref().map(rye_item::text::one_line),
            trusted_by: report.basis.map(rye_trust::TrustBasis::as_str),
            signed_at: line.timestamp.to_string(),
        })
    }
}

/// A loaded item.
#[derive(Clone, Debug, Serialize)]
pub struct LoadedItem {
    /// What a reader wants: a directive's prompt, a knowledge entry's body, a tool's source.
    pub content: String,
    /// The whole file.
    pub raw: String,
    /// Its metadata.
    pub metadata: Value,
    /// The title, for knowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it says it is.
    #[serde(skip)]
    pub description: Option<String>,
    /// A directive's inputs as it declares them, with their descriptions.
    #[serde(skip)]
    pub inputs: Vec<Value>,
    /// Where it is.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its space.
    pub space: Space,
    /// The verdict in a word.
    pub verdict: TrustVerdict,
    /// How much its signature covers.
    pub coverage: &'static str,
    /// Who signed it.
    pub signer: Option<ItemSigner>,
    /// Spaces whose file of this id it hides.
    pub shadows: Vec<Space>,
    /// What the reader should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The one item with this id, whatever its type.
///
/// # Errors
/// When no type has it, or several do.
pub fn find_by_id(engine: &Engine, id: &str, from: Option<SpaceTier>) -> Result<ItemRef> {
    // With a type in front, or something that was meant to be one.
    if id.contains(':') {
        return Ok(ItemRef::parse(None, id)?);
    }
    let id = ItemId::new(id)?;
    let spaces = &engine.workspace.spaces;
    let mut found: Vec<ItemRef> = ItemType::SEARCHABLE
        .into_iter()
        .map(|item_type| ItemRef::new(item_type, id.clone()))
        .filter(|item| {
            let mut candidates = spaces.candidate_paths(item).into_iter();
            candidates
                .any(|candidate| candidate.is_found && from.is_none_or(|tier| candidate.space.tier() == tier))
        })
        .collect();
    match found.len() {
        0 => {
            let error = Error::new(Code::NotFound, format!("item not found: {id}"));
            let hints = engine.meant_instead(&id, None);
            let error = hints.into_iter().fold(error, Error::hint);
            Err(error.hint(format!("rye search {}", id.name())))
        }
        1 => Ok(found.remove(0)),
        _ => {
            let types = found.iter().map(|item| item.item_type.as_str()).collect::<Vec<_>>().join(", ");
            let named = found.iter().map(|item| format!("{} {id}", item.item_type)).collect::<Vec<_>>();
            Err(Error::new(Code::Ambiguous, format!("`{id}` exists as: {types}"))
                .hint(format!("name the type as well: {}", named.join(", or "))))
        }
    }
}

/// Loads an item.
///
/// # Errors
/// When it is not found, or not trusted.
pub fn load(engine: &Engine, item: &ItemRef, options: LoadOptions) -> Result<LoadedItem> {
    let located = engine.locate(item, options.from)?;
    if options.unverified {
        let report = evaluate(&located, &engine.workspace.keys);
        let mut loaded = build_loaded(engine, &located, &report)?;
        if !matches!(report.verdict, TrustVerdict::Full) {
            loaded
                .warnings
                .push(format!("this item is {}: do not run what it says", report.verdict.as_str()));
        }
        return Ok(loaded);
    }
    let admitted = engine.admit_cached(located)?;
    let mut loaded = build_loaded(engine, &admitted, admitted.report())?;
    if admitted.is_forgiven() {
        loaded.warnings.push(format!("development mode: it is {}", loaded.verdict.as_str()));
    } else if !admitted.is_fully_covered() {
        let part = match item.item_type {
            ItemType::Directive => "its prompt",
            ItemType::Knowledge | ItemType::Tool | ItemType::Config => "its metadata",
        };
        loaded.warnings.push(format!(
            "the signature covers only a part: {part} could have been changed; sign it again to cover all"
        ));
    }
    Ok(loaded)
}

fn build_loaded(engine: &Engine, located: &ItemFile, report: &TrustReport) -> Result<LoadedItem> {
    let item = located.item();
    let raw = located.text().into_owned();
    let parsed = located.parsed();
    let content = match item.item_type {
        ItemType::Directive => parse::directive::prompt(&parsed.fields).to_owned(),
        ItemType::Knowledge => parsed.text("body").unwrap_or_default().to_owned(),
        ItemType::Tool | ItemType::Config => raw.clone(),
    };
    let line = |key: &str| located.fields().get(key).and_then(Value::as_str).map(rye_item::text::one_line);
    let title = (item.item_type == ItemType::Knowledge).then(|| line("title")).flatten();
    let inputs = located.fields().get("inputs").and_then(Value::as_array).cloned().unwrap_or_default();
    let candidates = engine.workspace.spaces.candidate_paths(item);
    let shadows = candidates
        .iter()
        .filter(|candidate| candidate.is_found)
        .skip_while(|candidate| candidate.space != *located.space())
        .skip(1)
        .map(|candidate| candidate.space.clone())
        .collect();
    Ok(LoadedItem {
        content,
        raw,
        metadata: metadata::display_metadata(item.item_type, located.fields()),
        title,
        description: line("description").filter(|text| !text.is_empty()),
        inputs,
        path: file_path(engine, located),
        space: located.space().clone(),
        verdict: report.verdict,
        coverage: report.coverage.as_str(),
        signer: ItemSigner::from_report(report),
        shadows,
        warnings: parsed.problems.iter().map(|problem| format!("it does not parse: {problem}")).collect(),
    })
}

/// The item's path; a tool inside the binary is materialised, so that there is one.
fn file_path(engine: &Engine, located: &ItemFile) -> PathBuf {
    let item = located.item();
    let Space::System(bundle) = located.space() else {
        return located.path.clone();
    };
    let bundle = engine.workspace.spaces.bundles().iter().find(|known| known.id == *bundle);
    match bundle.map(|bundle| &bundle.origin) {
        Some(BundleOrigin::Embedded(embedded)) if item.item_type == ItemType::Tool => {
            // Without a cache to write to, the path inside the binary still says where it is.
            let Ok(folder) = embedded.materialise(&engine.workspace.roots.cache) else {
                return located.path.clone();
            };
            let relative = format!("{}/{}{}", item.item_type.folder(), item.id, located.extension);
            folder.join(rye_space::AI_FOLDER).join(relative)
        }
        _ => located.path.clone(),
    }
}

/// A copy that was made.
#[derive(Clone, Debug, Serialize)]
pub struct CopiedItem {
    /// Where it came from.
    pub from: Space,
    /// Where it is now.
    pub to: SpaceTier,
    /// The new file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// The own key, which signed the copy.
    pub signer: Fingerprint,
}

/// Copies an item into another space and signs the copy with the own key: a bundle's key does not vouch outside it.
///
/// # Errors
/// When the item may not be trusted, the target exists, or there is no key.
pub fn copy(engine: &Engine, item: &ItemRef, from: Option<SpaceTier>, to: SpaceTier) -> Result<CopiedItem> {
    copy_approved(engine, item, from, to, None)
}

/// As [`copy`]; if `approved` is given, only bytes of that digest are copied.
///
/// # Errors
/// As [`copy`], and when the file has other bytes.
pub fn copy_approved(
    engine: &Engine,
    item: &ItemRef,
    from: Option<SpaceTier>,
    to: SpaceTier,
    approved: Option<&Digest>,
) -> Result<CopiedItem> {
    let spaces = &engine.workspace.spaces;
    let located = engine.locate(item, from)?;
    crate::verbs::sign::check_approved_bytes(&located, approved)?;
    let space = match to {
        SpaceTier::Project => Space::Project,
        SpaceTier::User => Space::User,
        SpaceTier::System => {
            return Err(Error::new(Code::SystemImmutable, "system space cannot be written").for_item(item));
        }
    };
    let Some(folder) = spaces.folder(&space) else {
        return Err(
            Error::new(Code::PathNotFound, "not inside a project").hint("run `rye init` in its folder")
        );
    };
    if *located.space() == space {
        return Err(
            Error::new(Code::InvalidArgument, format!("{item} already comes from {to} space")).for_item(item)
        );
    }
    let verified = engine.admit(located)?;
    if verified.is_forgiven() {
        return Err(Error::refused(
            &engine.workspace,
            item,
            verified.space(),
            &verified.path,
            verified.report(),
        ));
    }
    if !verified.is_fully_covered() {
        return Err(Error::new(Code::Partial, format!("{item} is only partly covered by its signature"))
            .for_item(item)
            .detail("path", verified.path.display().to_string())
            .hint("a copy would put your signature on unsigned content")
            .hint(format!(
                "read all of it (rye load {} {}), save it yourself, then sign it",
                item.item_type, item.id
            )));
    }
    let problems = verified.problems();
    if !problems.is_empty() {
        return Err(Error::invalid(item, &verified.path, &problems));
    }
    let existing: Vec<CandidatePath> = spaces
        .candidate_paths(item)
        .into_iter()
        .filter(|candidate| candidate.space == space && candidate.is_found)
        .collect();
    if let Some(candidate) = existing.first() {
        return Err(Error::new(Code::InvalidArgument, format!("{item} is already in {to} space"))
            .for_item(item)
            .detail("path", candidate.path.display().to_string())
            .hint("remove that file first if you want a fresh copy"));
    }
    let format = verified.format().ok_or_else(|| {
        Error::new(Code::Unsignable, format!("a {} file cannot carry a signature", verified.extension))
            .for_item(item)
    })?;
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (bytes, signature) = match sign(verified.bytes(), format, &key, &now) {
        SignOutcome::Written { bytes, signature } => (bytes, signature),
        SignOutcome::Unchanged(signature) => (verified.bytes().to_vec(), signature),
    };
    let relative = PathBuf::from(format!("{}/{}{}", item.item_type.folder(), item.id, verified.extension));
    let path = folder.join(&relative);
    file::create_dirs(&folder, false)?;
    file::create_folders_beneath(&folder, relative.parent().unwrap_or(Path::new("")), false)?;
    file::write_new(&path, &bytes, FileMode::Preserve)?;
    if !verified.has_name() {
        // Without its record the copy verifies all the same; only a copy of the copy would, too.
        let _ = super::sign::record_signed_ids(engine, vec![SignedId::new(item, &signature)], &key, &now);
    }
    crate::agent_actions::store_signed(engine, item, &path, &bytes, format);
    Ok(CopiedItem { from: verified.space().clone(), to, path, signer: key.public_key().fingerprint() })
}
