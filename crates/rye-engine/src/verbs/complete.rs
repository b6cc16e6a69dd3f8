//! What a shell offers: names only, read as a search reads them. Nothing is verified or run.

use rye_item::space::SpaceTier;
use rye_item::text::one_line;
use rye_item::{ItemRef, ItemType};
use serde_json::Value;

use crate::engine::Engine;
use crate::verbs::{config, load};

/// Something to offer, with a word about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedChoice {
    /// What is typed.
    pub name: String,
    /// What it is.
    pub about: String,
}

/// The parameters of a tool, or the inputs of a directive, in their order.
#[must_use]
pub fn parameters(engine: &Engine, item: &ItemRef) -> Vec<NamedChoice> {
    let Ok(file) = engine.workspace.spaces.locate(item, None) else { return Vec::new() };
    let fields = file.fields();
    let about = |value: &Value| one_line(value["description"].as_str().unwrap_or_default());
    match item.item_type {
        ItemType::Tool => {
            let properties = fields.get("config_schema").and_then(|schema| schema["properties"].as_object());
            let named = properties.into_iter().flatten();
            named.map(|(name, value)| NamedChoice { name: one_line(name), about: about(value) }).collect()
        }
        ItemType::Directive => {
            let inputs = fields.get("inputs").and_then(Value::as_array).into_iter().flatten();
            let named = inputs.filter_map(|input| {
                Some(NamedChoice { name: one_line(input["name"].as_str()?), about: about(input) })
            });
            named.collect()
        }
        ItemType::Knowledge | ItemType::Config => Vec::new(),
    }
}

/// The item that an id alone names, if there is just one.
#[must_use]
pub fn item_of_id(engine: &Engine, id: &str) -> Option<ItemRef> {
    load::find_by_id(engine, id, None::<SpaceTier>).ok()
}

/// Every setting, as `rye config get` takes it.
#[must_use]
pub fn settings(engine: &Engine) -> Vec<NamedChoice> {
    let settings = config::show(engine, None).map(|response| response.settings).unwrap_or_default();
    let named = settings.into_iter().map(|setting| {
        let name = match setting.config.as_str() {
            "config" => setting.key,
            config => format!("{config}:{}", setting.key),
        };
        NamedChoice { name: one_line(&name), about: one_line(&setting.value.to_string()) }
    });
    named.collect()
}
