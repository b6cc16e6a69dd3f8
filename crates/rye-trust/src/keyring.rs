//! Whose signatures count, and where. Built from documents by `rye-space`; the rules are here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use lillux::{Fingerprint, PublicKey};
use rye_item::{BundleId, ItemRef, Space};

use crate::handover::Handover;
use crate::identity::Identity;
use crate::object::FileHash;
use crate::signature::SignatureLine;
use crate::signed_ids::SignedIds;

/// Why a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustBasis {
    /// The user trusts it everywhere.
    User,
    /// The user trusts it in this project.
    Project,
    /// A key that may introduce others signed its document in this project.
    Introduced,
    /// It vouches for its own bundle.
    Bundle,
}

impl TrustBasis {
    /// The reason in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
            Self::Introduced => "introduced",
            Self::Bundle => "bundle",
        }
    }
}

/// A key that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// The key.
    pub key: PublicKey,
    /// Its owner's name.
    pub owner: String,
    /// Why it counts.
    pub basis: TrustBasis,
}

/// A file that a manifest lists, and the key that signed the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestEntry {
    /// The manifest's signer.
    pub signer: TrustedKey,
    /// The content the manifest says it has.
    pub hash: FileHash,
}

/// A revoked fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Whose key.
    pub fingerprint: Fingerprint,
    /// Why, as the user said.
    pub reason: String,
}

/// All keys that count in one context: one user, one project, these bundles.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    user_keys: BTreeMap<Fingerprint, TrustedKey>,
    project_keys: BTreeMap<Fingerprint, TrustedKey>,
    bundle_keys: BTreeMap<BundleId, BTreeMap<Fingerprint, TrustedKey>>,
    /// Single files that a signed manifest lists, by space and path: their bundle's key counts for them there.
    listed: HashMap<Space, HashMap<String, Vec<ManifestEntry>>>,
    /// Keys that count here by the user's word and may introduce others; an introduced key is never one of them.
    introducers: BTreeMap<Fingerprint, PublicKey>,
    revocations: BTreeMap<Fingerprint, Revocation>,
    /// What this user signed without a name in it, and as what. Shared, so that what this process signs is known to it.
    signed_ids: Arc<RwLock<SignedIds>>,
}

impl KeyRing {
    /// Builds the user's part: documents of user space, judged together.
    ///
    /// A document counts if it is self-signed, or signed by a key whose own document counts. Only what the user's own
    /// key has signed may make introducers. `project` is the real path of the project at hand, if there is one.
    #[must_use]
    pub fn from_user_documents(
        documents: &[Identity],
        own: Option<&PublicKey>,
        project: Option<&str>,
        revocations: Vec<Revocation>,
    ) -> Self {
        let mut ring = Self::default();
        for revocation in revocations {
            ring.revocations.insert(revocation.fingerprint, revocation);
        }
        let mut accepted: Vec<&Identity> = documents
            .iter()
            .filter(|document| document.is_self_signed() && !ring.is_revoked(&document.fingerprint))
            .collect();
        // Chains of documents are followed until nothing new is accepted; each round accepts at least one.
        loop {
            let newly_accepted: Vec<&Identity> = documents
                .iter()
                .filter(|document| !ring.is_revoked(&document.fingerprint))
                .filter(|document| !accepted.iter().any(|known| known.fingerprint == document.fingerprint))
                .filter(|document| {
                    accepted
                        .iter()
                        .any(|signer| signer.projects.is_none() && document.is_signed_by(&signer.key))
                })
                .collect();
            if newly_accepted.is_empty() {
                break;
            }
            accepted.extend(newly_accepted);
        }
        for document in accepted {
            match &document.projects {
                None => ring.user_keys.insert(document.fingerprint, trusted_key(document, TrustBasis::User)),
                Some(projects) if project.is_some_and(|path| projects.iter().any(|known| known == path)) => {
                    ring.project_keys.insert(document.fingerprint, trusted_key(document, TrustBasis::Project))
                }
                Some(_) => continue,
            };
            if document.may_introduce && own.is_some_and(|own| document.is_signed_by(own)) {
                ring.introducers.insert(document.fingerprint, document.key.clone());
            }
        }
        ring
    }

