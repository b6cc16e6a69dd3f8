//! `join`: shows who signed what in a project that others made, and trusts them there after one yes.
//!
//! It is the sum of what exists on its own: `keys trust --space project` for each signer, `bundle trust` for each bundle
//! in the project, and `trust` for the folder.

mod effects;
mod identities;
mod requirements;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use lillux::{Fingerprint, PublicKey};
use rye_item::text::one_line;
use rye_item::{BundleId, ItemType, Space};
use rye_space::CandidatePath;
use rye_space::handovers;
use rye_space::installed::{self, BundleInstallation};
use rye_trust::verify::evaluate;
use rye_trust::{Identity, KeyRing, Subject, TrustVerdict};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations;
use crate::programs::{NewProgram, ProgramRecordReport, ProgramReview, review_project};
use crate::verbs::{bundles, keys, sync, trust};
use effects::JoinEffects;

pub use effects::{HiddenItem, ProjectProvider};
pub use identities::ForgedIdentity;
pub(crate) use identities::{forged_error, forged_identities};

/// How the user stands to a signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignerStatus {
    /// The own key.
    Own,
    /// Trusted here already.
    Trusted,
    /// Not trusted yet; its identity is in the project.
    New,
    /// Not trusted, and not among the keys to trust.
    NotNamed,
    /// Not trusted, and the project has no identity of it.
    NoIdentity,
    /// Its owner has replaced it by another.
    Retired,
    /// The user has revoked it.
    Revoked,
}

impl SignerStatus {
    /// The status in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own => "yours",
            Self::Trusted => "trusted",
            Self::New => "new",
            Self::NotNamed => "not named",
            Self::NoIdentity => "no identity",
            Self::Retired => "replaced",
            Self::Revoked => "revoked",
        }
    }
}

/// A key that signed items of the project.
#[derive(Clone, Debug, Serialize)]
pub struct ProjectSigner {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner, as its identity says.
    pub owner: Option<String>,
    /// How the user stands to it.
    pub status: SignerStatus,
    /// How many items it signed.
    pub items: usize,
    /// How many of each type.
    pub by_type: BTreeMap<&'static str, usize>,
    /// The earliest time in its signatures.
    pub since: String,
    /// The latest.
    pub latest: String,
    #[serde(skip)]
    identity: Option<Identity>,
}

impl ProjectSigner {
    /// Whether its identity is in the project, so that those who clone it can trust what it signed.
    #[must_use]
    pub fn is_published(&self) -> bool {
        self.identity.is_some()
    }

    /// Whether the user accepts its items, or will after joining.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        matches!(self.status, SignerStatus::Own | SignerStatus::Trusted | SignerStatus::New)
    }
}

/// A bundle that is installed in the project, or that its manifest asks for.
#[derive(Clone, Debug, Serialize)]
pub struct ProjectBundle {
    /// The bundle.
    pub bundle_id: String,
    /// Its version, if its lockfile can be read.
    pub version: Option<String>,
    /// How many files it brought.
    pub files: usize,
    /// The key that signed its manifest.
    pub signer: Option<Fingerprint>,
    /// That key's owner.
    pub owner: Option<String>,
    /// How the user stands to that key, for this bundle.
    pub status: SignerStatus,
    /// Where the project's manifest gets it from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether its files are in the project; otherwise `rye sync` installs it.
    pub installed: bool,
    /// The key that the project's lock names.
    #[serde(skip)]
    locked_key: Option<PublicKey>,
}

/// What a project brings along, and what joining it would change.
#[derive(Clone, Debug, Serialize)]
pub struct JoinReview {
    /// The project.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub project: PathBuf,
    /// Whether the project is approved already.
    pub approved: bool,
    /// Whether the user has a key.
    pub has_key: bool,
    /// Who signed its items, most items first.
    pub signers: Vec<ProjectSigner>,
    /// Items without a signature.
    pub unsigned: Vec<String>,
    /// Items that changed since they were signed, or were signed for another place.
    pub changed: Vec<String>,
    /// Bundles that are installed in it.
    pub bundles: Vec<ProjectBundle>,
    /// How many lockfiles it has.
    pub lockfiles: usize,
    /// Whether it has an `.env`, which approval lets its tools use.
    pub has_env_file: bool,
    /// Items of the user and of bundles that the project's come before.
    pub hidden: Vec<HiddenItem>,
    /// Providers in it, which threads here may ask with the user's keys.
    pub providers: Vec<ProjectProvider>,
    /// Programs in it that approval lets its tools run on.
    pub new_programs: Vec<NewProgram>,
    #[serde(skip)]
    programs: ProgramReview,
}

