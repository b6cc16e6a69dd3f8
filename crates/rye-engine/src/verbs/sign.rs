//! `sign`: validate, then write one signature line, atomically. A bad file never stops the others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use lillux::file::{self, FileMode};
use lillux::{Digest, Fingerprint, SecretKey};
use rye_item::space::SpaceTier;
use rye_item::text::counted;
use rye_item::{Diagnostic, ItemId, ItemRef, ItemType, SignatureFormat, Space};
use rye_space::signed_ids::{self, SIGNED_IDS_FILE};
use rye_space::{CandidatePath, ItemFile};
use rye_trust::signature::{FileLayout, Timestamp};
use rye_trust::{SignOutcome, SignedId, Subject, sign as sign_bytes};
use serde::Serialize;
use serde_json::{Value, json};

mod checks;
pub(crate) mod consent;
mod signers;

use checks::check_item;
pub use checks::schema_violations;
pub use consent::{ItemSignState, OthersItems, SignCandidate, SignChoice, SignGate};
pub use signers::LeftItem;
use signers::{NamedSigner, named_signer};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::verify::item_at_path;

/// What was signed.
#[derive(Clone, Debug, Serialize)]
pub struct SignedItem {
    /// Its type.
    #[serde(rename = "type")]
    pub item_type: ItemType,
    /// Its id.
    pub item_id: String,
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its space.
    pub space: Space,
    /// The signed hash.
    pub hash: String,
    /// The key.
    pub fingerprint: Fingerprint,
    /// It was signed already: nothing was written.
    pub unchanged: bool,
    /// The other key whose signature line it replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Fingerprint>,
    /// What it asks for beyond the default, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<String>,
    /// What works but should be changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Diagnostic>,
    /// The user's lockfile that was brought up to date with it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rye_space::serde_path::option")]
    pub lockfile: Option<PathBuf>,
    /// The team's lockfile that still pins the version before.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rye_space::serde_path::option")]
    pub outdated_lockfile: Option<PathBuf>,
}

impl SignedItem {
    /// Brings the user's lockfile of the signed tool up to date. For the command line alone: only a person's signing
    /// is consent to what will run.
    ///
    /// # Errors
    /// When the lockfile is damaged or cannot be written; the item stays signed.
    pub fn refresh_lockfile(&mut self, engine: &Engine) -> Result<()> {
        let item = ItemRef::new(self.item_type, ItemId::new(self.item_id.as_str())?);
        let tier = Some(self.space.tier());
        let resolve = |item: &ItemRef| crate::resolve::resolve_tool_in(engine, item, tier);
        self.lockfile = crate::lockfiles::refresh_after_sign(engine, &item, &resolve)?;
        self.outdated_lockfile = crate::lockfiles::outdated_team_lockfile(engine, &item, &resolve);
        Ok(())
    }
}

/// What could not be signed.
#[derive(Clone, Debug)]
pub struct FailedSign {
    /// The item or path as named.
    pub name: String,
    /// Why.
    pub error: Error,
}

/// The answer of a sign.
#[derive(Clone, Debug, Default)]
pub struct SignResponse {
    /// What was signed.
    pub signed: Vec<SignedItem>,
    /// What was not.
    pub failed: Vec<FailedSign>,
    /// What a pattern named and other keys had signed: it stays theirs.
    pub left: Vec<LeftItem>,
    /// What a pattern named and needs a consent that was not given.
    pub held: Vec<SignCandidate>,
}

