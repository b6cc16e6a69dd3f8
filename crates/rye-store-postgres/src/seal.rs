//! The seals of what the store writes: signatures by the keys of those who may write to it.
//!
//! A code made with one user's secret says nothing on another machine, so rows, questions, answers and notes are signed here.
//! Whose signatures count is a list that each user keeps, less the keys that the user revoked; the database is not asked. The
//! list is read again before each transaction and each question: a key may be revoked while a process runs.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use lillux::digest::Hasher;
use lillux::{Digest, Fingerprint, PublicKey, SecretKey, Signature};
use rye_store::Forgery;

/// How many seals that were found valid are remembered.
const MAX_KNOWN_SEALS: usize = 8192;

/// The keys whose seals count, at one moment.
#[derive(Clone, Debug, Default)]
pub struct TrustedKeys {
    /// By fingerprint.
    signers: BTreeMap<String, PublicKey>,
    /// Those that may answer questions; `None` is all.
    people: Option<HashSet<String>>,
    revoked: HashSet<String>,
}

fn names<'a>(keys: impl IntoIterator<Item = &'a PublicKey>) -> HashSet<String> {
    keys.into_iter().map(|key| key.fingerprint().to_string()).collect()
}

impl TrustedKeys {
    /// Seals of these count, and answers of all of them.
    #[must_use]
    pub fn new(signers: impl IntoIterator<Item = PublicKey>) -> Self {
        let signers = signers.into_iter().map(|key| (key.fingerprint().to_string(), key)).collect();
        Self { signers, ..Self::default() }
    }

    /// The same, with answers to questions counting only if one of these keys signed them.
    #[must_use]
    pub fn with_people<'a>(self, people: impl IntoIterator<Item = &'a PublicKey>) -> Self {
        Self { people: Some(names(people)), ..self }
    }

    /// The same without revoked keys, listed or not.
    #[must_use]
    pub fn without(mut self, revoked: impl IntoIterator<Item = Fingerprint>) -> Self {
        self.revoked.extend(revoked.into_iter().map(|key| key.to_string()));
        let revoked = &self.revoked;
        self.signers.retain(|key, _| !revoked.contains(key));
        if let Some(people) = &mut self.people {
            people.retain(|key| !revoked.contains(key));
        }
        self
    }
}

/// Gives the keys that count now. It is asked often, and keeps what it read as long as that has not changed.
pub type KeySource = Arc<dyn Fn() -> Arc<TrustedKeys> + Send + Sync>;

/// The key that signs what this process writes, and where the keys whose seals count come from.
#[derive(Clone)]
pub struct StoreKeys {
    own: Arc<SecretKey>,
    fingerprint: Fingerprint,
    source: KeySource,
}

impl std::fmt::Debug for StoreKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let trusted = (self.source)();
        let trusted: Vec<&String> = trusted.signers.keys().collect();
        write!(formatter, "StoreKeys(own {}, trusted {trusted:?})", self.fingerprint)
    }
}

impl StoreKeys {
    /// Signs with `own`; the seals of the keys that `source` gives count, and no others.
    #[must_use]
    pub fn new(own: SecretKey, source: KeySource) -> Self {
        let fingerprint = own.public_key().fingerprint();
        Self { own: Arc::new(own), fingerprint, source }
    }

    /// Signs with `own`; its seals count, and those of `others`, for as long as the process runs.
    #[must_use]
    pub fn fixed(own: SecretKey, others: impl IntoIterator<Item = PublicKey>) -> Self {
        let all = others.into_iter().chain([own.public_key()]);
        let trusted = Arc::new(TrustedKeys::new(all));
        Self::new(own, Arc::new(move || Arc::clone(&trusted)))
    }

    /// The fingerprint of the key that signs.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// A signature and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) signer: String,
    pub(crate) signature: String,
}

