//! A submission: what is to be run, in full, signed by the person who wants it. Workers rely on nothing else.

use std::collections::HashMap;
use std::sync::Arc;

use lillux::{Digest, Fingerprint, PublicKey, SecretKey, Signature};
use rye_engine::{Code, Error};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::archive::FrozenFile;
use super::checkout::Checkout;
use crate::store::{CurrentKeys, Submission};
use crate::thread_id::ThreadId;

/// Submissions that are remembered.
const MAX_KNOWN: usize = 4096;

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
    /// The key that signed it was revoked.
    #[error("the submission is refused: the key {0} was revoked")]
    RevokedSigner(String),
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
            SubmissionError::RevokedSigner(_) => {
                "a revocation cannot be undone; submit it again with another key that is listed"
            }
            SubmissionError::UnknownFormat(_) => "upgrade the worker",
            SubmissionError::Unreadable(_) | SubmissionError::Forged(_) | SubmissionError::OtherThread(_) => {
                "find out who changed the database: rye doctor --store"
            }
        };
        Self::new(Code::SubmissionRefused, error.to_string()).hint(hint)
    }
}

/// The key of a submission's signer, if what it submits counts now.
fn find_submitter(keys: &CurrentKeys, signer: &str) -> Result<PublicKey, SubmissionError> {
    if signer.parse().is_ok_and(|signer| keys.is_revoked(&signer)) {
        return Err(SubmissionError::RevokedSigner(one_line(signer)));
    }
    let found = keys.submitters().into_iter().find(|key| key.fingerprint().as_str() == signer);
    found.ok_or_else(|| SubmissionError::UntrustedSigner(one_line(signer)))
}

/// Submissions whose signatures were verified, and whose they are.
#[derive(Default)]
pub(super) struct KnownSubmissions(HashMap<Digest, (Arc<SubmissionBody>, Fingerprint)>);

impl KnownSubmissions {
    /// A submission that was read before, if its key counts still.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn find(
        &self,
        submission: &Submission,
        keys: &CurrentKeys,
    ) -> Result<Option<Arc<SubmissionBody>>, SubmissionError> {
        let known = self.0.get(&submission.digest).filter(|(body, _)| body.thread == submission.root);
        let Some((body, signer)) = known else { return Ok(None) };
        find_submitter(keys, signer.as_str())?;
        Ok(Some(Arc::clone(body)))
    }

    pub(super) fn insert(
        &mut self,
        digest: Digest,
        body: SubmissionBody,
        signer: Fingerprint,
    ) -> Arc<SubmissionBody> {
        if self.0.len() >= MAX_KNOWN {
            self.0.clear();
        }
        let body = Arc::new(body);
        self.0.insert(digest, (Arc::clone(&body), signer));
        body
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

    /// Whose submission it says it is, unchecked: to show it.
    #[must_use]
    pub fn peek_signer(bytes: &[u8]) -> Option<String> {
        let signed: SignedSubmission = serde_json::from_slice(bytes).ok()?;
        Some(signed.signer)
    }

    /// What a submission of `thread` says, once the signature is known to be that of one of these keys; and whose it is.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn verify(
        bytes: &[u8],
        thread: &ThreadId,
        keys: &CurrentKeys,
    ) -> Result<(Self, Fingerprint), SubmissionError> {
        let unreadable = |error: serde_json::Error| SubmissionError::Unreadable(one_line(&error.to_string()));
        let signed: SignedSubmission = serde_json::from_slice(bytes).map_err(unreadable)?;
        let signer = one_line(&signed.signer);
        let key = find_submitter(keys, &signed.signer)?;
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

    fn listed(users: &[u8], revoked: &[u8]) -> CurrentKeys {
        let public = |seeds: &[u8]| seeds.iter().map(|seed| key(*seed).public_key()).collect::<Vec<_>>();
        let revoked = public(revoked).iter().map(PublicKey::fingerprint).collect();
        CurrentKeys::new(public(users), Vec::new(), Some(&key(8).public_key()), revoked)
    }

    #[test]
    fn submission_of_revoked_key_is_refused() {
        let name = key(1).public_key().fingerprint().to_string();
        let bytes = body().sign(&key(1)).expect("bytes");
        let verify = |keys: &CurrentKeys| SubmissionBody::verify(&bytes, &body().thread, keys);
        let (read, signer) = verify(&listed(&[1], &[])).expect("verified");
        let revoked = verify(&listed(&[1], &[1])).expect_err("refused");
        assert_eq!(revoked, SubmissionError::RevokedSigner(name.clone()));
        assert!(revoked.to_string().contains(&format!("the key {name} was revoked")), "{revoked}");
        // One that was verified before is refused too.
        let submission = Submission { root: body().thread, digest: Digest::of(&bytes) };
        let mut known = KnownSubmissions::default();
        known.insert(submission.digest, read, signer);
        assert!(known.find(&submission, &listed(&[1], &[])).expect("counts").is_some());
        assert_eq!(
            known.find(&submission, &listed(&[1], &[1])),
            Err(SubmissionError::RevokedSigner(name.clone()))
        );
        assert_eq!(known.find(&submission, &listed(&[2], &[])), Err(SubmissionError::UntrustedSigner(name)));
        // The worker's own key submits, until it is revoked.
        let own = body().sign(&key(8)).expect("bytes");
        assert!(SubmissionBody::verify(&own, &body().thread, &listed(&[], &[])).is_ok());
        assert!(SubmissionBody::verify(&own, &body().thread, &listed(&[], &[8])).is_err());
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
            SubmissionBody::verify(&bytes, &body().thread, &listed(&[2, 1], &[])).expect("verified");
        assert_eq!((read, signer), (body(), key(1).public_key().fingerprint()));
        assert_eq!(SubmissionBody::peek(&bytes), Some(body()));
    }

    #[test]
    fn forged_and_foreign_submissions_are_refused() {
        let bytes = body().sign(&key(1)).expect("bytes");
        let users = listed(&[1], &[]);
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