impl SignResponse {
    /// What came of it, in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let total = self.signed.len() + self.failed.len();
        let text = match (self.unchanged(), self.failed.len()) {
            (0, 0) => format!("signed {}", counted(total, "item")),
            (unchanged, 0) => format!("signed {}, {unchanged} unchanged", counted(total - unchanged, "item")),
            (_, failed) => {
                let all = total + self.held.len();
                format!("signed {} of {}, {failed} failed", total - failed, counted(all, "item"))
            }
        };
        let text = match self.held.len() {
            0 => text,
            held => format!("{text}, {held} not signed without a yes"),
        };
        match self.left.len() {
            0 => text,
            left => format!("{text}, {left} left with the signatures of others"),
        }
    }

    /// Adds what came of signing `item`; the id to record is returned.
    fn add(&mut self, item: &ItemRef, outcome: Result<(SignedItem, Option<SignedId>)>) -> Option<SignedId> {
        match outcome {
            Ok((signed, id)) => {
                self.signed.push(signed);
                id
            }
            Err(error) => {
                self.failed.push(FailedSign { name: item.to_string(), error });
                None
            }
        }
    }

    fn unchanged(&self) -> usize {
        self.signed.iter().filter(|signed| signed.unchanged).count()
    }

    /// The failure it amounts to, if anything failed.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let Some(first_code) = self.failed.first().map(|failed| failed.error.code) else {
            let refused = || {
                Error::new(Code::ConsentNeeded, self.summary())
                    .hint("read them, and sign each by its id; or all of them with the pattern and --yes")
            };
            return (!self.held.is_empty()).then(refused);
        };
        let invalid = self.failed.iter().map(|failed| failed.error.code).find(|code| *code == Code::Invalid);
        let error = Error::new(invalid.unwrap_or(first_code), self.summary());
        Some(match self.held.len() {
            0 => error.hint("all others are signed; correct these and sign again"),
            _ => error
                .hint("correct what failed, and sign it again")
                .hint("read the rest, and sign each by its id; or all of them with the pattern and --yes"),
        })
    }

    /// All of it as the `data` of an answer.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "signed": self.signed,
            "failed": self.failed.iter().map(FailedSign::to_value).collect::<Vec<_>>(),
            "total": self.signed.len() + self.failed.len(),
            "unchanged": self.unchanged(),
            "summary": self.summary(),
        });
        if !self.left.is_empty() {
            value["left"] = json!(self.left);
        }
        if !self.held.is_empty() {
            value["held"] = self.held.iter().map(SignCandidate::to_value).collect();
        }
        value
    }
}

impl FailedSign {
    fn to_value(&self) -> Value {
        let mut row = json!({
            "item": self.name,
            "error": self.error.message,
            "code": self.error.code.as_str(),
            "hints": self.error.hints,
        });
        if let Some(row) = row.as_object_mut() {
            row.extend(self.error.details.as_ref().clone());
        }
        row
    }
}

/// Called with how many of how many files are done.
pub type SignProgress<'a> = &'a mut dyn FnMut(usize, usize);

