//! The refusal of an item that does not verify, with the narrowest command that would let it pass and what that grants.

use std::path::Path;

use lillux::Fingerprint;
use rye_item::text::{one_line, shell_word};
use rye_item::{BundleId, ItemRef, Space};
use rye_space::Workspace;
use rye_trust::{TrustReport, TrustVerdict};

use crate::error::{Code, Error};

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
        let message = format!("{item} is {}: {reason}", report.verdict.as_str());
        let mut error = Self::new(code, message).for_item(item).detail("path", path.display().to_string());
        error = error.detail("verdict", report.verdict.as_str());
        if let Some(fingerprint) = report.fingerprint() {
            error = error.detail("fingerprint", fingerprint.as_str());
        }
        hints(workspace, item, space, path, report).into_iter().fold(error, Self::hint)
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
            format!("read it, then sign it, which vouches for this item alone: {}", sign_command(item, space))
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
        (TrustVerdict::Tampered, _) => vec![
            "see what changed (git diff); if it was not you, take the signed one back".to_owned(),
            signing,
        ],
        (TrustVerdict::Misplaced, _) => {
            vec![format!("move it back; or make its name and category match its path, {signing}")]
        }
        (TrustVerdict::Untrusted, Space::System(bundle)) => vec![format!(
            "look at who signed it: rye bundle list; to let that key vouch for this bundle alone: rye bundle trust {bundle}"
        )],
        (TrustVerdict::Untrusted, Space::Project | Space::User) => {
            let mut hints = vec![signing];
            hints.extend(report.fingerprint().map(|key| trust_hint(workspace, space, &key)));
            hints
        }
        (TrustVerdict::Revoked, _) => vec![signing],
    }
}

fn sign_command(item: &ItemRef, space: &Space) -> String {
    let only = if *space == Space::User { " --space user" } else { "" };
    format!("rye sign {} {}{only}", item.item_type, item.id)
}

/// How to let a signer vouch for more than one item, and for how much.
fn trust_hint(workspace: &Workspace, space: &Space, signer: &Fingerprint) -> String {
    if let Some(bundle) = bundle_of(workspace, signer) {
        return format!(
            "the key {signer} vouches for the bundle `{bundle}` alone, and this is not what it installed"
        );
    }
    if *space == Space::User {
        return format!(
            "the key {signer} is not trusted; items of user space run in every project, so to trust it is to let it \
             vouch for everything: compare the fingerprint with its owner first, then: rye keys trust FILE --space user"
        );
    }
    let in_project = workspace.project_documents();
    let document = workspace.user_documents.iter().chain(&in_project).find_map(|found| {
        let identity = found.identity.as_ref().ok().filter(|identity| identity.fingerprint == *signer)?;
        Some((identity, shell_word(&found.path.display().to_string())))
    });
    match document {
        Some((identity, path)) if identity.projects.is_some() => format!(
            "the key {signer} ({}) is trusted in other projects only; to let it vouch for items of this project too: \
             rye keys trust {path} --space project",
            one_line(&identity.owner)
        ),
        Some((_, path)) => format!(
            "or compare the fingerprint {signer} with its owner; to let that key vouch for all items of this project, \
             and no other: rye keys trust {path} --space project"
        ),
        None => format!(
            "or get the key {signer} from its owner; to let it vouch for all items of this project, and no other: \
             rye keys trust FILE --space project"
        ),
    }
}

/// The bundle that the user lets a key vouch for.
fn bundle_of<'a>(workspace: &'a Workspace, signer: &Fingerprint) -> Option<&'a BundleId> {
    let pin = workspace.approvals.pins.iter().find(|pin| pin.key.fingerprint() == *signer);
    pin.map(|pin| &pin.bundle)
}
