//! An action: what a model's call, a hook or a directive's tag asks for, before it is permitted.
//!
//! ```text
//! {"primary": "execute", "item_type": "tool", "item_id": "team/deploy", "params": {…}}
//! {"primary": "search", "query": "deploy", "source": "project"}
//! ```
//! Attributes stand at the top, `params` beside them; where an option may stand in either, the top counts.
//! An action that was read names an item that can exist, or none: odd spellings end here.

use rye_item::text::one_line;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use rye_item::PrimaryAction;

/// Keys of an action that are not options.
const RESERVED_KEYS: [&str; 5] = ["primary", "item_type", "item_id", "params", "parameters"];
/// The longest pattern of ids to sign.
const MAX_PATTERN_LEN: usize = 512;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// What to do.
    pub primary: PrimaryAction,
    /// With what kind of item; `None` is any kind, where that makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_type: Option<ItemType>,
    /// With which item: an id, for `sign` also a pattern of ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_id: Option<String>,
    /// What the item is given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// Attributes of the action itself: `query`, `source`, `dry_run`, ….
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
}

/// The action cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ActionError(pub String);

impl ActionError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl Action {
    /// Executes `item`.
    #[must_use]
    pub fn execute(item: &ItemRef, params: Map<String, Value>) -> Self {
        Self {
            primary: PrimaryAction::Execute,
            item_type: Some(item.item_type),
            item_id: Some(item.id.to_string()),
            params,
            options: Map::new(),
        }
    }

    /// Reads an action.
    ///
    /// # Errors
    /// When it is not an object, its primary is unknown, or what it names cannot exist.
    pub fn from_value(value: &Value) -> Result<Self, ActionError> {
        let map = value.as_object().ok_or_else(|| ActionError::new("an action is an object"))?;
        let primary = match map.get("primary") {
            None => PrimaryAction::Execute,
            Some(Value::String(word)) => word
                .parse()
                .map_err(|_| ActionError(format!("Unknown primary action: {}", one_line(word))))?,
            Some(_) => return Err(ActionError::new("`primary` is a word")),
        };
        let params = match (map.get("params"), map.get("parameters")) {
            (Some(_), Some(_)) => return Err(ActionError::new("give `params` or `parameters`, not both")),
            (raw_params, None) | (None, raw_params) => parse_params(raw_params)?,
        };
        let options = map
            .iter()
            .filter(|(key, value)| !RESERVED_KEYS.contains(&key.as_str()) && !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let (item_type, item_id) = parse_item(text_field(map, "item_type")?, text_field(map, "item_id")?)?;
        let action = Self { primary, item_type, item_id, params, options };
        action.with_default_type().validate()
    }

    /// As it was read: a second reading gives the same.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        map.insert("primary".to_owned(), json!(self.primary));
        if let Some(item_type) = self.item_type {
            map.insert("item_type".to_owned(), json!(item_type));
        }
        if let Some(id) = &self.item_id {
            map.insert("item_id".to_owned(), json!(id));
        }
        if !self.params.is_empty() {
            map.insert("params".to_owned(), Value::Object(self.params.clone()));
        }
        map.extend(self.options.clone());
        Value::Object(map)
    }

    /// An option: what stands at the top, else what stands in `params`.
    ///
    /// For `execute`, `params` belong to the item and are not looked at.
    #[must_use]
    pub fn option(&self, key: &str) -> Option<&Value> {
        let in_params = || self.params.get(key).filter(|_| self.primary != PrimaryAction::Execute);
        self.options.get(key).or_else(in_params).filter(|value| !value.is_null())
    }

