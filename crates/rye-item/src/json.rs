//! JSON whose objects name each key once, for texts that decide something: of a key that is there twice, one reader takes
//! the first value and another one the last.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::text::one_line;

/// How much of a key an error names.
const MAX_NAMED_CHARS: usize = 60;

/// Reads JSON in which no object, at any depth, has a key twice.
///
/// # Errors
/// When it is not JSON; when a key is there twice, which [`find_duplicate_key`] tells apart.
pub fn parse_unique(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).map(|UniqueKeys(value)| value)
}

/// The first key that an object of this JSON has twice, in words. Nothing of a text that is not JSON.
#[must_use]
pub fn find_duplicate_key(bytes: &[u8]) -> Option<String> {
    parse_unique(bytes).err().filter(serde_json::Error::is_data).map(|error| error.to_string())
}

/// A value whose objects have each key once.
struct UniqueKeys(Value);

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor).map(Self)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(UniqueKeys(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                let named: String = one_line(&key).chars().take(MAX_NAMED_CHARS).collect();
                return Err(A::Error::custom(format_args!("duplicate key `{named}`")));
            }
            let UniqueKeys(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::{Value, find_duplicate_key, parse_unique};

    #[test]
    fn unique_json_reads_as_usual() {
        for text in [
            "null",
            "true",
            "-7",
            "18446744073709551615",
            "1.5e3",
            "\"a\\u0062\"",
            "[]",
            "{}",
            " {\"a\": [{\"a\": 1}, {\"a\": {\"a\": null}}], \"b\": \"\"} ",
        ] {
            let plain: Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(parse_unique(text.as_bytes()).expect("JSON"), plain, "{text}");
            assert_eq!(find_duplicate_key(text.as_bytes()), None);
        }
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":{},"b":2,"a":{}}"#,
            r#"[[{"x":{"a":1,"a":2}}]]"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":null,"a":null}"#,
        ] {
            let problem = find_duplicate_key(text.as_bytes()).expect("a problem");
            assert!(problem.starts_with("duplicate key `a` at line 1 column "), "{problem}");
        }
        let long = format!("{{\"{0}\":1,\"{0}\":2}}", "k\\n".repeat(500));
        assert!(find_duplicate_key(long.as_bytes()).is_some_and(|problem| problem.len() < 150));
    }

    #[test]
    fn other_faults_are_not_duplicates() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "{} {}", "{\"a\":1,}", "1e999", deep.as_str(), "\u{0}"] {
            assert!(parse_unique(text.as_bytes()).is_err(), "{}", &text[..text.len().min(10)]);
            assert_eq!(find_duplicate_key(text.as_bytes()), None, "{}", &text[..text.len().min(10)]);
        }
    }
}
