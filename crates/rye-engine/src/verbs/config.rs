//! `config show`: settings after all layers, where each comes from, and what was left out.

use rye_item::{ItemId, ItemType};
use rye_space::config::{IgnoredSetting, MergedConfig};
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// One setting.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The config it belongs to.
    pub config: String,
    /// Its dotted path.
    pub key: String,
    /// Its value.
    pub value: Value,
    /// The space it comes from.
    pub origin: String,
}

/// The answer of a config show.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConfigResponse {
    /// The merged documents, by config id.
    pub config: serde_json::Map<String, Value>,
    /// Every setting with its origin.
    pub settings: Vec<Setting>,
    /// What was left out, and why.
    pub ignored: Vec<IgnoredSetting>,
    /// What counts, but should be signed.
    pub unsigned: Vec<IgnoredSetting>,
    /// Files in the old flat place, read or not.
    #[serde(rename = "flat")]
    pub misplaced: Vec<IgnoredSetting>,
}

/// Shows one config, or all.
///
/// # Errors
/// When there is no such config.
pub fn show(engine: &Engine, id: Option<&ItemId>) -> Result<ConfigResponse> {
    let ids = match id {
        Some(id) => match rye_space::config::configs_for_flat_file(&engine.workspace.spaces, id) {
            // A flat file is shown as what it is read as.
            named if named.is_empty() => vec![id.clone()],
            named => named,
        },
        None => config_ids(engine)?,
    };
    let mut response = ConfigResponse::default();
    for id in ids {
        let merged = engine.workspace.config(&id);
        let is_empty = merged.origins.is_empty() && merged.ignored.is_empty();
        if is_empty {
            return Err(Error::new(Code::NotFound, format!("config not found: {id}"))
                .hint("rye config show lists all configs"));
        }
        add_config(&mut response, &id, merged);
    }
    Ok(response)
}

fn add_config(response: &mut ConfigResponse, id: &ItemId, merged: MergedConfig) {
    for (key, origin) in &merged.origins {
        response.settings.push(Setting {
            config: id.to_string(),
            key: key.join("."),
            value: merged.get_path(key).cloned().unwrap_or(Value::Null),
            origin: origin.to_string(),
        });
    }
    response.ignored.extend(merged.ignored);
    response.unsigned.extend(merged.unsigned);
    response.misplaced.extend(merged.flat_files);
    response.config.insert(id.to_string(), merged.value);
}

/// Every config of any space, identities and approvals aside.
fn config_ids(engine: &Engine) -> Result<Vec<ItemId>> {
    let spaces = &engine.workspace.spaces;
    let mut ids: Vec<ItemId> = vec![ItemId::new("config")?];
    for space in spaces.order() {
        for entry in spaces.scan(&space, &[ItemType::Config]).entries {
            let id = entry.item.id;
            let is_layered = entry.extension != ".toml" && !id.is_within("keys") && !id.is_within("trust");
            if is_layered && !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    // A flat file of the project that is a layer of another config is not one of its own.
    let has_named =
        |id: &ItemId| ids.iter().any(|other| other.as_str().contains('/') && other.name() == id.as_str());
    let flat: Vec<ItemId> = ids
        .iter()
        .filter(|id| !id.as_str().contains('/') && id.as_str() != "config" && has_named(id))
        .cloned()
        .collect();
    ids.retain(|id| !flat.contains(id));
    Ok(ids)
}