impl JoinReview {
    /// Leaves everything alone that other keys than these signed: it stays as it is.
    ///
    /// # Errors
    /// When one of them signed nothing here.
    pub fn retain_keys(&mut self, fingerprints: &[Fingerprint]) -> Result<()> {
        let is_named = |fingerprint: &Fingerprint| fingerprints.contains(fingerprint);
        let is_known = |fingerprint: &&Fingerprint| {
            self.signers.iter().any(|signer| signer.fingerprint == **fingerprint)
                || self.bundles.iter().any(|bundle| bundle.signer == Some(**fingerprint))
        };
        if let Some(unknown) = fingerprints.iter().find(|fingerprint| !is_known(fingerprint)) {
            let message = format!("the key {unknown} signed nothing in this project");
            return Err(Error::new(Code::InvalidArgument, message).hint("see who signed its items: rye join"));
        }
        for signer in &mut self.signers {
            if signer.status == SignerStatus::New && !is_named(&signer.fingerprint) {
                signer.status = SignerStatus::NotNamed;
            }
        }
        for bundle in &mut self.bundles {
            if bundle.status == SignerStatus::New && !bundle.signer.as_ref().is_some_and(is_named) {
                bundle.status = SignerStatus::NotNamed;
            }
        }
        Ok(())
    }

    /// Whether there is nothing left to agree to.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        let is_new = |status: SignerStatus| status == SignerStatus::New;
        self.approved
            && self.new_programs.is_empty()
            && !self.signers.iter().any(|signer| is_new(signer.status))
            && !self.bundles.iter().any(|bundle| is_new(bundle.status))
    }

    /// The signers that joining would trust.
    pub fn new_signers(&self) -> impl Iterator<Item = &ProjectSigner> {
        self.signers.iter().filter(|signer| signer.status == SignerStatus::New)
    }
}

/// What was agreed to.
#[derive(Clone, Debug, Serialize)]
pub struct JoinResponse {
    /// The project.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub project: PathBuf,
    /// The own key.
    pub fingerprint: Fingerprint,
    /// Whether it was made just now.
    pub key_created: bool,
    /// Keys that are trusted in this project from now on.
    pub trusted: Vec<Fingerprint>,
    /// Bundles whose signer is trusted for them from now on.
    pub bundles: Vec<String>,
    /// Whether the project asks for bundles that are not installed: `rye sync` installs them.
    pub needs_sync: bool,
    /// Whether the project was approved just now.
    pub newly_approved: bool,
    /// The project's programs that its tools may run on.
    pub recorded: ProgramRecordReport,
    /// Whether the own identity is in the project.
    #[serde(rename = "published")]
    pub is_published: bool,
}

/// Looks at everything a project brings along. Changes nothing.
///
/// # Errors
/// When there is no project, or one of its identities is not what it claims to be.
pub fn review(engine: &Engine) -> Result<JoinReview> {
    let workspace = &engine.workspace;
    let (Some(project), Some(ai)) =
        (workspace.roots.project.clone(), workspace.roots.project_ai().filter(|ai| ai.is_dir()))
    else {
        return Err(Error::new(Code::PathNotFound, "no project here: the folder has no `.ai`")
            .hint("change into a clone of a project, or set one up: rye init"));
    };
    let (identities, forged) = identities::check_identities(engine, workspace.project_documents());
    if let Some(error) = forged_error(&forged) {
        return Err(error);
    }
    let (mut bundles, bundle_files) = project_bundles(engine);
    requirements::add_requirements(engine, &mut bundles)?;
    let items = signed_items(engine, &identities, &bundle_files);
    let lockfiles = locations::project_dir(engine).map_or(0, |dir| locations::scan(&dir).len());
    let programs = review_project(engine, &project)?;
    let effects = JoinEffects::find(engine);
    Ok(JoinReview {
        approved: workspace.is_project_approved,
        has_key: workspace.own_key.is_some(),
        signers: items.signers,
        unsigned: items.unsigned,
        changed: items.changed,
        bundles,
        lockfiles,
        has_env_file: project.join(".env").exists() && ai.is_dir(),
        hidden: effects.hidden,
        providers: effects.providers,
        new_programs: programs.new.clone(),
        programs,
        project,
    })
}

/// Whether other keys than the user's own signed something in the project, or their identities lie in it.
pub(crate) fn has_other_signers(engine: &Engine) -> bool {
    let own = engine.workspace.own_key.as_ref().map(PublicKey::fingerprint);
    let is_other = |fingerprint: &Fingerprint| Some(*fingerprint) != own;
    let (identities, forged) = identities::check_identities(engine, engine.workspace.project_documents());
    !forged.is_empty()
        || identities.iter().any(|identity| is_other(&identity.fingerprint))
        || signed_items(engine, &identities, &BTreeSet::new())
            .signers
            .iter()
            .any(|signer| is_other(&signer.fingerprint))
}

/// The items of a project by who signed them.
#[derive(Default)]
struct SignedItems {
    signers: Vec<ProjectSigner>,
    unsigned: Vec<String>,
    changed: Vec<String>,
}

