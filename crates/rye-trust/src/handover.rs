//! Hand-overs: the owner of a key replaces it by a new one. Both keys sign the same statement: the old one grants, the new
//! one accepts. The statement is nothing else that keys sign, so a document that the old key signed as an item, such as a
//! tool of that text, hands nothing over. A document of `.ai/config/keys/handovers/<old fingerprint>.toml`.

use lillux::{Digest, Fingerprint, PublicKey, SecretKey, Signature};
use rye_item::ItemType;
use serde::Deserialize;

use crate::coverage::{ContentStatus, Coverage, compare_content};
use crate::identity::signature_format;
use crate::sign::{SignOutcome, sign};
use crate::signature::{FileLayout, Timestamp};

/// What both keys sign begins with this, so that it cannot pass for another statement.
const STATEMENT: &str = "rye key hand-over, version 1";

/// Why a document is not a valid hand-over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// It is not UTF-8 text or not TOML.
    #[error("the hand-over cannot be read: {0}")]
    Unreadable(String),
    /// A key in it is not an Ed25519 public key.
    #[error("the hand-over has no usable key: {0}")]
    Key(#[from] lillux::key::KeyError),
    /// A fingerprint in it is not that of its key, or both keys are the same.
    #[error("the hand-over contradicts itself")]
    Contradiction,
    /// The old key did not sign it as it is.
    #[error("the hand-over is not signed by the old key")]
    OldKey,
    /// The new key did not sign it.
    #[error("the hand-over is not signed by the new key")]
    NewKey,
}

/// A key and the one that replaces it, signed by both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The key that is replaced.
    pub old: PublicKey,
    /// The key that replaces it.
    pub new: PublicKey,
    /// When, as the owner's clock said.
    pub at: Timestamp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that documents have and nothing reads")]
struct Document {
    version: Option<String>,
    category: Option<String>,
    old: String,
    new: String,
    at: String,
    granted: String,
    accepted: String,
    old_key: Pem,
    new_key: Pem,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pem {
    pem: String,
}

impl Handover {
    /// The document by which `old` is replaced by `new`, signed by both.
    #[must_use]
    pub fn document(old: &SecretKey, new: &SecretKey, at: &Timestamp) -> Vec<u8> {
        let handover = Self { old: old.public_key(), new: new.public_key(), at: at.clone() };
        let text = format!(
            "version = \"1.0.0\"\ncategory = \"keys/handovers\"\nold = \"{}\"\nnew = \"{}\"\nat = \"{at}\"\ngranted = \"{}\"\naccepted = \"{}\"\n\n[old_key]\npem = \"\"\"\n{}\"\"\"\n\n[new_key]\npem = \"\"\"\n{}\"\"\"\n",
            handover.old.fingerprint(),
            handover.new.fingerprint(),
            old.sign(&handover.statement()).to_base64(),
            new.sign(&handover.statement()).to_base64(),
            handover.old.to_pem(),
            handover.new.to_pem(),
        );
        match sign(text.as_bytes(), &signature_format(), old, at) {
            SignOutcome::Written { bytes, .. } => bytes,
            SignOutcome::Unchanged(_) => text.into_bytes(),
        }
    }

