//! Admission: verified, or allowed by development mode. Only this module constructs an [`Admitted`].

use std::ops::Deref;

use lillux::Digest;
use rye_item::Space;

use crate::coverage::{Coverage, content_hash};
use crate::keyring::KeyRing;
use crate::signature::FileLayout;
use crate::verify::{Subject, TrustReport, TrustVerdict, VerifyRejection, evaluate};

/// What is forgiven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevModePolicy {
    /// Nothing: a key that counts must vouch.
    Enforce,
    /// That the project's own items are not signed, or were edited since: development mode.
    AllowOwnUnsigned,
}

/// A subject that may be used.
#[derive(Clone, Debug)]
pub struct Admitted<T> {
    subject: T,
    report: TrustReport,
    is_forgiven: bool,
    digest: Digest,
}

impl<T> Admitted<T> {
    /// What the verdict rests on.
    #[must_use]
    pub fn report(&self) -> &TrustReport {
        &self.report
    }

    /// Whether it is not verified, but allowed by development mode.
    #[must_use]
    pub fn is_forgiven(&self) -> bool {
        self.is_forgiven
    }

    /// Whether every byte of the content is covered by a key that counts.
    #[must_use]
    pub fn is_fully_covered(&self) -> bool {
        self.report.coverage == Coverage::Full
    }

    /// The hash of its whole content.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

impl<T> Deref for Admitted<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.subject
    }
}

/// Lets a subject pass if a key that counts vouches for it, or if it may be forgiven. An untrusted or revoked key is
/// never forgiven, nor is anything outside the project.
///
/// # Errors
/// The subject back, with the report that says why it may not pass.
pub fn admit<T: Subject>(
    subject: T,
    keys: &KeyRing,
    policy: DevModePolicy,
) -> Result<Admitted<T>, Box<VerifyRejection<T>>> {
    let report = evaluate(&subject, keys);
    let is_own_change = match report.verdict {
        TrustVerdict::Unsigned => true,
        TrustVerdict::Tampered => {
            report.fingerprint().is_some_and(|signer| keys.find(&signer, subject.space()).is_some())
        }
        TrustVerdict::Full
        | TrustVerdict::Partial
        | TrustVerdict::Misplaced
        | TrustVerdict::Untrusted
        | TrustVerdict::Revoked => false,
    };
    let is_dev_allowed =
        is_own_change && policy == DevModePolicy::AllowOwnUnsigned && *subject.space() == Space::Project;
    if !is_dev_allowed && !matches!(report.verdict, TrustVerdict::Full | TrustVerdict::Partial) {
        return Err(Box::new(VerifyRejection { subject, report }));
    }
    let digest = match subject.format() {
        Some(format) => content_hash(subject.bytes(), &FileLayout::parse(subject.bytes(), format)),
        None => Digest::of(subject.bytes()),
    };
    Ok(Admitted { subject, report, is_forgiven: is_dev_allowed, digest })
}
