//! `keys publish`: the own identity document in the project, so that others can decide whether to trust what one signs.

use std::path::{Path, PathBuf};

use lillux::Fingerprint;
use lillux::file;
use rye_item::text::one_line;
use rye_space::handovers;
use rye_space::keys::{self, TRUSTED_FOLDER};
use rye_trust::{Identity, check_owner_name, is_look_alike};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::keys::write_own_document;

/// The own identity as it lies in the project.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedIdentity {
    /// The own key.
    pub fingerprint: Fingerprint,
    /// The owner's name in it.
    pub owner: String,
    /// The document.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Whether it was written just now.
    pub changed: bool,
}

/// Writes the own identity, self-signed, into the project, unless it is there. Without `owner` it has the name of the
/// own document.
///
/// # Errors
/// When there is no project or no key, or the name is not valid or that of another key in the project.
pub fn publish(engine: &Engine, owner: Option<&str>) -> Result<PublishedIdentity> {
    let workspace = &engine.workspace;
    let ai = workspace.roots.project_ai().filter(|ai| ai.is_dir());
    let ai = ai.ok_or_else(|| {
        Error::new(Code::PathNotFound, "not inside a project").hint("set one up here: rye init")
    })?;
    let key = engine.signing_key()?;
    let public = key.public_key();
    let fingerprint = public.fingerprint();
    let path = ai.join(TRUSTED_FOLDER).join(format!("{fingerprint}.toml"));
    let is_own = |identity: &&Identity| identity.key == public;
    let documents = workspace.project_documents();
    let present = documents.iter().filter_map(|found| found.identity.as_ref().ok()).find(is_own);
    let own = workspace.user_documents.iter().filter_map(|found| found.identity.as_ref().ok()).find(is_own);
    // A name that is chosen here is the own name from now on, in `keys list` and in the next project too.
    let rename_own = |name: &str| match own {
        Some(own) if owner.is_some() && own.owner != name => {
            write_own_document(engine, &key, name).map(|_| ())
        }
        Some(_) | None => Ok(()),
    };
    if let Some(present) = present.filter(|present| present.is_self_signed())
        && owner.is_none_or(|owner| owner == present.owner)
    {
        rename_own(&present.owner)?;
        return Ok(PublishedIdentity { fingerprint, owner: present.owner.clone(), path, changed: false });
    }
    let name = owner.map(str::to_owned).or_else(|| own.map(|own| own.owner.clone()));
    let name = name.unwrap_or_else(|| "local".to_owned());
    check_owner_name(&name).map_err(|error| {
        Error::new(Code::InvalidArgument, error.to_string())
            .hint("choose another name: rye keys publish --owner NAME")
    })?;
    // The next colleague could not join: two keys with one name cannot be told apart.
    let replaced = handovers::handovers_in(&ai.join(handovers::HANDOVERS_FOLDER));
    let is_own_old =
        |other: &Identity| replaced.iter().any(|(_, link)| link.old == other.key && link.new == public);
    let others = documents.iter().filter_map(|found| found.identity.as_ref().ok());
    let taken = others
        .filter(|other| other.key != public && !is_own_old(other))
        .filter(|other| workspace.keys.revocation(&other.fingerprint).is_none())
        .find(|other| is_look_alike(&other.owner, &name));
    if let Some(other) = taken {
        let (other_name, fingerprint) = (one_line(&other.owner), other.fingerprint);
        return Err(Error::new(
            Code::InvalidArgument,
            format!(
                "the name `{}` looks like `{other_name}` of the key {fingerprint} in this project",
                one_line(&name)
            ),
        )
        .hint("choose another name: rye keys publish --owner NAME"));
    }
    rename_own(&name)?;
    file::create_folders_beneath(&ai, Path::new(TRUSTED_FOLDER), false)?;
    let identity = Identity::new(public, &name);
    keys::write_signed_document(&path, &identity.to_document(), &key, &engine.now()?)?;
    Ok(PublishedIdentity { fingerprint, owner: name, path, changed: true })
}

/// Whether the project has identities of others, and none of the user.
#[must_use]
pub fn is_unpublished_member(engine: &Engine) -> bool {
    let Some(own) = &engine.workspace.own_key else { return false };
    let documents = engine.workspace.project_documents();
    let identities: Vec<&Identity> =
        documents.iter().filter_map(|found| found.identity.as_ref().ok()).collect();
    !identities.is_empty() && identities.iter().all(|identity| identity.key != *own)
}
