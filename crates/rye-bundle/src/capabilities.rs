//! What a bundle asks for: permissions and hooks of its directives; what its tools run, reach, read and need; and every
//! other field that is not known to be harmless. Comparable, so that an upgrade can be judged by what it adds.

mod fields;

use std::collections::{BTreeMap, BTreeSet};

use lillux::Digest;
use rye_item::ItemType;
use rye_item::parse::directive::HOOK_KEYS;
use rye_item::text::{one_line, reveal_hidden};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::contents::BundleFile;

/// The longest text of one request that is shown.
const MAX_REQUEST_LENGTH: usize = 1000;
/// Texts for people: what looks like a variable or an address there is not read by rye.
const PROSE_FIELDS: [&str; 9] = [
    "description",
    "__tool_description__",
    "docstring",
    "__docstring__",
    "config_schema",
    "CONFIG_SCHEMA",
    "name",
    "category",
    "__category__",
];

/// Something that is asked for, and the items that ask for it.
pub type CapabilityRequests = BTreeMap<String, BTreeSet<String>>;

/// What a bundle asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BundleCapabilities {
    /// Capability strings of directives: `rye.execute.tool.team.*`.
    pub permissions: CapabilityRequests,
    /// What hooks do, of directives and of config.
    pub hooks: CapabilityRequests,
    /// What tools are run by.
    pub executors: CapabilityRequests,
    /// Programs that tools start or look for, with their arguments.
    pub commands: CapabilityRequests,
    /// MCP servers: what is started for them, or where they are.
    pub servers: CapabilityRequests,
    /// What tools declare for the sandbox: `network: true`, `write: ~/reports`, `allow_sockets: …`.
    pub sandbox: CapabilityRequests,
    /// Hosts that tools name.
    pub hosts: CapabilityRequests,
    /// Variables tools set for their programs, or read from the user's own, templates included.
    pub environment: CapabilityRequests,
    /// Secrets tools read.
    pub secrets: CapabilityRequests,
    /// Packages tools need.
    pub packages: CapabilityRequests,
    /// Every other field that is not known to be harmless: `limits.spend: 5`, `extends: base/agent`.
    pub fields: CapabilityRequests,
}

impl BundleCapabilities {
    /// What these files ask for.
    #[must_use]
    pub fn from_files(files: &[BundleFile]) -> Self {
        let mut all = Self::default();
        for file in files {
            let Some(item) = &file.item else {
                continue;
            };
            let name = item.to_string();
            match item.item_type {
                ItemType::Directive => all.add_directive(file, &name),
                ItemType::Tool => all.add_tool(file, &name),
                ItemType::Config => {
                    let hooks = HOOK_KEYS.iter().flat_map(|key| list_items(file.raw.get(*key)));
                    hooks.for_each(|hook| add_request(&mut all.hooks, &describe_hook(hook), &name));
                }
                ItemType::Knowledge => {}
            }
            fields::remarkable(file, item.item_type)
                .iter()
                .for_each(|field| add_request(&mut all.fields, field, &name));
        }
        all
    }

    fn add_directive(&mut self, file: &BundleFile, item: &str) {
        for grant in list_items(file.fields.get("permissions")) {
            if let Some(capability) = grant.get("content").and_then(Value::as_str) {
                add_request(&mut self.permissions, capability, item);
            }
        }
        list_items(file.fields.get("hooks"))
            .for_each(|hook| add_request(&mut self.hooks, &describe_hook(hook), item));
    }

    fn add_tool(&mut self, file: &BundleFile, item: &str) {
        if let Some(executor) = file.text("executor_id") {
            add_request(&mut self.executors, executor, item);
        }
        let config = file.fields.get("config");
        let is_server = file.text("tool_type") == Some("mcp-server");
        if let Some(command) = command_line(config) {
            add_request(if is_server { &mut self.servers } else { &mut self.commands }, &command, item);
        }
        if is_server && let Some(url) = config.and_then(|config| config.get("url")).and_then(Value::as_str) {
            add_request(&mut self.servers, url, item);
        }
        let mut rules = Vec::new();
        flatten_rules(file.fields.get("sandbox"), "", &mut rules);
        rules.iter().for_each(|rule| add_request(&mut self.sandbox, rule, item));
        self.add_environment(file, item);
        for package in list_items(file.fields.get("dependencies")).filter_map(Value::as_str) {
            add_request(&mut self.packages, package, item);
        }
        for text in machine_texts(&file.raw) {
            template_variables(text)
                .for_each(|name| add_request(&mut self.environment, &format!("read {name}"), item));
            if let Some(host) = host_of(text) {
                add_request(&mut self.hosts, host, item);
            }
        }
    }

