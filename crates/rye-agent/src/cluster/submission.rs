//! A submission: what is to be run, in full, signed by the person who wants it. Workers rely on nothing else.

use lillux::{Digest, Fingerprint, PublicKey, SecretKey, Signature};
use rye_engine::{Code, Error};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::archive::FrozenFile;
use super::checkout::Checkout;
use crate::thread_id::ThreadId;

/// The format that is written and read.
const FORMAT: u32 = 1;

/// What stands before the text that is signed: the signature is good for nothing else.
const PURPOSE: &[u8] = b"rye submission 1\n";

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmissionBody {
    /// The format.
    pub format: u32,
    /// The release that wrote it.
    pub rye: String,
    /// The thread.
    pub thread: ThreadId,
    /// The digest of the first record of its journal.
    pub header: String,
    /// The directive.
    pub directive: String,
    /// Its inputs.
    pub inputs: Map<String, Value>,
    /// The model or tier that was asked for.
    pub model: Option<String>,
    /// The provider that was asked for.
    pub provider: Option<String>,
    /// The limits that were asked for.
    pub limits: Map<String, Value>,
    /// What a worker must offer.
    pub labels: Vec<String>,
    /// Tools that must resolve to what their lockfiles pin.
    pub tools: Vec<String>,
    /// The files of the project, in the order in which their bytes stand in the archive.
    pub files: Vec<FrozenFile>,
    /// The digest of the archive.
    pub archive: String,
    /// The project files that it is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkout: Option<Checkout>,
    /// When it was signed.
    pub at_ms: u64,
}

/// A submission as the store has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedSubmission {
    body: String,
    signer: String,
    signature: String,
}

/// Why a submission is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// It is not a submission.
    #[error("the submission cannot be read: {0}")]
    Unreadable(String),
    /// Another release wrote it.
    #[error("unsupported submission format {0}")]
    UnknownFormat(u32),
    /// Who signed it is not listed.
    #[error("the submission is signed by {0}, whose key is not listed in the worker's settings")]
    UntrustedSigner(String),
    /// The signature is not that of the key.
    #[error("the signature of the submission is forged: {0} did not sign this")]
    Forged(String),
    /// It is about another thread.
    #[error("the submission is one of {0}, not of this thread")]
    OtherThread(ThreadId),
}

impl From<SubmissionError> for Error {
    fn from(error: SubmissionError) -> Self {
        let hint = match &error {
            SubmissionError::UntrustedSigner(_) => {
                "if you know whose it is, list the key in threads.stores.NAME.users on the worker"
            }
            SubmissionError::UnknownFormat(_) => "upgrade the worker",
            SubmissionError::Unreadable(_) | SubmissionError::Forged(_) | SubmissionError::OtherThread(_) => {
                "find out who changed the database: rye doctor --store"
            }
        };
        Self::new(Code::SubmissionRefused, error.to_string()).hint(hint)
    }
}

fn signed_digest(body: &str) -> Digest {
    Digest::of(&[PURPOSE, body.as_bytes()].concat())
}

impl SubmissionBody {
    /// The format of this release.
    pub(super) const FORMAT: u32 = FORMAT;

    /// The submission as it is kept, signed.
    ///
    /// # Errors
    /// When it cannot be written as JSON.
    pub(super) fn sign(&self, key: &SecretKey) -> serde_json::Result<Vec<u8>> {
        let body = serde_json::to_string(self)?;
        let signature = key.sign(&signed_digest(&body)).to_base64();
        let signer = key.public_key().fingerprint().to_string();
        serde_json::to_vec(&SignedSubmission { body, signer, signature })
    }

