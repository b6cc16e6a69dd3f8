//! What a lockfile pins: a tool and what it runs on, as they are now.

use rye_exec::Chain;
use rye_exec::lock::{LockedElement, LockedTool, ResolvedTool};
use rye_item::space::SpaceTier;
use rye_item::{ItemRef, ItemType, Space};
use serde_json::Value;

use crate::chain_cache;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::execute;

/// The version of a bundle that is gone.
const UNKNOWN_VERSION: &str = "0.0.0";

/// Resolves a tool in all spaces, with the files it may import.
///
/// # Errors
/// When its chain is not valid, or a file it may import is not verified.
pub fn resolve_tool(engine: &Engine, item: &ItemRef) -> Result<ResolvedTool> {
    resolve_tool_in(engine, item, None)
}

/// Resolves a tool that is looked for in one tier only, if that is given.
///
/// # Errors
/// As [`resolve_tool`].
pub fn resolve_tool_in(engine: &Engine, item: &ItemRef, tier: Option<SpaceTier>) -> Result<ResolvedTool> {
    if item.item_type != ItemType::Tool {
        let message = format!("{item} does not run: lockfiles are for tools");
        let error = Error::new(Code::InvalidArgument, message).for_item(item);
        return Err(error.hint("name a tool: rye search '*' --type tool"));
    }
    let (chain, _) = chain_cache::build_valid_chain(engine, item, tier)?;
    execute::resolve_staged(engine, &chain)
}

/// The elements of a chain, without what lies beside them.
pub(crate) fn resolve_chain(engine: &Engine, chain: &Chain) -> ResolvedTool {
    let entries: Vec<LockedElement> = chain
        .elements()
        .iter()
        .map(|element| {
            let space = element.space();
            let (provider_id, provider_version) = match space {
                Space::Project | Space::User => (space.to_string(), element.version().to_owned()),
                Space::System(id) => {
                    let bundle = engine.workspace.spaces.bundles().iter().find(|bundle| bundle.id == *id);
                    let version = bundle.map_or(UNKNOWN_VERSION, |bundle| bundle.version.as_str());
                    (id.to_string(), version.to_owned())
                }
            };
            let text = |field: &str| element.field(field).and_then(Value::as_str).map(str::to_owned);
            LockedElement {
                item_id: element.id().to_string(),
                space: space.to_string(),
                tool_type: text("tool_type"),
                executor_id: text("executor_id"),
                integrity: element.integrity(),
                provider_id: Some(provider_id),
                provider_version: Some(provider_version),
            }
        })
        .collect();
    let root = LockedTool {
        tool_id: chain.tool().id().to_string(),
        version: chain.tool().version().to_owned(),
        integrity: chain.tool().integrity(),
        provider_id: entries.first().and_then(|entry| entry.provider_id.clone()),
        provider_version: entries.first().and_then(|entry| entry.provider_version.clone()),
    };
    ResolvedTool {
        root,
        chain: entries,
        verified_deps: None,
        dependencies: None,
        uses_dev_mode: chain.uses_dev_mode(),
    }
}
