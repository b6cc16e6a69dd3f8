//! The scope of a search: an item type, narrowed to a namespace.

use crate::ItemType;

/// A text that names no item type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scope `{0}` has no item type")]
pub struct InvalidScope(String);

/// Reads a scope: `tool`, `tool.rye.core.*`, or a grant's `rye.search.tool.rye.core.*`. Gives the type, and the namespace as
/// the beginning of an id.
///
/// # Errors
/// When it names no item type.
pub fn parse_scope(scope: &str) -> Result<(ItemType, String), InvalidScope> {
    let rest =
        scope.strip_prefix("rye.").and_then(|rest| rest.split_once('.')).map_or(scope, |(_, rest)| rest);
    let (item_type, namespace) = rest.split_once('.').unwrap_or((rest, ""));
    let item_type = item_type.parse().map_err(|_| InvalidScope(crate::text::one_line(scope)))?;
    let namespace = namespace.trim_end_matches('*').trim_end_matches('.').replace('.', "/");
    Ok((item_type, namespace))
}
