//! The descriptors in the bundles and the functions behind them fit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rye_item::yaml;
use serde_json::{Value, json};

fn bundles_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bundles")
}

fn load_descriptors() -> Vec<(PathBuf, Value)> {
    let folders = [
        "standard/.ai/tools/rye/file-system",
        "core/.ai/tools/rye/core/system",
        "web/.ai/tools/rye/web/fetch",
        "web/.ai/tools/rye/web/search",
    ];
    let mut found = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(bundles_dir().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("a descriptor");
            let value = yaml::parse(&text).expect("YAML").value;
            found.push((path, serde_json::to_value(value).expect("JSON")));
        }
    }
    found
}

#[test]
fn functions_and_descriptors_match() {
    let functions: BTreeSet<String> = rye_tools::all().iter().map(|tool| tool.name().to_owned()).collect();
    let named: BTreeSet<String> = load_descriptors()
        .iter()
        .map(|(_, descriptor)| descriptor["config"]["function"].as_str().expect("a function").to_owned())
        .collect();
    assert_eq!(functions, named);
    assert_eq!(functions.len(), rye_tools::all().len());
}

#[test]
fn descriptors_have_required_fields() {
    for (path, descriptor) in load_descriptors() {
        let category = path.parent().expect("a folder").to_string_lossy().into_owned();
        let category = category.split_once(".ai/tools/").expect("a place").1.to_owned();
        assert_eq!(descriptor["name"], path.file_stem().expect("a name").to_string_lossy().into_owned());
        assert_eq!(descriptor["category"], category);
        assert_eq!(descriptor["tool_type"], "native");
        assert_eq!(descriptor["executor_id"], "rye/core/primitives/native");
        let is_web = category.starts_with("rye/web");
        assert_eq!(descriptor["sandbox"], json!({"network": is_web}));
        let schema = &descriptor["config_schema"];
        assert_eq!(schema["additionalProperties"], false);
        jsonschema::validator_for(schema).expect("a schema");
        for (name, property) in schema["properties"].as_object().expect("properties") {
            assert!(property["description"].is_string(), "{}: {name}", path.display());
        }
    }
}

#[test]
fn example_calls_fit_their_schemas() {
    let validates = |name: &str, call: Value| {
        let (_, descriptor) =
            load_descriptors().into_iter().find(|(_, found)| found["name"] == name).expect("a descriptor");
        jsonschema::validator_for(&descriptor["config_schema"]).expect("a schema").is_valid(&call)
    };
    assert!(validates("read", json!({"path": "a", "offset": 1, "limit": 5, "line_ids": false})));
    assert!(!validates("read", json!({"path": "a", "offset": 0})));
    assert!(!validates("read", json!({"file": "a"})));
    assert!(validates("write", json!({"path": "a", "content": "", "expected_hash": "absent"})));
    assert!(validates(
        "edit_lines",
        json!({"path": "a", "changes": [{"line_id": "L0000000", "new_content": "x"}]})
    ));
    assert!(!validates("edit_lines", json!({"path": "a", "changes": []})));
    assert!(validates("glob", json!({"pattern": "*"})));
    assert!(validates("grep", json!({"pattern": "x", "output_mode": "count", "context": 2, "fixed": true})));
    assert!(!validates("grep", json!({"pattern": "x", "output_mode": "all"})));
    assert!(validates("ls", json!({})));
    assert!(validates("system", json!({"item": "time"})));
    assert!(!validates("time", json!({"item": "time"})));
}
