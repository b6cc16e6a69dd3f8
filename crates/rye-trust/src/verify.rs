//! The verdict on a file, and the type that only verified files become.

use std::ops::{Deref, Range};

use lillux::{Digest, Fingerprint};
use rye_item::{ItemRef, SignatureFormat, Space};
use serde::Serialize;

use crate::coverage::{ContentStatus, Coverage, compare_content};
use crate::keyring::{KeyRing, ManifestEntry, TrustBasis};
use crate::signature::{FileLayout, SignatureLine};

/// What can be verified: bytes that claim to be an item at a place.
pub trait Subject {
    /// Which item it claims to be.
    fn item(&self) -> &ItemRef;
    /// The space it was found in.
    fn space(&self) -> &Space;
    /// Its bytes, read once.
    fn bytes(&self) -> &[u8];
    /// How such files are signed; `None` when they cannot be.
    fn format(&self) -> Option<&SignatureFormat>;
    /// What in its text contradicts its place (name, category), if anything does.
    fn misplacement(&self) -> Option<String>;
    /// Whether its text says its own name, so that [`Subject::misplacement`] can tell it from others of its category.
    fn has_name(&self) -> bool {
        true
    }
    /// Its path from `.ai/` on, by which a manifest may list it; `None` for what no manifest lists.
    fn manifest_path(&self) -> Option<String> {
        None
    }
    /// Whether its bytes are part of this very binary, which the build signed: an attacker who could change them could change
    /// the code that verifies as well.
    fn is_sealed(&self) -> bool {
        false
    }
}

/// The verdict in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TrustVerdict {
    /// Signed whole by a key that counts.
    Full,
    /// Signed in part by a key that counts.
    Partial,
    /// Not signed.
    Unsigned,
    /// Changed since it was signed, or the signature is forged.
    Tampered,
    /// Signed for another place.
    Misplaced,
    /// Signed by a key that is not trusted here.
    Untrusted,
    /// Signed by a key the user has revoked.
    Revoked,
}

impl TrustVerdict {
    /// All verdicts, good ones first.
    pub const ALL: [Self; 7] = [
        Self::Full,
        Self::Partial,
        Self::Unsigned,
        Self::Tampered,
        Self::Misplaced,
        Self::Untrusted,
        Self::Revoked,
    ];

    /// The verdict's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::Unsigned => "unsigned",
            Self::Tampered => "tampered",
            Self::Misplaced => "misplaced",
            Self::Untrusted => "untrusted",
            Self::Revoked => "revoked",
        }
    }
}

/// Everything the verdict rests on.
#[derive(Clone, Debug)]
pub struct TrustReport {
    /// The verdict.
    pub verdict: TrustVerdict,
    /// How much the signature covers; `None` unless its hash holds.
    pub coverage: Coverage,
    /// Byte ranges that the signature does not cover.
    pub uncovered: Vec<Range<usize>>,
    /// The signature line, if there is one.
    pub signature: Option<SignatureLine>,
    /// The owner of the key, if the key counts.
    pub owner: Option<String>,
    /// Why the key counts, if it does.
    pub basis: Option<TrustBasis>,
    /// Why the verdict is not good, in words.
    pub reason: Option<String>,
}

impl TrustReport {
    /// The fingerprint the signature names.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.signature.as_ref().map(|signature| signature.fingerprint)
    }

    fn rejected(verdict: TrustVerdict, signature: Option<SignatureLine>, reason: String) -> Self {
        Self {
            verdict,
            coverage: Coverage::None,
            uncovered: Vec::new(),
            signature,
            owner: None,
            basis: None,
            reason: Some(reason),
        }
    }
}

