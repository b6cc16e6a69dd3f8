//! Who signed a bundle, and whether that is enough.

use lillux::{Fingerprint, PublicKey};
use rye_bundle::signer_history::{BundleCandidate, HistoryVerdict, compare_with_history};
use rye_item::BundleId;
use rye_space::approvals::{Approvals, SeenVersion};
use rye_trust::KeyRing;
use serde::Serialize;

use super::InstallOptions;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::trust::check_not_damaged;

/// The signer of a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct InstallSigner {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Its owner, as the key's document says.
    pub owner: String,
    /// Whether the user trusts the key everywhere.
    pub trusted: bool,
    /// Whether the user approved the key for this bundle before.
    pub approved: bool,
    /// Whether the user has to name the key, or to agree to it, before anything is installed.
    pub needs_trust: bool,
    /// The whole key.
    #[serde(skip)]
    pub key: PublicKey,
}

/// What the user's word has to cover.
pub(super) struct TrustDecision {
    pub(super) needs_trust: bool,
    pub(super) approved: bool,
    pub(super) warnings: Vec<String>,
}

/// Compares a bundle with what is remembered of it.
///
/// # Errors
/// When it changed for the worse since it was last seen, and the user did not accept exactly that.
pub(super) fn evaluate_trust(
    engine: &Engine,
    id: &BundleId,
    candidate: &BundleCandidate,
    is_trusted: bool,
    options: &InstallOptions,
) -> Result<TrustDecision> {
    let approvals = &engine.workspace.approvals;
    let found = candidate.signer.as_ref().map(PublicKey::fingerprint);
    if let (Some(wanted), Some(found)) = (options.trust, found)
        && wanted != found
    {
        return Err(Error::new(
            Code::UnknownSigner,
            format!("you gave the signer {wanted}, but `{id}` is signed by {found}"),
        )
        .detail("fingerprint", found.as_str())
        .hint("ask its maker, by another channel than the bundle itself, for their fingerprint"));
    }
    let is_named = options.trust.is_some();
    let mut warnings = Vec::new();
    let needs_trust = match compare_with_history(approvals.pins_of(id), candidate) {
        HistoryVerdict::First => !is_trusted && !is_named,
        HistoryVerdict::Expected => false,
        HistoryVerdict::Republished => {
            warnings.push(format!(
                "version {} was installed before with different content: its maker published it twice",
                candidate.version
            ));
            false
        }
        HistoryVerdict::Refused(changes) => {
            let unaccepted: Vec<_> = changes
                .iter()
                .filter(|change| !change.is_accepted(options.trust.as_ref(), options.allows_downgrade))
                .collect();
            if !unaccepted.is_empty() {
                let reasons = unaccepted.iter().map(|change| change.explain()).collect::<Vec<_>>().join("; ");
                let flags: Option<Vec<String>> =
                    unaccepted.iter().map(|change| change.accepting_flag()).collect();
                let error = Error::new(
                    Code::BundleChanged,
                    format!("`{id}` differs from what was installed before: {reasons}"),
                )
                .hint("ask its maker, by another channel than the bundle itself, whether that is intended");
                return Err(match flags {
                    Some(flags) => {
                        error.hint(format!("if it is, give the same command with {}", flags.join(" ")))
                    }
                    None => error,
                });
            }
            warnings.extend(changes.iter().map(|change| change.explain()));
            false
        }
    };
    let approved =
        candidate.signer.as_ref().is_some_and(|key| approvals.pins_of(id).any(|pin| pin.key == *key));
    Ok(TrustDecision { needs_trust, approved, warnings })
}

/// Pins the signer for the bundle, and remembers the version: in this project alone if its manifest asks for the bundle.
/// Gives what undoes it.
pub(super) fn pin_signer(
    engine: &Engine,
    id: &BundleId,
    candidate: &BundleCandidate,
    is_of_project: bool,
) -> Result<Option<Vec<rye_space::approvals::SignerPin>>> {
    let workspace = &engine.workspace;
    let Some(key) = &candidate.signer else { return Ok(None) };
    let (own, now) = (engine.signing_key()?, engine.now()?);
    let user_ai = workspace.roots.user_ai();
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    check_not_damaged(&approvals)?;
    let before = approvals.pins.clone();
    let seen = SeenVersion { version: candidate.version.clone(), manifest_hash: candidate.manifest_hash };
    let project = workspace.approvals.current_project.as_deref().filter(|_| is_of_project);
    approvals.pin_signer(id, key, project, Some(seen));
    if approvals.pins == before {
        return Ok(None);
    }
    approvals.write_bundles(&user_ai, &own, &now)?;
    Ok(Some(before.into_iter().filter(|pin| pin.bundle == *id).collect()))
}

/// Takes a pin back after an installation that failed.
pub(super) fn restore_pins(
    engine: &Engine,
    id: &BundleId,
    before: Vec<rye_space::approvals::SignerPin>,
) -> Result<()> {
    let workspace = &engine.workspace;
    let (own, now) = (engine.signing_key()?, engine.now()?);
    let user_ai = workspace.roots.user_ai();
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    check_not_damaged(&approvals)?;
    approvals.pins.retain(|pin| pin.bundle != *id);
    approvals.pins.extend(before);
    approvals.write_bundles(&user_ai, &own, &now)?;
    Ok(())
}

/// Refuses a key the user revoked.
pub(super) fn check_not_revoked(keys: &KeyRing, fingerprint: &Fingerprint) -> Result<()> {
    match keys.revocation(fingerprint) {
        None => Ok(()),
        Some(revocation) => Err(Error::new(
            Code::Revoked,
            format!("the key {fingerprint} is revoked: {}", rye_item::text::one_line(&revocation.reason)),
        )
        .hint("a revocation cannot be undone; ask the bundle's maker for one signed with another key")),
    }
}
