//! Conditions over a document: `{path, op, value}` with `any`, `all` and `not`, as hooks, error classes and graph
//! edges use them.
//!
//! Mistakes are found when a condition is compiled, never while it is asked: a guard with a misspelt operator must
//! not become a guard that never fires.

use std::cmp::Ordering;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

/// Combinators may stand this deep inside each other.
const MAX_DEPTH: usize = 64;

/// A compiled pattern may take this much memory.
const MAX_PATTERN_BYTES: usize = 1 << 20;

const OPERATORS: &str = "eq, ne, gt, gte, lt, lte, in, contains, regex, exists";

/// A condition, ready to be asked.
#[derive(Clone, Debug)]
pub enum Condition {
    /// True of every document: the empty condition.
    Always,
    /// True if one of them is; false if there are none.
    Any(Vec<Condition>),
    /// True if all of them are.
    All(Vec<Condition>),
    /// True if the other is not.
    Not(Box<Condition>),
    /// What stands at a path passes a test.
    Test {
        /// The dotted path.
        path: String,
        /// The test.
        test: ConditionTest,
    },
}

/// One operator with the value it compares to.
#[derive(Clone, Debug)]
pub enum ConditionTest {
    /// Deeply equal; numbers by what they are worth.
    Equal(Value),
    /// Not equal.
    NotEqual(Value),
    /// A number or a string that stands in this order to the value, or equals it.
    Order {
        /// The order asked for.
        order: Ordering,
        /// Whether equal passes too.
        or_equal: bool,
        /// The value compared to.
        value: Value,
    },
    /// One of the values.
    In(Vec<Value>),
    /// Its text contains this one.
    Contains(String),
    /// Its text matches somewhere.
    Matches(Regex),
    /// It is there and not null.
    Exists,
}

/// Why a condition cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid condition{}: {message}", place(path))]
pub struct ConditionError {
    /// Where in the condition, as in `any[1].not`; empty for the condition itself.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

fn place(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" at `{path}`") }
}

impl Condition {
    /// Compiles a condition; an empty one (`null` or `{}`) is true of everything.
    ///
    /// # Errors
    /// At the first unknown operator or key, malformed part, bad pattern, or too deep a nesting.
    pub fn compile(condition: &Value) -> Result<Self, ConditionError> {
        compile(condition, "", 0)
    }

    /// Whether the condition is true of `document`.
    #[must_use]
    pub fn matches(&self, document: &Value) -> bool {
        self.matches_with(&|path| resolve_path(document, path))
    }

    /// Whether the condition is true of what `resolve` finds at its paths.
    #[must_use]
    pub fn matches_with<'a>(&self, resolve: &dyn Fn(&str) -> Option<&'a Value>) -> bool {
        match self {
            Self::Always => true,
            Self::Any(conditions) => conditions.iter().any(|condition| condition.matches_with(resolve)),
            Self::All(conditions) => conditions.iter().all(|condition| condition.matches_with(resolve)),
            Self::Not(condition) => !condition.matches_with(resolve),
            Self::Test { path, test } => test.matches(resolve(path).unwrap_or(&Value::Null)),
        }
    }

    /// Whether the condition is true of something that has two names: each document says the same of it under one of them.
    /// A test holds if it does for one of the names; `ne` if it does for both.
    #[must_use]
    pub fn matches_either<'a>(
        &self,
        first: &dyn Fn(&str) -> Option<&'a Value>,
        second: &dyn Fn(&str) -> Option<&'a Value>,
    ) -> bool {
        match self {
            Self::Always => true,
            Self::Any(conditions) => conditions.iter().any(|inner| inner.matches_either(first, second)),
            Self::All(conditions) => conditions.iter().all(|inner| inner.matches_either(first, second)),
            Self::Not(condition) => !condition.matches_either(first, second),
            Self::Test { path, test } => {
                let mut holds = [first(path), second(path)]
                    .into_iter()
                    .map(|value| test.matches(value.unwrap_or(&Value::Null)));
                match test {
                    ConditionTest::NotEqual(_) => holds.all(|holds| holds),
                    ConditionTest::Equal(_)
                    | ConditionTest::Order { .. }
                    | ConditionTest::In(_)
                    | ConditionTest::Contains(_)
                    | ConditionTest::Matches(_)
                    | ConditionTest::Exists => holds.any(|holds| holds),
                }
            }
        }
    }

    /// The paths that the condition reads.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Self::Always => Vec::new(),
            Self::Any(conditions) | Self::All(conditions) => {
                conditions.iter().flat_map(Self::paths).collect()
            }
            Self::Not(condition) => condition.paths(),
            Self::Test { path, .. } => vec![path],
        }
    }
}

