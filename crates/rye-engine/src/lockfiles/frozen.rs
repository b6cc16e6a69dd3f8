//! The pins of a project's tools, to travel with its items: what runs elsewhere must resolve to the same.

use std::path::{Path, PathBuf};

use rye_item::ItemRef;

use super::locations::{self, LOCKFILES_FOLDER};
use super::{LockMode, enforce, lockfile_timestamp};
use crate::engine::Engine;
use crate::error::Result;
use crate::resolve::resolve_tool;
use crate::verbs::lock::pinnable_tools;

/// The lockfile of a tool as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenLockfile {
    /// The tool.
    pub tool: ItemRef,
    /// Where the lockfile lies, below the project.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Pins every tool of the project that can be run, as it is now. Nothing is written.
///
/// # Errors
/// When a tool doesn't match a lockfile that it has.
pub fn freeze_project(engine: &Engine) -> Result<Vec<FrozenLockfile>> {
    let resolve = |item: &ItemRef| resolve_tool(engine, item);
    let mut frozen = Vec::new();
    for tool in pinnable_tools(engine, &resolve)? {
        // One that cannot run here runs nowhere: its element is refused where it is used.
        let Ok(resolved) = resolve_tool(engine, &tool) else { continue };
        if resolved.space() != "project" || resolved.uses_dev_mode {
            continue;
        }
        enforce(engine, &resolved, LockMode::Frozen)?;
        let slot = locations::slot(engine, &resolved, rye_item::space::SpaceTier::Project)?;
        let lockfile = resolved.to_lockfile(lockfile_timestamp(engine)?, None);
        frozen.push(FrozenLockfile {
            tool,
            path: Path::new(LOCKFILES_FOLDER).join(&slot.name),
            bytes: lillux::lockfile::to_bytes(&lockfile)?,
        });
    }
    Ok(frozen)
}

/// Refuses tools that do not resolve to what their lockfiles pin.
///
/// # Errors
/// As the tool does not resolve, or doesn't match.
pub fn enforce_frozen(engine: &Engine, tools: &[ItemRef]) -> Result<()> {
    for tool in tools {
        enforce(engine, &resolve_tool(engine, tool)?, LockMode::Frozen)?;
    }
    Ok(())
}
