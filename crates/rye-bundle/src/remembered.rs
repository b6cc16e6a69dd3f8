//! A signer seen once is remembered per bundle: what a later version may not do quietly. Pure: the caller reads and
//! writes the record ([`rye_space::approvals`]).

use lillux::{Digest, Fingerprint, PublicKey};
use rye_space::approvals::{Pin, Seen};
use semver::Version;

/// A bundle that is about to be installed.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Who signed its manifest, if that signature holds.
    pub signer: Option<PublicKey>,
    /// Its version.
    pub version: Version,
    /// The digest of its manifest's bytes.
    pub manifest_hash: Digest,
}

/// How a candidate compares with what is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is remembered of this bundle: its signer needs consent.
    First,
    /// What was seen already, or newer, by a pinned signer.
    Expected,
    /// The same version by a pinned signer, but other content. Allowed, and worth saying.
    Republished,
    /// It may not be installed unless each change is accepted.
    Refused(Vec<Change>),
}

/// What changed for the worse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Another key signed it.
    OtherSigner {
        /// The keys that are pinned.
        pinned: Vec<Fingerprint>,
        /// The key that signed.
        found: Fingerprint,
    },
    /// Nobody signed it, but the bundle was signed before.
    Unsigned {
        /// The keys that are pinned.
        pinned: Vec<Fingerprint>,
    },
    /// It is older than what was seen.
    Older {
        /// The highest version seen.
        seen: Version,
        /// The candidate's.
        found: Version,
    },
}

impl Change {
    /// What happened, for the user.
    #[must_use]
    pub fn explain(&self) -> String {
        let list =
            |keys: &[Fingerprint]| keys.iter().map(Fingerprint::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::OtherSigner { pinned, found } => {
                format!("it is signed by {found}, but you know this bundle as signed by {}", list(pinned))
            }
            Self::Unsigned { pinned } => {
                format!("it is not signed, but you know this bundle as signed by {}", list(pinned))
            }
            Self::Older { seen, found } => {
                format!("it is version {found}, but you had {seen} already")
            }
        }
    }

    /// The option of `rye install` that accepts it; nothing makes an unsigned bundle acceptable.
    #[must_use]
    pub fn accepted_by(&self) -> Option<String> {
        match self {
            Self::OtherSigner { found, .. } => Some(format!("--trust {found}")),
            Self::Unsigned { .. } => None,
            Self::Older { .. } => Some("--allow-downgrade".to_owned()),
        }
    }

    /// Whether the user's word covers it: the signer they named, and whether an older version is welcome.
    #[must_use]
    pub fn is_accepted(&self, trusted: Option<&Fingerprint>, allows_downgrade: bool) -> bool {
        match self {
            Self::OtherSigner { found, .. } => trusted == Some(found),
            Self::Unsigned { .. } => false,
            Self::Older { .. } => allows_downgrade,
        }
    }
}

/// Compares a candidate with the pins of its bundle id.
#[must_use]
pub fn judge<'a>(previous: impl IntoIterator<Item = &'a Pin>, candidate: &Candidate) -> Verdict {
    let pins: Vec<&Pin> = previous.into_iter().collect();
    if pins.is_empty() {
        return Verdict::First;
    }
    let pinned = || pins.iter().map(|pin| pin.key.fingerprint()).collect();
    let mut changes = Vec::new();
    match &candidate.signer {
        None => changes.push(Change::Unsigned { pinned: pinned() }),
        // Whole keys are compared: a fingerprint is only how a key is shown.
        Some(signer) if !pins.iter().any(|pin| pin.key == *signer) => {
            changes.push(Change::OtherSigner { pinned: pinned(), found: signer.fingerprint() });
        }
        Some(_) => {}
    }
    let highest: Option<&Seen> = pins
        .iter()
        .filter_map(|pin| pin.seen.as_ref())
        .max_by(|left, right| left.version.cmp(&right.version));
    if let Some(seen) = highest.filter(|seen| candidate.version < seen.version) {
        changes.push(Change::Older { seen: seen.version.clone(), found: candidate.version.clone() });
    }
    if !changes.is_empty() {
        return Verdict::Refused(changes);
    }
    match highest {
        Some(seen) if seen.version == candidate.version && seen.manifest_hash != candidate.manifest_hash => {
            Verdict::Republished
        }
        Some(_) | None => Verdict::Expected,
    }
}