impl ConditionTest {
    fn matches(&self, actual: &Value) -> bool {
        match self {
            Self::Equal(expected) => is_equal(actual, expected),
            Self::NotEqual(expected) => !is_equal(actual, expected),
            Self::Order { order, or_equal, value } => compare(actual, value)
                .is_some_and(|ordering| ordering == *order || (*or_equal && ordering == Ordering::Equal)),
            Self::In(list) => list.iter().any(|expected| is_equal(actual, expected)),
            Self::Contains(text) => !actual.is_null() && text_of(actual).contains(text.as_str()),
            Self::Matches(pattern) => !actual.is_null() && pattern.is_match(&text_of(actual)),
            Self::Exists => !actual.is_null(),
        }
    }
}

/// What stands at a dotted path: keys of maps, indexes of lists (negative ones count from the end).
#[must_use]
pub fn resolve_path<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |current, part| match current {
        Value::Object(map) => map.get(part),
        Value::Array(list) => {
            let index: i64 = part.parse().ok()?;
            let from_end = usize::try_from(index.unsigned_abs()).ok()?;
            let index = if index < 0 { list.len().checked_sub(from_end)? } else { from_end };
            list.get(index)
        }
        _ => None,
    })
}

/// A value as text: strings as they are, null as nothing, all else as compact JSON.
#[must_use]
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn compile(condition: &Value, path: &str, depth: usize) -> Result<Condition, ConditionError> {
    let fail = |message: String| Err(ConditionError { path: path.to_owned(), message });
    if depth > MAX_DEPTH {
        return fail(format!("nested deeper than {MAX_DEPTH}"));
    }
    let map = match condition {
        Value::Null => return Ok(Condition::Always),
        Value::Object(map) if map.is_empty() => return Ok(Condition::Always),
        Value::Object(map) => map,
        _ => return fail("a condition is a map".to_owned()),
    };
    let combinators: Vec<_> =
        ["any", "all", "not"].into_iter().filter_map(|key| map.get(key).map(|inner| (key, inner))).collect();
    let join = |key: &str| {
        if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
    };
    match combinators.as_slice() {
        [] => compile_test(map).or_else(fail),
        [(key, inner)] if map.len() == 1 => {
            let inner_path = join(key);
            match (*key, inner) {
                ("not", inner) => Ok(Condition::Not(Box::new(compile(inner, &inner_path, depth + 1)?))),
                (key, Value::Array(list)) => {
                    let conditions = list
                        .iter()
                        .enumerate()
                        .map(|(index, inner)| compile(inner, &format!("{inner_path}[{index}]"), depth + 1))
                        .collect::<Result<_, _>>()?;
                    Ok(if key == "any" { Condition::Any(conditions) } else { Condition::All(conditions) })
                }
                (key, _) => fail(format!("`{key}` takes a list of conditions")),
            }
        }
        [(key, _), ..] => fail(format!("`{key}` must be the only key")),
    }
}

