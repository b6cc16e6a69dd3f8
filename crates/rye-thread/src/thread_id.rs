//! The name of a thread: `thread-` and twelve hexadecimal digits. Anything else is not a thread, so a name from outside can
//! never lead out of the threads' folder.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A thread's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ThreadId(String);

/// What was given is not a thread's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a thread id; they look like thread-0a1b2c3d4e5f")]
pub struct InvalidThreadId(String);

impl ThreadId {
    /// A new name, from random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 6]) -> Self {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("thread-{digits}"))
    }

    /// The name of the thread that a call of another one starts: the same each time it is worked out, so that a call
    /// which is made again after a crash finds what it had begun.
    #[must_use]
    pub fn for_call(parent: &Self, call: u64, index: usize) -> Self {
        let digest = lillux_hash::Digest::of(format!("{parent}/{call}/{index}").as_bytes()).to_hex();
        Self(format!("thread-{}", digest.chars().take(12).collect::<String>()))
    }

    /// Reads a name.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, InvalidThreadId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.strip_prefix("thread-") {
            Some(digits) if digits.len() == 12 && digits.bytes().all(is_digit) => Ok(Self(text.to_owned())),
            _ => Err(InvalidThreadId(rye_item::text::one_line(text))),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for ThreadId {
    type Error = InvalidThreadId;

    fn try_from(text: String) -> Result<Self, InvalidThreadId> {
        Self::parse(&text)
    }
}

impl From<ThreadId> for String {
    fn from(id: ThreadId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::ThreadId;

    #[test]
    fn only_well_formed_thread_ids_parse() {
        assert!(ThreadId::parse(ThreadId::from_random([0, 1, 9, 10, 254, 255]).as_str()).is_ok());
        let parent = ThreadId::parse("thread-0a1b2c3d4e5f").expect("a name");
        let child = ThreadId::for_call(&parent, 1, 0);
        assert!(ThreadId::parse(child.as_str()).is_ok());
        assert_eq!(child, ThreadId::for_call(&parent, 1, 0));
        assert!(child != ThreadId::for_call(&parent, 1, 1) && child != ThreadId::for_call(&parent, 2, 0));
        for text in
            ["", "thread-", "thread-0a1b2c3d4e5", "thread-0A1b2c3d4e5f", "../thread-0a1b2c3d4e5f", "x"]
        {
            assert!(ThreadId::parse(text).is_err(), "{text}");
        }
    }
}
