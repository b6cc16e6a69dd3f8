//! The journal of a thread as bytes: a header that names its format, then one event of the machine in each record.
//!
//! | format | header |
//! |---|---|
//! | 1 | `{"own", "shared"}`, without a format: what releases before the header wrote |
//! | 2 | `{"format", "rye", "template", "own"}` |
//!
//! Events are the same in both. A journal in any other format is refused by name: to guess what a newer release meant
//! could run something twice. `tests/journals` holds recorded journals of every format, and the states they lead to.

use serde::{Deserialize, Serialize};

use crate::spec::ThreadInstance;

/// The format that is written.
pub const FORMAT: u32 = 2;

/// The oldest format that is read.
const MIN_FORMAT: u32 = 1;

/// The first record of a journal: its format, and what the thread is.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalHeader {
    /// The format of the journal.
    pub format: u32,
    /// The release that wrote it; unknown in format 1.
    pub rye: Option<String>,
    /// The digest of the template, which the store holds once for all threads that share it.
    pub template: String,
    /// What is the thread's own.
    pub own: ThreadInstance,
}

/// Why a header cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// Another release wrote it, in a format that this one cannot read.
    #[error("its journal has format {format}{}; this rye reads formats {MIN_FORMAT} to {FORMAT}", written_by(.rye.as_deref()))]
    UnknownFormat {
        /// The format.
        format: u64,
        /// The release that wrote it.
        rye: Option<String>,
    },
    /// It is not a header.
    #[error("the header of its journal cannot be read: {0}")]
    Invalid(String),
}

fn written_by(rye: Option<&str>) -> String {
    rye.map(|rye| format!(", written by rye {rye}")).unwrap_or_default()
}

/// Which format, whatever else there is.
#[derive(Deserialize)]
struct AnyFormat {
    format: Option<u64>,
    rye: Option<serde_json::Value>,
}

/// The header of format 1.
#[derive(Deserialize)]
struct Format1 {
    own: ThreadInstance,
    shared: String,
}

/// The header of format 2.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Format2 {
    format: u32,
    rye: String,
    template: String,
    own: ThreadInstance,
}

impl JournalHeader {
    /// The header of a thread that this release starts.
    #[must_use]
    pub fn new(own: ThreadInstance, template: String) -> Self {
        Self { format: FORMAT, rye: Some(env!("CARGO_PKG_VERSION").to_owned()), template, own }
    }

    /// Reads a journal's first record.
    ///
    /// # Errors
    /// When its format is unknown, or it does not have the fields of its format.
    pub fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        let invalid =
            |error: serde_json::Error| JournalError::Invalid(rye_item::text::one_line(&error.to_string()));
        let any: AnyFormat = serde_json::from_slice(bytes).map_err(invalid)?;
        match any.format {
            None => {
                let Format1 { own, shared } = serde_json::from_slice(bytes).map_err(invalid)?;
                Ok(Self { format: 1, rye: None, template: shared, own })
            }
            Some(2) => {
                let Format2 { format, rye, template, own } =
                    serde_json::from_slice(bytes).map_err(invalid)?;
                Ok(Self { format, rye: Some(rye), template, own })
            }
            Some(format) => {
                let rye = any.rye.as_ref().and_then(serde_json::Value::as_str);
                let rye = rye.map(|rye| rye_item::text::one_line(rye).chars().take(40).collect());
                Err(JournalError::UnknownFormat { format, rye })
            }
        }
    }

    /// The record, in the format that is written.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let rye = self.rye.clone().unwrap_or_default();
        let header = Format2 { format: FORMAT, rye, template: self.template.clone(), own: self.own.clone() };
        serde_json::to_vec(&header)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::capability::Capabilities;
    use crate::limits::ThreadLimits;
    use crate::thread_id::ThreadId;

    fn own() -> ThreadInstance {
        ThreadInstance {
            thread_id: ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id"),
            parent: None,
            prompt: "do it".to_owned(),
            inputs: Map::new(),
            actions: Vec::new(),
            limits: ThreadLimits::default(),
            capabilities: Capabilities::none(),
            continuation_of: None,
            forked_from: None,
            files: Vec::new(),
            history: Vec::new(),
            message: None,
            spawn_reason: None,
            depth: 0,
            cannot_suspend: false,
            removed_secrets: None,
        }
    }

    fn written() -> Value {
        let header = JournalHeader::new(own(), "ab".repeat(32));
        serde_json::from_slice(&header.to_bytes().expect("bytes")).expect("JSON")
    }

    fn parse(header: &Value) -> Result<JournalHeader, JournalError> {
        JournalHeader::parse(header.to_string().as_bytes())
    }

    #[test]
    fn header_reads_back_as_written() {
        let header = JournalHeader::new(own(), "ab".repeat(32));
        assert_eq!(JournalHeader::parse(&header.to_bytes().expect("bytes")), Ok(header));
        assert_eq!(written()["format"], json!(FORMAT));
        assert_eq!(written()["rye"], json!(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn header_without_format_is_format_one() {
        let header = parse(&json!({"own": own(), "shared": "cd"})).expect("a header");
        assert_eq!((header.format, header.rye, header.template.as_str()), (1, None, "cd"));
    }

    #[test]
    fn unknown_format_is_refused_by_name() {
        for format in [0, 1, FORMAT + 1, u32::MAX] {
            let mut header = written();
            header["format"] = json!(format);
            header["rye"] = json!("9.9.9");
            let error = parse(&header).expect_err("refused");
            assert_eq!(
                error.to_string(),
                format!(
                    "its journal has format {format}, written by rye 9.9.9; this rye reads formats 1 to 2"
                )
            );
        }
    }

    #[test]
    fn header_with_other_fields_is_refused() {
        let mut header = written();
        header["more"] = json!(true);
        assert!(matches!(parse(&header), Err(JournalError::Invalid(_))));
        for field in ["rye", "template", "own"] {
            let mut header = written();
            header.as_object_mut().expect("an object").remove(field);
            assert!(matches!(parse(&header), Err(JournalError::Invalid(_))), "{field}");
        }
        assert!(matches!(parse(&json!([1])), Err(JournalError::Invalid(_))));
    }
}