/// Signs one item by type and id; in `tier` if given, else where it is found first, project before user.
///
/// # Errors
/// When it is not found, not valid, or cannot be signed.
pub fn sign_item(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> Result<SignedItem> {
    sign_approved(engine, item, tier, None)
}

/// As [`sign_item`], if `gate` lets it. What could not be signed is in the answer.
///
/// # Errors
/// When it is not found, or there is no key.
pub fn sign_named(
    engine: &Engine,
    item: &ItemRef,
    tier: Option<SpaceTier>,
    gate: Option<&mut dyn SignGate>,
) -> Result<SignResponse> {
    let target = (item.clone(), own_path(engine, item, tier)?);
    sign_targets(engine, &[target], SignChoice { others: OthersItems::TakeOver, gate }, &mut |_, _| {})
}

/// As [`sign_item`]; if `agreed` is given, only bytes of that digest are signed.
///
/// # Errors
/// As [`sign_item`], and when the file has other bytes.
pub fn sign_approved(
    engine: &Engine,
    item: &ItemRef,
    tier: Option<SpaceTier>,
    approved: Option<&Digest>,
) -> Result<SignedItem> {
    let path = own_path(engine, item, tier)?;
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (mut signed, id) = sign_file(engine, item, &path, &key, &now, approved)?;
    signed.warnings.extend(record_signed_ids(engine, id.into_iter().collect(), &key, &now));
    Ok(signed)
}

/// The signed bytes of an item that is not written yet: checked as any item is, so that no unsigned file has to lie in a space.
///
/// # Errors
/// When it is not valid, cannot carry a signature, or there is no key.
pub fn sign_unwritten(
    engine: &Engine,
    item: &ItemRef,
    tier: SpaceTier,
    extension: &str,
    text: String,
) -> Result<Vec<u8>> {
    let ai = crate::verbs::new_item::space_folder(engine, tier)?;
    let space = if tier == SpaceTier::User { Space::User } else { Space::Project };
    let path = ai.join(format!("{}/{}{extension}", item.item_type.folder(), item.id));
    let located = ItemFile::new(
        item.clone(),
        space,
        path.clone(),
        extension.to_owned(),
        std::borrow::Cow::Owned(text.into_bytes()),
        std::sync::Arc::clone(engine.workspace.spaces.extractors()),
    );
    let format = located.format().ok_or_else(|| {
        Error::new(Code::Unsignable, format!("a {extension} file cannot carry a signature line"))
            .for_item(item)
    })?;
    let checks = check_item(engine, &located);
    if !checks.problems.is_empty() {
        return Err(checks.into_error(item, &path));
    }
    Ok(match sign_bytes(located.bytes(), format, &engine.signing_key()?, &engine.now()?) {
        SignOutcome::Unchanged(_) => located.bytes().to_vec(),
        SignOutcome::Written { bytes, .. } => bytes,
    })
}

/// The item as it would be signed: found and valid.
///
/// # Errors
/// As [`sign_item`].
pub(crate) fn locate_signable(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> Result<ItemFile> {
    let path = own_path(engine, item, tier)?;
    let located = engine.workspace.spaces.read(item, &path)?;
    let checks = check_item(engine, &located);
    if checks.problems.is_empty() { Ok(located) } else { Err(checks.into_error(item, &path.path)) }
}

/// Whether the own key has signed these very bytes.
pub(crate) fn is_signed(engine: &Engine, located: &ItemFile) -> Result<bool> {
    let Some(format) = located.format() else { return Ok(false) };
    let signed = sign_bytes(located.bytes(), format, &engine.signing_key()?, &engine.now()?);
    Ok(matches!(signed, SignOutcome::Unchanged(_)))
}

/// Where the item lies in project or user space.
fn own_path(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> Result<CandidatePath> {
    let spaces = &engine.workspace.spaces;
    let candidate = spaces.candidate_paths(item).into_iter().find(|candidate| {
        candidate.is_found
            && candidate.space.tier() != SpaceTier::System
            && tier.is_none_or(|tier| candidate.space.tier() == tier)
    });
    candidate.ok_or_else(|| {
        let is_system = tier != Some(SpaceTier::Project)
            && tier != Some(SpaceTier::User)
            && spaces.candidate_paths(item).iter().any(|candidate| candidate.is_found);
        if is_system { immutable_error(item) } else { engine.missing_item(item) }
    })
}

/// Records what was signed without a name in it. What could not be recorded is signed all the same.
pub(crate) fn record_signed_ids(
    engine: &Engine,
    signed: Vec<SignedId>,
    key: &SecretKey,
    now: &Timestamp,
) -> Option<Diagnostic> {
    if signed.is_empty() {
        return None;
    }
    let user_ai = engine.workspace.roots.user_ai();
    let failure = signed_ids::add(&user_ai, &engine.workspace.keys, signed, key, now).err()?;
    Some(Diagnostic::new(format!(
        "`{}` cannot be written ({failure}): a copy of the file under another id of its category would verify too",
        user_ai.join(SIGNED_IDS_FILE).display()
    )))
}

fn immutable_error(item: &ItemRef) -> Error {
    Error::new(Code::SystemImmutable, format!("{item} is a system item and cannot be changed"))
        .for_item(item)
        .hint(format!("copy it first: rye load {} {} --to project", item.item_type, item.id))
}

pub use rye_item::id::is_glob;

/// Signs every item of these types whose id matches. `*` does not cross `/`, `**` does; a pattern without `/` matches
/// names at any depth. What others signed is not named by a pattern, unless `others` says so: a signature says who
/// has read an item.
///
/// # Errors
/// When the pattern is wrong or nothing matches; failures of single items are in the answer.
pub fn sign_glob(
    engine: &Engine,
    item_types: &[ItemType],
    pattern: &str,
    tier: Option<SpaceTier>,
    choice: SignChoice<'_>,
    progress: SignProgress<'_>,
) -> Result<SignResponse> {
    let matcher = compile_glob(pattern)?;
    let spaces = &engine.workspace.spaces;
    let tiers: Vec<Space> = match tier {
        None => vec![Space::Project],
        Some(SpaceTier::Project) => vec![Space::Project],
        Some(SpaceTier::User) => vec![Space::User],
        Some(SpaceTier::System) => {
            return Err(Error::new(Code::SystemImmutable, "system items cannot be changed")
                .hint("copy one first: rye load TYPE ID --to project"));
        }
    };
    let mut targets: Vec<(ItemRef, CandidatePath)> = Vec::new();
    for space in tiers {
        let folder = spaces.folder(&space).unwrap_or_default();
        let walk = spaces.scan_strict(&space, item_types);
        for entry in walk.map_err(|folder| Error::unreadable_folder(&folder))?.entries {
            if !entry.item.is_key_document() && matcher.is_match(entry.item.id.as_str()) {
                let candidate = CandidatePath {
                    space: space.clone(),
                    path: folder.join(&entry.relative),
                    extension: entry.extension,
                    is_found: true,
                };
                targets.push((entry.item, candidate));
            }
        }
    }
    if targets.is_empty() {
        return Err(Error::new(
            Code::NotFound,
            format!("no {} matches `{}`", type_words(item_types), rye_item::text::one_line(pattern)),
        )
        .hint("`*` matches within one segment of an id, `**` across segments"));
    }
    targets.sort_by(|left, right| left.1.path.cmp(&right.1.path));
    sign_targets(engine, &targets, choice, progress)
}

/// The types as words: `directive, tool or knowledge`.
fn type_words(item_types: &[ItemType]) -> String {
    let words: Vec<&str> = item_types.iter().map(|item_type| item_type.as_str()).collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, first)) => format!("{} or {last}", first.join(", ")),
        None => "item".to_owned(),
    }
}

