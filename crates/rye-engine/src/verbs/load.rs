//! `load`: one item that may be trusted, or a copy of it in another space.

use std::path::{Path, PathBuf};

use lillux::file::{self, Mode};
use lillux::{Digest, Fingerprint};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType, Space, metadata, parse};
use rye_space::bundle::Origin;
use rye_space::{Located, Place};
use rye_trust::verify::report;
use rye_trust::{Report, Signed, SignedId, Subject, Verdict, sign};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How to load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Only from this space.
    pub from: Option<Tier>,
    /// Show it even if nobody vouches for it. For people at a terminal only.
    pub unverified: bool,
}

/// Who signed an item.
#[derive(Clone, Debug, Serialize)]
pub struct Signer {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner.
    pub owner: Option<String>,
    /// Why the key counts.
    pub trusted_by: Option<&'static str>,
    /// When it was signed, as the signer says.
    pub signed_at: String,
}

impl Signer {
    /// The signer a report names.
    #[must_use]
    pub fn of(report: &Report) -> Option<Self> {
        let line = report.signature.as_ref()?;
        Some(Self {
            fingerprint: line.fingerprint,
            owner: report.owner.as_deref().map(rye_item::text::one_line),
            trusted_by: report.vouch.map(rye_trust::Vouch::as_str),
            signed_at: line.timestamp.to_string(),
        })
    }
}

