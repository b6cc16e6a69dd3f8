//! `config_resolve`: the settings a tool asks for, from all tiers, given to it with its parameters.

use rye_exec::Chain;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::config::LayerTrust;
use rye_trust::Subject;
use rye_trust::verify::evaluate;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The parameter a tool finds its settings in: no caller gives it.
pub(super) const RESOLVED_PARAMETER: &str = "resolved_config";

/// Categories of settings that decide about RYE itself: which keys and projects are trusted, how tools are confined. No tool
/// asks for them, whatever its own category is called.
const OWN_CATEGORIES: [&str; 3] = ["keys", "trust", "execution"];

/// Whether a tool may ask for a config: one whose category begins with a name of the tool's own category.
fn may_resolve(tool: &ItemId, config: &ItemId) -> bool {
    let Some((first, _)) = config.as_str().split_once('/') else { return false };
    tool.category().split('/').any(|name| name == first) && !OWN_CATEGORIES.contains(&first)
}

/// What the tool asked for, if it asked and there is something; with notices about what was left out.
///
/// # Errors
/// When the request makes no sense, or a file it names was changed or signed by a stranger.
pub(super) fn resolve(engine: &Engine, chain: &Chain, notices: &mut Vec<String>) -> Result<Option<Value>> {
    let Some(request) = chain.tool().field("config_resolve") else {
        return Ok(None);
    };
    let resolved = match request {
        Value::Array(list) => {
            let mut all = Map::new();
            for one in list {
                let (path, value) = resolve_entry(engine, one, chain, notices)?;
                all.insert(path, value);
            }
            Value::Object(all)
        }
        one => resolve_entry(engine, one, chain, notices)?.1,
    };
    let is_empty = resolved.as_object().is_some_and(Map::is_empty);
    Ok((!is_empty).then_some(resolved))
}

fn resolve_entry(
    engine: &Engine,
    request: &Value,
    chain: &Chain,
    notices: &mut Vec<String>,
) -> Result<(String, Value)> {
    let invalid = |reason: String| {
        Error::new(Code::InvalidInvocation, format!("`config_resolve` of {}: {reason}", chain.tool().id()))
            .for_item(chain.tool().item().item_ref())
            .hint("it takes {path: category/file.yaml, mode: deep_merge | first_match}")
    };
    let Some(path) = request.get("path").and_then(Value::as_str) else {
        return Err(invalid("the path is missing".to_owned()));
    };
    let stem = path.strip_suffix(".yaml").or_else(|| path.strip_suffix(".yml")).unwrap_or(path);
    let id = ItemId::new(stem).map_err(|error| invalid(error.to_string()))?;
    let tool = &chain.tool().item().item_ref().id;
    if !may_resolve(tool, &id) {
        return Err(invalid(format!("`{id}` is not a config of the tool's own category")).hint(format!(
            "a tool asks for `<category>/<file>.yaml`, where the category begins with its own name: {}",
            tool.category()
        )));
    }
    let value = match request.get("mode").and_then(Value::as_str).unwrap_or("deep_merge") {
        "deep_merge" => {
            let merged = engine.workspace.config(&id);
            notices.extend(merged.ignored.iter().map(|ignored| {
                format!("`{}` in {} config {id} is ignored: {}", ignored.key, ignored.space, ignored.reason)
            }));
            merged.value
        }
        "first_match" => first_match(engine, &id, notices)?,
        other => return Err(invalid(format!("mode `{}` is unknown", rye_item::text::one_line(other)))),
    };
    Ok((path.to_owned(), value))
}

/// The nearest file that may say anything at all.
fn first_match(engine: &Engine, id: &ItemId, notices: &mut Vec<String>) -> Result<Value> {
    let item = ItemRef::new(ItemType::Config, id.clone());
    let (layers, unreadable) = engine.workspace.config_layers(id);
    if let Some(unreadable) = unreadable.first() {
        return Err(Error::new(Code::Io, unreadable.reason.clone())
            .for_item(&item)
            .detail("path", unreadable.path.display().to_string()));
    }
    for layer in layers.iter().rev() {
        let space = layer.located.space();
        match (layer.trust, space) {
            (LayerTrust::Trusted | LayerTrust::FromBundle, _) | (LayerTrust::Unsigned, Space::User) => {
                return Ok(Value::Object(layer.located.parsed().fields.clone()));
            }
            (LayerTrust::NotApproved, _) => {
                notices.push(format!(
                    "the project's {item} is left out: the project is not approved (rye join)"
                ));
            }
            (LayerTrust::OutOfScope(reason), _) => {
                notices.push(format!("{space} {item} is left out: {reason}"));
            }
            (LayerTrust::Unsigned, Space::Project | Space::System(_)) => {
                notices.push(format!("{space} {item} is left out: it is not signed"));
            }
            (LayerTrust::Invalid(_), _) => {
                let report = evaluate(&layer.located, &engine.workspace.keys);
                return Err(Error::refused(&engine.workspace, &item, space, &layer.located.path, &report));
            }
        }
    }
    Ok(Value::Object(Map::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_ask_for_their_own_category_alone() {
        let may = |tool: &str, config: &str| {
            may_resolve(&ItemId::new(tool).expect("an id"), &ItemId::new(config).expect("an id"))
        };
        for (tool, config) in [
            ("team/deploy", "team/deploy"),
            ("team/sub/deploy", "team/other/x"),
            ("rye/web/search/search", "web/websearch"),
        ] {
            assert!(may(tool, config), "{tool} {config}");
        }
        for (tool, config) in [
            ("team/deploy", "trust/projects"),
            ("team/deploy", "keys/trusted/0123456789abcdef"),
            ("team/deploy", "config"),
            ("team/deploy", "execution/sandbox"),
            ("team/deploy", "other/deploy"),
            ("team/deploy", "deploy/x"),
            ("trust/deploy", "trust/projects"),
            ("keys/x", "keys/trusted/x"),
            ("alone", "alone"),
            ("alone", "config"),
        ] {
            assert!(!may(tool, config), "{tool} {config}");
        }
    }
}