    /// Adds what documents of project space introduce: one step from a key the user marked, never further.
    pub fn add_project(&mut self, documents: &[Identity]) {
        for document in documents {
            let is_introduced = self.introducers.values().any(|introducer| document.is_signed_by(introducer));
            if is_introduced && !self.is_revoked(&document.fingerprint) {
                self.project_keys
                    .entry(document.fingerprint)
                    .or_insert_with(|| trusted_key(document, TrustBasis::Introduced));
            }
        }
    }

    /// Follows hand-overs: where the user trusts the old key, the new one is trusted instead, for as much and no more. A key
    /// of `retired`, or one that was replaced here, never comes back; a revoked key hands nothing over and takes nothing
    /// over. The own key stays as it is. Gives those that were followed, in order.
    pub fn follow_handovers(
        &mut self,
        handovers: &[Handover],
        own: Option<&PublicKey>,
        retired: &BTreeSet<Fingerprint>,
    ) -> Vec<Handover> {
        let mut retired = retired.clone();
        let mut followed = Vec::new();
        // Each round retires a key, so that the loop ends.
        while let Some(next) = handovers.iter().find(|next| self.can_follow(next, own, &retired)) {
            let (old, new) = (next.old_fingerprint(), next.new_fingerprint());
            for keys in [&mut self.user_keys, &mut self.project_keys] {
                if let Some(known) = keys.remove(&old) {
                    keys.entry(new).or_insert(TrustedKey { key: next.new.clone(), ..known });
                }
            }
            if self.introducers.remove(&old).is_some() {
                self.introducers.insert(new, next.new.clone());
            }
            retired.insert(old);
            followed.push(next.clone());
        }
        followed
    }

    fn can_follow(
        &self,
        handover: &Handover,
        own: Option<&PublicKey>,
        retired: &BTreeSet<Fingerprint>,
    ) -> bool {
        let (old, new) = (handover.old_fingerprint(), handover.new_fingerprint());
        let is_own = own == Some(&handover.old) || own == Some(&handover.new);
        let is_blocked = [old, new].iter().any(|key| self.is_revoked(key) || retired.contains(key));
        !is_own && !is_blocked && self.is_trusted_by_user(&handover.old)
    }

    /// Whether the user trusts this key, everywhere or in this project, by their own decision.
    #[must_use]
    pub fn is_trusted_by_user(&self, key: &PublicKey) -> bool {
        let fingerprint = key.fingerprint();
        let known = self.user_keys.get(&fingerprint).or_else(|| self.project_keys.get(&fingerprint));
        !self.is_revoked(&fingerprint)
            && known.is_some_and(|known| known.key == *key && known.basis != TrustBasis::Introduced)
    }