fn compile_test(map: &Map<String, Value>) -> Result<Condition, String> {
    if let Some(key) = map.keys().find(|key| !["path", "op", "value"].contains(&key.as_str())) {
        return Err(format!("unknown key `{key}`: expected path, op, value, any, all or not"));
    }
    let path = match map.get("path") {
        Some(Value::String(path)) if !path.is_empty() => path.clone(),
        Some(_) => return Err("`path` is not a dotted path".to_owned()),
        None => return Err("`path` is missing".to_owned()),
    };
    let operator = match map.get("op") {
        None => "eq",
        Some(Value::String(operator)) => operator.as_str(),
        Some(_) => return Err(format!("`op` is not one of {OPERATORS}")),
    };
    let value = map.get("value").unwrap_or(&Value::Null);
    let test = match operator {
        "eq" => ConditionTest::Equal(value.clone()),
        "ne" => ConditionTest::NotEqual(value.clone()),
        "gt" => order_test(operator, value, Ordering::Greater, false)?,
        "gte" => order_test(operator, value, Ordering::Greater, true)?,
        "lt" => order_test(operator, value, Ordering::Less, false)?,
        "lte" => order_test(operator, value, Ordering::Less, true)?,
        "in" => ConditionTest::In(value.as_array().ok_or("`in` takes a list")?.clone()),
        "contains" => match value {
            Value::String(_) | Value::Number(_) | Value::Bool(_) => ConditionTest::Contains(text_of(value)),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                return Err("`contains` takes a string".to_owned());
            }
        },
        "regex" => ConditionTest::Matches(compile_pattern(value.as_str().ok_or("`regex` takes a string")?)?),
        "exists" if value == &Value::Bool(false) => {
            return Err("`exists` takes no value: put it under `not`".to_owned());
        }
        "exists" => ConditionTest::Exists,
        other => return Err(format!("unknown operator `{other}`: expected one of {OPERATORS}")),
    };
    Ok(Condition::Test { path, test })
}

fn order_test(
    operator: &str,
    value: &Value,
    order: Ordering,
    or_equal: bool,
) -> Result<ConditionTest, String> {
    if !value.is_number() && !value.is_string() {
        return Err(format!("`{operator}` takes a number or a string"));
    }
    Ok(ConditionTest::Order { order, or_equal, value: value.clone() })
}

fn compile_pattern(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES)
        .build()
        .map_err(|error| format!("bad pattern `{text}`: {}", error.to_string().replace('\n', " ")))
}

fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => compare(left, right) == Some(Ordering::Equal),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| is_equal(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, left)| right.get(key).is_some_and(|right| is_equal(left, right)))
        }
        _ => left == right,
    }
}