/// Judges each item as it would be judged if the identities were trusted: what a key really signed, not what it is said
/// to have signed.
fn signed_items(engine: &Engine, identities: &[Identity], bundle_files: &BTreeSet<String>) -> SignedItems {
    let ring = engine.workspace.keys.with_project_keys(identities);
    let spaces = &engine.workspace.spaces;
    let folder = spaces.folder(&Space::Project).unwrap_or_default();
    let mut found = SignedItems::default();
    let mut signers: BTreeMap<Fingerprint, ProjectSigner> = BTreeMap::new();
    for entry in spaces.scan(&Space::Project, &ItemType::ALL).entries {
        // Identity documents are not items.
        if entry.item.is_key_document() || bundle_files.contains(&format!(".ai/{}", entry.relative)) {
            continue;
        }
        let path = CandidatePath {
            space: Space::Project,
            path: folder.join(&entry.relative),
            extension: entry.extension,
            is_found: true,
        };
        let Ok(located) = spaces.read(&entry.item, &path) else { continue };
        if located.format().is_none() {
            continue;
        }
        let report = evaluate(&located, &ring);
        match (report.verdict, &report.signature) {
            (
                TrustVerdict::Full | TrustVerdict::Partial | TrustVerdict::Untrusted | TrustVerdict::Revoked,
                Some(line),
            ) => {
                let signer = signers
                    .entry(line.fingerprint)
                    .or_insert_with(|| new_signer(engine, line.fingerprint, identities, &ring));
                signer.items += 1;
                *signer.by_type.entry(entry.item.item_type.as_str()).or_default() += 1;
                let time = line.timestamp.to_string();
                if signer.since.is_empty() || time < signer.since {
                    signer.since.clone_from(&time);
                }
                if time > signer.latest {
                    signer.latest = time;
                }
            }
            (TrustVerdict::Tampered | TrustVerdict::Misplaced, _) => {
                found.changed.push(entry.item.to_string())
            }
            (_, _) => found.unsigned.push(entry.item.to_string()),
        }
    }
    found.signers = signers.into_values().collect();
    found.signers.sort_by_key(|signer| (std::cmp::Reverse(signer.items), signer.fingerprint));
    found.unsigned.sort();
    found.changed.sort();
    found
}

fn new_signer(
    engine: &Engine,
    fingerprint: Fingerprint,
    identities: &[Identity],
    ring: &KeyRing,
) -> ProjectSigner {
    let workspace = &engine.workspace;
    let is_own = workspace.own_key.as_ref().is_some_and(|own| own.fingerprint() == fingerprint);
    let trusted = workspace.keys.find(&fingerprint, &Space::Project);
    let identity = identities.iter().find(|identity| identity.fingerprint == fingerprint);
    let status = match (workspace.keys.revocation(&fingerprint), trusted, identity) {
        (Some(_), _, _) => SignerStatus::Revoked,
        (None, Some(_), _) if is_own => SignerStatus::Own,
        (None, Some(_), _) => SignerStatus::Trusted,
        (None, None, _) if is_retired(engine, &fingerprint) => SignerStatus::Retired,
        (None, None, Some(_)) => SignerStatus::New,
        (None, None, None) => SignerStatus::NoIdentity,
    };
    let owner = ring.find(&fingerprint, &Space::Project).map(|known| one_line(&known.owner));
    ProjectSigner {
        fingerprint,
        owner: owner.or_else(|| identity.map(|identity| one_line(&identity.owner))),
        status,
        items: 0,
        by_type: BTreeMap::new(),
        since: String::new(),
        latest: String::new(),
        identity: identity.cloned(),
    }
}

/// Whether a hand-over that the user has followed, or one in the project, replaced this key. A key that was replaced is not
/// trusted again by joining.
fn is_retired(engine: &Engine, fingerprint: &Fingerprint) -> bool {
    let folder = engine.workspace.roots.project_ai().unwrap_or_default().join(handovers::HANDOVERS_FOLDER);
    engine.workspace.retired_keys.contains(fingerprint)
        || handovers::handovers_in(&folder)
            .iter()
            .any(|(_, handover)| handover.old_fingerprint() == *fingerprint)
}