    /// This ring as it would be if the user trusted these keys in the project: to show what that would change.
    #[must_use]
    pub fn with_project_keys<'a>(&self, identities: impl IntoIterator<Item = &'a Identity>) -> Self {
        let mut ring = self.clone();
        for identity in identities {
            if !ring.is_revoked(&identity.fingerprint) {
                ring.project_keys
                    .entry(identity.fingerprint)
                    .or_insert_with(|| trusted_key(identity, TrustBasis::Project));
            }
        }
        ring
    }

    /// Lets `keys` vouch for the items of `bundle`; revoked ones do not.
    pub fn add_bundle(&mut self, bundle: &BundleId, keys: impl IntoIterator<Item = Identity>) {
        let (revoked, known) = (&self.revocations, self.bundle_keys.entry(bundle.clone()).or_default());
        for identity in keys {
            if !revoked.contains_key(&identity.fingerprint) {
                known.insert(identity.fingerprint, trusted_key(&identity, TrustBasis::Bundle));
            }
        }
    }

    /// Lets `keys`, and no others, vouch for the items of `bundle`.
    pub fn replace_bundle(&mut self, bundle: &BundleId, keys: impl IntoIterator<Item = Identity>) {
        self.bundle_keys.remove(bundle);
        self.add_bundle(bundle, keys);
    }

    /// Lets `key`, which signed the manifest that lists them, vouch for these files of `space` with exactly that
    /// content: paths from `.ai/` on. A revoked key does not.
    pub fn add_manifest_entries(
        &mut self,
        space: &Space,
        key: &Identity,
        files: impl IntoIterator<Item = (String, FileHash)>,
    ) {
        if self.is_revoked(&key.fingerprint) {
            return;
        }
        let entries = self.listed.entry(space.clone()).or_default();
        for (path, hash) in files {
            entries
                .entry(path)
                .or_default()
                .push(ManifestEntry { signer: trusted_key(key, TrustBasis::Bundle), hash });
        }
    }

    /// What manifests that count say of the file at `path` (from `.ai/` on) of `space`.
    #[must_use]
    pub fn listed(&self, space: &Space, path: &str) -> &[ManifestEntry] {
        self.listed.get(space).and_then(|files| files.get(path)).map_or(&[], Vec::as_slice)
    }

    /// The key that counts for every item of `space`, by the fingerprint its signature names. What the user says of a key
    /// goes before what a project's or a bundle's document says. Revoked keys are never found.
    #[must_use]
    pub fn find(&self, fingerprint: &Fingerprint, space: &Space) -> Option<&TrustedKey> {
        let local = match space {
            Space::Project => self.project_keys.get(fingerprint),
            Space::User => None,
            // The items of a bundle that is not approved are not trusted, whichever key signed them.
            Space::System(bundle) => self.bundle_keys.get(bundle)?.get(fingerprint),
        };
        self.user_keys.get(fingerprint).or(local)
    }

    /// Sets the record of what this user signed without a name in it.
    pub fn set_signed_ids(&self, ids: SignedIds) {
        *self.signed_ids.write().unwrap_or_else(PoisonError::into_inner) = ids;
    }

    /// Why a nameless item does not belong where it lies, if the user signed this content as other items only.
    #[must_use]
    pub fn signed_elsewhere_reason(&self, item: &ItemRef, line: &SignatureLine) -> Option<String> {
        let ids = self.signed_ids.read().unwrap_or_else(PoisonError::into_inner);
        let items = ids.other_signed_items(item, line)?;
        let names = items.iter().take(3).map(|item| format!("`{item}`")).collect::<Vec<_>>().join(", ");
        Some(format!("it has no name, and you signed it as {names}"))
    }

    /// Whether any trusted key may introduce keys to the current project.
    #[must_use]
    pub fn has_introducers(&self) -> bool {
        !self.introducers.is_empty()
    }

    /// The revocation of this fingerprint, if the user revoked it.
    #[must_use]
    pub fn revocation(&self, fingerprint: &Fingerprint) -> Option<&Revocation> {
        self.revocations.get(fingerprint)
    }

    /// Whether the user trusts this key everywhere.
    #[must_use]
    pub fn is_trusted_everywhere(&self, key: &PublicKey) -> bool {
        let fingerprint = key.fingerprint();
        !self.is_revoked(&fingerprint)
            && self.user_keys.get(&fingerprint).is_some_and(|known| known.key == *key)
    }

    /// Whether documents signed by this key introduce their keys to the project at hand.
    #[must_use]
    pub fn is_introducer(&self, fingerprint: &Fingerprint) -> bool {
        self.introducers.contains_key(fingerprint)
    }

    /// Every key that counts somewhere, with its fingerprint.
    pub fn keys(&self) -> impl Iterator<Item = (&Fingerprint, &TrustedKey)> {
        self.user_keys.iter().chain(&self.project_keys).chain(self.bundle_keys.values().flatten())
    }

    fn is_revoked(&self, fingerprint: &Fingerprint) -> bool {
        self.revocations.contains_key(fingerprint)
    }
}

fn trusted_key(identity: &Identity, basis: TrustBasis) -> TrustedKey {
    TrustedKey { key: identity.key.clone(), owner: identity.owner.clone(), basis }
}
