//! The configuration that rye ships, read from the standard bundle.

use std::path::Path;

use rye_thread::config::{CONFIG_NAMES, ThreadConfig};
use serde_json::{Map, Value, json};

/// The configuration of threads that rye ships.
#[must_use]
pub fn shipped_config() -> ThreadConfig {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bundles/standard/.ai/config/agent");
    let mut values = Map::new();
    for name in CONFIG_NAMES {
        let read = lillux::file::read_bounded(&folder.join(format!("{name}.yaml")), 1 << 20);
        let text = read.map(|(bytes, _)| bytes).unwrap_or_default();
        let text = String::from_utf8(text).expect("text");
        let mut value = rye_item::yaml::parse(&text).expect("YAML").value;
        // Hooks say where they come from once they are loaded.
        if name.starts_with("hook") {
            let lists = value.as_object_mut().into_iter().flat_map(Map::values_mut);
            let hooks = lists.filter_map(Value::as_array_mut).flatten().filter(|hook| hook.is_object());
            hooks.for_each(|hook| hook["origin"] = json!("system"));
        }
        values.insert(name.to_owned(), value);
    }
    ThreadConfig::from_values(&values).expect("a configuration")
}