    /// What a submission says, unchecked: to show it.
    #[must_use]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        let signed: SignedSubmission = serde_json::from_slice(bytes).ok()?;
        serde_json::from_str(&signed.body).ok()
    }

    /// What a submission of `thread` says, once the signature is known to be that of one of these keys; and whose it is.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn verify(
        bytes: &[u8],
        thread: &ThreadId,
        users: &[PublicKey],
    ) -> Result<(Self, Fingerprint), SubmissionError> {
        let unreadable = |error: serde_json::Error| SubmissionError::Unreadable(one_line(&error.to_string()));
        let signed: SignedSubmission = serde_json::from_slice(bytes).map_err(unreadable)?;
        let signer = one_line(&signed.signer);
        let key = users.iter().find(|key| key.fingerprint().as_str() == signed.signer);
        let key = key.ok_or_else(|| SubmissionError::UntrustedSigner(signer.clone()))?;
        let signature = Signature::from_base64(&signed.signature);
        let is_valid = signature.is_some_and(|one| key.verify(&signed_digest(&signed.body), &one));
        if !is_valid {
            return Err(SubmissionError::Forged(signer));
        }
        let format: Value = serde_json::from_str(&signed.body).map_err(unreadable)?;
        match format.get("format").and_then(Value::as_u64) {
            Some(known) if known == u64::from(FORMAT) => {}
            other => {
                let other = other.and_then(|format| u32::try_from(format).ok()).unwrap_or(0);
                return Err(SubmissionError::UnknownFormat(other));
            }
        }
        let body: Self = serde_json::from_str(&signed.body).map_err(unreadable)?;
        if body.thread != *thread {
            return Err(SubmissionError::OtherThread(body.thread));
        }
        Ok((body, key.fingerprint()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    fn id(text: &str) -> ThreadId {
        ThreadId::parse(text).expect("an id")
    }

    fn body() -> SubmissionBody {
        SubmissionBody {
            format: FORMAT,
            rye: "0.0.0".to_owned(),
            thread: id("thread-0a1b2c3d4e5f"),
            header: "ab".repeat(32),
            directive: "team/review".to_owned(),
            inputs: Map::new(),
            model: None,
            provider: None,
            limits: Map::new(),
            labels: vec!["gpu".to_owned()],
            tools: Vec::new(),
            files: Vec::new(),
            archive: "cd".repeat(32),
            checkout: None,
            at_ms: 1,
        }
    }

    #[test]
    fn signed_submission_is_read_back() {
        let bytes = body().sign(&key(1)).expect("bytes");
        let (read, signer) =
            SubmissionBody::verify(&bytes, &body().thread, &[key(2).public_key(), key(1).public_key()])
                .expect("verified");
        assert_eq!((read, signer), (body(), key(1).public_key().fingerprint()));
        assert_eq!(SubmissionBody::peek(&bytes), Some(body()));
    }

    #[test]
    fn forged_and_foreign_submissions_are_refused() {
        let bytes = body().sign(&key(1)).expect("bytes");
        let users = [key(1).public_key()];
        let verify =
            |bytes: &[u8]| SubmissionBody::verify(bytes, &body().thread, &users).expect_err("refused");
        let name = key(1).public_key().fingerprint().to_string();
        // Another word in it, under the same signature.
        let text = String::from_utf8(bytes.clone()).expect("text");
        let changed = text.replace("team/review", "team/deploy");
        assert_eq!(verify(changed.as_bytes()), SubmissionError::Forged(name.clone()));
        // A stranger's signature in the user's name.
        let stranger = String::from_utf8(body().sign(&key(9)).expect("bytes")).expect("text");
        let other = key(9).public_key().fingerprint().to_string();
        assert_eq!(verify(stranger.as_bytes()), SubmissionError::UntrustedSigner(other.clone()));
        assert_eq!(verify(stranger.replace(&other, &name).as_bytes()), SubmissionError::Forged(name));
        // A submission that is replayed for another thread.
        let moved = SubmissionBody::verify(&bytes, &id("thread-ffffffffffff"), &users);
        assert_eq!(moved, Err(SubmissionError::OtherThread(body().thread)));
        let newer = SubmissionBody { format: 2, ..body() }.sign(&key(1)).expect("bytes");
        assert_eq!(verify(&newer), SubmissionError::UnknownFormat(2));
        assert!(matches!(verify(b"{}"), SubmissionError::Unreadable(_)));
    }
}