/// Makes and checks the seals of one store, in one thread of this process.
#[derive(Clone)]
pub(crate) struct Sealer {
    keys: StoreKeys,
    /// The keys that count in what is under way.
    trusted: Rc<RefCell<Arc<TrustedKeys>>>,
    /// The store's own number: rows cannot move from one store to another.
    store: i64,
    known: Rc<RefCell<HashSet<(Digest, String)>>>,
}

impl Sealer {
    pub(crate) fn new(keys: StoreKeys, store: i64) -> Self {
        let trusted = Rc::new(RefCell::new((keys.source)()));
        Self { keys, trusted, store, known: Rc::default() }
    }

    /// Asks which keys count now: to be called before a transaction or a question.
    pub(crate) fn refresh(&self) {
        let now = (self.keys.source)();
        *self.trusted.borrow_mut() = now;
    }

    fn trusted(&self) -> Arc<TrustedKeys> {
        Arc::clone(&self.trusted.borrow())
    }

    /// Begins what is to be sealed.
    pub(crate) fn fields(&self, purpose: &str) -> SealFields {
        let mut fields = SealFields(Hasher::default());
        fields.text(purpose);
        fields.number(self.store);
        fields
    }

    pub(crate) fn seal(&self, digest: &Digest) -> Seal {
        let signature = self.keys.own.sign(digest).to_base64();
        self.remember(digest, &signature);
        Seal { signer: self.keys.fingerprint.to_string(), signature }
    }

    /// Whether this is a seal that counts.
    pub(crate) fn is_valid(&self, digest: &Digest, seal: &Seal) -> bool {
        let trusted = self.trusted();
        let Some(key) = trusted.signers.get(&seal.signer) else { return false };
        if self.known.borrow().contains(&(*digest, seal.signature.clone())) {
            return true;
        }
        let is_valid =
            Signature::from_base64(&seal.signature).is_some_and(|signature| key.verify(digest, &signature));
        if is_valid {
            self.remember(digest, &seal.signature);
        }
        is_valid
    }

    /// As [`Sealer::is_valid`], for what only people say.
    pub(crate) fn is_valid_answer(&self, digest: &Digest, seal: &Seal) -> bool {
        let trusted = self.trusted();
        let people = trusted.people.as_ref();
        people.is_none_or(|people| people.contains(&seal.signer)) && self.is_valid(digest, seal)
    }

    /// Why what bears this seal is refused, if the key that it names was revoked.
    pub(crate) fn revocation(&self, what: &'static str, seal: &Seal) -> Option<Forgery> {
        let is_revoked = self.trusted.borrow().revoked.contains(&seal.signer);
        is_revoked.then(|| Forgery::RevokedKey { what, key: seal.signer.clone() })
    }

    /// The fingerprint of the key that signs here, if it may answer no question.
    pub(crate) fn key_that_may_not_answer(&self) -> Option<Fingerprint> {
        let trusted = self.trusted();
        let people = trusted.people.as_ref()?;
        (!people.contains(self.keys.fingerprint.as_str())).then_some(self.keys.fingerprint)
    }

    fn remember(&self, digest: &Digest, signature: &str) {
        let mut known = self.known.borrow_mut();
        if known.len() >= MAX_KNOWN_SEALS {
            known.clear();
        }
        known.insert((*digest, signature.to_owned()));
    }
}

/// What is sealed, field by field: each with its length, so that none can pass for another.
pub(crate) struct SealFields(Hasher);

impl SealFields {
    fn add(&mut self, field: Option<&[u8]>) {
        // No field is as long as the mark of an absent one.
        let length = field.map_or(u64::MAX, |field| field.len() as u64);
        self.0.update(&length.to_be_bytes());
        self.0.update(field.unwrap_or_default());
    }

    pub(crate) fn bytes(&mut self, field: &[u8]) {
        self.add(Some(field));
    }

    pub(crate) fn text(&mut self, field: &str) {
        self.add(Some(field.as_bytes()));
    }

    pub(crate) fn optional_text(&mut self, field: Option<&str>) {
        self.add(field.map(str::as_bytes));
    }