fn compile_glob(pattern: &str) -> Result<GlobMatcher> {
    let pattern = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| {
        Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string()))
            .hint("quote the pattern, such as 'team/*'")
    })
}

/// Signs files by path; each must be an item of project or user space.
///
/// # Errors
/// When there is no key; failures of single files are in the answer.
pub fn sign_paths(
    engine: &Engine,
    paths: &[PathBuf],
    gate: Option<&mut dyn SignGate>,
    progress: SignProgress<'_>,
) -> Result<SignResponse> {
    let mut targets = Vec::new();
    let mut failed = Vec::new();
    for path in paths {
        match item_at_path(engine, path) {
            Ok((item, place)) if place.space.tier() == SpaceTier::System => {
                failed.push(FailedSign { name: path.display().to_string(), error: immutable_error(&item) });
            }
            Ok(target) => targets.push(target),
            Err(error) => failed.push(FailedSign { name: path.display().to_string(), error }),
        }
    }
    let choice = SignChoice { others: OthersItems::TakeOver, gate };
    let mut response = sign_targets(engine, &targets, choice, progress)?;
    response.failed.extend(failed);
    Ok(response)
}

pub(crate) fn sign_targets(
    engine: &Engine,
    targets: &[(ItemRef, CandidatePath)],
    mut choice: SignChoice<'_>,
    progress: SignProgress<'_>,
) -> Result<SignResponse> {
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let own = key.public_key().fingerprint();
    let mut response = SignResponse::default();
    let mut ids = Vec::new();
    let mut held = Vec::new();
    for (done, (item, path)) in targets.iter().enumerate() {
        progress(done, targets.len());
        let located = match engine.workspace.spaces.read(item, path) {
            Ok(located) => located,
            Err(error) => {
                response.failed.push(FailedSign { name: item.to_string(), error: error.into() });
                continue;
            }
        };
        let other = named_signer(&located).filter(|signer| signer.fingerprint != own);
        if let (OthersItems::Leave, Some(NamedSigner { fingerprint, is_changed })) = (choice.others, other) {
            response.left.push(LeftItem { item: item.to_string(), fingerprint, is_changed });
            continue;
        }
        if let Some(gate) = choice.gate.as_deref_mut() {
            let candidate = SignCandidate::new(engine, &located);
            if !gate.admits(&candidate) && check_item(engine, &located).problems.is_empty() {
                held.push((candidate, located, path));
                continue;
            }
        }
        let outcome = sign_located(engine, &located, path, &key, &now);
        ids.extend(response.add(item, outcome));
    }
    let candidates: Vec<SignCandidate> = held.iter().map(|(candidate, ..)| candidate.clone()).collect();
    let is_agreed = match choice.gate {
        Some(gate) if !held.is_empty() => {
            progress(targets.len(), targets.len());
            gate.confirms(&candidates)
        }
        Some(_) | None => false,
    };
    if is_agreed {
        // The bytes that were looked at, or none.
        for (candidate, located, path) in &held {
            let outcome = sign_located(engine, located, path, &key, &now);
            ids.extend(response.add(&candidate.item, outcome));
        }
    } else {
        response.held = candidates;
    }
    let folders: BTreeSet<&Path> = targets.iter().filter_map(|(_, path)| path.path.parent()).collect();
    for folder in folders {
        // Of commands that were killed. What cannot be removed stays: `doctor` names it.
        let _ = file::remove_leftovers(folder, engine.unix_seconds());
    }
    let warning = record_signed_ids(engine, ids, &key, &now);
    if let Some(last) = response.signed.last_mut() {
        last.warnings.extend(warning);
    }
    progress(targets.len(), targets.len());
    Ok(response)
}

