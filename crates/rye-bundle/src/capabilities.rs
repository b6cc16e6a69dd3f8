//! What a bundle asks for: permissions of its directives; executors, sandbox declarations, environment and packages of
//! its tools. Comparable, so that an upgrade can be judged by what it adds.

use std::collections::{BTreeMap, BTreeSet};

use rye_item::text::one_line;
use serde::Serialize;
use serde_json::Value;

use crate::contents::{File, is_tool};

/// Something that is asked for, and the items that ask for it.
pub type Asked = BTreeMap<String, BTreeSet<String>>;

/// What a bundle asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Capability strings of directives: `rye.execute.tool.team.*`.
    pub permissions: Asked,
    /// What tools are run by.
    pub executors: Asked,
    /// What tools declare for the sandbox: `network: true`, `write: ~/reports`.
    pub sandbox: Asked,
    /// Variables tools set for their programs, or read from the user's own.
    pub environment: Asked,
    /// Packages tools need.
    pub packages: Asked,
}

impl Capabilities {
    /// What these files ask for.
    #[must_use]
    pub fn of(files: &[File]) -> Self {
        let mut all = Self::default();
        for file in files {
            let Some(item) = &file.item else {
                continue;
            };
            let item = item.to_string();
            for grant in list(file.fields.get("permissions")) {
                if let Some(capability) = grant.get("content").and_then(Value::as_str) {
                    add(&mut all.permissions, capability, &item);
                }
            }
            if !is_tool(file) {
                continue;
            }
            if let Some(executor) = file.text("executor_id") {
                add(&mut all.executors, executor, &item);
            }
            let mut asked = Vec::new();
            leaves(file.fields.get("sandbox"), "", &mut asked);
            asked.iter().for_each(|rule| add(&mut all.sandbox, rule, &item));
            let variables = file.fields.get("env_config");
            let set = variables.and_then(|variables| variables.get("env")).and_then(Value::as_object);
            for (name, _) in set.into_iter().flatten() {
                add(&mut all.environment, &format!("set {name}"), &item);
            }
            for name in list(variables.and_then(|variables| variables.get("pass"))).filter_map(Value::as_str)
            {
                add(&mut all.environment, &format!("read {name}"), &item);
            }
            for package in list(file.fields.get("dependencies")).filter_map(Value::as_str) {
                add(&mut all.packages, package, &item);
            }
        }
        all
    }

    /// What is asked for here and not in `previous`, as lines for people.
    #[must_use]
    pub fn beyond(&self, previous: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((word, asked), (_, known)) in self.groups().into_iter().zip(previous.groups()) {
            for (what, items) in asked {
                let new: Vec<&str> = items
                    .iter()
                    .filter(|item| known.get(what).is_none_or(|items| !items.contains(*item)))
                    .map(String::as_str)
                    .collect();
                if !new.is_empty() {
                    lines.push(format!("{word} {what} ({})", new.join(", ")));
                }
            }
        }
        lines
    }

    /// Each group with its word, in order.
    #[must_use]
    pub fn groups(&self) -> [(&'static str, &Asked); 5] {
        [
            ("permission", &self.permissions),
            ("executor", &self.executors),
            ("sandbox", &self.sandbox),
            ("environment", &self.environment),
            ("package", &self.packages),
        ]
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups().iter().all(|(_, asked)| asked.is_empty())
    }
}

fn add(asked: &mut Asked, what: &str, item: &str) {
    asked.entry(one_line(what)).or_default().insert(item.to_owned());
}

fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

/// `{"network": true, "write": ["a", "b"]}` → `network: true`, `write: a`, `write: b`.
fn leaves(value: Option<&Value>, path: &str, found: &mut Vec<String>) {
    match value {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => map.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            leaves(Some(value), &path, found);
        }),
        Some(Value::Array(list)) => list.iter().for_each(|value| leaves(Some(value), path, found)),
        Some(Value::String(text)) => found.push(format!("{path}: {text}")),
        Some(other) => found.push(format!("{path}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use lillux::Digest;
    use rye_item::{ItemId, ItemRef, ItemType};
    use rye_space::FilePath;
    use serde_json::json;

    use super::*;

    fn file(item_type: ItemType, id: &str, fields: Value) -> File {
        let Value::Object(fields) = fields else { panic!("fields are a map") };
        File {
            path: FilePath::new(format!(".ai/{}/{id}.x", item_type.folder())).expect("a path"),
            kind: item_type.as_str(),
            item: Some(ItemRef::new(item_type, ItemId::new(id).expect("an id"))),
            size: 0,
            sha256: Digest::of(b""),
            signer: None,
            fields,
        }
    }

    #[test]
    fn everything_asked_for_is_named_with_who_asks() {
        let files = [
            file(
                ItemType::Directive,
                "a/d",
                json!({"permissions": [{"tag": "cap", "content": "rye.execute.tool.a.*"}]}),
            ),
            file(
                ItemType::Tool,
                "a/t",
                json!({
                    "executor_id": "rye/core/runtimes/python/function",
                    "sandbox": {"network": true, "write": ["~/x", "~/y"]},
                    "dependencies": ["six==1.17.0"],
                    "env_config": {"env": {"MODE": "fast"}, "pass": ["TOKEN"]},
                }),
            ),
        ];
        let asked = Capabilities::of(&files);
        let keys = |asked: &Asked| asked.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&asked.permissions), ["rye.execute.tool.a.*"]);
        assert_eq!(keys(&asked.executors), ["rye/core/runtimes/python/function"]);
        assert_eq!(keys(&asked.sandbox), ["network: true", "write: ~/x", "write: ~/y"]);

        assert_eq!(keys(&asked.environment), ["read TOKEN", "set MODE"]);
        assert_eq!(keys(&asked.packages), ["six==1.17.0"]);

        let before = Capabilities::of(&files[..1]);
        assert_eq!(before.beyond(&asked), Vec::<String>::new());
        assert_eq!(asked.beyond(&asked), Vec::<String>::new());
        let beyond = asked.beyond(&before);
        assert!(beyond.contains(&"sandbox network: true (tool:a/t)".to_owned()), "{beyond:?}");
        assert_eq!(beyond.len(), 7, "{beyond:?}");
    }
}