    pub(crate) fn number(&mut self, field: i64) {
        self.add(Some(&field.to_be_bytes()));
    }

    pub(crate) fn optional_number(&mut self, field: Option<i64>) {
        self.add(field.map(i64::to_be_bytes).as_ref().map(<[u8; 8]>::as_slice));
    }

    pub(crate) fn optional_bytes(&mut self, field: Option<&[u8]>) {
        self.add(field);
    }

    pub(crate) fn finish(self) -> Digest {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(own: u8, others: &[u8], store: i64) -> Sealer {
        let public = |seed: &u8| SecretKey::from_seed(&[*seed; 32]).public_key();
        Sealer::new(StoreKeys::fixed(SecretKey::from_seed(&[own; 32]), others.iter().map(public)), store)
    }

    #[test]
    fn revoked_keys_stop_counting_in_running_process() {
        let (own, other) = (SecretKey::from_seed(&[1; 32]), SecretKey::from_seed(&[2; 32]));
        let public = [own.public_key(), other.public_key()];
        let listed = TrustedKeys::new(public.clone()).with_people(&public);
        let now = Arc::new(std::sync::Mutex::new(Arc::new(listed.clone())));
        let source = Arc::clone(&now);
        let source: KeySource = Arc::new(move || Arc::clone(&source.lock().expect("keys")));
        let reader = Sealer::new(StoreKeys::new(own.duplicate(), source), 7);
        let seal = sealer(2, &[1], 7);
        let digest = seal.fields("row").finish();
        let seal = seal.seal(&digest);
        assert!(reader.is_valid(&digest, &seal) && reader.is_valid_answer(&digest, &seal));
        assert_eq!(reader.revocation("its row", &seal), None);

        *now.lock().expect("keys") = Arc::new(listed.clone().without([other.public_key().fingerprint()]));
        reader.refresh();
        assert!(!reader.is_valid(&digest, &seal), "a seal that was found valid before");
        assert!(!reader.is_valid_answer(&digest, &seal));
        let refused = reader.revocation("its row", &seal).expect("refused").to_string();
        assert_eq!(refused, format!("its row is refused: the key {} was revoked", seal.signer));
        assert_eq!(reader.key_that_may_not_answer(), None);

        // The own key is none that is spared.
        *now.lock().expect("keys") = Arc::new(listed.without([own.public_key().fingerprint()]));
        reader.refresh();
        let own_seal = reader.seal(&digest);
        assert!(!reader.is_valid(&digest, &own_seal));
        assert_eq!(reader.key_that_may_not_answer(), Some(own.public_key().fingerprint()));
    }

    #[test]
    fn only_seals_of_listed_keys_count() {
        let digest = |sealer: &Sealer| {
            let mut fields = sealer.fields("row");
            fields.text("thread");
            fields.finish()
        };
        let (worker, user, stranger) = (sealer(1, &[2], 7), sealer(2, &[1], 7), sealer(3, &[1, 2], 7));
        let seal = worker.seal(&digest(&worker));
        assert!(user.is_valid(&digest(&user), &seal));
        let theirs = stranger.seal(&digest(&stranger));
        assert!(!user.is_valid(&digest(&user), &theirs));
        // Neither can a stranger sign in another's name, nor a row move to another store.
        assert!(!user.is_valid(&digest(&user), &Seal { signer: seal.signer.clone(), ..theirs }));
        let elsewhere = sealer(2, &[1], 8);
        assert!(!elsewhere.is_valid(&digest(&elsewhere), &seal));
    }

    #[test]
    fn fields_cannot_pass_for_others() {
        let sealer = sealer(1, &[], 0);
        let digest = |one: Option<&str>, other: Option<&str>| {
            let mut fields = sealer.fields("row");
            fields.optional_text(one);
            fields.optional_text(other);
            fields.finish()
        };
        assert_ne!(digest(Some("ab"), Some("c")), digest(Some("a"), Some("bc")));
        assert_ne!(digest(Some(""), None), digest(None, Some("")));
    }
}