fn sign_file(
    engine: &Engine,
    item: &ItemRef,
    path: &CandidatePath,
    key: &SecretKey,
    now: &Timestamp,
    approved: Option<&Digest>,
) -> Result<(SignedItem, Option<SignedId>)> {
    let located = engine.workspace.spaces.read(item, path)?;
    check_approved_bytes(&located, approved)?;
    sign_located(engine, &located, path, key, now)
}

fn sign_located(
    engine: &Engine,
    located: &ItemFile,
    path: &CandidatePath,
    key: &SecretKey,
    now: &Timestamp,
) -> Result<(SignedItem, Option<SignedId>)> {
    let item = located.item_ref();
    let format = located.format().ok_or_else(|| {
        Error::new(Code::Unsignable, format!("a {} file cannot carry a signature line", path.extension))
            .for_item(item)
            .hint("a bundle's manifest can cover it: rye bundle create")
    })?;
    let checks = check_item(engine, located);
    if !checks.problems.is_empty() {
        return Err(checks.into_error(item, &path.path));
    }
    crate::agent_actions::store_signed(engine, item, &located.path, located.bytes(), format);
    let own = key.public_key().fingerprint();
    let replaced = named_signer(located).map(|signer| signer.fingerprint).filter(|signer| *signer != own);
    let (signature, unchanged) = match sign_bytes(located.bytes(), format, key, now) {
        SignOutcome::Unchanged(signature) => (signature, true),
        SignOutcome::Written { bytes, signature } => {
            write_signed(&path.path, located.bytes(), &bytes, format)?;
            (signature, false)
        }
    };
    let id = (!located.has_name()).then(|| SignedId::new(item, &signature));
    let signed = SignedItem {
        item_type: item.item_type,
        item_id: item.id.to_string(),
        path: path.path.clone(),
        space: path.space.clone(),
        hash: signature.hash.to_hex(),
        fingerprint: signature.fingerprint,
        unchanged,
        replaced,
        asks: consent::requests_beyond_default(item, located),
        warnings: checks.warnings,
        lockfile: None,
        outdated_lockfile: None,
    };
    Ok((signed, id))
}

/// Refuses bytes that are not those a person agreed to.
pub(crate) fn check_approved_bytes(located: &ItemFile, approved: Option<&Digest>) -> Result<()> {
    match approved {
        Some(approved) if Digest::of(located.bytes()) != *approved => {
            let message = format!("`{}` changed after the user agreed to it", located.path.display());
            Err(Error::new(Code::Declined, message).hint("ask the user again"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Writes the signed bytes, unless the file changed since it was read.
fn write_signed(path: &Path, read: &[u8], signed: &[u8], format: &SignatureFormat) -> Result<()> {
    // The file itself is replaced, not a link to it.
    let target = std::fs::canonicalize(path)?;
    let limit = u64::try_from(read.len()).unwrap_or(u64::MAX).saturating_add(4096);
    let (present, _) = file::read_bounded(&target, limit).map_err(|error| Error::read(&error))?;
    if present != read && !differs_only_in_signature(&present, read, format) {
        return Err(Error::new(Code::Io, format!("`{}` changed while it was being signed", path.display()))
            .hint("save it, then sign it again"));
    }
    Ok(file::write_atomic(&target, signed, FileMode::Preserve)?)
}

/// Whether the difference is only another process's signature line.
fn differs_only_in_signature(present: &[u8], read: &[u8], format: &SignatureFormat) -> bool {
    let parts = |bytes: &[u8]| {
        let layout = FileLayout::parse(bytes, format);
        [&bytes[layout.shebang], &bytes[layout.content]].concat()
    };
    parts(present) == parts(read)
}
