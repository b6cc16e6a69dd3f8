//! The merge law of layered configuration: what a nearer layer says over a farther one.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The key that names what a file builds on: it describes the file and is never taken over from a layer.
const EXTENDS: &str = "extends";

/// Lays `over` upon `base`.
///
/// Maps merge key by key, at every level. Lists whose elements all carry an `id` merge by it: an element with a known
/// id replaces the whole element in its place, a new one is appended. Every other list, and every scalar, replaces.
/// `extends` in a map of `over` is left out. A layer that is `null` as a whole, an empty file, changes nothing.
#[must_use]
pub fn merge(base: &Value, over: &Value) -> Value {
    if over.is_null() { base.clone() } else { merge_value(base, over) }
}

fn merge_value(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => Value::Object(merge_map(base, over)),
        (_, Value::Object(over)) => Value::Object(merge_map(&Map::new(), over)),
        (Value::Array(base), Value::Array(over)) if !base.is_empty() => {
            merge_by_id(base, over).map_or_else(|| Value::Array(over.clone()), Value::Array)
        }
        _ => over.clone(),
    }
}

fn merge_map(base: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = base.clone();
    for (key, value) in over.iter().filter(|(key, _)| *key != EXTENDS) {
        let value = merge_value(base.get(key).unwrap_or(&Value::Null), value);
        merged.insert(key.clone(), value);
    }
    merged
}

/// Both lists as one, if every element of both carries an id.
fn merge_by_id(base: &[Value], over: &[Value]) -> Option<Vec<Value>> {
    let mut merged: Vec<Value> = Vec::with_capacity(base.len() + over.len());
    let mut indexes = BTreeMap::new();
    for element in base.iter().chain(over) {
        let id = element.get("id").filter(|id| !id.is_null())?.to_string();
        match indexes.get(&id).and_then(|index: &usize| merged.get_mut(*index)) {
            Some(known) => *known = element.clone(),
            None => {
                indexes.insert(id, merged.len());
                merged.push(element.clone());
            }
        }
    }
    Some(merged)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_recurse_and_scalars_and_lists_replace() {
        let base = json!({ "a": { "x": 1, "y": 2 }, "l": [1, 2], "s": "old", "m": { "k": 1 } });
        let over = json!({ "a": { "y": 3, "z": null }, "l": [3], "s": { "deep": true }, "m": 0, "n": 1 });
        let expected = json!({
            "a": { "x": 1, "y": 3, "z": null }, "l": [3], "s": { "deep": true }, "m": 0, "n": 1,
        });
        assert_eq!(merge(&base, &over), expected);
    }

    #[test]
    fn lists_with_ids_merge_by_id() {
        let base = json!({ "hooks": [{ "id": "a", "v": 1, "kept": 1 }, { "id": "b" }, { "id": "c" }] });
        let over = json!({ "hooks": [{ "id": "d" }, { "id": "a", "v": 2 }] });
        let expected =
            json!({ "hooks": [{ "id": "a", "v": 2 }, { "id": "b" }, { "id": "c" }, { "id": "d" }] });
        assert_eq!(merge(&base, &over), expected);
        assert_eq!(merge(&base, &json!({ "hooks": [] })), base);
    }

    #[test]
    fn lists_without_ids_replace() {
        let base = json!([{ "id": "a" }, { "v": 1 }]);
        let over = json!([{ "id": "b" }]);
        assert_eq!(merge(&base, &over), over);
        assert_eq!(merge(&over, &json!([{ "id": "a" }, "x"])), json!([{ "id": "a" }, "x"]));
        assert_eq!(merge(&over, &json!([{ "id": null }])), json!([{ "id": null }]));
        assert_eq!(
            merge(&json!([{ "id": 1 }]), &json!([{ "id": "1" }])),
            json!([{ "id": 1 }, { "id": "1" }])
        );
    }

    #[test]
    fn extends_is_never_inherited() {
        let over = json!({ "extends": "b", "n": { "extends": "b", "x": { "extends": "b", "y": 1 } } });
        assert_eq!(
            merge(&json!({ "extends": "a" }), &over),
            json!({ "extends": "a", "n": { "x": { "y": 1 } } })
        );
    }

    #[test]
    fn an_empty_file_changes_nothing() {
        assert_eq!(merge(&json!({ "a": 1 }), &Value::Null), json!({ "a": 1 }));
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..5).prop_map(Value::from),
            "[a-c]".prop_map(Value::from),
        ]
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![4 => "[a-d]", 1 => Just("extends".to_owned())]
    }

    fn value() -> impl Strategy<Value = Value> {
        scalar().prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(0..4, inner.clone(), 0..4).prop_map(|list| {
                    list.into_iter().map(|(id, value)| json!({ "id": id, "value": value })).collect()
                }),
                prop::collection::btree_map(key(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn map() -> impl Strategy<Value = Value> {
        prop::collection::btree_map(key(), value(), 0..5)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    fn map_of_scalars() -> impl Strategy<Value = Value> {
        prop::collection::btree_map(key(), scalar(), 0..5)
            .prop_map(|map| Value::Object(map.into_iter().collect()))
    }

    fn ids(list: &Value) -> Vec<&Value> {
        list.as_array().unwrap().iter().map(|element| &element["id"]).collect()
    }

    proptest! {
        #[test]
        fn an_empty_layer_changes_nothing(base in map()) {
            prop_assert_eq!(merge(&base, &json!({})), base);
        }

        #[test]
        fn merging_twice_changes_nothing(base in map(), over in map()) {
            let once = merge(&base, &over);
            prop_assert_eq!(merge(&once, &over), once.clone());
            prop_assert_eq!(merge(&base, &once), once);
        }

        #[test]
        fn scalar_layers_are_associative(
            first in map_of_scalars(), second in map_of_scalars(), third in map_of_scalars(),
        ) {
            let left = merge(&merge(&first, &second), &third);
            let right = merge(&first, &merge(&second, &third));
            prop_assert_eq!(left, right);
        }

        #[test]
        fn ids_keep_their_order(
            base in prop::collection::btree_set(0..20, 1..8), over in prop::collection::btree_set(0..20, 0..8),
        ) {
            let list = |ids: &std::collections::BTreeSet<i32>| -> Value {
                ids.iter().map(|id| json!({ "id": id })).collect()
            };
            let merged = merge(&list(&base), &list(&over));
            let expected: Vec<_> =
                base.iter().chain(over.difference(&base)).map(|id| json!(id)).collect();
            prop_assert_eq!(ids(&merged), expected.iter().collect::<Vec<_>>());
        }
    }
}
