//! What a server says, as it came: JSON whose words still lie in its text. A stream is hundreds of such pieces, each looked at once
//! and for a few names, so fields are a list and nothing is copied that need not be.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// A piece of JSON.
#[derive(Debug)]
pub(crate) enum Said<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Said<'a>>),
    Fields(Vec<(Cow<'a, str>, Said<'a>)>),
}

const NOTHING: &Said<'static> = &Said::Null;

impl<'a> Said<'a> {
    /// What is under this name. Of two, the last one counts.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Fields(fields) => fields.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) | Self::List(_) => None,
        }
    }

    /// What is under this name, and null where nothing is.
    pub(crate) fn part(&self, name: &str) -> &Self {
        self.get(name).unwrap_or(NOTHING)
    }

    /// What is at a path of names and numbers, `choices/0/message`, if there is something. The names are ours, and plain.
    pub(crate) fn at(&self, path: &str) -> Option<&Self> {
        let (first, rest) = path.split_once('/').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let found = match self {
            Self::List(list) => list.get(first.parse::<usize>().ok()?)?,
            other => other.get(first)?,
        };
        rest.map_or(Some(found), |rest| found.at(rest))
    }

    /// A text at a path, if there is one.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.at(path).and_then(Self::as_text)
    }

    /// A whole number at a path, if there is one.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        match self.at(path)? {
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    /// Whether there is a `true` at a path.
    pub(crate) fn holds(&self, path: &str) -> bool {
        matches!(self.at(path), Some(Self::Bool(true)))
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
        matches!(self, Self::Fields(_))
    }

    /// The same, to be kept.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(bool) => Value::Bool(*bool),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(list) => Value::Array(list.iter().map(Self::to_value).collect()),
            Self::Fields(fields) => Value::Object(
                fields.iter().map(|(name, value)| (name.to_string(), value.to_value())).collect(),
            ),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Said<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Pieces)
    }
}

/// A name: borrowed, unless it is written with escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_str(Pieces)? {
            Said::Text(text) => Ok(Self(text)),
            _ => Err(serde::de::Error::custom("a name is a text")),
        }
    }
}

struct Pieces;

impl<'de> Visitor<'de> for Pieces {
    type Value = Said<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Said::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Said::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Said::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Said::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map_or(Said::Null, Said::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Said::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Said::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut said = Vec::new();
        while let Some(value) = list.next_element()? {
            said.push(value);
        }
        Ok(Said::List(said))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::new();
        while let Some((Name(name), value)) = map.next_entry()? {
            fields.push((name, value));
        }
        Ok(Said::Fields(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn json_values() -> impl Strategy<Value = Value> {
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
        fn it_says_what_the_text_says(value in json_values()) {
            let text = value.to_string();
            prop_assert_eq!(serde_json::from_str::<Said<'_>>(&text).unwrap().to_value(), value);
        }
    }

    #[test]
    fn paths_lead_through_names_and_numbers() {
        let text = r#"{"a": [{"b": "x\ny"}, {"n": 7}], "a2": true, "a2": false, "\u0063": null}"#;
        let said: Said<'_> = serde_json::from_str(text).unwrap();
        assert_eq!((said.text("a/0/b"), said.number("a/1/n")), (Some("x\ny"), Some(7)));
        assert_eq!((said.text("a/0"), said.text("a/2/b"), said.number("a/x")), (None, None, None));
        assert!(!said.holds("a2"), "of two the last one counts");
        assert!(said.get("c").is_some_and(Said::is_null) && said.part("d").is_null());
        assert_eq!(said.to_value(), json!({"a": [{"b": "x\ny"}, {"n": 7}], "a2": false, "c": null}));
    }
}
