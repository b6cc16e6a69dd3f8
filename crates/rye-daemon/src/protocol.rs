//! What is said over the socket: one line of JSON each way, bounded.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{ResumeOptions, TakeoverReport};
use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};

use crate::location::ThreadsLocation;

/// The longest line. An environment is at most half of that on most systems.
pub(crate) const MAX_LINE_BYTES: u64 = 4 << 20;

/// "Take these threads."
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TakeoverRequest {
    /// Where they are.
    #[serde(rename = "place")]
    pub(crate) location: ThreadsLocation,
    /// What is around them: providers' keys are in it.
    pub(crate) environment: BTreeMap<String, String>,
    /// Which threads; none: all without an owner.
    pub(crate) threads: Vec<ThreadId>,
    /// A stopped thread to resume instead, with what a person changes. Older releases refuse it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<ResumeCommand>,
}

/// "Resume this thread."
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeCommand {
    pub(crate) thread: ThreadId,
    pub(crate) options: ResumeOptions,
}

/// Why a thread was not resumed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ResumeFailure {
    /// `RYE1131`.
    code: String,
    message: String,
    hints: Vec<String>,
}

impl ResumeFailure {
    pub(crate) fn new(error: &Error) -> Self {
        let code = error.code.as_str().to_owned();
        Self { code, message: error.message.clone(), hints: error.hints.clone() }
    }

    pub(crate) fn into_error(self) -> Error {
        let code = Code::ALL.iter().copied().find(|code| code.as_str() == self.code);
        let error = Error::new(code.unwrap_or(Code::NoBackground), self.message);
        self.hints.into_iter().fold(error, Error::hint)
    }
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DaemonResponse {
    /// They run, but for those that cannot.
    #[serde(rename = "taken")]
    TakenOver(TakeoverReport),
    /// It is resumed, by this process.
    Resumed(u32),
    /// It is not resumed, and nothing of it was changed.
    NotResumed(ResumeFailure),
    /// Nothing of it was done, for this reason.
    Refused(String),
}

/// A value as a line.
pub(crate) fn encode_line(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec(value).map_err(|error| {
        Error::new(Code::NoBackground, format!("cannot send this to the background process: {error}"))
            .hint("paths must be UTF-8")
    })?;
    bytes.push(b'\n');
    if bytes.len() as u64 > MAX_LINE_BYTES {
        return Err(Error::new(
            Code::NoBackground,
            "the environment is too large for the background process",
        )
        .hint("run it in the foreground"));
    }
    Ok(bytes)
}

/// The next line of `from`, without its end; nothing when there is none.
pub(crate) fn read_line(from: impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut bounded = io::BufReader::new(from.take(MAX_LINE_BYTES));
    bounded.read_until(b'\n', &mut bytes)?;
    if bytes.pop() == Some(b'\n') { Ok(Some(bytes)) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_line_is_none() {
        assert_eq!(read_line(&b"one\ntwo\n"[..]).expect("read"), Some(b"one".to_vec()));
        assert_eq!(read_line(&b"half"[..]).expect("read"), None);
        assert_eq!(read_line(&b""[..]).expect("read"), None);
        let long = vec![b'x'; usize::try_from(MAX_LINE_BYTES).expect("a size") + 1];
        assert_eq!(read_line(&long[..]).expect("read"), None);
    }
}
