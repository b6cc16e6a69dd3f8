//! Lockfiles of tools that bundles bring into project or user space: agreeing to an installation is the consent to what
//! it brings, so the user's own pins follow it; an uninstallation takes them along.

use std::collections::BTreeSet;
use std::path::PathBuf;

use lillux::Digest;
use rye_exec::lock::{
    DifferenceKind, LockComparison, LockDifference, Lockfile, LockfilePart, ResolvedTool, compare,
};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};

use super::{compare_lockfile, locations, write_lockfile};
use crate::engine::Engine;
use crate::error::Result;

/// What an installation changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct InstalledFiles {
    /// The tools of the bundle that are as it brought them.
    pub(crate) tools: BTreeSet<ItemId>,
    /// The digests of its files.
    pub(crate) digests: BTreeSet<Digest>,
    /// The paths of files that the version before had, and this one has not.
    pub(crate) removed: Vec<String>,
}

impl InstalledFiles {
    /// Whether the user agreed to this difference by agreeing to the installation.
    fn explains_difference(
        &self,
        difference: &LockDifference,
        resolved: &ResolvedTool,
        tier: SpaceTier,
    ) -> bool {
        match difference.part {
            LockfilePart::Root => true,
            LockfilePart::Chain => {
                let mut chain = resolved.chain.iter().filter(|entry| entry.item_id == difference.element);
                ItemId::new(difference.element.as_str()).is_ok_and(|id| self.tools.contains(&id))
                    && chain.all(|entry| entry.space == tier.as_str())
            }
            LockfilePart::File => self.explains_file(&difference.element, &difference.kind, resolved),
            LockfilePart::Dependency => false,
        }
    }

    fn explains_file(&self, path: &str, kind: &DifferenceKind, resolved: &ResolvedTool) -> bool {
        let files = resolved.verified_deps.iter().flatten();
        let mut found = files.filter(|file| file.path == path).peekable();
        match kind {
            DifferenceKind::Missing => {
                let path = path.strip_prefix("{package}/").unwrap_or(path);
                self.removed.iter().any(|removed| removed.ends_with(&format!("/{path}")))
            }
            DifferenceKind::Hash { .. } | DifferenceKind::Added => {
                let is_installed =
                    |hash: &str| hash.parse().is_ok_and(|digest| self.digests.contains(&digest));
                found.peek().is_some() && found.all(|file| is_installed(&file.integrity))
            }
            DifferenceKind::Space { .. }
            | DifferenceKind::Shadowed { .. }
            | DifferenceKind::Version { .. }
            | DifferenceKind::Downgraded { .. } => false,
        }
    }
}

/// Brings the user's lockfiles of a bundle's tools up to date after it was installed into `tier`, and gives their paths. A
/// lockfile that differs in something else than what the bundle brought stays as it is, and the next run says so.
pub(crate) fn refresh_after_install(
    engine: &Engine,
    tier: SpaceTier,
    installed: &InstalledFiles,
) -> Vec<PathBuf> {
    let refresh = |id: &ItemId| -> Result<Option<PathBuf>> {
        let item = ItemRef::new(ItemType::Tool, id.clone());
        let resolved = crate::resolve::resolve_tool_in(engine, &item, Some(tier))?;
        if resolved.uses_dev_mode {
            return Ok(None);
        }
        let slot = locations::slot(engine, &resolved, SpaceTier::User)?;
        // A version that the user agreed to go back to takes the place of the newer one.
        let newer = newer_of_same_tool(engine, &resolved)?;
        let Some(pinned) = slot.current.clone()? else {
            let written =
                if newer.is_empty() { None } else { Some(write_lockfile(engine, &slot, &resolved, None)?) };
            return remove_all(&newer).map(|()| written);
        };
        if !is_same_tool(engine, &pinned, &resolved) {
            return Ok(None);
        }
        if compare_lockfile(engine, &pinned, &resolved) == LockComparison::Matches {
            return remove_all(&newer).map(|()| None);
        }
        let is_agreed = match compare(&pinned, &resolved, &[]) {
            LockComparison::Differs(all) => {
                all.iter().all(|difference| installed.explains_difference(difference, &resolved, tier))
            }
            LockComparison::Matches | LockComparison::Stale { .. } => true,
        };
        if !is_agreed {
            return Ok(None);
        }
        let written = write_lockfile(engine, &slot, &resolved, Some(&pinned))?;
        remove_all(&newer).map(|()| Some(written))
    };
    // A tool that does not resolve or a lockfile that is damaged is refused by the next run, which says why.
    installed.tools.iter().filter_map(|id| refresh(id).ok().flatten()).collect()
}

/// The user's lockfiles of newer versions of this very tool: same id, space and project.
fn newer_of_same_tool(engine: &Engine, resolved: &ResolvedTool) -> Result<Vec<PathBuf>> {
    let found = locations::effective_lockfiles(engine, resolved)?;
    let is_own = |lockfile: &Lockfile| {
        lockfile.project == locations::owner_project(engine, resolved)
            && locations::pinned_space(lockfile) == resolved.space()
    };
    let newer = found.other_versions.iter().filter(|other| other.tier == SpaceTier::User);
    Ok(newer
        .filter(|other| other.lockfile.as_ref().is_ok_and(is_own))
        .map(|other| other.path.clone())
        .collect())
}

fn remove_all(paths: &[PathBuf]) -> Result<()> {
    paths.iter().try_for_each(|path| Ok(lillux::file::remove(path)?))
}

/// Whether a lockfile of user scope pins this very tool: id, version, space and project.
pub(super) fn is_same_tool(engine: &Engine, pinned: &Lockfile, resolved: &ResolvedTool) -> bool {
    pinned.project == locations::owner_project(engine, resolved)
        && (&pinned.root.tool_id, &pinned.root.version) == (&resolved.root.tool_id, &resolved.root.version)
        && locations::pinned_space(pinned) == resolved.space()
}

/// The lockfiles of tools that an uninstallation removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemovedPins {
    /// The user's own: removed.
    pub(crate) removed: Vec<PathBuf>,
    /// The project's: left for the team to remove.
    pub(crate) remaining: Vec<PathBuf>,
}

/// Removes the user's lockfiles of tools that are no longer in `tier`.
///
/// # Errors
/// When one cannot be removed.
pub(crate) fn remove_after_uninstall(
    engine: &Engine,
    tier: SpaceTier,
    tools: &BTreeSet<ItemId>,
) -> Result<RemovedPins> {
    let owner = locations::current_project(engine).filter(|_| tier == SpaceTier::Project);
    let is_of_tool = |lockfile: &Lockfile| {
        ItemId::new(lockfile.root.tool_id.as_str()).is_ok_and(|id| tools.contains(&id))
            && locations::pinned_space(lockfile) == tier.as_str()
    };
    let mut unpinned = RemovedPins::default();
    for scanned in locations::scan(&locations::user_dir(engine)) {
        let is_own = |lockfile: &Lockfile| lockfile.project == owner && is_of_tool(lockfile);
        if scanned.lockfile.as_ref().is_ok_and(is_own) {
            lillux::file::remove(&scanned.path)?;
            unpinned.removed.push(scanned.path);
        }
    }
    for scanned in locations::project_dir(engine).iter().flat_map(locations::scan) {
        if scanned.lockfile.as_ref().is_ok_and(is_of_tool) {
            unpinned.remaining.push(scanned.path);
        }
    }
    Ok(unpinned)
}