    /// An option that is text and not empty.
    #[must_use]
    pub fn text_option(&self, key: &str) -> Option<&str> {
        self.option(key).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// The one item it is about, if it names one and a type.
    #[must_use]
    pub fn item(&self) -> Option<ItemRef> {
        let id = ItemId::new(self.item_id.as_deref()?).ok()?;
        Some(ItemRef::new(self.item_type?, id))
    }

    /// Whether it is about this item.
    #[must_use]
    pub fn is_for_item(&self, item_type: ItemType, id: &str) -> bool {
        self.item_type == Some(item_type) && self.item_id.as_deref() == Some(id)
    }

    /// What a person sees: `execute tool:team/deploy`.
    #[must_use]
    pub fn summary(&self) -> String {
        let item = match (self.item_type, self.item_id.as_deref()) {
            (Some(item_type), Some(id)) => format!(" {item_type}:{}", one_line(id)),
            (None, Some(id)) => format!(" {}", one_line(id)),
            (Some(item_type), None) => format!(" {item_type}"),
            (None, None) => String::new(),
        };
        format!("{}{item}", self.primary.as_str())
    }

    /// 003's default: an item that is named without a type is a tool. A search without one is for all of them, and a
    /// fetch finds out.
    fn with_default_type(mut self) -> Self {
        let has_default =
            matches!(self.primary, PrimaryAction::Execute | PrimaryAction::Load | PrimaryAction::Sign);
        if has_default && self.item_type.is_none() {
            self.item_type = Some(ItemType::Tool);
        }
        self
    }

    /// This action, if what it names can exist.
    ///
    /// # Errors
    /// When it names an item that cannot exist.
    pub fn validate(self) -> Result<Self, ActionError> {
        if self.item_type == Some(ItemType::Config) {
            return Err(ActionError::new("config is not an item of actions"));
        }
        let id = self.item_id.as_deref();
        let query = self.text_option("query");
        match (self.primary, id, query) {
            (PrimaryAction::Execute | PrimaryAction::Load | PrimaryAction::Sign, None, _) => {
                return Err(ActionError(format!("`{}` needs an item_id", self.primary.as_str())));
            }
            (PrimaryAction::Search, _, None) => return Err(ActionError::new("`search` needs a query")),
            (PrimaryAction::Search, Some(_), _) => {
                return Err(ActionError::new("`search` takes no item_id; narrow it with `scope`"));
            }
            (PrimaryAction::Fetch, None, None) => {
                return Err(ActionError::new("`fetch` needs an item_id, or a query"));
            }
            (PrimaryAction::Fetch, Some(_), Some(_)) => {
                return Err(ActionError::new("give item_id or query, not both"));
            }
            _ => {}
        }
        match id {
            Some(pattern) if self.primary == PrimaryAction::Sign && rye_item::id::is_glob(pattern) => {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/*?[]{}!,".contains(&byte);
                let is_odd = |segment: &str| segment.is_empty() || segment.starts_with('.');
                if pattern.len() > MAX_PATTERN_LEN
                    || !pattern.bytes().all(is_plain)
                    || pattern.split('/').any(is_odd)
                {
                    return Err(ActionError(format!("`{}` is not a pattern of ids", one_line(pattern))));
                }
            }
            Some(id) => {
                ItemId::new(id).map_err(|error| ActionError(error.to_string()))?;
            }
            None => {}
        }
        Ok(self)
    }
}

/// Type and id from the two words, the id perhaps canonical.
fn parse_item(
    item_type: Option<&str>,
    id: Option<&str>,
) -> Result<(Option<ItemType>, Option<String>), ActionError> {
    let explicit_type = item_type
        .map(|word| word.parse::<ItemType>().map_err(|error| ActionError(error.to_string())))
        .transpose()?;
    match id.map(|id| (id, ItemRef::split_canonical(id))) {
        None => Ok((explicit_type, None)),
        Some((_, Some((id_type, rest)))) => match explicit_type {
            Some(explicit_type) if explicit_type != id_type => {
                Err(ActionError(format!("item_type is {explicit_type}, but item_id says {id_type}")))
            }
            _ => Ok((Some(id_type), Some(rest.to_owned()))),
        },
        Some((id, None)) => Ok((explicit_type, Some(id.to_owned()))),
    }
}

/// A map, also where a model wrote one as JSON text.
/// # Errors
/// When it is neither.
pub fn parse_params(value: Option<&Value>) -> Result<Map<String, Value>, ActionError> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(_) | Err(_) => Err(ActionError::new("`parameters` is text that holds no JSON object")),
        },
        Some(_) => Err(ActionError::new("`parameters` is an object")),
    }
}

fn text_field<'a>(map: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, ActionError> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ActionError(format!("`{key}` is text"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: impl std::borrow::Borrow<Value>) -> Result<Action, String> {
        Action::from_value(value.borrow()).map_err(|error| error.to_string())
    }

    #[test]
    fn action_defaults_to_executing_a_tool() {
        let action = read(json!({"item_id": "team/deploy", "params": {"to": "x"}})).expect("an action");
        assert_eq!((action.primary, action.item_type), (PrimaryAction::Execute, Some(ItemType::Tool)));
        assert_eq!(action.params["to"], "x");
        assert_eq!(read(action.to_value()), Ok(action));
    }

    #[test]
    fn canonical_id_must_match_item_type() {
        let action = read(json!({"primary": "load", "item_id": "knowledge:a/b"})).expect("an action");
        assert_eq!((action.item_type, action.item_id.as_deref()), (Some(ItemType::Knowledge), Some("a/b")));
        let error = read(json!({"item_type": "tool", "item_id": "directive:a/b"})).expect_err("refused");
        assert!(error.contains("item_id says directive"), "{error}");
    }

    #[test]
    fn parameters_may_be_json_object_text() {
        let with_parameters = |text: &str| read(json!({"item_id": "a", "parameters": text}));
        assert_eq!(with_parameters(r#"{"n": 1}"#).expect("an action").params["n"], 1);
        assert!(with_parameters("").expect("an action").params.is_empty());
        for text in ["[1]", "nonsense", "{\"a\":", "\"{}\""] {
            assert!(with_parameters(text).is_err(), "{text}");
        }
        assert!(read(json!({"item_id": "a", "params": {}, "parameters": {}})).is_err());
    }

    #[test]
    fn tool_dispatcher_top_level_attributes_come_before_params() {
        let action = read(json!({
            "primary": "search", "query": "top", "params": {"query": "below", "limit": 3}
        }))
        .expect("an action");
        assert_eq!(action.text_option("query"), Some("top"));
        assert_eq!(action.option("limit"), Some(&json!(3)));
        let execute = read(json!({"item_id": "a", "params": {"dry_run": true}})).expect("an action");
        assert_eq!(execute.option("dry_run"), None, "a tool's own parameter");
    }

    #[test]
    fn action_with_invalid_item_is_rejected() {
        let ids = [
            "../x", "/x", "x/", "a//b", "a/./b", "a\\b", "ré/bash", "a b", "a\0", ".a", "tool:", "tool:/x",
            "a*",
        ];
        for id in ids {
            for primary in ["execute", "load", "fetch"] {
                let result = read(json!({"primary": primary, "item_type": "tool", "item_id": id}));
                assert!(result.is_err(), "{primary} {id}");
            }
        }
        for value in [
            json!([]),
            json!({"primary": "delete", "item_id": "a"}),
            json!({"primary": 1, "item_id": "a"}),
            json!({"primary": "execute"}),
            json!({"primary": "search"}),
            json!({"primary": "search", "query": "q", "item_id": "a"}),
            json!({"primary": "fetch"}),
            json!({"primary": "fetch", "item_id": "a", "query": "q"}),
            json!({"primary": "load", "item_type": "config", "item_id": "config"}),
            json!({"primary": "sign", "item_id": "config:a"}),
            json!({"primary": "sign", "item_id": "a/../*"}),
            json!({"item_id": ["a"]}),
        ] {
            assert!(Action::from_value(&value).is_err(), "{value}");
        }
        assert_eq!(
            read(json!({"primary": "delete"})),
            Err("Unknown primary action: delete".to_owned()),
            "003's words"
        );
    }

    #[test]
    fn only_sign_accepts_patterns() {
        let action = read(json!({"primary": "sign", "item_id": "team/**"})).expect("an action");
        assert_eq!(action.item_id.as_deref(), Some("team/**"));
        assert!(action.item().is_none());
    }
}
