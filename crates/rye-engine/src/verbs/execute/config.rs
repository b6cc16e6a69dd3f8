//! `config_resolve`: the settings a tool asks for, from all tiers, given to it with its parameters.

use rye_exec::Chain;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::config::Standing;
use rye_trust::Subject;
use rye_trust::verify::report;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What the tool asked for, if it asked and there is something; with notices about what was left out.
///
/// # Errors
/// When the request makes no sense, or a file it names was changed or signed by a stranger.
pub(super) fn resolve(engine: &Engine, chain: &Chain, notices: &mut Vec<String>) -> Result<Option<Value>> {
    let Some(wanted) = chain.tool().field("config_resolve") else {
        return Ok(None);
    };
    let resolved = match wanted {
        Value::Array(list) => {
            let mut all = Map::new();
            for one in list {
                let (path, value) = resolve_one(engine, one, chain, notices)?;
                all.insert(path, value);
            }
            Value::Object(all)
        }
        one => resolve_one(engine, one, chain, notices)?.1,
    };
    let is_empty = resolved.as_object().is_some_and(Map::is_empty);
    Ok((!is_empty).then_some(resolved))
}

fn resolve_one(
    engine: &Engine,
    wanted: &Value,
    chain: &Chain,
    notices: &mut Vec<String>,
) -> Result<(String, Value)> {
    let invalid = |reason: String| {
        Error::new(Code::InvalidInvocation, format!("`config_resolve` of {}: {reason}", chain.tool().id()))
            .of(chain.tool().item().item_ref())
            .hint("it takes {path: category/file.yaml, mode: deep_merge | first_match}")
    };
    let Some(path) = wanted.get("path").and_then(Value::as_str) else {
        return Err(invalid("there is no path".to_owned()));
    };
    let stem = path.strip_suffix(".yaml").or_else(|| path.strip_suffix(".yml")).unwrap_or(path);
    let id = ItemId::new(stem).map_err(|error| invalid(error.to_string()))?;
    let value = match wanted.get("mode").and_then(Value::as_str).unwrap_or("deep_merge") {
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
    let (layers, unread) = engine.workspace.config_layers(id);
    if let Some(unread) = unread.first() {
        return Err(Error::new(Code::Io, unread.reason.clone())
            .of(&item)
            .detail("path", unread.path.display().to_string()));
    }
    for layer in layers.iter().rev() {
        let space = layer.located.space();
        match (layer.standing, space) {
            (Standing::Vouched | Standing::Installed, _) | (Standing::Unsigned, Space::User) => {
                return Ok(Value::Object(layer.located.parsed().fields.clone()));
            }
            (Standing::NotApproved, _) => {
                notices.push(format!("the project's {item} is left out: the project is not approved"));
            }
            (Standing::OutOfScope(reason), _) => {
                notices.push(format!("{space} {item} is left out: {reason}"));
            }
            (Standing::Unsigned, Space::Project | Space::System(_)) => {
                notices.push(format!("{space} {item} is left out: it is not signed"));
            }
            (Standing::Doubtful(_), _) => {
                let report = report(&layer.located, &engine.workspace.keys);
                return Err(Error::refused(&engine.workspace, &item, space, &layer.located.path, &report));
            }
        }
    }
    Ok(Value::Object(Map::new()))
}
