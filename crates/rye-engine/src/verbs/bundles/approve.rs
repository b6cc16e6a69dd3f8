//! `bundle trust`, `bundle enable` and `bundle disable`: whose signature counts for a bundle, and which opt-in bundles are
//! part of the system space.

use std::path::PathBuf;

use lillux::{Fingerprint, PublicKey};
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::contents;
use rye_bundle::verify::{BundleScope, VerifyContext, VerifyTarget};
use rye_item::text::one_line;
use rye_item::{BundleId, Space};
use rye_space::ManifestFile;
use rye_space::approvals::{Approvals, BUNDLES_FILE, SeenVersion, SignerPin};
use rye_space::bundle::{BundleOrigin, BundleTrust};
use rye_space::installed::{self, BundleInstallation};
use rye_trust::Identity;
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::trust::check_not_damaged;

/// A signer that is now approved.
#[derive(Clone, Debug, Serialize)]
pub struct ApprovedSigner {
    /// The bundle.
    pub bundle_id: String,
    /// The pinned key.
    pub fingerprint: Fingerprint,
    /// Its owner, as the bundle says.
    pub owner: String,
    /// What the bundle's items ask for, as far as its manifest lists them.
    pub capabilities: BundleCapabilities,
    /// The record.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub record: PathBuf,
}

/// A bundle whose signer can be approved.
struct ApprovalCandidate {
    id: BundleId,
    signers: Vec<Identity>,
    manifest: Option<ManifestFile>,
    /// Where its files are.
    origin: BundleOrigin,
    scope: BundleScope,
}

impl ApprovalCandidate {
    /// The configured bundle `id`, or else the one that is installed in project or user space.
    fn find(engine: &Engine, id: &str) -> Result<Self> {
        let workspace = &engine.workspace;
        let mut configured = workspace.spaces.bundles().iter().chain(&workspace.shadowed_bundles);
        let bundle =
            configured.find(|bundle| bundle.id.as_str() == id && bundle.trust != BundleTrust::Embedded);
        if let Some(bundle) = bundle {
            return Ok(Self {
                id: bundle.id.clone(),
                signers: bundle.signers.clone(),
                manifest: bundle.manifest.clone(),
                origin: bundle.origin.clone(),
                scope: BundleScope::Standalone,
            });
        }
        let spaces =
            [(workspace.roots.project_ai(), Space::Project), (Some(workspace.roots.user_ai()), Space::User)];
        for (ai, space) in spaces {
            let Some(ai) = ai else { continue };
            if let Some(id) = installed::installed_ids(&ai).into_iter().find(|known| known.as_str() == id) {
                let installed = BundleInstallation::read(&ai, &space, &id);
                let signers = installed.signer().into_iter().collect();
                let origin = BundleOrigin::Folder(ai.parent().unwrap_or(&ai).to_owned());
                let manifest = installed.manifest.ok();
                return Ok(Self { id, signers, manifest, origin, scope: BundleScope::Installed });
            }
        }
        BundleId::new(id)?;
        Err(Error::new(
            Code::NoBundle,
            format!("no configured or installed bundle is called `{}`", one_line(id)),
        )
        .hint("name its folder in `bundles.paths` of your user config, then: rye bundle list"))
    }

    /// What the items that its manifest lists ask for.
    fn capabilities(&self, engine: &Engine) -> BundleCapabilities {
        let Some(manifest) = &self.manifest else {
            return BundleCapabilities::default();
        };
        let context = VerifyContext {
            keys: &engine.workspace.keys,
            extractors: engine.workspace.spaces.extractors(),
            limit: engine.workspace.max_item_bytes(),
        };
        let target =
            VerifyTarget { origin: &self.origin, manifest, identities: &self.signers, scope: self.scope };
        BundleCapabilities::from_files(&contents::read_all(target, context))
    }

    /// What is remembered of the bundle under `key`.
    fn last_seen(&self, key: &PublicKey) -> Option<SeenVersion> {
        let file = self.manifest.as_ref().filter(|file| file.is_signed_by(key))?;
        Some(SeenVersion { version: file.manifest().ok()?.version.clone(), manifest_hash: file.hash() })
    }
}

