//! Whether the identity documents of a project are what they claim to be.

use rye_item::text::one_line;
use rye_space::handovers;
use rye_space::keys::IdentityFile;
use rye_trust::{Identity, check_owner_name, is_look_alike};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error};

/// An identity document of the project that is not what it claims to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ForgedIdentity {
    /// The document, below the project.
    pub path: String,
    /// Why.
    pub reason: String,
}

/// The identities that lie in the project, and those among the documents that are forged.
pub(super) fn check_identities(
    engine: &Engine,
    documents: Vec<IdentityFile>,
) -> (Vec<Identity>, Vec<ForgedIdentity>) {
    let project = engine.workspace.roots.project.clone().unwrap_or_default();
    let shown = |found: &IdentityFile| {
        let path = found.path.strip_prefix(&project).unwrap_or(&found.path);
        one_line(&path.display().to_string())
    };
    let mut forged = Vec::new();
    let mut identities: Vec<(String, Identity)> = Vec::new();
    for found in documents {
        let path = shown(&found);
        match found.identity {
            Ok(identity) => identities.push((path, identity)),
            Err(error) => forged.push(ForgedIdentity { path, reason: one_line(&error.to_string()) }),
        }
    }
    for (path, identity) in &identities {
        let reason = forgery(engine, identity, identities.iter().map(|(_, other)| other));
        forged.extend(reason.map(|reason| ForgedIdentity { path: path.clone(), reason }));
    }
    (identities.into_iter().map(|(_, identity)| identity).collect(), forged)
}

/// Why an identity is not what it claims to be, if it is not. What the user decided about a key before stays decided.
fn forgery<'a>(
    engine: &Engine,
    identity: &Identity,
    in_project: impl Iterator<Item = &'a Identity>,
) -> Option<String> {
    let ring = &engine.workspace.keys;
    let known = ring.find(&identity.fingerprint, &rye_item::Space::Project);
    if known.is_some_and(|known| known.key == identity.key)
        || ring.revocation(&identity.fingerprint).is_some()
    {
        return None;
    }
    // A key that was replaced is not trusted again, whatever its document says.
    if super::is_retired(engine, &identity.fingerprint) {
        return None;
    }
    match &identity.signature {
        _ if identity.is_self_signed() => {}
        None => return Some("it is not signed".to_owned()),
        Some(line) => return Some(format!("it is signed by the key {}, not by its own", line.fingerprint)),
    }
    if let Err(error) = check_owner_name(&identity.owner) {
        return Some(error.to_string());
    }
    // The owner of a key that was replaced is the same person.
    let folder = engine.workspace.roots.project_ai().unwrap_or_default().join(handovers::HANDOVERS_FOLDER);
    let replaced = handovers::handovers_in(&folder);
    let is_linked = |other: &Identity| {
        let pair = |from: &Identity, to: &Identity| {
            replaced.iter().any(|(_, handover)| handover.old == from.key && handover.new == to.key)
        };
        pair(other, identity) || pair(identity, other)
    };
    let is_other = |other: &&Identity| {
        other.key != identity.key
            && ring.revocation(&other.fingerprint).is_none()
            && !is_linked(other)
            && is_look_alike(&other.owner, &identity.owner)
    };
    let own = engine.workspace.own_key.as_ref();
    let user_documents =
        engine.workspace.user_documents.iter().filter_map(|found| found.identity.as_ref().ok());
    // The same name as one's own is common: a second machine, an account called `root`.
    let is_own_name = |other: &&Identity| own == Some(&other.key) && other.owner == identity.owner;
    let mut trusted = user_documents.filter(|other| !is_own_name(other));
    let (other, how) = match trusted.find(is_other) {
        Some(other) => (other, "which you have a document of"),
        None => (
            in_project.filter(|other| own != Some(&other.key)).find(is_other)?,
            "which is in the project too",
        ),
    };
    Some(format!(
        "its owner `{}` looks like `{}` of the key {}, {how}",
        one_line(&identity.owner),
        one_line(&other.owner),
        other.fingerprint
    ))
}

/// The identities of the project that are not what they claim to be.
pub(crate) fn forged_identities(engine: &Engine) -> Vec<ForgedIdentity> {
    check_identities(engine, engine.workspace.project_documents()).1
}

/// The refusal of a project that has forged identities.
pub(crate) fn forged_error(forged: &[ForgedIdentity]) -> Option<Error> {
    if forged.is_empty() {
        return None;
    }
    let list =
        forged.iter().map(|one| format!("`{}`: {}", one.path, one.reason)).collect::<Vec<_>>().join("; ");
    let message = match forged.len() {
        1 => format!("an identity of this project is not what it claims: {list}"),
        count => format!("{count} identities of this project are not what they claim: {list}"),
    };
    let error = Error::new(Code::InvalidIdentity, message)
        .detail("identities", serde_json::to_value(forged).unwrap_or_default())
        .hint("nothing was changed; ask its owner, and see who added it: git log -- .ai/config/keys/trusted")
        .hint("its owner replaces it by: rye keys publish --owner NAME");
    Some(error)
}
