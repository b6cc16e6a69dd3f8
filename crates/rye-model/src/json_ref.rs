//! JSON from a provider, read in place: strings are borrowed from its text, and fields are a list. A stream is hundreds of such
//! pieces, each read once for a few names.
//!
//! Requests are typed structs; responses are read by path, on purpose. The servers that speak one protocol disagree in the
//! fields that rye does not need: a derived struct refuses the whole piece because of one of them (a number where another server sends
//! text, `content` as a list of parts, `error` as a text or an object, arguments as a text or an object), and each such field
//! would need a deserializer of its own. Here a field of an unexpected type is as if it were missing, and what must be there
//! is checked where it is used, with an error that names it. Blocks that a provider wants back are kept as they came, whatever
//! they hold. It is bounded: the body by `endpoint`, the depth by serde_json (128), and the numbers by checked conversions.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// A piece of JSON.
#[derive(Debug)]
pub(crate) enum JsonRef<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<JsonRef<'a>>),
    Object(Vec<(Cow<'a, str>, JsonRef<'a>)>),
}

const NULL: &JsonRef<'static> = &JsonRef::Null;

impl<'a> JsonRef<'a> {
    /// What is under this name. Of two, the last one counts.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// What is under this name, and null where nothing is.
    pub(crate) fn get_or_null(&self, name: &str) -> &Self {
        self.get(name).unwrap_or(NULL)
    }

    /// What is at a path of names and numbers, `choices/0/message`, if there is something. The names are ours, and plain.
    pub(crate) fn at_path(&self, path: &str) -> Option<&Self> {
        let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let found = match self {
            Self::List(list) => list.get(first.parse::<usize>().ok()?)?,
            other => other.get(first)?,
        };
        rest.map_or(Some(found), |rest| found.at_path(rest))
    }

    /// A text at a path, if there is one.
    pub(crate) fn text_at(&self, path: &str) -> Option<&str> {
        self.at_path(path).and_then(Self::as_text)
    }

    /// A whole number at a path, if there is one.
    pub(crate) fn number_at(&self, path: &str) -> Option<u64> {
        match self.at_path(path)? {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    /// Whether there is a `true` at a path.
    pub(crate) fn is_true_at(&self, path: &str) -> bool {
        matches!(self.at_path(path), Some(Self::Bool(true)))
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    /// The same, to be kept.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(list) => Value::Array(list.iter().map(Self::to_value).collect()),
            Self::Object(fields) => Value::Object(
                fields.iter().map(|(name, value)| (name.to_string(), value.to_value())).collect(),
            ),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonRef<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// A name: borrowed, unless it is written with escapes.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_str(JsonVisitor)? {
            JsonRef::Text(text) => Ok(Self(text)),
            _ => Err(serde::de::Error::custom("a name is a text")),
        }
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = JsonRef<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(JsonRef::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(JsonRef::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(JsonRef::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(JsonRef::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map_or(JsonRef::Null, JsonRef::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(JsonRef::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(JsonRef::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(JsonRef::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((Key(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(JsonRef::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn arb_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_ref_equals_parsed_value(value in arb_json()) {
            let text = value.to_string();
            prop_assert_eq!(serde_json::from_str::<JsonRef<'_>>(&text).unwrap().to_value(), value);
        }
    }

    #[test]
    fn paths_traverse_objects_and_lists() {
        let text = r#"{"a": [{"b": "x\ny"}, {"n": 7}], "a2": true, "a2": false, "\u0063": null}"#;
        let parsed: JsonRef<'_> = serde_json::from_str(text).unwrap();
        assert_eq!((parsed.text_at("a/0/b"), parsed.number_at("a/1/n")), (Some("x\ny"), Some(7)));
        assert_eq!(
            (parsed.text_at("a/0"), parsed.text_at("a/2/b"), parsed.number_at("a/x")),
            (None, None, None)
        );
        assert!(!parsed.is_true_at("a2"), "of two the last one counts");
        assert!(parsed.get("c").is_some_and(JsonRef::is_null) && parsed.get_or_null("d").is_null());
        assert_eq!(parsed.to_value(), json!({"a": [{"b": "x\ny"}, {"n": 7}], "a2": false, "c": null}));
    }
}
