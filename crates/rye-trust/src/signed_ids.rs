//! Which id each content was signed under: a tool or config that states no name could otherwise be copied over another
//! of its category and would still verify.
//!
//! Only what this user signed is known here. A content that is not recorded is not refused.

use std::collections::HashSet;

use lillux::{Digest, Fingerprint};
use rye_item::ItemRef;

use crate::signature::SignatureLine;

/// How many signatures are remembered; the oldest are forgotten first.
const MAX_ENTRIES: usize = 4096;
/// How long the record's text may be.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// A content, its signer, and the item it was signed as.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignedId {
    /// The hash in the signature line.
    pub hash: Digest,
    /// The signing key.
    pub signer: Fingerprint,
    /// The item, as `tool:team/deploy`.
    pub item: String,
}

impl SignedId {
    /// What signing `item` with this line records.
    #[must_use]
    pub fn new(item: &ItemRef, line: &SignatureLine) -> Self {
        Self { hash: line.hash, signer: line.fingerprint, item: item_key(item) }
    }

    fn to_line(&self) -> String {
        format!("{} {} {}\n", self.hash, self.signer, self.item)
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (hash, signer, item) = (words.next()?, words.next()?, words.next()?);
        let entry = Self { hash: hash.parse().ok()?, signer: signer.parse().ok()?, item: item.to_owned() };
        let is_item = !item.is_empty() && item.bytes().all(|byte| byte.is_ascii_graphic());
        (words.next().is_none() && is_item).then_some(entry)
    }
}

/// The ids this user's signatures were made for, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedIds {
    entries: Vec<SignedId>,
}

impl SignedIds {
    /// Reads the record's text; comment lines are passed over.
    ///
    /// # Errors
    /// The number of the first line that is not an entry.
    pub fn parse(text: &str) -> Result<Self, usize> {
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            entries.push(SignedId::from_line(line).ok_or(index + 1)?);
        }
        Ok(Self { entries })
    }

    /// The record's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::from("# What you signed without a name in it: content, key, item.\n");
        self.entries.iter().for_each(|entry| text.push_str(&entry.to_line()));
        text
    }

    /// Adds what was signed; returns whether anything is new.
    pub fn add(&mut self, signed: impl IntoIterator<Item = SignedId>) -> bool {
        let mut known: HashSet<SignedId> = self.entries.iter().cloned().collect();
        let before = self.entries.len();
        for entry in signed {
            if known.insert(entry.clone()) {
                self.entries.push(entry);
            }
        }
        let is_changed = self.entries.len() != before;
        let mut bytes: usize = self.entries.iter().map(|entry| entry.to_line().len()).sum();
        // Room for the lines above the entries.
        let exceeds_limits =
            |count: usize, bytes: usize| count > MAX_ENTRIES || bytes + 2048 > MAX_RECORD_BYTES;
        let mut dropped = 0;
        while exceeds_limits(self.entries.len() - dropped, bytes) {
            bytes -= self.entries[dropped].to_line().len();
            dropped += 1;
        }
        self.entries.drain(..dropped);
        is_changed
    }

    /// The items this content was signed as with this key, if `item` is not one of them.
    #[must_use]
    pub fn other_signed_items(&self, item: &ItemRef, line: &SignatureLine) -> Option<Vec<&str>> {
        let is_same = |entry: &&SignedId| entry.hash == line.hash && entry.signer == line.fingerprint;
        let items: Vec<&str> = self.entries.iter().filter(is_same).map(|entry| entry.item.as_str()).collect();
        let own = item_key(item);
        (!items.is_empty() && !items.contains(&own.as_str())).then_some(items)
    }
}

fn item_key(item: &ItemRef) -> String {
    format!("{}:{}", item.item_type, item.id)
}

#[cfg(test)]
mod tests {
    use rye_item::{ItemId, ItemType};

    use super::*;

    fn entry(number: usize) -> SignedId {
        let signer = "0123456789abcdef".parse().expect("a fingerprint");
        SignedId { hash: Digest::of(&number.to_be_bytes()), signer, item: format!("tool:team/t{number}") }
    }

    fn line(entry: &SignedId) -> SignatureLine {
        let key = lillux::SecretKey::generate().expect("randomness");
        let signature = key.sign(&entry.hash);
        SignatureLine {
            timestamp: crate::signature::Timestamp::from_unix(0).expect("a moment"),
            hash: entry.hash,
            signature_text: signature.to_base64(),
            signature,
            fingerprint: entry.signer,
            registry: None,
        }
    }

    fn tool(id: &str) -> ItemRef {
        ItemRef::new(ItemType::Tool, ItemId::new(id).expect("an id"))
    }

    #[test]
    fn record_round_trips() {
        let mut ids = SignedIds::default();
        assert!(ids.add([entry(1), entry(2), entry(1)]));
        assert!(!ids.add([entry(2)]));
        assert_eq!(SignedIds::parse(&ids.to_text()), Ok(ids));
    }

    #[test]
    fn malformed_lines_are_refused() {
        let good = entry(1).to_line();
        for bad in ["x", "\n", &format!("{} x", good.trim()), &good.replace("tool:", "to ol:"), &good[1..]] {
            assert_eq!(SignedIds::parse(&format!("# a\n{good}{bad}")), Err(3), "{bad:?}");
        }
    }

    #[test]
    fn content_is_valid_only_at_recorded_ids() {
        let mut ids = SignedIds::default();
        let first = entry(1);
        assert_eq!(ids.other_signed_items(&tool("team/b"), &line(&first)), None);
        ids.add([first.clone()]);
        assert_eq!(ids.other_signed_items(&tool("team/t1"), &line(&first)), None);
        assert_eq!(ids.other_signed_items(&tool("team/b"), &line(&first)), Some(vec!["tool:team/t1"]));
        assert_eq!(ids.other_signed_items(&tool("team/b"), &line(&entry(2))), None);
        let other = SignedId { signer: "ffffffffffffffff".parse().expect("a fingerprint"), ..first.clone() };
        assert_eq!(ids.other_signed_items(&tool("team/b"), &line(&other)), None);
        ids.add([SignedId { item: "tool:team/b".to_owned(), ..first.clone() }]);
        assert_eq!(ids.other_signed_items(&tool("team/b"), &line(&first)), None);
    }

    #[test]
    fn oldest_entries_are_dropped_first() {
        let mut ids = SignedIds::default();
        ids.add((0..MAX_ENTRIES + 3).map(entry));
        assert_eq!(ids.entries.len(), MAX_ENTRIES);
        assert_eq!(ids.entries.first(), Some(&entry(3)));
        let long = (0..MAX_ENTRIES).map(|number| SignedId { item: "x".repeat(500), ..entry(number) });
        ids.add(long);
        assert!(ids.to_text().len() <= MAX_RECORD_BYTES);
        assert_eq!(ids.entries.last().map(|entry| entry.hash), Some(entry(MAX_ENTRIES - 1).hash));
    }
}
