//! The verdict on a file, and the door that only verified files pass.

use std::ops::{Deref, Range};

use lillux::{Digest, Fingerprint};
use rye_item::{ItemRef, SignatureFormat, Space};
use serde::Serialize;

use crate::coverage::{Content, Coverage, compare};
use crate::keyring::{KeyRing, Listed, Vouch};
use crate::signature::{Layout, SignatureLine};

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
    fn file(&self) -> Option<String> {
        None
    }
    /// Whether its bytes are part of this very binary, which the build signed: whoever could change them could change
    /// the code that verifies as well.
    fn is_sealed(&self) -> bool {
        false
    }
}

/// The verdict in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
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
    /// Signed by a key that does not count here.
    Untrusted,
    /// Signed by a key the user has revoked.
    Revoked,
}

impl Verdict {
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
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// How much the signature covers; `None` unless its hash holds.
    pub coverage: Coverage,
    /// Byte ranges nobody vouches for.
    pub uncovered: Vec<Range<usize>>,
    /// The signature line, if there is one.
    pub signature: Option<SignatureLine>,
    /// The owner of the key, if the key counts.
    pub owner: Option<String>,
    /// Why the key counts, if it does.
    pub vouch: Option<Vouch>,
    /// Why the verdict is not good, in words.
    pub reason: Option<String>,
}

impl Report {
    /// The fingerprint the signature names.
    #[must_use]
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.signature.as_ref().map(|signature| signature.fingerprint)
    }

    fn bad(verdict: Verdict, signature: Option<SignatureLine>, reason: String) -> Self {
        Self {
            verdict,
            coverage: Coverage::None,
            uncovered: Vec::new(),
            signature,
            owner: None,
            vouch: None,
            reason: Some(reason),
        }
    }
}

/// Judges a subject by the keys that count.
#[must_use]
pub fn report(subject: &impl Subject, keys: &KeyRing) -> Report {
    let listed = Listing::of(subject, keys);
    let Some(format) = subject.format() else {
        let Some(listed) = listed.of_content(subject, None) else {
            let reason = "files of this kind cannot carry a signature line".to_owned();
            return Report::bad(Verdict::Unsigned, None, reason);
        };
        return Report {
            verdict: Verdict::Full,
            coverage: Coverage::Full,
            uncovered: Vec::new(),
            signature: None,
            owner: Some(listed.signer.owner.clone()),
            vouch: Some(listed.signer.vouch),
            reason: None,
        };
    };
    let layout = Layout::of(subject.bytes(), format);
    let content = compare(subject.item().item_type, subject.bytes(), &layout);
    let signature = layout.signature;
    if let Some(line) = &signature
        && let Some(revocation) = keys.revocation(&line.fingerprint)
    {
        let reason = format!("the key {} is revoked: {}", line.fingerprint, revocation.reason);
        return Report::bad(Verdict::Revoked, signature, reason);
    }
    let (coverage, uncovered, line) = match (content, &signature) {
        (Content::Intact { coverage, uncovered }, Some(line)) => (coverage, uncovered, line.clone()),
        (Content::Changed { actual, only_line_endings }, Some(line)) => {
            return Report::bad(
                Verdict::Tampered,
                signature.clone(),
                changed(&line.hash, &actual, only_line_endings),
            );
        }
        (Content::InvalidShebang(error), _) => {
            return Report::bad(Verdict::Tampered, None, error.to_string());
        }
        (Content::Unsigned | Content::Intact { .. } | Content::Changed { .. }, _) => {
            return Report::bad(Verdict::Unsigned, None, "there is no signature line".to_owned());
        }
    };
    let listing = listed.of_content(subject, Some(&line));
    let known = keys.find(&line.fingerprint, subject.space());
    let Some(known) = known.or_else(|| listing.map(|listed| &listed.signer)) else {
        let reason = if listed.is_by(&line) {
            "its bundle's manifest lists other content".to_owned()
        } else {
            format!("no trusted key has the fingerprint {}", line.fingerprint)
        };
        return Report { coverage, uncovered, ..Report::bad(Verdict::Untrusted, signature, reason) };
    };
    if !subject.is_sealed() && !known.key.verifies(&line.hash, &line.signature) {
        let reason = format!("the signature is not by the key {}", line.fingerprint);
        return Report::bad(Verdict::Tampered, signature, reason);
    }
    // A manifest that lists this content at this path has said where it belongs.
    if listing.is_none()
        && let Some(reason) = subject.misplacement().or_else(|| {
            let is_nameless = !subject.is_sealed() && !subject.has_name();
            is_nameless.then(|| keys.signed_elsewhere(subject.item(), &line)).flatten()
        })
    {
        return Report { coverage, uncovered, ..Report::bad(Verdict::Misplaced, signature, reason) };
    }
    Report {
        verdict: if coverage == Coverage::Full { Verdict::Full } else { Verdict::Partial },
        coverage,
        uncovered,
        signature,
        owner: Some(known.owner.clone()),
        vouch: Some(known.vouch),
        reason: None,
    }
}

/// Whether a manifest that counts lists exactly this content at this place.
#[must_use]
pub fn is_listed(subject: &impl Subject, keys: &KeyRing) -> bool {
    let line = subject.format().and_then(|format| Layout::of(subject.bytes(), format).signature);
    Listing::of(subject, keys).of_content(subject, line.as_ref()).is_some()
}

/// What manifests that count say of a subject's file.
struct Listing<'a>(&'a [Listed]);

impl<'a> Listing<'a> {
    fn of(subject: &impl Subject, keys: &'a KeyRing) -> Self {
        match subject.file() {
            Some(path) => Self(keys.listed(subject.space(), &path)),
            None => Self(&[]),
        }
    }

    /// What lists exactly this content; by the key the signature names, if there is a signature.
    fn of_content(&self, subject: &impl Subject, line: Option<&SignatureLine>) -> Option<&'a Listed> {
        let mut named = self
            .0
            .iter()
            .filter(|listed| line.is_none_or(|line| listed.signer.key.fingerprint() == line.fingerprint));
        let item = subject.item();
        named.find(|listed| {
            listed.hash.is_of(item.item_type.as_str(), item.id.as_str(), subject.bytes(), line)
        })
    }

    fn is_by(&self, line: &SignatureLine) -> bool {
        self.0.iter().any(|listed| listed.signer.key.fingerprint() == line.fingerprint)
    }
}

fn changed(signed: &Digest, actual: &Digest, only_line_endings: bool) -> String {
    if only_line_endings {
        "only line endings differ from what was signed".to_owned()
    } else {
        format!("signed hash {}…, found {}…", signed.short(), actual.short())
    }
}

/// A subject that may not pass, and why.
#[derive(Clone, Debug)]
pub struct Refusal<T> {
    /// What was refused.
    pub subject: T,
    /// Why.
    pub report: Report,
}

/// A subject whose bytes a trusted key vouches for, in whole or (flagged) in part. Only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified<T> {
    subject: T,
    report: Report,
}

impl<T> Verified<T> {
    /// What the verdict rests on.
    #[must_use]
    pub fn report(&self) -> &Report {
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
pub fn verify<T: Subject>(subject: T, keys: &KeyRing) -> Result<Verified<T>, Box<Refusal<T>>> {
    let report = report(&subject, keys);
    match report.verdict {
        Verdict::Full | Verdict::Partial => Ok(Verified { subject, report }),
        Verdict::Unsigned
        | Verdict::Tampered
        | Verdict::Misplaced
        | Verdict::Untrusted
        | Verdict::Revoked => Err(Box::new(Refusal { subject, report })),
    }
}
