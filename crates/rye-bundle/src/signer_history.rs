//! A signer seen once is remembered per bundle: what a later version may not do quietly. Pure: the caller reads and
//! writes the record ([`rye_space::approvals`]).

use lillux::{Digest, Fingerprint, PublicKey};
use rye_space::approvals::{SeenVersion, SignerPin};
use semver::Version;

/// A bundle that is about to be installed.
#[derive(Clone, Debug)]
pub struct BundleCandidate {
    /// Who signed its manifest, if that signature holds.
    pub signer: Option<PublicKey>,
    /// Its version.
    pub version: Version,
    /// The digest of its manifest's bytes.
    pub manifest_hash: Digest,
}

/// How a candidate compares with what is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryVerdict {
    /// Nothing is remembered of this bundle: its signer needs consent.
    First,
    /// What was seen already, or newer, by a pinned signer.
    Expected,
    /// The same version by a pinned signer, but other content. Allowed, and worth saying.
    Republished,
    /// It may not be installed unless each change is accepted.
    Refused(Vec<SignerChange>),
}

/// What changed for the worse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignerChange {
    /// Another key signed it.
    DifferentSigner {
        /// The keys that are pinned.
        pinned: Vec<Fingerprint>,
        /// The key that signed.
        found: Fingerprint,
    },
    /// It is not signed, but the bundle was signed before.
    Unsigned {
        /// The keys that are pinned.
        pinned: Vec<Fingerprint>,
    },
    /// It is older than what was seen.
    Downgrade {
        /// The highest version seen.
        seen: Version,
        /// The candidate's.
        found: Version,
    },
}

impl SignerChange {
    /// What happened, for the user.
    #[must_use]
    pub fn explain(&self) -> String {
        let list =
            |keys: &[Fingerprint]| keys.iter().map(Fingerprint::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::DifferentSigner { pinned, found } => {
                format!("it is signed by {found}, but you know this bundle as signed by {}", list(pinned))
            }
            Self::Unsigned { pinned } => {
                format!("it is not signed, but you know this bundle as signed by {}", list(pinned))
            }
            Self::Downgrade { seen, found } => {
                format!("it is version {found}, but you had {seen} already")
            }
        }
    }

    /// The option of `rye install` that accepts it; nothing makes an unsigned bundle acceptable.
    #[must_use]
    pub fn accepting_flag(&self) -> Option<String> {
        match self {
            Self::DifferentSigner { found, .. } => Some(format!("--trust {found}")),
            Self::Unsigned { .. } => None,
            Self::Downgrade { .. } => Some("--allow-downgrade".to_owned()),
        }
    }

    /// Whether the user's word covers it: the signer they named, and whether an older version is welcome.
    #[must_use]
    pub fn is_accepted(&self, trusted: Option<&Fingerprint>, allows_downgrade: bool) -> bool {
        match self {
            Self::DifferentSigner { found, .. } => trusted == Some(found),
            Self::Unsigned { .. } => false,
            Self::Downgrade { .. } => allows_downgrade,
        }
    }
}

/// Compares a candidate with the pins of its bundle id.
#[must_use]
pub fn compare_with_history<'a>(
    previous: impl IntoIterator<Item = &'a SignerPin>,
    candidate: &BundleCandidate,
) -> HistoryVerdict {
    let pins: Vec<&SignerPin> = previous.into_iter().collect();
    if pins.is_empty() {
        return HistoryVerdict::First;
    }
    let pinned = || pins.iter().map(|pin| pin.key.fingerprint()).collect();
    let mut changes = Vec::new();
    match &candidate.signer {
        None => changes.push(SignerChange::Unsigned { pinned: pinned() }),
        // Whole keys are compared: a fingerprint is only how a key is shown.
        Some(signer) if !pins.iter().any(|pin| pin.key == *signer) => {
            changes.push(SignerChange::DifferentSigner { pinned: pinned(), found: signer.fingerprint() });
        }
        Some(_) => {}
    }
    let highest: Option<&SeenVersion> = pins
        .iter()
        .filter_map(|pin| pin.seen_version.as_ref())
        .max_by(|left, right| left.version.cmp(&right.version));
    if let Some(seen) = highest.filter(|seen| candidate.version < seen.version) {
        changes
            .push(SignerChange::Downgrade { seen: seen.version.clone(), found: candidate.version.clone() });
    }
    if !changes.is_empty() {
        return HistoryVerdict::Refused(changes);
    }
    match highest {
        Some(seen) if seen.version == candidate.version && seen.manifest_hash != candidate.manifest_hash => {
            HistoryVerdict::Republished
        }
        Some(_) | None => HistoryVerdict::Expected,
    }
}

