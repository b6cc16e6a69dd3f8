//! The refusal of an item that does not verify, with the narrowest command that would let it pass and what that grants.

use std::path::Path;

use lillux::Fingerprint;
use rye_item::text::{one_line, shell_word};
use rye_item::{BundleId, ItemRef, Space};
use rye_space::Workspace;
use rye_space::config::sign_command;
use rye_trust::{TrustReport, TrustVerdict};

use crate::error::{Code, Error};

/// How to trust those who signed the items of a project.
pub(crate) const JOIN_HINT: &str =
    "see who signed this project's items, and trust them in this project only: rye join";

impl Error {
    /// The refusal of an item that does not verify.
    #[must_use]
    pub fn refused(
        workspace: &Workspace,
        item: &ItemRef,
        space: &Space,
        path: &Path,
        report: &TrustReport,
    ) -> Self {
        let reason = report.reason.clone().unwrap_or_default();
        let code = match report.verdict {
            TrustVerdict::Full | TrustVerdict::Partial | TrustVerdict::Unsigned => Code::Unsigned,
            TrustVerdict::Tampered => Code::Tampered,
            TrustVerdict::Misplaced => Code::Misplaced,
            TrustVerdict::Untrusted => Code::Untrusted,
            TrustVerdict::Revoked => Code::Revoked,
        };
        let message = format!("{item} {}: {reason}", verdict_phrase(report));
        let mut error = Self::new(code, message).for_item(item).detail("path", path.display().to_string());
        error = error.detail("verdict", report.verdict.as_str());
        if let Some(fingerprint) = report.fingerprint() {
            error = error.detail("fingerprint", fingerprint.as_str());
        }
        hints(workspace, item, space, path, report).into_iter().fold(error, Self::hint)
    }
}

/// What is wrong with an item, as a phrase that follows its name.
pub(crate) fn verdict_phrase(report: &TrustReport) -> &'static str {
    phrase(report.verdict, report.reason.as_deref().unwrap_or_default())
}

/// As [`verdict_phrase`], of a verdict and its reason.
pub(crate) fn phrase(verdict: TrustVerdict, reason: &str) -> &'static str {
    match verdict {
        TrustVerdict::Full => "is signed",
        TrustVerdict::Partial => "is signed in part",
        TrustVerdict::Unsigned => "is unsigned",
        TrustVerdict::Tampered if reason.starts_with("the signature") => "has an invalid signature",
        TrustVerdict::Tampered if reason.contains("`#!` line") => "has an invalid first line",
        TrustVerdict::Tampered => "changed since it was signed",
        TrustVerdict::Misplaced => "is not where it was signed for",
        TrustVerdict::Untrusted => "is not trusted",
        TrustVerdict::Revoked => "is signed by a revoked key",
    }
}

/// What the user can do about an item that does not verify, the narrowest first.
pub(crate) fn hints(
    workspace: &Workspace,
    item: &ItemRef,
    space: &Space,
    path: &Path,
    report: &TrustReport,
) -> Vec<String> {
    let reason = report.reason.as_deref().unwrap_or_default();
    let is_system = matches!(space, Space::System(_));
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let signing = match (is_system, is_json) {
        (true, _) => "a system item cannot be signed: ask who made the bundle, or write your own".to_owned(),
        (false, true) => "a JSON file cannot carry a signature: write it as YAML".to_owned(),
        (false, false) => {
            format!("read it, then sign this item: {}", sign_command(item, space))
        }
    };
    match (report.verdict, space) {
        (TrustVerdict::Full | TrustVerdict::Partial | TrustVerdict::Unsigned, _) => vec![signing],
        (TrustVerdict::Tampered, _) if reason.starts_with("only line endings") => vec![
            "keep line endings as they are: a `.gitattributes` in `.ai/` with `* -text`, then check it out again"
                .to_owned(),
        ],
        (TrustVerdict::Tampered, _) if reason.contains("`#!` line") => {
            vec!["remove its first line, or write a plain one such as `#!/usr/bin/env python3`".to_owned()]
        }
        (TrustVerdict::Tampered, _) => match other_signer(workspace, report).filter(|_| !is_system) {
            Some(signer) => vec![
                format!("see what changed (git diff); restore what {signer} signed, or ask its owner to sign this"),
                format!("to put your signature in place of theirs, {signing}"),
            ],
            None => vec![
                "see what changed (git diff); if it was not you, restore the signed version".to_owned(),
                signing,
            ],
        },
        (TrustVerdict::Misplaced, _) => {
            vec![format!("move it back; or make its name and category match its path, {signing}")]
        }
        (TrustVerdict::Untrusted, Space::System(bundle)) => vec![format!(
            "look at who signed it: rye bundle list; to trust that key for this bundle only: rye bundle trust {bundle}"
        )],
        (TrustVerdict::Untrusted, Space::Project) => {
            let mut hints = match report.fingerprint().filter(|key| !workspace.is_identity_in_project(key)) {
                Some(key) => vec![format!(
                    "the identity of {key} is not in the project: its owner runs rye keys publish and commits it, \
                     then: rye join"
                )],
                None => vec![JOIN_HINT.to_owned()],
            };
            hints.extend(report.fingerprint().map(|key| trust_hint(workspace, space, &key)));
            hints.push(format!("or, for this item alone, {signing}"));
            hints
        }
        (TrustVerdict::Untrusted, Space::User) => {
            let mut hints = vec![signing];
            hints.extend(report.fingerprint().map(|key| trust_hint(workspace, space, &key)));
            hints
        }
        (TrustVerdict::Revoked, _) => vec![signing],
    }
}

/// The key that an item's signature names, if it is not the user's own.
fn other_signer(workspace: &Workspace, report: &TrustReport) -> Option<Fingerprint> {
    let own = workspace.own_key.as_ref().map(lillux::PublicKey::fingerprint);
    report.fingerprint().filter(|signer| Some(*signer) != own)
}

/// How to let a signer vouch for more than one item, and for how much.
fn trust_hint(workspace: &Workspace, space: &Space, signer: &Fingerprint) -> String {
    if let Some(bundle) = bundle_of(workspace, signer) {
        return format!(
            "the key {signer} is trusted for the bundle `{bundle}` only, and the bundle did not install this"
        );
    }
    if *space == Space::User {
        return format!(
            "the key {signer} is not trusted; items of user space run in every project, so its key must be \
             trusted everywhere: compare the fingerprint with its owner first, then: rye keys trust FILE --space user"
        );
    }
    let in_project = workspace.project_documents();
    let document = workspace.user_documents.iter().chain(&in_project).find_map(|found| {
        let identity = found.identity.as_ref().ok().filter(|identity| identity.fingerprint == *signer)?;
        Some((identity, shell_word(&found.path.display().to_string())))
    });
    match document {
        Some((identity, path)) if identity.projects.is_some() => format!(
            "the key {signer} ({}) is trusted in other projects only; to trust it in this project too: \
             rye keys trust {path} --space project",
            one_line(&identity.owner)
        ),
        Some((_, path)) => format!(
            "or compare the fingerprint {signer} with its owner; to trust that key in this project \
             only: rye keys trust {path} --space project"
        ),
        None => format!(
            "or get the key {signer} from its owner; to trust it in this project only: \
             rye keys trust FILE --space project"
        ),
    }
}

/// The bundle that the user lets a key vouch for.
fn bundle_of<'a>(workspace: &'a Workspace, signer: &Fingerprint) -> Option<&'a BundleId> {
    let pin = workspace.approvals.pins.iter().find(|pin| pin.key.fingerprint() == *signer);
    pin.map(|pin| &pin.bundle)
}