/// The bundles installed in the project, and the files that both their lockfiles and their manifests name.
fn project_bundles(engine: &Engine) -> (Vec<ProjectBundle>, BTreeSet<String>) {
    let workspace = &engine.workspace;
    let Some(ai) = workspace.roots.project_ai() else { return Default::default() };
    let mut files = BTreeSet::new();
    let mut rows = Vec::new();
    for id in installed::installed_ids(&ai) {
        let bundle = BundleInstallation::read(&ai, &Space::Project, &id);
        let manifest = bundle.manifest.as_ref().ok().and_then(|file| file.manifest().ok());
        let lock = bundle.lock.as_ref().ok();
        let listed = lock.iter().flat_map(|lock| &lock.files);
        let listed =
            listed.filter(|path| manifest.is_some_and(|manifest| manifest.files.contains_key(*path)));
        let before = files.len();
        files.extend(listed.map(ToString::to_string));
        let signer = bundle.signer();
        let line = bundle.manifest.as_ref().ok().and_then(|file| file.signature());
        let fingerprint =
            signer.as_ref().map(|signer| signer.fingerprint).or(line.map(|line| line.fingerprint));
        let is_pinned = |key: &PublicKey| workspace.approvals.pins_of(&id).any(|pin| pin.key == *key);
        let status = match (&signer, fingerprint) {
            (_, Some(fingerprint)) if workspace.keys.revocation(&fingerprint).is_some() => {
                SignerStatus::Revoked
            }
            (Some(signer), _) if is_pinned(&signer.key) => SignerStatus::Trusted,
            (Some(_), _) => SignerStatus::New,
            (None, Some(fingerprint))
                if workspace.approvals.pins_of(&id).any(|pin| pin.key.fingerprint() == fingerprint) =>
            {
                SignerStatus::Trusted
            }
            (None, _) => SignerStatus::NoIdentity,
        };
        rows.push(ProjectBundle {
            bundle_id: id.to_string(),
            version: lock.map(|lock| lock.version.to_string()),
            files: files.len() - before,
            signer: fingerprint,
            owner: signer.map(|signer| one_line(&signer.owner)),
            status,
            source: None,
            installed: true,
            locked_key: None,
        });
    }
    (rows, files)
}

/// Trusts what was reviewed, for this project only, and makes the own key if there is none. `reopen` opens the same
/// workspace again, after what it rests on has changed.
///
/// # Errors
/// When something cannot be recorded. What was recorded before stays; joining again completes it.
pub fn accept(
    review: JoinReview,
    engine: Engine,
    owner: &str,
    reopen: &dyn Fn() -> Result<Engine>,
) -> Result<JoinResponse> {
    let mut engine = engine;
    let key_created = match engine.signing_key() {
        Ok(_) => false,
        Err(error) if error.code == Code::NoKey => {
            keys::generate(&engine, owner)?;
            engine = reopen()?;
            true
        }
        Err(error) => return Err(error),
    };
    let fingerprint = engine.signing_key()?.public_key().fingerprint();
    let mut trusted = Vec::new();
    for identity in review.new_signers().filter_map(|signer| signer.identity.clone()) {
        trusted.push(keys::trust_in_project(&engine, identity)?.fingerprint);
    }
    let mut approved_bundles = Vec::new();
    for bundle in review.bundles.iter().filter(|bundle| bundle.status == SignerStatus::New) {
        if let Some(key) = &bundle.locked_key {
            let id = BundleId::new(bundle.bundle_id.as_str())?;
            sync::approve_locked_signer(&engine, &id, key)?;
            approved_bundles.push(bundle.bundle_id.clone());
            continue;
        }
        let signer = bundle.signer.map(|signer| signer.to_string());
        approved_bundles
            .push(bundles::trust_in_project(&engine, &bundle.bundle_id, signer.as_deref())?.bundle_id);
    }
    let newly_approved = trust::trust(&engine, &review.project, true)?.changed;
    let recorded = review.programs.record(&engine)?;
    Ok(JoinResponse {
        project: review.project,
        fingerprint,
        key_created,
        trusted,
        bundles: approved_bundles,
        needs_sync: review.bundles.iter().any(|bundle| !bundle.installed),
        newly_approved,
        recorded,
        is_published: engine.workspace.is_identity_in_project(&fingerprint),
    })
}

/// The failure of a project whose items a clone would refuse: the identity of a key that signed them is not in it.
pub(crate) fn unpublished_error(engine: &Engine) -> Option<Error> {
    let (identities, _) = identities::check_identities(engine, engine.workspace.project_documents());
    let (_, bundle_files) = project_bundles(engine);
    let signers = signed_items(engine, &identities, &bundle_files).signers;
    // A key that was trusted here by hand may be meant for this machine alone.
    let is_refused_in_clones =
        |status: SignerStatus| matches!(status, SignerStatus::Own | SignerStatus::NoIdentity);
    let first =
        signers.iter().find(|signer| !signer.is_published() && is_refused_in_clones(signer.status))?;
    let items = rye_item::text::counted(first.items, "item");
    let message =
        format!("the identity of {}, which signed {items}, is not in the project", first.fingerprint);
    Some(Error::new(Code::Untrusted, message).hint(match first.status {
        SignerStatus::Own => "without it every clone refuses them: rye keys publish, then commit it",
        _ => "without it they are refused: their owner runs rye keys publish, and commits it",
    }))
}