#[cfg(test)]
mod tests {
    use lillux::SecretKey;
    use rye_item::BundleId;

    use super::*;

    fn key() -> PublicKey {
        SecretKey::generate().expect("a key").public_key()
    }

    fn version(text: &str) -> Version {
        Version::parse(text).expect("a version")
    }

    fn pin(key: &PublicKey, seen: Option<&str>) -> SignerPin {
        let seen = seen
            .map(|text| SeenVersion { version: version(text), manifest_hash: Digest::of(text.as_bytes()) });
        SignerPin {
            bundle: BundleId::new("gifts").expect("an id"),
            key: key.clone(),
            project: None,
            seen_version: seen,
        }
    }

    fn candidate(signer: Option<&PublicKey>, text: &str) -> BundleCandidate {
        BundleCandidate {
            signer: signer.cloned(),
            version: version(text),
            manifest_hash: Digest::of(text.as_bytes()),
        }
    }

    #[test]
    fn unknown_bundle_has_no_history() {
        assert_eq!(compare_with_history(&[], &candidate(Some(&key()), "1.0.0")), HistoryVerdict::First);
        assert_eq!(compare_with_history(&[], &candidate(None, "1.0.0")), HistoryVerdict::First);
    }

    #[test]
    fn same_signer_is_expected() {
        let key = key();
        for found in ["1.2.0", "1.2.1", "2.0.0"] {
            let verdict = compare_with_history(&[pin(&key, Some("1.2.0"))], &candidate(Some(&key), found));
            assert_eq!(verdict, HistoryVerdict::Expected, "{found}");
        }
        assert_eq!(
            compare_with_history(&[pin(&key, None)], &candidate(Some(&key), "0.0.1")),
            HistoryVerdict::Expected
        );
    }

    #[test]
    fn same_version_with_other_content_is_republished() {
        let key = key();
        let other = BundleCandidate { manifest_hash: Digest::of(b"other"), ..candidate(Some(&key), "1.2.0") };
        assert_eq!(compare_with_history(&[pin(&key, Some("1.2.0"))], &other), HistoryVerdict::Republished);
    }

    #[test]
    fn signer_changes_are_refused_with_their_flag() {
        let (known, other) = (key(), key());
        let pins = [pin(&known, Some("1.2.0"))];
        let changes = |candidate: &BundleCandidate| match compare_with_history(&pins, candidate) {
            HistoryVerdict::Refused(changes) => changes,
            verdict => panic!("{verdict:?}"),
        };

        let signer = &changes(&candidate(Some(&other), "9.0.0"))[0];
        let fingerprint = other.fingerprint();
        assert_eq!(signer.accepting_flag(), Some(format!("--trust {fingerprint}")));
        assert!(signer.explain().contains(known.fingerprint().as_str()), "{}", signer.explain());
        assert!(signer.is_accepted(Some(&fingerprint), false));
        assert!(!signer.is_accepted(Some(&known.fingerprint()), true));
        assert!(!signer.is_accepted(None, true));

        let older = &changes(&candidate(Some(&known), "1.1.9"))[0];
        assert_eq!(older.accepting_flag().as_deref(), Some("--allow-downgrade"));
        assert!(older.is_accepted(None, true) && !older.is_accepted(Some(&known.fingerprint()), false));

        let unsigned = &changes(&candidate(None, "9.0.0"))[0];
        assert_eq!(unsigned.accepting_flag(), None);
        assert!(!unsigned.is_accepted(Some(&known.fingerprint()), true));

        assert_eq!(changes(&candidate(Some(&other), "0.1.0")).len(), 2);
    }

    #[test]
    fn a_prerelease_is_older_than_its_release() {
        let key = key();
        let verdict = compare_with_history(&[pin(&key, Some("1.0.0"))], &candidate(Some(&key), "1.0.0-rc.1"));
        assert!(matches!(verdict, HistoryVerdict::Refused(_)), "{verdict:?}");
    }

    #[test]
    fn highest_version_of_any_key_is_used() {
        let (one, two) = (key(), key());
        let pins = [pin(&one, Some("1.0.0")), pin(&two, Some("2.0.0"))];
        assert!(matches!(
            compare_with_history(&pins, &candidate(Some(&one), "1.5.0")),
            HistoryVerdict::Refused(_)
        ));
        assert_eq!(compare_with_history(&pins, &candidate(Some(&one), "2.0.1")), HistoryVerdict::Expected);
    }
}