    fn add_environment(&mut self, file: &BundleFile, item: &str) {
        let variables = file.fields.get("env_config");
        let of = |key: &str| variables.and_then(|variables| variables.get(key));
        // A program of its own may be given variables in two places: for every run, and for an MCP server.
        let own = file.fields.get("config").and_then(|config| config.get("env"));
        for (name, value) in [of("env"), own].into_iter().flatten().filter_map(Value::as_object).flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            add_request(&mut self.environment, &format!("set {name}: {value}"), item);
        }
        for name in list_items(of("pass")).filter_map(Value::as_str) {
            add_request(&mut self.environment, &format!("read {name}"), item);
        }
        for name in list_items(of("secrets")).filter_map(Value::as_str) {
            add_request(&mut self.secrets, name, item);
        }
        // Where a key comes from in a provider, or in one of its profiles: a variable by its bare name.
        let mut keys = Vec::new();
        file.raw.iter().for_each(|(key, value)| collect_auth_variables(key, value, &mut keys));
        keys.iter().for_each(|name| add_request(&mut self.secrets, name, item));
        let Some(interpreter) = of("interpreter") else {
            return;
        };
        let resolve: Vec<&str> =
            list_items(interpreter.get("resolve_cmd")).filter_map(Value::as_str).collect();
        if !resolve.is_empty() {
            add_request(&mut self.commands, &resolve.join(" "), item);
        }
        let named = [interpreter.get("binary"), interpreter.get("fallback")].into_iter().flatten();
        for program in named.chain(list_items(interpreter.get("candidates"))).filter_map(Value::as_str) {
            add_request(&mut self.commands, program, item);
        }
    }

    /// What is asked for here and not in `previous`, as lines for people.
    #[must_use]
    pub fn added_since(&self, previous: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((word, requests), (_, known)) in self.groups().into_iter().zip(previous.groups()) {
            for (what, items) in requests {
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
    pub fn groups(&self) -> [(&'static str, &CapabilityRequests); 11] {
        [
            ("permission", &self.permissions),
            ("hook", &self.hooks),
            ("executor", &self.executors),
            ("command", &self.commands),
            ("MCP server", &self.servers),
            ("sandbox", &self.sandbox),
            ("host", &self.hosts),
            ("environment", &self.environment),
            ("secret", &self.secrets),
            ("package", &self.packages),
            ("field", &self.fields),
        ]
    }

    /// Whether nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups().iter().all(|(_, asked)| asked.is_empty())
    }
}

fn add_request(requests: &mut CapabilityRequests, request: &str, item: &str) {
    // A person agrees to it: nothing in it is hidden.
    let mut request = reveal_hidden(&one_line(request)).into_owned();
    let length = request.chars().count();
    if length > MAX_REQUEST_LENGTH {
        // With the digest, a change of what is not shown is still a change.
        let digest = Digest::of(request.as_bytes()).to_hex();
        request = request.chars().take(MAX_REQUEST_LENGTH).collect();
        request.push_str(&format!(
            "… ({} more characters, sha256 {})",
            length - MAX_REQUEST_LENGTH,
            &digest[..16]
        ));
    }
    requests.entry(request).or_default().insert(item.to_owned());
}

/// `command` and `args` of a config, as one line.
fn command_line(config: Option<&Value>) -> Option<String> {
    let config = config?;
    let command = config.get("command").and_then(Value::as_str)?;
    let arguments = list_items(config.get("args")).map(|argument| match argument {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    Some(std::iter::once(command.to_owned()).chain(arguments).collect::<Vec<_>>().join(" "))
}

/// What a hook does, in one line: when, and which items it calls with what.
fn describe_hook(hook: &Value) -> String {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let actions: Vec<&Value> =
        hook.get("action").into_iter().chain(list_items(hook.get("actions"))).collect();
    let call = |action: &&Value| {
        let id = text(action, "item_id")?;
        let params = action.get("params").and_then(Value::as_object).filter(|params| !params.is_empty());
        Some(match params {
            Some(params) => format!("{id} {}", Value::Object(params.clone())),
            None => id,
        })
    };
    let called: Vec<String> = actions.iter().filter_map(call).collect();
    match (text(hook, "event").or_else(|| text(hook, "id")), called.is_empty()) {
        (Some(when), false) => format!("{when}: {}", called.join(", ")),
        (_, _) => hook.to_string(),
    }
}

/// Every text of an item but those for people.
fn machine_texts(fields: &Map<String, Value>) -> Vec<&str> {
    fn collect<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::String(text) => found.push(text),
            Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
            Value::Object(map) => map.values().for_each(|value| collect(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut found = Vec::new();
    let read = fields.iter().filter(|(key, _)| !PROSE_FIELDS.contains(&key.as_str()));
    read.for_each(|(_, value)| collect(value, &mut found));
    found
}

/// The variables that maps called `auth` name.
fn collect_auth_variables<'a>(key: &str, value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            let named = map.get("variable").filter(|_| key == "auth").and_then(Value::as_str);
            found.extend(named);
            map.iter().for_each(|(key, value)| collect_auth_variables(key, value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| collect_auth_variables("", value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The names of the variables a template reads: `${NAME}`, `${NAME:-default}`.
fn template_variables(text: &str) -> impl Iterator<Item = &str> {
    text.split("${").skip(1).filter_map(|rest| {
        let inner = &rest[..rest.find('}')?];
        let name = inner.split(":-").next().unwrap_or(inner);
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        is_name.then_some(name)
    })
}

/// The host of an address, with its port.
fn host_of(text: &str) -> Option<&str> {
    let (scheme, rest) = text.trim().split_once("://")?;
    if !["http", "https", "ws", "wss", "unix"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return None;
    }
    let authority = rest.split(['/', '?', '#', ' ']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    (!host.is_empty()).then_some(host)
}

fn list_items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

/// `{"network": true, "write": ["a", "b"]}` → `network: true`, `write: a`, `write: b`.
fn flatten_rules(value: Option<&Value>, path: &str, found: &mut Vec<String>) {
    match value {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => map.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            flatten_rules(Some(value), &path, found);
        }),
        Some(Value::Array(list)) => list.iter().for_each(|value| flatten_rules(Some(value), path, found)),
        Some(Value::String(text)) if path.is_empty() => found.push(text.clone()),
        Some(Value::String(text)) => found.push(format!("{path}: {text}")),
        Some(other) => found.push(format!("{path}: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use rye_item::{ItemId, ItemRef, ItemType};
    use rye_space::BundlePath;
    use serde_json::json;

    use super::*;

    fn file(item_type: ItemType, id: &str, fields: Value) -> BundleFile {
        let Value::Object(fields) = fields else { panic!("fields are a map") };
        BundleFile {
            path: BundlePath::new(format!(".ai/{}/{id}.x", item_type.folder())).expect("a path"),
            kind: item_type.as_str(),
            item: Some(ItemRef::new(item_type, ItemId::new(id).expect("an id"))),
            size: 0,
            sha256: Digest::of(b""),
            signer: None,
            raw: fields.clone(),
            fields,
        }
    }

    #[test]
    fn requests_hide_no_characters() {
        let tool = json!({"executor_id": "a/b", "sandbox": {"write": ["~/a\u{200b}b\u{e0041}\u{2028}c"]}});
        let capabilities = BundleCapabilities::from_files(&[file(ItemType::Tool, "a/t", tool)]);
        let requests: Vec<&String> =
            capabilities.groups().iter().flat_map(|(_, asked)| asked.keys()).collect();
        assert!(requests.iter().any(|request| request.contains("~/a<U+200B>b<U+E0041>")), "{requests:?}");
        assert!(!requests.iter().any(|request| request.contains(['\u{200b}', '\u{2028}'])), "{requests:?}");
    }

    #[test]
    fn requests_are_listed_with_requesting_items() {
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
                    "env_config": {"env": {"MODE": "${SPEED:-fast}"}, "pass": ["TOKEN"], "secrets": ["KEY"],
                        "interpreter": {"type": "command", "var": "P", "resolve_cmd": ["which", "perl"]}},
                    "config": {"command": "perl", "args": ["-e", "${CODE}"], "url": "https://u@api.example:8/x"},
                    "description": "reads ${NOTHING} from https://nowhere.example",
                }),
            ),
        ];
        let capabilities = BundleCapabilities::from_files(&files);
        let keys = |capabilities: &CapabilityRequests| capabilities.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&capabilities.permissions), ["rye.execute.tool.a.*"]);
        assert_eq!(keys(&capabilities.executors), ["rye/core/runtimes/python/function"]);
        assert_eq!(keys(&capabilities.sandbox), ["network: true", "write: ~/x", "write: ~/y"]);

        assert_eq!(
            keys(&capabilities.environment),
            ["read CODE", "read SPEED", "read TOKEN", "set MODE: ${SPEED:-fast}"]
        );
        assert_eq!(keys(&capabilities.secrets), ["KEY"]);
        assert_eq!(keys(&capabilities.commands), ["perl -e ${CODE}", "which perl"]);
        assert_eq!(keys(&capabilities.hosts), ["api.example:8"]);
        assert_eq!(keys(&capabilities.packages), ["six==1.17.0"]);

        let before = BundleCapabilities::from_files(&files[..1]);
        assert_eq!(before.added_since(&capabilities), Vec::<String>::new());
        assert_eq!(capabilities.added_since(&capabilities), Vec::<String>::new());
        let beyond = capabilities.added_since(&before);
        assert!(beyond.contains(&"sandbox network: true (tool:a/t)".to_owned()), "{beyond:?}");
        assert!(
            beyond.contains(&"field config.url: https://u@api.example:8/x (tool:a/t)".to_owned()),
            "{beyond:?}"
        );
        assert_eq!(beyond.len(), 14, "{beyond:?}");
    }

    #[test]
    fn every_field_not_known_as_harmless_is_shown() {
        let keys =
            |file: BundleFile| BundleCapabilities::from_files(&[file]).fields.into_keys().collect::<Vec<_>>();
        let directive = json!({
            "name": "d", "version": "1.0.0", "description": "D", "category": "a", "author": "me", "body": "Do it",
            "extends": "base/agent", "limits": {"spend": 1000.0, "turns": 9}, "model": {"tier": "high", "provider": "p"},
            "context": {"system": ["a/k"], "before": []}, "acknowledged_risks": [{"risk": "elevated"}],
            "permissions": [{"tag": "cap", "content": "rye.execute.tool.a.*"}], "of_tomorrow": "wide",
        });
        assert_eq!(
            keys(file(ItemType::Directive, "a/d", directive)),
            [
                "acknowledged_risks.risk: elevated",
                "context.system: a/k",
                "extends: base/agent",
                "limits.spend: 1000.0",
                "limits.turns: 9",
                "model.provider: p",
                "model.tier: high",
                "of_tomorrow: wide",
            ]
        );
        let tool = json!({
            "version": "1.0.0", "tool_type": "python", "executor_id": "x", "category": "a", "description": "T",
            "config_schema": {"type": "object"}, "config_resolve": {"path": "a/s.yaml", "mode": "first_match"},
            "anchor": {"enabled": true, "mode": "always"}, "verify_deps": {"enabled": false},
            "config": {"command": "perl", "args": ["-v"], "timeout": 3600, "function": "bash"},
            "env_config": {"pass": ["A"], "interpreter": {"type": "local_binary", "search_paths": ["x/bin"]}},
            "dependencies": {"six": "1.17.0"}, "of_tomorrow": {"reach": ["everything"]},
        });
        assert_eq!(
            keys(file(ItemType::Tool, "a/t", tool)),
            [
                "anchor.enabled: true",
                "anchor.mode: always",
                "config.function: bash",
                "config.timeout: 3600",
                "config_resolve.mode: first_match",
                "config_resolve.path: a/s.yaml",
                "dependencies.six: 1.17.0",
                "env_config.interpreter.search_paths: x/bin",
                "of_tomorrow.reach: everything",
                "verify_deps.enabled: false",
            ]
        );
        // Arguments without a command, or in another shape than the one that is run, are not a command line.
        let odd = json!({"executor_id": 7, "config": {"command": ["a"], "args": ["b"]}});
        assert_eq!(
            keys(file(ItemType::Tool, "a/o", odd)),
            ["config.args: b", "config.command: a", "executor_id: 7"]
        );
        let config =
            json!({"version": "1.0.0", "category": "a", "hooks": [{"id": "h"}], "colour": {"of": "sky"}});
        assert_eq!(keys(file(ItemType::Config, "a/c", config)), ["colour.of: sky"]);
    }

    #[test]
    fn constants_of_programs_are_no_fields() {
        let mut tool = file(ItemType::Tool, "a/t", json!({"version": "1.0.0", "tool_type": "x"}));
        tool.raw = serde_json::from_value(json!({"LIMIT": 5, "__version__": "1.0.0"})).expect("a map");
        assert_eq!(BundleCapabilities::from_files(&[tool.clone()]).fields.len(), 1);
        tool.path = BundlePath::new(".ai/tools/a/t.py").expect("a path");
        assert_eq!(BundleCapabilities::from_files(&[tool]).fields, CapabilityRequests::new());
        let mut data = file(ItemType::Tool, "a/data", json!({"name": "data", "anchor": {"mode": "always"}}));
        data.raw.insert("rows".to_owned(), json!([1, 2]));
        assert_eq!(
            BundleCapabilities::from_files(&[data]).fields.into_keys().collect::<Vec<_>>(),
            ["anchor.mode: always"]
        );
    }

    #[test]
    fn change_beyond_what_is_shown_is_a_change() {
        let of = |end: &str| {
            let code = format!("{}{end}", "x".repeat(MAX_REQUEST_LENGTH));
            BundleCapabilities::from_files(&[file(
                ItemType::Tool,
                "a/t",
                json!({"config": {"command": code}}),
            )])
        };
        let (before, after) = (of("one"), of("two"));
        assert!(after.commands.keys().all(|line| line.contains("… (3 more characters, sha256 ")));
        assert_eq!((after.added_since(&before).len(), after.added_since(&after).len()), (1, 0));
    }

    #[test]
    fn servers_and_hooks_are_listed() {
        let files = [
            file(
                ItemType::Tool,
                "a/s",
                json!({"tool_type": "mcp-server", "config": {"command": "npx", "args": ["-y", "x"], "env": {"T": "${T}"}}}),
            ),
            file(
                ItemType::Directive,
                "a/d",
                json!({"hooks": [{"event": "after_step", "action": {"item_id": "rye/bash", "params": {"command": "ls"}}}]}),
            ),
            file(
                ItemType::Config,
                "agent/hook_conditions",
                json!({"infra_hooks": [{"id": "spy", "event": "after_step", "actions": [{"item_id": "a/s"}]}]}),
            ),
        ];
        let capabilities = BundleCapabilities::from_files(&files);
        let keys = |capabilities: &CapabilityRequests| capabilities.keys().cloned().collect::<Vec<_>>();
        let provider = json!({"auth": {"variable": "ONE"}, "profiles": [{"auth": {"variable": "TWO"}}]});
        let secrets = BundleCapabilities::from_files(&[file(ItemType::Tool, "a/p", provider)]).secrets;
        assert_eq!(keys(&secrets), ["ONE", "TWO"]);
        assert_eq!(keys(&capabilities.servers), ["npx -y x"]);
        assert_eq!(keys(&capabilities.environment), ["read T", "set T: ${T}"]);
        assert_eq!(
            keys(&capabilities.hooks),
            ["after_step: a/s", r#"after_step: rye/bash {"command":"ls"}"#]
        );
    }
}
