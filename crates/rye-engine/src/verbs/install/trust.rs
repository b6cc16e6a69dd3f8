//! Who signed a bundle, and whether that is enough.

use lillux::{Fingerprint, PublicKey};
use rye_bundle::remembered::{Candidate, Verdict, judge};
use rye_item::BundleId;
use rye_space::approvals::{Approvals, Seen};
use rye_trust::KeyRing;
use serde::Serialize;

use super::Options;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::trust::refuse_damaged;

/// The signer of a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct Signer {
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
pub(super) struct Judged {
    pub(super) needs_trust: bool,
    pub(super) approved: bool,
    pub(super) warnings: Vec<String>,
}

/// Compares a bundle with what is remembered of it.
///
/// # Errors
/// When it changed for the worse since it was last seen, and the user did not accept exactly that.
pub(super) fn weigh(
    engine: &Engine,
    id: &BundleId,
    candidate: &Candidate,
    is_trusted: bool,
    options: &Options,
) -> Result<Judged> {
    let approvals = &engine.workspace.approvals;
    let found = candidate.signer.as_ref().map(PublicKey::fingerprint);
    if let (Some(wanted), Some(found)) = (options.trust, found)
        && wanted != found
    {
        return Err(Error::new(
            Code::UnknownSigner,
            format!("you named the signer {wanted}, but `{id}` is signed by {found}"),
        )
        .detail("fingerprint", found.as_str())
        .hint("ask its maker, by another way than the bundle itself, which fingerprint is theirs"));
    }
    let is_named = options.trust.is_some();
    let mut warnings = Vec::new();
    let needs_trust = match judge(approvals.pins_of(id), candidate) {
        Verdict::First => !is_trusted && !is_named,
        Verdict::Expected => false,
        Verdict::Republished => {
            warnings.push(format!(
                "version {} was installed before with other content: its maker published it twice",
                candidate.version
            ));
            false
        }
        Verdict::Refused(changes) => {
            let open: Vec<_> = changes
                .iter()
                .filter(|change| !change.is_accepted(options.trust.as_ref(), options.allows_downgrade))
                .collect();
            if !open.is_empty() {
                let reasons = open.iter().map(|change| change.explain()).collect::<Vec<_>>().join("; ");
                let flags: Option<Vec<String>> = open.iter().map(|change| change.accepted_by()).collect();
                let error =
                    Error::new(Code::BundleChanged, format!("`{id}` is not what you know: {reasons}"))
                        .hint("ask its maker whether that is meant, by another way than the bundle itself");
                return Err(match flags {
                    Some(flags) => error.hint(format!("if it is: rye install … {}", flags.join(" "))),
                    None => error,
                });
            }
            warnings.extend(changes.iter().map(|change| change.explain()));
            false
        }
    };
    let approved =
        candidate.signer.as_ref().is_some_and(|key| approvals.pins_of(id).any(|pin| pin.key == *key));
    Ok(Judged { needs_trust, approved, warnings })
}

/// Pins the signer for the bundle, and remembers the version. Gives what undoes it.
pub(super) fn pin(
    engine: &Engine,
    id: &BundleId,
    candidate: &Candidate,
) -> Result<Option<Vec<rye_space::approvals::Pin>>> {
    let workspace = &engine.workspace;
    let Some(key) = &candidate.signer else { return Ok(None) };
    let (own, now) = (engine.signing_key()?, engine.now()?);
    let user_ai = workspace.roots.user_ai();
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    refuse_damaged(&approvals)?;
    let before = approvals.pins.clone();
    let seen = Seen { version: candidate.version.clone(), manifest_hash: candidate.manifest_hash };
    approvals.pin(id, key, Some(seen));
    if approvals.pins == before {
        return Ok(None);
    }
    approvals.write_bundles(&user_ai, &own, &now)?;
    Ok(Some(before.into_iter().filter(|pin| pin.bundle == *id).collect()))
}

/// Takes a pin back after an installation that failed.
pub(super) fn unpin(engine: &Engine, id: &BundleId, before: Vec<rye_space::approvals::Pin>) -> Result<()> {
    let workspace = &engine.workspace;
    let (own, now) = (engine.signing_key()?, engine.now()?);
    let user_ai = workspace.roots.user_ai();
    let (mut approvals, _lock) = Approvals::read_locked(&user_ai, &workspace.keys)?;
    refuse_damaged(&approvals)?;
    approvals.pins.retain(|pin| pin.bundle != *id);
    approvals.pins.extend(before);
    approvals.write_bundles(&user_ai, &own, &now)?;
    Ok(())
}

/// Refuses a key the user revoked.
pub(super) fn refuse_revoked(keys: &KeyRing, fingerprint: &Fingerprint) -> Result<()> {
    match keys.revocation(fingerprint) {
        None => Ok(()),
        Some(revocation) => Err(Error::new(
            Code::Revoked,
            format!("the key {fingerprint} is revoked: {}", rye_item::text::one_line(&revocation.reason)),
        )
        .hint("a revocation is not taken back; ask the bundle's maker for one signed with another key")),
    }
}
