//! `uninstall`: removes exactly what an installation brought.

use std::path::PathBuf;

use lillux::Fingerprint;
use rye_bundle::FilePath;
use rye_bundle::install::transaction::Progress;
use rye_bundle::install::{Action, Change, InstallError, Plan, Preference, Transaction, recover};
use rye_bundle::object;
use rye_item::space::Tier;
use rye_item::{BundleId, ItemId, ItemType};
use serde::Serialize;

use super::target::{Target, lock_path, manifest_path, signer_path};
use crate::chains;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles;

/// The answer of an uninstallation.
#[derive(Clone, Debug, Serialize)]
pub struct Uninstalled {
    /// `uninstalled`.
    pub status: &'static str,
    /// The bundle.
    pub bundle_id: String,
    /// The version that was installed.
    pub version: String,
    /// From which space.
    pub space: Tier,
    /// How many files were removed.
    pub files_removed: usize,
    /// Files that were changed here and stay.
    pub kept: Vec<FilePath>,
    /// The user's own lockfiles of its tools, which were removed with them.
    pub lockfiles: Vec<String>,
    /// The project's lockfiles of its tools, which stay: they are the team's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lockfiles_left: Vec<String>,
    /// Where backups of removed files that were changed here are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<String>,
    /// The keys that stay approved for the bundle: another version that one of them signed installs without a question.
    pub approved_signers: Vec<ApprovedSigner>,
}

/// A key that is approved for a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct ApprovedSigner {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Whether the user trusts it everywhere as well.
    pub trusted: bool,
    /// The command that withdraws the approval.
    pub revoke: String,
}

/// Removes the files of a bundle that are as it brought them; with `force` also those that were changed here, of which
/// a backup is kept. Naming the bundle is the consent.
///
/// # Errors
/// When it is not installed, its lockfile is damaged, or the system refuses. Then everything is as it was.
pub fn uninstall(
    engine: &Engine,
    id: &BundleId,
    space: Option<Tier>,
    force: bool,
    progress: Progress<'_>,
) -> Result<Uninstalled> {
    let target = find(engine, id, space)?;
    let now = engine.now()?;
    let _lock = target.state.lock()?;
    recover(&target.site, &target.state)?;
    let Some(previous) = target.previous(id)? else {
        return Err(not_installed(id, Some(target.tier)));
    };
    let extractors = engine.workspace.spaces.extractors();
    let known = (&**extractors, &chains::aliases(engine));
    let sides = target.sides(id, std::collections::BTreeMap::new(), Some(&previous), known)?;
    let preference = if force { Preference::Theirs } else { Preference::Ours };
    let plan = Plan::new(&sides, preference, force)?;
    let mut changes = plan.changes();
    let files_removed = changes.len();
    // The lockfile goes last: until then it says what has to go.
    for path in [signer_path(id)?, manifest_path(id)?, lock_path(id)?] {
        if let Some(old) = target.digest(&path)? {
            changes.push(Change { path, old: Some(old), new: None, keeps_backup: false });
        }
    }
    let has_backups = changes.iter().any(|change| change.keeps_backup);
    let backups = format!("{id}-{}", now.as_str().replace(':', ""));
    let transaction = Transaction {
        site: &target.site,
        state: &target.state,
        bundle: id,
        changes,
        backups: backups.clone(),
        history: Vec::new(),
    };
    let nothing = |_: usize| -> std::result::Result<Vec<u8>, InstallError> { Ok(Vec::new()) };
    transaction.run(&nothing, || Ok(()), progress)?;
    let kept: Vec<FilePath> =
        plan.rows.iter().filter(|row| row.action == Action::Keep).map(|row| row.path.clone()).collect();
    let tools = previous.lock.files.iter().filter(|path| !kept.contains(path)).filter_map(|path| {
        let is_tool = object::item_type(path, extractors) == Some(ItemType::Tool);
        ItemId::new(object::name(path).1).ok().filter(|_| is_tool)
    });
    // What is pinned of a tool that is gone would only be in the way of the next one of its name.
    let unpinned = lockfiles::installed::remove_after_uninstall(engine, target.tier, &tools.collect())?;
    let shown = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    Ok(Uninstalled {
        status: "uninstalled",
        bundle_id: id.to_string(),
        version: previous.lock.version.to_string(),
        space: target.tier,
        files_removed,
        lockfiles: shown(&unpinned.removed),
        lockfiles_left: shown(&unpinned.left),
        kept,
        backups: has_backups.then(|| target.state.backups(&backups).display().to_string()),
        approved_signers: approved_signers(engine, id),
    })
}

/// The keys that are approved for a bundle, whether it is installed or not.
fn approved_signers(engine: &Engine, id: &BundleId) -> Vec<ApprovedSigner> {
    let workspace = &engine.workspace;
    let mut signers: Vec<ApprovedSigner> = workspace
        .approvals
        .pins_of(id)
        .map(|pin| {
            let fingerprint = pin.key.fingerprint();
            let revoke = format!("rye bundle trust {id} --revoke --signer {fingerprint}");
            ApprovedSigner { fingerprint, trusted: workspace.keys.is_general(&pin.key), revoke }
        })
        .collect();
    if let [only] = signers.as_mut_slice() {
        only.revoke = format!("rye bundle trust {id} --revoke");
    }
    signers
}

/// The space a bundle is installed in: the one that is named, or the only one.
pub(super) fn find(engine: &Engine, id: &BundleId, space: Option<Tier>) -> Result<Target> {
    if let Some(space) = space {
        return Target::open(engine, space);
    }
    let mut found = Vec::new();
    for tier in [Tier::Project, Tier::User] {
        // Outside any project there is only user space.
        let Ok(target) = Target::open(engine, tier) else { continue };
        if target.previous(id).map_or(true, |previous| previous.is_some()) {
            found.push(target);
        }
    }
    match found.len() {
        0 => Err(not_installed(id, None)),
        1 => Ok(found.swap_remove(0)),
        _ => Err(Error::new(Code::Ambiguous, format!("`{id}` is installed in project and in user space"))
            .hint("say which: --space project or --space user")),
    }
}

/// The refusal of a bundle that is not there.
pub(super) fn not_installed(id: &BundleId, space: Option<Tier>) -> Error {
    let place = space.map(|space| format!(" in {space} space")).unwrap_or_default();
    Error::new(Code::NoBundle, format!("the bundle `{id}` is not installed{place}"))
        .hint("rye bundle list names what is installed")
}
