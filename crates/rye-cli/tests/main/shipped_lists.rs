//! Lists that shipped files repeat are those of the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rye_agent::limits::LIMIT_NAMES;
use rye_item::parse::directive::HOOK_EVENTS;
use rye_item::{ItemType, PrimaryAction, yaml};
use serde_json::Value;

const THREAD_SCHEMAS: &str = "bundles/standard/.ai/tools/rye/agent/schemas";
const THREAD_CONFIG: &str = "bundles/standard/.ai/config/agent";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read_yaml(path: &str) -> Value {
    serde_json::to_value(yaml::parse(&read(path)).expect("YAML").value).expect("JSON")
}

fn words(value: &Value) -> BTreeSet<&str> {
    value.as_array().expect("a list").iter().map(|word| word.as_str().expect("a word")).collect()
}

/// Every `key: {enum: […]}` below `value`.
fn enums<'v>(value: &'v Value, key: &str, found: &mut Vec<BTreeSet<&'v str>>) {
    match value {
        Value::Object(map) => {
            if let Some(list) = map.get(key).and_then(|named| named.get("enum")) {
                found.push(words(list));
            }
            map.values().for_each(|below| enums(below, key, found));
        }
        Value::Array(list) => list.iter().for_each(|below| enums(below, key, found)),
        _ => {}
    }
}

#[test]
fn hook_schemas_name_every_event_and_action() {
    let types: BTreeSet<&str> = ItemType::SEARCHABLE.map(ItemType::as_str).into();
    let primaries: BTreeSet<&str> = PrimaryAction::ALL.map(PrimaryAction::as_str).into();
    for name in ["hooks", "hook_conditions"] {
        let schema = read_yaml(&format!("{THREAD_SCHEMAS}/{name}.config-schema.yaml"));
        for (key, expected) in [
            ("event", BTreeSet::from(HOOK_EVENTS)),
            ("primary", primaries.clone()),
            ("item_type", types.clone()),
        ] {
            let mut found = Vec::new();
            enums(&schema, key, &mut found);
            assert_eq!(found, [expected], "{name}: {key}");
        }
    }
    let conditions = read_yaml(&format!("{THREAD_CONFIG}/hook_conditions.yaml"));
    assert_eq!(words(&conditions["action_primaries"]), primaries);
    assert_eq!(words(&conditions["action_item_types"]), types);
}

#[test]
fn machine_runs_hooks_of_every_event() {
    let mut sources = Vec::new();
    collect(&workspace().join("crates/rye-thread/src"), &mut sources);
    let text: String = sources.iter().map(|path| fs::read_to_string(path).expect("a source")).collect();
    for event in HOOK_EVENTS {
        assert!(text.contains(&format!("\"{event}\"")), "no hook is run at `{event}`");
    }
}

#[test]
fn shipped_files_name_every_limit() {
    let lists = [
        ("bundles/core/.ai/tools/rye/core/extractors/directive/directive_extractor.yaml", "nested"),
        (&format!("{THREAD_SCHEMAS}/resilience.config-schema.yaml"), "properties"),
        (&format!("{THREAD_CONFIG}/resilience.yaml"), "defaults"),
    ];
    for (path, key) in lists {
        let file = read_yaml(path);
        assert!(has_limits(&file, key), "{path}");
    }
    let joined = LIMIT_NAMES.join(", ");
    for path in ["bundles/standard/.ai/tools/rye/agent/threads/thread_directive.yaml", "docs/ui/openapi.yaml"]
    {
        assert!(read(path).contains(&joined), "{path} does not list: {joined}");
    }
    let (conditions, form) =
        (read(&format!("{THREAD_CONFIG}/hook_conditions.yaml")), read("crates/rye-server/ui/parts.js"));
    for name in LIMIT_NAMES {
        assert!(
            conditions.contains(&format!("- {name}_exceeded\n")),
            "hook_conditions.yaml: {name}_exceeded"
        );
        assert!(form.contains(&format!("['{name}', ")), "parts.js: {name}");
    }
}

/// Whether some object below `value` has all limits, beside other keys, under `key`.
fn has_limits(value: &Value, key: &str) -> bool {
    let is_here =
        value.get(key).is_some_and(|named| LIMIT_NAMES.iter().all(|name| named.get(name).is_some()));
    let below = value.as_object().into_iter().flat_map(|map| map.values());
    is_here || below.into_iter().any(|below| has_limits(below, key))
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests") {
                collect(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The keys that the sources read from the merged `config.yaml`.
fn read_settings() -> BTreeSet<String> {
    let mut sources = Vec::new();
    collect(&workspace().join("crates"), &mut sources);
    let mut keys = BTreeSet::new();
    for path in sources.iter().filter(|path| path.components().any(|part| part.as_os_str() == "src")) {
        let text: String = fs::read_to_string(path).expect("a source").split_whitespace().collect();
        for call in ["settings.get(\"", "settings.texts(\"", "setting(\"", "_SETTING:&str=\""] {
            let found = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            keys.extend(found.filter(|key| key.contains('.')).map(str::to_owned));
        }
    }
    keys
}

#[test]
fn settings_that_are_read_are_in_the_schema() {
    let schema = read_yaml("bundles/core/.ai/tools/rye/core/schemas/config.config-schema.yaml");
    let keys = read_settings();
    assert!(keys.len() > 8, "{keys:?}");
    let is_known = |key: &str| {
        let mut node = &schema["schema"];
        key.split('.').all(|part| {
            node = &node["properties"][part];
            node.is_object()
        })
    };
    let unknown: Vec<&String> = keys.iter().filter(|key| !is_known(key)).collect();
    assert_eq!(unknown, Vec::<&String>::new());
}