    /// Reads a document, and verifies both signatures.
    ///
    /// # Errors
    /// When it is unreadable, contradicts itself, or one of the keys did not sign it.
    pub fn parse(bytes: &[u8]) -> Result<Self, HandoverError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            HandoverError::Unreadable(rye_item::text::one_line(&error.to_string()))
        };
        let text = std::str::from_utf8(bytes).map_err(|error| unreadable(&error))?;
        let document: Document = toml::from_str(text).map_err(|error| unreadable(&error.message()))?;
        let old = PublicKey::from_pem(&document.old_key.pem)?;
        let new = PublicKey::from_pem(&document.new_key.pem)?;
        let is_consistent = document.old == old.fingerprint().as_str()
            && document.new == new.fingerprint().as_str()
            && old.fingerprint() != new.fingerprint();
        let at =
            Timestamp::new(&document.at).filter(|_| is_consistent).ok_or(HandoverError::Contradiction)?;
        let handover = Self { old, new, at };
        let layout = FileLayout::parse(bytes, &signature_format());
        let content = compare_content(ItemType::Config, bytes, &layout);
        let is_intact = matches!(content, ContentStatus::Intact { coverage: Coverage::Full, .. });
        let is_by_old = layout.signature.as_ref().is_some_and(|line| {
            line.fingerprint == handover.old.fingerprint() && handover.old.verify(&line.hash, &line.signature)
        });
        if !is_intact || !is_by_old {
            return Err(HandoverError::OldKey);
        }
        let granted = Signature::from_base64(&document.granted).ok_or(HandoverError::OldKey)?;
        if !handover.old.verify(&handover.statement(), &granted) {
            return Err(HandoverError::OldKey);
        }
        let accepted = Signature::from_base64(&document.accepted).ok_or(HandoverError::NewKey)?;
        if !handover.new.verify(&handover.statement(), &accepted) {
            return Err(HandoverError::NewKey);
        }
        Ok(handover)
    }

    /// The fingerprint of the key that is replaced.
    #[must_use]
    pub fn old_fingerprint(&self) -> Fingerprint {
        self.old.fingerprint()
    }

    /// The fingerprint of the key that replaces it.
    #[must_use]
    pub fn new_fingerprint(&self) -> Fingerprint {
        self.new.fingerprint()
    }

    /// The digest of what both keys sign: both keys whole, and the time.
    fn statement(&self) -> Digest {
        Digest::of(format!("{STATEMENT}\n{}{}{}\n", self.old.to_pem(), self.new.to_pem(), self.at).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    fn at() -> Timestamp {
        Timestamp::new("2026-01-02T03:04:05Z").expect("a time")
    }

    /// The text of a document after a change, signed again by `signer`.
    fn resigned(document: &[u8], change: impl Fn(&str) -> String, signer: &SecretKey) -> Vec<u8> {
        let text = std::str::from_utf8(document).expect("text");
        let body = change(text.split_once('\n').expect("a signature line").1);
        match sign(body.as_bytes(), &signature_format(), signer, &at()) {
            SignOutcome::Written { bytes, .. } => bytes,
            SignOutcome::Unchanged(_) => panic!("it was not signed"),
        }
    }

    #[test]
    fn handover_is_read_as_it_was_written() {
        let document = Handover::document(&key(1), &key(2), &at());
        let handover = Handover::parse(&document).expect("a hand-over");
        assert_eq!(handover, Handover { old: key(1).public_key(), new: key(2).public_key(), at: at() });
    }

    #[test]
    fn both_keys_must_have_signed() {
        let document = Handover::document(&key(1), &key(2), &at());
        let same = |text: &str| text.to_owned();
        for signer in [key(2), key(3)] {
            assert_eq!(Handover::parse(&resigned(&document, same, &signer)), Err(HandoverError::OldKey));
        }
        // The old key alone names a key whose owner did not agree.
        let (new, other) = (key(2).public_key(), key(3).public_key());
        let renamed = |text: &str| {
            text.replace(new.fingerprint().as_str(), other.fingerprint().as_str())
                .replace(&new.to_pem(), &other.to_pem())
        };
        assert_eq!(Handover::parse(&resigned(&document, renamed, &key(1))), Err(HandoverError::OldKey));
        let later = |text: &str| text.replace("2026", "2027");
        assert_eq!(Handover::parse(&resigned(&document, later, &key(1))), Err(HandoverError::OldKey));
        let statement = Handover::parse(&document).expect("a hand-over").statement();
        let signed = |seed: u8| key(seed).sign(&statement).to_base64();
        let accepted_by_old = |text: &str| text.replace(&signed(2), &signed(1));
        assert_eq!(
            Handover::parse(&resigned(&document, accepted_by_old, &key(1))),
            Err(HandoverError::NewKey)
        );
    }

    #[test]
    fn text_signed_as_a_tool_hands_nothing_over() {
        let document = Handover::document(&key(1), &key(2), &at());
        let statement = Handover::parse(&document).expect("a hand-over").statement();
        let granted = format!("granted = \"{}\"\n", key(1).sign(&statement).to_base64());
        // The old key signed the text, but not the statement.
        let by_new = format!("granted = \"{}\"\n", key(2).sign(&statement).to_base64());
        let not_granted = |text: &str| text.replace(&granted, &by_new);
        assert_eq!(Handover::parse(&resigned(&document, not_granted, &key(1))), Err(HandoverError::OldKey));
        let missing = |text: &str| text.replace(&granted, "");
        let as_tool = |text: &str| format!("tool_type = \"x\"\n{text}");
        for change in [&missing as &dyn Fn(&str) -> String, &as_tool] {
            let parsed = Handover::parse(&resigned(&document, change, &key(1)));
            assert!(matches!(parsed, Err(HandoverError::Unreadable(_))), "{parsed:?}");
        }
    }

    #[test]
    fn changed_handover_is_refused() {
        let document = String::from_utf8(Handover::document(&key(1), &key(2), &at())).expect("text");
        for changed in [
            document.replace("at = \"2026", "at = \"2025"),
            format!("{document}# more\n"),
            document.split_once('\n').expect("a line").1.to_owned(),
            document.replace('\n', "\r\n"),
        ] {
            assert_eq!(Handover::parse(changed.as_bytes()), Err(HandoverError::OldKey), "{changed}");
        }
        let old = key(1).public_key().fingerprint().to_string();
        let contradiction = document.replace(&format!("old = \"{old}\""), "old = \"0123456789abcdef\"");
        assert_eq!(Handover::parse(contradiction.as_bytes()), Err(HandoverError::Contradiction));
        let same = Handover::document(&key(1), &key(1), &at());
        assert_eq!(Handover::parse(&same), Err(HandoverError::Contradiction));
    }
}
