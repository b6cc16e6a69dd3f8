//! The bundles that a project's manifest asks for, beside those that are installed in it.

use super::{ProjectBundle, SignerStatus};
use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::sync::{self, ProjectBundles};

/// Adds the bundles of the manifest to the rows, each with its source. The key of one that is not installed is what the lock
/// names; without a lock it is not known yet, and nothing of it is trusted.
///
/// # Errors
/// When the manifest or its lock is not valid.
pub(super) fn add_requirements(engine: &Engine, rows: &mut Vec<ProjectBundle>) -> Result<()> {
    let project = ProjectBundles::read(engine)?;
    for requirement in project.manifest.bundles() {
        let source = Some(requirement.source.to_string());
        if let Some(row) = rows.iter_mut().find(|row| row.bundle_id == requirement.id.as_str()) {
            row.source = source;
            continue;
        }
        let locked = project.lock.find(&requirement.id);
        let locked = locked.filter(|locked| locked.requirement.signer == requirement.signer);
        let status = match locked {
            _ if engine.workspace.keys.revocation(&requirement.signer).is_some() => SignerStatus::Revoked,
            Some(locked) if sync::is_approved(engine, &requirement.id, &locked.key) => SignerStatus::Trusted,
            Some(_) => SignerStatus::New,
            None => SignerStatus::NoIdentity,
        };
        rows.push(ProjectBundle {
            bundle_id: requirement.id.to_string(),
            version: locked.map(|locked| locked.version.to_string()),
            files: 0,
            signer: Some(requirement.signer),
            owner: None,
            status,
            source,
            installed: false,
            locked_key: locked.map(|locked| locked.key.clone()),
        });
    }
    Ok(())
}