/// The order of two numbers or two strings; other pairs have none.
fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => match (left.as_i128(), right.as_i128()) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn is_true(condition: &Value, document: &Value) -> bool {
        Condition::compile(condition).unwrap().matches(document)
    }

    fn error(condition: &Value) -> String {
        Condition::compile(condition).unwrap_err().to_string()
    }

    #[test]
    fn all_ten_operators_work() {
        let document = json!({ "n": 5, "s": "hello", "b": true, "l": [1, "x"], "z": null, "zero": 0 });
        let table = [
            ("n", "eq", json!(5.0), true),
            ("n", "eq", json!("5"), false),
            ("missing", "eq", json!(null), true),
            ("l", "eq", json!([1.0, "x"]), true),
            ("b", "eq", json!(1), false),
            ("n", "ne", json!(4), true),
            ("n", "gt", json!(4.5), true),
            ("n", "gt", json!(5), false),
            ("n", "gte", json!(5), true),
            ("n", "lt", json!(6), true),
            ("n", "lte", json!(5), true),
            ("s", "gt", json!("hallo"), true),
            ("n", "in", json!([1, 5]), true),
            ("s", "in", json!([]), false),
            ("s", "contains", json!("ell"), true),
            ("zero", "contains", json!(0), true),
            ("z", "contains", json!(""), false),
            ("s", "regex", json!("^h.*o$"), true),
            ("n", "regex", json!("5"), true),
            ("z", "regex", json!(".*"), false),
            ("s", "exists", json!(true), true),
            ("z", "exists", json!(null), false),
            ("missing.deep", "exists", json!(null), false),
        ];
        for (path, operator, value, expected) in table {
            let condition = json!({ "path": path, "op": operator, "value": value });
            assert_eq!(is_true(&condition, &document), expected, "{condition}");
        }
    }

    #[test]
    fn mixed_types_have_no_order() {
        for operator in ["gt", "gte", "lt", "lte"] {
            for (actual, value) in [
                (json!("5"), json!(5)),
                (json!(null), json!(0)),
                (json!(true), json!(0)),
                (json!([1]), json!("a")),
                (json!({}), json!(1)),
            ] {
                assert!(!is_true(
                    &json!({ "path": "a", "op": operator, "value": value }),
                    &json!({ "a": actual })
                ));
            }
        }
    }

    #[test]
    fn combinators_and_empty_condition_work() {
        let yes = json!({ "path": "a", "value": 1 });
        let no = json!({ "path": "a", "value": 2 });
        let document = json!({ "a": 1 });
        assert!(is_true(&json!({ "any": [no, yes] }), &document));
        assert!(!is_true(&json!({ "all": [no, yes] }), &document));
        assert!(is_true(&json!({ "not": no }), &document));
        assert!(is_true(&json!({}), &document) && is_true(&Value::Null, &document));
        assert!(!is_true(&json!({ "any": [] }), &document) && is_true(&json!({ "all": [] }), &document));
    }

    #[test]
    fn mistakes_are_found_at_compile_time() {
        assert!(
            error(&json!({ "path": "a", "op": "equals", "value": 1 })).contains("unknown operator `equals`")
        );
        assert_eq!(
            error(&json!({ "any": [{}, { "not": { "path": "a", "op": "in", "value": "b" } }] })),
            "invalid condition at `any[1].not`: `in` takes a list"
        );
        for malformed in [
            json!([]),
            json!("a"),
            json!({ "op": "eq" }),
            json!({ "path": 1 }),
            json!({ "path": "" }),
            json!({ "path": "a", "op": 1 }),
            json!({ "path": "a", "when": 1 }),
            json!({ "any": {} }),
            json!({ "any": [], "all": [] }),
            json!({ "not": {}, "path": "a" }),
            json!({ "path": "a", "op": "regex", "value": "(" }),
            json!({ "path": "a", "op": "regex", "value": "(a{1000}){1000}" }),
            json!({ "path": "a", "op": "regex" }),
            json!({ "path": "a", "op": "gt", "value": null }),
            json!({ "path": "a", "op": "contains" }),
            json!({ "path": "a", "op": "exists", "value": false }),
        ] {
            assert!(Condition::compile(&malformed).is_err(), "{malformed}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let nested = |levels| (0..levels).fold(json!({}), |inner, _| json!({ "not": inner }));
        assert!(Condition::compile(&nested(64)).is_ok());
        assert!(error(&nested(65)).contains("nested deeper than 64"));
    }

    #[test]
    fn paths_traverse_maps_and_lists() {
        let document = json!({ "a": { "b": [{ "c": 1 }, { "c": 2 }] }, "0": "zero" });
        assert_eq!(resolve_path(&document, "a.b.0.c"), Some(&json!(1)));
        assert_eq!(resolve_path(&document, "a.b.-1.c"), Some(&json!(2)));
        assert_eq!(resolve_path(&document, "0"), Some(&json!("zero")));
        for path in ["a.b.2", "a.b.-3", "a.b.x", "a.c", "", "a..b", "a.b.0.c.d", "a.b.99999999999999999999"] {
            assert_eq!(resolve_path(&document, path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn not_negates(number in any::<i64>(), other in any::<f64>(), operator in "eq|ne|gt|gte|lt|lte") {
            let condition = json!({ "path": "a", "op": operator, "value": number });
            let document = json!({ "a": other });
            let negated = json!({ "not": condition });
            prop_assert_ne!(is_true(&condition, &document), is_true(&negated, &document));
        }
    }
}
