//! What goes back to a client, without secrets: the same redaction as in a thread's transcript.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::ErrorData;
use rye_agent::redact::Redactor;
use rye_engine::{Code, Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Takes the secrets out of an answer, and says how many there were.
pub(crate) fn redact_response(redactor: &Redactor, mut response: Value) -> Value {
    let count = redactor.count_redacted(&mut response);
    if let (true, Some(response)) = (count > 0, response.as_object_mut()) {
        response.insert("redacted".to_owned(), json!(count));
    }
    response
}

/// Something that goes back to a client, with every text in it redacted.
///
/// # Errors
/// When it cannot be read back.
pub(crate) fn redact_any<T: Serialize + DeserializeOwned>(redactor: &Redactor, value: T) -> Result<T> {
    let failed = |error: serde_json::Error| Error::new(Code::Serving, error.to_string());
    let mut plain = serde_json::to_value(&value).map_err(failed)?;
    if !redactor.redact_value(&mut plain) {
        return Ok(value);
    }
    serde_json::from_value(plain).map_err(failed)
}

/// An error of the protocol without secrets.
pub(crate) fn redact_error(redactor: &Redactor, mut error: ErrorData) -> ErrorData {
    error.message = redactor.redact_text(&error.message).into_owned().into();
    if let Some(data) = &mut error.data {
        redactor.redact_value(data);
    }
    error
}

/// Words in the names of variables that hold secrets, where no settings say which do.
const SECRET_WORDS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];

/// What is known to be secret where no engine can be opened: the shapes of secrets, and variables by their names.
pub(crate) fn without_engine(environment: &BTreeMap<String, String>) -> Redactor {
    Redactor::new(environment, |name| {
        let name = name.to_uppercase();
        SECRET_WORDS.iter().any(|word| name.contains(word))
    })
}

/// Lines of progress without secrets; the lines of a private key are left out.
pub(crate) struct LineRedactor {
    redactor: Arc<Redactor>,
    is_in_key: Mutex<bool>,
}

impl LineRedactor {
    pub(crate) fn new(redactor: Arc<Redactor>) -> Self {
        Self { redactor, is_in_key: Mutex::new(false) }
    }

    /// The line as it may be shown, if it may.
    pub(crate) fn redact(&self, line: &str) -> Option<String> {
        let mut is_in_key = self.is_in_key.lock().unwrap_or_else(PoisonError::into_inner);
        let is_end = line.contains("-----END ");
        if *is_in_key {
            *is_in_key = !is_end;
            return None;
        }
        *is_in_key = line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") && !is_end;
        Some(self.redactor.redact_text(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        let environment = [("DB_PASSWORD".to_owned(), "correct horse".to_owned())].into();
        Redactor::new(&environment, |name| name.ends_with("PASSWORD"))
    }

    #[test]
    fn response_counts_redactions() {
        let response =
            json!({"status": "success", "data": ["correct horse, correct horse", {"correct horse": 1}]});
        let redacted = redact_response(&redactor(), response);
        assert_eq!(redacted["redacted"], 3);
        assert!(!redacted.to_string().contains("correct horse"), "{redacted}");
        let plain = json!({"status": "success"});
        assert_eq!(redact_response(&redactor(), plain.clone()), plain);
    }

    #[test]
    fn private_key_lines_are_dropped() {
        let lines = LineRedactor::new(Arc::new(redactor()));
        let printed: Vec<String> = [
            "one correct horse",
            "-----BEGIN PRIVATE KEY-----",
            "MC4CAQAwBQYDK2VwBCIEIHcFQX1v",
            "-----END PRIVATE KEY-----",
            "two",
        ]
        .iter()
        .filter_map(|line| lines.redact(line))
        .collect();
        assert_eq!(printed, ["one [redacted:DB_PASSWORD]", "[redacted:private-key]", "two"]);
    }
}