/// Judges a subject by the keys that count.
#[must_use]
pub fn evaluate(subject: &impl Subject, keys: &KeyRing) -> TrustReport {
    let entries = ManifestEntries::for_subject(subject, keys);
    let Some(format) = subject.format() else {
        let Some(entries) = entries.find_matching(subject, None) else {
            let reason = "files of this kind cannot carry a signature line".to_owned();
            return TrustReport::rejected(TrustVerdict::Unsigned, None, reason);
        };
        return TrustReport {
            verdict: TrustVerdict::Full,
            coverage: Coverage::Full,
            uncovered: Vec::new(),
            signature: None,
            owner: Some(entries.signer.owner.clone()),
            basis: Some(entries.signer.basis),
            reason: None,
        };
    };
    let layout = FileLayout::parse(subject.bytes(), format);
    let content = compare_content(subject.item().item_type, subject.bytes(), &layout);
    let signature = layout.signature;
    if let Some(line) = &signature
        && let Some(revocation) = keys.revocation(&line.fingerprint)
    {
        let reason = format!("the key {} is revoked: {}", line.fingerprint, revocation.reason);
        return TrustReport::rejected(TrustVerdict::Revoked, signature, reason);
    }
    let (coverage, uncovered, line) = match (content, &signature) {
        (ContentStatus::Intact { coverage, uncovered }, Some(line)) => (coverage, uncovered, line.clone()),
        (ContentStatus::Changed { actual, only_line_endings }, Some(line)) => {
            return TrustReport::rejected(
                TrustVerdict::Tampered,
                signature.clone(),
                describe_change(&line.hash, &actual, only_line_endings),
            );
        }
        (ContentStatus::InvalidShebang(error), _) => {
            return TrustReport::rejected(TrustVerdict::Tampered, None, error.to_string());
        }
        (ContentStatus::Unsigned | ContentStatus::Intact { .. } | ContentStatus::Changed { .. }, _) => {
            return TrustReport::rejected(TrustVerdict::Unsigned, None, "no signature line".to_owned());
        }
    };
    let entry = entries.find_matching(subject, Some(&line));
    let known = keys.find(&line.fingerprint, subject.space());
    let Some(known) = known.or_else(|| entry.map(|entries| &entries.signer)) else {
        let reason = if entries.has_signer(&line) {
            "its bundle's manifest lists other content".to_owned()
        } else {
            format!("no trusted key has the fingerprint {}", line.fingerprint)
        };
        return TrustReport {
            coverage,
            uncovered,
            ..TrustReport::rejected(TrustVerdict::Untrusted, signature, reason)
        };
    };
    if !subject.is_sealed() && !known.key.verify(&line.hash, &line.signature) {
        let reason = format!("the signature is not by the key {}", line.fingerprint);
        return TrustReport::rejected(TrustVerdict::Tampered, signature, reason);
    }
    // A manifest that lists this content at this path has said where it belongs.
    if entry.is_none()
        && let Some(reason) = subject.misplacement().or_else(|| {
            let is_nameless = !subject.is_sealed() && !subject.has_name();
            is_nameless.then(|| keys.signed_elsewhere_reason(subject.item(), &line)).flatten()
        })
    {
        return TrustReport {
            coverage,
            uncovered,
            ..TrustReport::rejected(TrustVerdict::Misplaced, signature, reason)
        };
    }
    TrustReport {
        verdict: if coverage == Coverage::Full { TrustVerdict::Full } else { TrustVerdict::Partial },
        coverage,
        uncovered,
        signature,
        owner: Some(known.owner.clone()),
        basis: Some(known.basis),
        reason: None,
    }
}

/// Whether a manifest that counts lists exactly this content at this place.
#[must_use]
pub fn is_listed(subject: &impl Subject, keys: &KeyRing) -> bool {
    let line = subject.format().and_then(|format| FileLayout::parse(subject.bytes(), format).signature);
    ManifestEntries::for_subject(subject, keys).find_matching(subject, line.as_ref()).is_some()
}

/// What manifests that count say of a subject's file.
struct ManifestEntries<'a>(&'a [ManifestEntry]);

impl<'a> ManifestEntries<'a> {
    fn for_subject(subject: &impl Subject, keys: &'a KeyRing) -> Self {
        match subject.manifest_path() {
            Some(path) => Self(keys.listed(subject.space(), &path)),
            None => Self(&[]),
        }
    }

    /// What lists exactly this content; by the key the signature names, if there is a signature.
    fn find_matching(
        &self,
        subject: &impl Subject,
        line: Option<&SignatureLine>,
    ) -> Option<&'a ManifestEntry> {
        let mut candidates = self
            .0
            .iter()
            .filter(|listed| line.is_none_or(|line| listed.signer.key.fingerprint() == line.fingerprint));
        let item = subject.item();
        candidates.find(|listed| {
            listed.hash.matches(item.item_type.as_str(), item.id.as_str(), subject.bytes(), line)
        })
    }

    fn has_signer(&self, line: &SignatureLine) -> bool {
        self.0.iter().any(|listed| listed.signer.key.fingerprint() == line.fingerprint)
    }
}

fn describe_change(signed: &Digest, actual: &Digest, only_line_endings: bool) -> String {
    if only_line_endings {
        "only line endings differ from what was signed".to_owned()
    } else {
        format!("signed hash {}…, found {}…", signed.short(), actual.short())
    }
}

/// A subject that may not pass, and why.
#[derive(Clone, Debug)]
pub struct VerifyRejection<T> {
    /// What was refused.
    pub subject: T,
    /// Why.
    pub report: TrustReport,
}

/// A subject whose bytes a trusted key vouches for, in whole or (flagged) in part. Only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified<T> {
    subject: T,
    report: TrustReport,
}

impl<T> Verified<T> {
    /// What the verdict rests on.
    #[must_use]
    pub fn report(&self) -> &TrustReport {
        &self.report
    }

    /// Whether every byte of the content is covered.
    #[must_use]
    pub fn is_fully_covered(&self) -> bool {
        self.report.coverage == Coverage::Full
    }

    /// The subject itself.
    #[must_use]
    pub fn into_subject(self) -> T {
        self.subject
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.subject
    }
}

/// Lets a subject pass if a key that counts vouches for it.
///
/// # Errors
/// The subject back, with the report that says why it may not pass.
pub fn verify<T: Subject>(subject: T, keys: &KeyRing) -> Result<Verified<T>, Box<VerifyRejection<T>>> {
    let report = evaluate(&subject, keys);
    match report.verdict {
        TrustVerdict::Full | TrustVerdict::Partial => Ok(Verified { subject, report }),
        TrustVerdict::Unsigned
        | TrustVerdict::Tampered
        | TrustVerdict::Misplaced
        | TrustVerdict::Untrusted
        | TrustVerdict::Revoked => Err(Box::new(VerifyRejection { subject, report })),
    }
}