/// Approves the signer of a configured or installed bundle: its key vouches for that bundle's items, and for nothing
/// else.
///
/// # Errors
/// When there is no such bundle, the signer is not clear or revoked, or you have no key.
pub fn trust(engine: &Engine, id: &str, signer: Option<&str>) -> Result<ApprovedSigner> {
    approve(engine, id, signer, None)
}

/// As [`trust`], for this project alone.
///
/// # Errors
/// As [`trust`].
pub(crate) fn trust_in_project(engine: &Engine, id: &str, signer: Option<&str>) -> Result<ApprovedSigner> {
    approve(engine, id, signer, engine.workspace.approvals.current_project.as_deref())
}

fn approve(engine: &Engine, id: &str, signer: Option<&str>, project: Option<&str>) -> Result<ApprovedSigner> {
    let workspace = &engine.workspace;
    let bundle = ApprovalCandidate::find(engine, id)?;
    let chosen = choose_signer(engine, &bundle, signer)?;
    if let Some(revocation) = workspace.keys.revocation(&chosen.fingerprint) {
        return Err(Error::new(
            Code::Revoked,
            format!("the key {} is revoked: {}", chosen.fingerprint, revocation.reason),
        )
        .hint("a revocation cannot be undone; ask the bundle's maker for one signed with another key"));
    }
    check_not_damaged(&workspace.approvals)?;
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (mut approvals, _lock) = Approvals::read_locked(&workspace.roots.user_ai(), &workspace.keys)?;
    check_not_damaged(&approvals)?;
    approvals.pin_signer(&bundle.id, &chosen.key, project, bundle.last_seen(&chosen.key));
    let record = approvals.write_bundles(&workspace.roots.user_ai(), &key, &now)?;
    Ok(ApprovedSigner {
        bundle_id: bundle.id.to_string(),
        fingerprint: chosen.fingerprint,
        owner: one_line(&chosen.owner),
        capabilities: bundle.capabilities(engine),
        record,
    })
}

/// Signers whose approval was withdrawn.
#[derive(Clone, Debug, Serialize)]
pub struct WithdrawnApproval {
    /// The bundle.
    pub bundle_id: String,
    /// The keys that are no longer pinned.
    pub fingerprints: Vec<Fingerprint>,
    /// Those among them that the user trusts everywhere.
    pub still_trusted: Vec<Fingerprint>,
    /// The record.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub record: PathBuf,
}

/// Withdraws the approval of a bundle's signers, or of the one that is named. The bundle need not be there any more.
///
/// # Errors
/// When no such signer is approved, you have no key, or the record is damaged.
pub fn revoke(engine: &Engine, id: &str, signer: Option<&str>) -> Result<WithdrawnApproval> {
    let workspace = &engine.workspace;
    let bundle = BundleId::new(id)?;
    check_not_damaged(&workspace.approvals)?;
    let is_selected = |pin: &SignerPin| {
        pin.bundle == bundle && signer.is_none_or(|signer| pin.key.fingerprint().as_str() == signer)
    };
    if !workspace.approvals.pins.iter().any(is_selected) {
        let whose = signer.map_or_else(|| "no signer".to_owned(), |signer| format!("`{}`", one_line(signer)));
        let verb = if signer.is_some() { "is not" } else { "is" };
        return Err(Error::new(Code::NoBundle, format!("{whose} {verb} approved for the bundle `{bundle}`"))
            .hint("rye bundle list shows which bundles are approved or installed"));
    }
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (mut approvals, _lock) = Approvals::read_locked(&workspace.roots.user_ai(), &workspace.keys)?;
    check_not_damaged(&approvals)?;
    let withdrawn: Vec<PublicKey> =
        approvals.pins.iter().filter(|pin| is_selected(pin)).map(|pin| pin.key.clone()).collect();
    approvals.pins.retain(|pin| !is_selected(pin));
    let record = approvals.write_bundles(&workspace.roots.user_ai(), &key, &now)?;
    let general = withdrawn.iter().filter(|key| workspace.keys.is_trusted_everywhere(key));
    Ok(WithdrawnApproval {
        bundle_id: bundle.to_string(),
        still_trusted: general.map(PublicKey::fingerprint).collect(),
        fingerprints: withdrawn.iter().map(PublicKey::fingerprint).collect(),
        record,
    })
}

