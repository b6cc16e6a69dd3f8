//! Output kept within bounds: the first and the last bytes of a stream, and how many there were.

use std::collections::VecDeque;

/// What is kept of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes, where they are not part of the head.
    pub tail: Vec<u8>,
    /// How many bytes there were.
    pub total: u64,
}

impl CapturedOutput {
    /// Whether bytes between head and tail were thrown away.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.omitted_bytes() > 0
    }

    /// How many bytes were thrown away.
    #[must_use]
    pub fn omitted_bytes(&self) -> u64 {
        self.total - self.head.len() as u64 - self.tail.len() as u64
    }

    /// Everything that was kept, as text; a cut is marked, bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn to_text(&self) -> String {
        if self.is_truncated() {
            let head = String::from_utf8_lossy(&self.head);
            let tail = String::from_utf8_lossy(&self.tail);
            return format!("{head}\n… {} bytes cut …\n{tail}", self.omitted_bytes());
        }
        // A character may lie on the seam.
        String::from_utf8_lossy(&self.to_bytes()).into_owned()
    }

    /// The captured bytes. Complete only if they are not [truncated](Self::is_truncated).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head.as_slice(), self.tail.as_slice()].concat()
    }
}

/// Gathers one stream.
#[derive(Debug)]
pub(crate) struct OutputCollector {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
}

impl OutputCollector {
    /// Keeps the first `head` and the last `tail` bytes.
    pub(crate) fn new(head: usize, tail: usize) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit: head, tail_limit: tail, total: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let free = self.head_limit - self.head.len();
        let (first, rest) = bytes.split_at(free.min(bytes.len()));
        self.head.extend_from_slice(first);
        let rest = &rest[rest.len().saturating_sub(self.tail_limit)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    pub(crate) fn finish(self) -> CapturedOutput {
        CapturedOutput { head: self.head, tail: self.tail.into(), total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(head: usize, tail: usize, pieces: &[&str]) -> CapturedOutput {
        let mut collector = OutputCollector::new(head, tail);
        for piece in pieces {
            collector.push(piece.as_bytes());
        }
        collector.finish()
    }

    #[test]
    fn short_output_is_complete() {
        let captured = collect(4, 4, &["ab", "cdef", "gh"]);
        assert_eq!(
            (captured.to_text().as_str(), captured.is_truncated(), captured.total),
            ("abcdefgh", false, 8)
        );
    }

    #[test]
    fn middle_of_long_output_is_omitted() {
        let captured = collect(2, 3, &["abcdef", "g", "hijklm"]);
        assert_eq!(captured, CapturedOutput { head: b"ab".to_vec(), tail: b"klm".to_vec(), total: 13 });
        assert_eq!(captured.to_text(), "ab\n… 8 bytes cut …\nklm");
    }

    #[test]
    fn a_character_on_the_seam_survives() {
        assert_eq!(collect(1, 9, &["é!"]).to_text(), "é!");
    }

    #[test]
    fn stream_without_tail_keeps_head() {
        assert_eq!(
            collect(2, 0, &["abc", "d"]),
            CapturedOutput { head: b"ab".to_vec(), tail: vec![], total: 4 }
        );
    }
}
