//! The directives inside the binary: what they ask for is there, and their limits let them finish.

use std::path::Path;

use rye_item::interpolate::interpolate_inputs;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::{Roots, Workspace};
use serde_json::{Map, Value, json};

fn empty_workspace(folder: &Path) -> Workspace {
    Workspace::open(Roots {
        project: None,
        user: folder.join("home"),
        home: folder.join("home"),
        cache: folder.join("cache"),
        signing_keys: folder.join("keys"),
        bundle_paths: Vec::new(),
    })
    .expect("a workspace")
}

/// The fields of every directive inside the binary, by id.
fn directives(workspace: &Workspace) -> Vec<(String, Map<String, Value>)> {
    let spaces = &workspace.spaces;
    let entries = spaces.order().flat_map(|space| spaces.scan(&space, &[ItemType::Directive]).entries);
    entries
        .map(|entry| {
            let located = spaces.locate(&entry.item, None).expect("a directive");
            (entry.item.id.to_string(), located.parsed().fields.clone())
        })
        .collect()
}

fn actions(fields: &Map<String, Value>) -> Vec<Value> {
    fields.get("actions").and_then(Value::as_array).cloned().unwrap_or_default()
}

#[test]
fn every_action_names_existing_item_and_parameters() {
    let folder = tempfile::tempdir().expect("a folder");
    let workspace = empty_workspace(folder.path());
    let inputs = json!({"provider": "anthropic"}).as_object().expect("a map").clone();
    for (directive, fields) in directives(&workspace) {
        for action in actions(&fields) {
            let (Some(item_type), Some(id)) = (action["item_type"].as_str(), action["item_id"].as_str())
            else {
                assert_eq!(action["primary"], "search", "{directive}: {action}");
                continue;
            };
            // What is about to be made is not there yet.
            if action["primary"] == "sign" {
                continue;
            }
            let id = interpolate_inputs(id, &inputs);
            let item = ItemRef::new(item_type.parse().expect("a type"), ItemId::new(id).expect("an id"));
            let located =
                workspace.spaces.locate(&item, None).unwrap_or_else(|error| panic!("{directive}: {error}"));
            let schema = &located.parsed().fields.get("config_schema").cloned().unwrap_or_default();
            for name in action["params"].as_object().into_iter().flatten().map(|(name, _)| name) {
                assert!(schema["properties"].get(name).is_some(), "{directive}: {item} takes no `{name}`");
            }
        }
    }
}

#[test]
fn token_limits_allow_all_turns() {
    let folder = tempfile::tempdir().expect("a folder");
    for (directive, fields) in directives(&empty_workspace(folder.path())) {
        let limits = &fields.get("limits").cloned().unwrap_or_default();
        if let (Some(turns), Some(tokens)) = (limits["turns"].as_u64(), limits["tokens"].as_u64()) {
            assert!(tokens >= turns * 5000, "{directive}: {tokens} tokens for {turns} turns");
        }
    }
}

#[test]
fn tour_runs_without_a_model() {
    let folder = tempfile::tempdir().expect("a folder");
    let all = directives(&empty_workspace(folder.path()));
    let (_, tour) = all.iter().find(|(id, _)| id == "rye/guides/tour").expect("the tour");
    let primaries: Vec<Value> = actions(tour).iter().map(|action| action["primary"].clone()).collect();
    assert_eq!(primaries, ["search", "load", "execute", "execute"]);
    let outputs: Vec<&Value> =
        tour["outputs"].as_array().expect("outputs").iter().map(|output| &output["name"]).collect();
    assert_eq!(outputs, ["title", "runtime", "entries"]);
    assert!(!tour.contains_key("hooks"));
}
