//! Reading parameters. The descriptor's schema was checked before; a descriptor may be shadowed by another, so nothing
//! is taken for granted.

use rye_exec::NativeError;
use serde_json::{Map, Value};

/// The text parameter `name`.
pub(crate) fn required_text<'a>(
    parameters: &'a Map<String, Value>,
    name: &str,
) -> Result<&'a str, NativeError> {
    optional_text(parameters, name)?
        .ok_or_else(|| NativeError::failed(format!("the parameter `{name}` is missing: it is a text")))
}

/// The text parameter `name`, if it is given.
pub(crate) fn optional_text<'a>(
    parameters: &'a Map<String, Value>,
    name: &str,
) -> Result<Option<&'a str>, NativeError> {
    match parameters.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(NativeError::failed(format!("the parameter `{name}` must be a text"))),
    }
}

/// The yes-or-no parameter `name`.
pub(crate) fn boolean(
    parameters: &Map<String, Value>,
    name: &str,
    default: bool,
) -> Result<bool, NativeError> {
    match parameters.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(NativeError::failed(format!("the parameter `{name}` must be true or false"))),
    }
}

/// The whole number `name`, if it is given.
pub(crate) fn optional_number(
    parameters: &Map<String, Value>,
    name: &str,
) -> Result<Option<usize>, NativeError> {
    match parameters.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            // JSON Schema calls 3.0 an integer too.
            let whole = value.as_u64().or_else(|| {
                value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number)).map(
                    #[allow(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "checked above"
                    )]
                    |number| number as u64,
                )
            });
            whole.and_then(|number| usize::try_from(number).ok()).map(Some).ok_or_else(|| {
                NativeError::failed(format!("the parameter `{name}` must be a whole number, not below 0"))
            })
        }
    }
}

/// The whole number `name`, clamped to 1 and `max`.
pub(crate) fn limit(
    parameters: &Map<String, Value>,
    name: &str,
    default: usize,
    max: usize,
) -> Result<usize, NativeError> {
    Ok(optional_number(parameters, name)?.unwrap_or(default).clamp(1, max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wrong_parameter_type_is_named() {
        let parameters = json!({"a": 1, "b": "x", "c": 3.0, "d": -1, "e": null});
        let map = parameters.as_object().expect("an object");
        assert_eq!(required_text(map, "b"), Ok("x"));
        assert_eq!(required_text(map, "a"), Err(NativeError::failed("the parameter `a` must be a text")));
        assert!(required_text(map, "e").is_err());
        assert_eq!(boolean(map, "e", true), Ok(true));
        assert!(boolean(map, "a", true).is_err());
        assert_eq!(optional_number(map, "c"), Ok(Some(3)));
        assert!(optional_number(map, "d").is_err());
        assert_eq!(limit(map, "a", 5, 9), Ok(1));
        assert_eq!(limit(map, "z", 50, 9), Ok(9));
    }
}