/// A loaded item.
#[derive(Clone, Debug, Serialize)]
pub struct Loaded {
    /// What a reader wants: a directive's prompt, a knowledge entry's body, a tool's source.
    pub content: String,
    /// The whole file.
    pub raw: String,
    /// Its metadata.
    pub metadata: Value,
    /// The title, for knowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Where it is.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// Its space.
    pub space: Space,
    /// The verdict in a word.
    pub verdict: Verdict,
    /// How much its signature covers.
    pub coverage: &'static str,
    /// Who signed it.
    pub signer: Option<Signer>,
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
pub fn find_by_id(engine: &Engine, id: &str, from: Option<Tier>) -> Result<ItemRef> {
    let id = ItemId::new(id)?;
    let spaces = &engine.workspace.spaces;
    let mut found: Vec<ItemRef> = ItemType::FINDABLE
        .into_iter()
        .map(|item_type| ItemRef::new(item_type, id.clone()))
        .filter(|item| {
            let mut places = spaces.places(item).into_iter();
            places.any(|place| place.is_found && from.is_none_or(|tier| place.space.tier() == tier))
        })
        .collect();
    match found.len() {
        0 => Err(Error::new(Code::NotFound, format!("item not found: {id}"))
            .hint(format!("rye search {}", id.name()))),
        1 => Ok(found.remove(0)),
        _ => {
            let types = found.iter().map(|item| item.item_type.as_str()).collect::<Vec<_>>().join(", ");
            Err(Error::new(Code::Ambiguous, format!("`{id}` exists as: {types}"))
                .hint("name the type as well"))
        }
    }
}

/// Loads an item.
///
/// # Errors
/// When it is not found, or nobody vouches for it.
pub fn load(engine: &Engine, item: &ItemRef, options: Options) -> Result<Loaded> {
    let located = engine.workspace.spaces.locate(item, options.from)?;
    if options.unverified {
        let report = report(&located, &engine.workspace.keys);
        let mut loaded = shown(engine, &located, &report)?;
        if !matches!(report.verdict, Verdict::Full) {
            loaded
                .warnings
                .push(format!("this item is {}: do not run what it says", report.verdict.as_str()));
        }
        return Ok(loaded);
    }
    let admitted = engine.admit_kept(located)?;
    let mut loaded = shown(engine, &admitted, admitted.report())?;
    if admitted.is_forgiven() {
        loaded.warnings.push(format!("development mode forgives that it is {}", loaded.verdict.as_str()));
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

fn shown(engine: &Engine, located: &Located, report: &Report) -> Result<Loaded> {
    let item = located.item();
    let raw = located.text().into_owned();
    let parsed = located.parsed();
    let content = match item.item_type {
        ItemType::Directive => parse::directive::prompt(&parsed.fields).to_owned(),
        ItemType::Knowledge => parsed.text("body").unwrap_or_default().to_owned(),
        ItemType::Tool | ItemType::Config => raw.clone(),
    };
    let title = (item.item_type == ItemType::Knowledge)
        .then(|| located.fields().get("title").and_then(Value::as_str).map(rye_item::text::one_line))
        .flatten();
    let places = engine.workspace.spaces.places(item);
    let shadows = places
        .iter()
        .filter(|place| place.is_found)
        .skip_while(|place| place.space != *located.space())
        .skip(1)
        .map(|place| place.space.clone())
        .collect();
    Ok(Loaded {
        content,
        raw,
        metadata: metadata::shown(item.item_type, located.fields()),
        title,
        path: real_path(engine, located),
        space: located.space().clone(),
        verdict: report.verdict,
        coverage: report.coverage.as_str(),
        signer: Signer::of(report),
        shadows,
        warnings: parsed.problems.iter().map(|problem| format!("it does not parse: {problem}")).collect(),
    })
}

/// The item's path; a tool inside the binary is materialised, so that there is one.
fn real_path(engine: &Engine, located: &Located) -> PathBuf {
    let item = located.item();
    let Space::System(bundle) = located.space() else {
        return located.path.clone();
    };
    let bundle = engine.workspace.spaces.bundles().iter().find(|known| known.id == *bundle);
    match bundle.map(|bundle| &bundle.origin) {
        Some(Origin::Embedded(embedded)) if item.item_type == ItemType::Tool => {
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
pub struct Copied {
    /// Where it came from.
    pub from: Space,
    /// Where it is now.
    pub to: Tier,
    /// The new file.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// The own key, which signed the copy.
    pub signer: Fingerprint,
}

/// Copies an item into another space and signs the copy with the own key: a bundle's key does not vouch outside it.
///
/// # Errors
/// When the item may not be trusted, the target exists, or there is no key.
pub fn copy(engine: &Engine, item: &ItemRef, from: Option<Tier>, to: Tier) -> Result<Copied> {
    copy_agreed(engine, item, from, to, None)
}

/// As [`copy`]; if `agreed` is given, only bytes of that digest are copied.
///
/// # Errors
/// As [`copy`], and when the file has other bytes.
pub fn copy_agreed(
    engine: &Engine,
    item: &ItemRef,
    from: Option<Tier>,
    to: Tier,
    agreed: Option<&Digest>,
) -> Result<Copied> {
    let spaces = &engine.workspace.spaces;
    let located = spaces.locate(item, from)?;
    crate::verbs::sign::refuse_other_bytes(&located, agreed)?;
    let space = match to {
        Tier::Project => Space::Project,
        Tier::User => Space::User,
        Tier::System => {
            return Err(Error::new(Code::SystemImmutable, "system space cannot be written").of(item));
        }
    };
    let Some(folder) = spaces.folder(&space) else {
        return Err(
            Error::new(Code::PathNotFound, "there is no project here").hint("run `rye init` in its folder")
        );
    };
    if *located.space() == space {
        return Err(
            Error::new(Code::InvalidArgument, format!("{item} already comes from {to} space")).of(item)
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
            .of(item)
            .detail("path", verified.path.display().to_string())
            .hint("a copy would be signed by you, and with it what nobody vouches for")
            .hint(format!(
                "read all of it (rye load {} {}), save it yourself, then sign it",
                item.item_type, item.id
            )));
    }
    let problems = verified.problems();
    if !problems.is_empty() {
        return Err(Error::invalid(item, &verified.path, &problems));
    }
    let taken: Vec<Place> =
        spaces.places(item).into_iter().filter(|place| place.space == space && place.is_found).collect();
    if let Some(place) = taken.first() {
        return Err(Error::new(Code::InvalidArgument, format!("{item} is already in {to} space"))
            .of(item)
            .detail("path", place.path.display().to_string())
            .hint("remove that file first if you want a fresh copy"));
    }
    let format = verified.format().ok_or_else(|| {
        Error::new(Code::Unsignable, format!("a {} file cannot carry a signature", verified.extension))
            .of(item)
    })?;
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (bytes, signature) = match sign(verified.bytes(), format, &key, &now) {
        Signed::Written { bytes, signature } => (bytes, signature),
        Signed::Unchanged(signature) => (verified.bytes().to_vec(), signature),
    };
    let relative = PathBuf::from(format!("{}/{}{}", item.item_type.folder(), item.id, verified.extension));
    let path = folder.join(&relative);
    file::create_folders(&folder, false)?;
    file::create_folders_beneath(&folder, relative.parent().unwrap_or(Path::new("")), false)?;
    file::write_new(&path, &bytes, Mode::Kept)?;
    if !verified.has_name() {
        // Without its record the copy verifies all the same; only a copy of the copy would, too.
        let _ = super::sign::record(engine, vec![SignedId::new(item, &signature)], &key, &now);
    }
    crate::primaries::keep_signed(engine, &bytes, format);
    Ok(Copied { from: verified.space().clone(), to, path, signer: key.public().fingerprint() })
}
