//! What goes back to a client, without secrets: the same redaction as in a thread's transcript.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rmcp::ErrorData;
use rye_agent::redact::Redactor;
use rye_engine::{Code, Engine, Error, Result};
use rye_space::stamp::Watched;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Engines whose redactor is kept; the one not used for longest is dropped first.
const MAX_REDACTORS: usize = 16;
/// Projects whose earlier secrets are remembered.
const MAX_PROJECTS: usize = 1024;

/// One redactor per engine, worked out again when the engine or its `.env` has changed.
#[derive(Default)]
pub(crate) struct Redactors {
    known: Mutex<Vec<KnownRedactor>>,
    /// Values that were secret before in a project: a file that was emptied or moved may still be shown.
    seen: Mutex<HashMap<Option<PathBuf>, Arc<Redactor>>>,
}

struct KnownRedactor {
    engine: Weak<Engine>,
    redactor: Arc<Redactor>,
    dotenv: Watched,
}

impl Redactors {
    /// The redactor for what this engine answers.
    ///
    /// # Errors
    /// When its settings cannot be read.
    pub(crate) fn of(&self, engine: &Arc<Engine>) -> Result<Arc<Redactor>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| known.engine.strong_count() > 0 && known.dotenv.is_unchanged());
        let place = known.iter().position(|known| std::ptr::eq(known.engine.as_ptr(), Arc::as_ptr(engine)));
        let found = match place {
            Some(place) => known.remove(place),
            None => {
                let mut dotenv = Watched::default();
                if let Some(project) = &engine.workspace.roots.project {
                    // Looked at before it is read: a change in between is noticed the next time.
                    dotenv.add(project.join(".env"));
                }
                let redactor = self.remember(engine, Redactor::of(engine)?);
                KnownRedactor { engine: Arc::downgrade(engine), redactor, dotenv }
            }
        };
        let redactor = Arc::clone(&found.redactor);
        if known.len() >= MAX_REDACTORS {
            known.remove(0);
        }
        known.push(found);
        Ok(redactor)
    }
}

impl Redactors {
    /// What this redactor knows, and what was known of the project before.
    fn remember(&self, engine: &Engine, redactor: Redactor) -> Arc<Redactor> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let project = engine.workspace.roots.project.clone();
        let all = Arc::new(match seen.get(&project) {
            Some(before) => redactor.and(before),
            None => redactor,
        });
        if seen.len() < MAX_PROJECTS || seen.contains_key(&project) {
            seen.insert(project, Arc::clone(&all));
        }
        all
    }
}

/// Takes the secrets out of an answer, and says how many there were.
pub(crate) fn redact_answer(redactor: &Redactor, mut answer: Value) -> Value {
    let count = redactor.count_cleaned(&mut answer);
    if let (true, Some(answer)) = (count > 0, answer.as_object_mut()) {
        answer.insert("redacted".to_owned(), json!(count));
    }
    answer
}

/// Something that goes back to a client, with every text in it redacted.
///
/// # Errors
/// When it cannot be read back.
pub(crate) fn redact_any<T: Serialize + DeserializeOwned>(redactor: &Redactor, value: T) -> Result<T> {
    let failed = |error: serde_json::Error| Error::new(Code::Serving, error.to_string());
    let mut plain = serde_json::to_value(&value).map_err(failed)?;
    if !redactor.clean_value(&mut plain) {
        return Ok(value);
    }
    serde_json::from_value(plain).map_err(failed)
}

/// An error of the protocol without secrets.
pub(crate) fn redact_error(redactor: &Redactor, mut error: ErrorData) -> ErrorData {
    error.message = redactor.redact_text(&error.message).into_owned().into();
    if let Some(data) = &mut error.data {
        redactor.clean_value(data);
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
    fn an_answer_counts_what_was_redacted() {
        let answer =
            json!({"status": "success", "data": ["correct horse, correct horse", {"correct horse": 1}]});
        let redacted = redact_answer(&redactor(), answer);
        assert_eq!(redacted["redacted"], 3);
        assert!(!redacted.to_string().contains("correct horse"), "{redacted}");
        let plain = json!({"status": "success"});
        assert_eq!(redact_answer(&redactor(), plain.clone()), plain);
    }

    #[test]
    fn lines_of_a_private_key_are_not_shown() {
        let lines = LineRedactor::new(Arc::new(redactor()));
        let shown: Vec<String> = [
            "one correct horse",
            "-----BEGIN PRIVATE KEY-----",
            "MC4CAQAwBQYDK2VwBCIEIHcFQX1v",
            "-----END PRIVATE KEY-----",
            "two",
        ]
        .iter()
        .filter_map(|line| lines.redact(line))
        .collect();
        assert_eq!(shown, ["one [redacted:DB_PASSWORD]", "[redacted:private-key]", "two"]);
    }
}