/// The signer to approve: the only one the bundle ships, or the one that is named, shipped or trusted already.
fn choose_signer(engine: &Engine, bundle: &ApprovalCandidate, signer: Option<&str>) -> Result<Identity> {
    let shipped = bundle.signers.as_slice();
    if let Some(fingerprint) = signer {
        let known = || {
            let known = engine.workspace.keys.find(&fingerprint.parse().ok()?, &Space::User)?;
            Some(Identity::new(known.key.clone(), &known.owner))
        };
        let found = shipped.iter().find(|signer| signer.fingerprint.as_str() == fingerprint).cloned();
        return found.or_else(known).ok_or_else(|| {
            let fingerprint = one_line(fingerprint);
            Error::new(Code::NoSigner, format!("the bundle `{}` ships no key `{fingerprint}`", bundle.id))
                .hint("rye bundle list --json shows the keys it ships")
        });
    }
    match shipped {
        [one] => Ok(one.clone()),
        [] => Err(Error::new(
            Code::NoSigner,
            format!("the bundle `{}` ships no signed identity document", bundle.id),
        )
        .hint("ask its maker for one with their identity document: rye bundle create adds it")
        .hint(format!(
            "or, to trust its signer everywhere: rye keys trust FILE --space user, \
             then: rye bundle trust {} --signer FP",
            bundle.id
        ))),
        several => {
            let list =
                several.iter().map(|signer| signer.fingerprint.to_string()).collect::<Vec<_>>().join(", ");
            Err(Error::new(Code::NoSigner, format!("the bundle `{}` ships several keys: {list}", bundle.id))
                .hint("choose one with --signer FINGERPRINT"))
        }
    }
}

/// Whether an opt-in bundle is part of the system space now.
#[derive(Clone, Debug, Serialize)]
pub struct BundleToggle {
    /// The bundle.
    pub bundle_id: String,
    /// Whether it is enabled now.
    pub enabled: bool,
    /// Whether that changed anything.
    pub changed: bool,
    /// The record.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub record: PathBuf,
}

/// Makes an opt-in bundle inside the binary part of the system space, or takes that back.
///
/// # Errors
/// When there is no such bundle, you have no key, or the record is damaged.
pub fn set_enabled(engine: &Engine, id: &str, enable: bool) -> Result<BundleToggle> {
    let workspace = &engine.workspace;
    let user_ai = workspace.roots.user_ai();
    let bundle = find_opt_in(id)?;
    check_not_damaged(&workspace.approvals)?;
    let unchanged = || BundleToggle {
        bundle_id: bundle.to_string(),
        enabled: enable,
        changed: false,
        record: user_ai.join(BUNDLES_FILE),
    };
    if workspace.approvals.has_enabled(&bundle) == enable {
        return Ok(unchanged());
    }
    let (key, now) = (engine.signing_key()?, engine.now()?);
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    check_not_damaged(&approvals)?;
    if approvals.has_enabled(&bundle) == enable {
        return Ok(unchanged());
    }
    if enable {
        approvals.enabled.push(bundle.clone());
        approvals.enabled.sort();
    } else {
        approvals.enabled.retain(|known| *known != bundle);
    }
    let record = approvals.write_bundles(&user_ai, &key, &now)?;
    Ok(BundleToggle { bundle_id: bundle.to_string(), enabled: enable, changed: true, record })
}

/// The opt-in bundle inside the binary that is called `id`.
fn find_opt_in(id: &str) -> Result<BundleId> {
    let embedded = rye_space::bundle::embedded_bundles();
    if let Some(bundle) = embedded.iter().find(|bundle| bundle.id.as_str() == id) {
        return if bundle.is_opt_in() {
            Ok(bundle.id.clone())
        } else {
            Err(Error::new(Code::InvalidArgument, format!("the bundle `{id}` is always enabled"))
                .hint("rye bundle list shows which bundles are `available` or `enabled`"))
        };
    }
    let known: Vec<_> =
        embedded.iter().filter(|bundle| bundle.is_opt_in()).map(|bundle| bundle.id.as_str()).collect();
    Err(Error::new(
        Code::NoBundle,
        format!("no bundle inside rye is called `{}`", one_line(id)),
    )
    .hint(format!("bundles that can be enabled: {}", known.join(", ")))
    .hint(
        "a bundle of your own needs no enabling: name its folder in `bundles.paths`, then rye bundle trust",
    ))
}