#[cfg(test)]
mod tests {
    use lillux::SecretKey;
    use rye_item::BundleId;

    use super::*;

    fn key() -> PublicKey {
        SecretKey::generate().expect("a key").public()
    }

    fn version(text: &str) -> Version {
        Version::parse(text).expect("a version")
    }

    fn pin(key: &PublicKey, seen: Option<&str>) -> Pin {
        let seen =
            seen.map(|text| Seen { version: version(text), manifest_hash: Digest::of(text.as_bytes()) });
        Pin { bundle: BundleId::new("gifts").expect("an id"), key: key.clone(), seen }
    }

    fn candidate(signer: Option<&PublicKey>, text: &str) -> Candidate {
        Candidate {
            signer: signer.cloned(),
            version: version(text),
            manifest_hash: Digest::of(text.as_bytes()),
        }
    }

    #[test]
    fn the_first_time_nothing_is_expected() {
        assert_eq!(judge(&[], &candidate(Some(&key()), "1.0.0")), Verdict::First);
        assert_eq!(judge(&[], &candidate(None, "1.0.0")), Verdict::First);
    }

    #[test]
    fn the_same_signer_goes_on() {
        let key = key();
        for found in ["1.2.0", "1.2.1", "2.0.0"] {
            let verdict = judge(&[pin(&key, Some("1.2.0"))], &candidate(Some(&key), found));
            assert_eq!(verdict, Verdict::Expected, "{found}");
        }
        assert_eq!(judge(&[pin(&key, None)], &candidate(Some(&key), "0.0.1")), Verdict::Expected);
    }

    #[test]
    fn the_same_version_with_other_content_is_worth_saying() {
        let key = key();
        let other = Candidate { manifest_hash: Digest::of(b"other"), ..candidate(Some(&key), "1.2.0") };
        assert_eq!(judge(&[pin(&key, Some("1.2.0"))], &other), Verdict::Republished);
    }

    #[test]
    fn another_key_an_older_version_and_a_dropped_signature_are_refused_each_with_its_remedy() {
        let (known, other) = (key(), key());
        let pins = [pin(&known, Some("1.2.0"))];
        let changes = |candidate: &Candidate| match judge(&pins, candidate) {
            Verdict::Refused(changes) => changes,
            verdict => panic!("{verdict:?}"),
        };

        let signer = &changes(&candidate(Some(&other), "9.0.0"))[0];
        let fingerprint = other.fingerprint();
        assert_eq!(signer.accepted_by(), Some(format!("--trust {fingerprint}")));
        assert!(signer.explain().contains(known.fingerprint().as_str()), "{}", signer.explain());
        assert!(signer.is_accepted(Some(&fingerprint), false));
        assert!(!signer.is_accepted(Some(&known.fingerprint()), true));
        assert!(!signer.is_accepted(None, true));

        let older = &changes(&candidate(Some(&known), "1.1.9"))[0];
        assert_eq!(older.accepted_by().as_deref(), Some("--allow-downgrade"));
        assert!(older.is_accepted(None, true) && !older.is_accepted(Some(&known.fingerprint()), false));

        let unsigned = &changes(&candidate(None, "9.0.0"))[0];
        assert_eq!(unsigned.accepted_by(), None);
        assert!(!unsigned.is_accepted(Some(&known.fingerprint()), true));

        assert_eq!(changes(&candidate(Some(&other), "0.1.0")).len(), 2);
    }

    #[test]
    fn a_prerelease_is_older_than_its_release() {
        let key = key();
        let verdict = judge(&[pin(&key, Some("1.0.0"))], &candidate(Some(&key), "1.0.0-rc.1"));
        assert!(matches!(verdict, Verdict::Refused(_)), "{verdict:?}");
    }

    #[test]
    fn the_highest_version_seen_under_any_pinned_key_counts() {
        let (one, two) = (key(), key());
        let pins = [pin(&one, Some("1.0.0")), pin(&two, Some("2.0.0"))];
        assert!(matches!(judge(&pins, &candidate(Some(&one), "1.5.0")), Verdict::Refused(_)));
        assert_eq!(judge(&pins, &candidate(Some(&one), "2.0.1")), Verdict::Expected);
    }
}
