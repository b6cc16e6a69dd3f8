//! What is said over the socket: one line of JSON each way, bounded.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use rye_agent::thread_id::ThreadId;
use rye_agent::threads::TakeoverReport;
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
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DaemonResponse {
    /// They run, but for those that cannot.
    #[serde(rename = "taken")]
    TakenOver(TakeoverReport),
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
