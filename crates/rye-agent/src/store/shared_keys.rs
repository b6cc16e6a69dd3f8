//! The keys that count in a store that machines share: those that the user's settings list now, less those that the user
//! revoked. Nothing else says whose submissions, answers, rows and transcripts count.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use lillux::{Fingerprint, PublicKey};
use rye_engine::{Engine, Error, Result};
use rye_item::text::one_line;
use rye_space::config::MergedConfig;
use rye_space::file_stamp::MonitoredSet;
use rye_space::keys::{REVOKED_FOLDER, revocations_in};
use rye_space::{Roots, Workspace};
use rye_store_postgres::TrustedKeys;
use serde_json::Value;

/// The keys of one store. They are read again as soon as the settings or the keys of the user have changed: a process may
/// run for weeks, and a key is revoked on one day of them.
#[derive(Debug)]
pub struct SharedKeys {
    store: String,
    roots: Roots,
    /// The user's own key when this was opened: what this process signs is signed with it.
    own: Option<PublicKey>,
    last: Mutex<LastRead>,
}

#[derive(Debug)]
struct LastRead {
    keys: Arc<CurrentKeys>,
    watch: MonitoredSet,
}

/// The keys that count at one moment. None of them is revoked.
#[derive(Clone, Debug, Default)]
pub struct CurrentKeys {
    /// The keys of people that are listed: what they submit and answer counts.
    pub users: Vec<PublicKey>,
    /// The keys of workers that are listed: what they record counts.
    pub workers: Vec<PublicKey>,
    /// The user's own key; none when it was revoked.
    pub own: Option<PublicKey>,
    /// Why nothing is taken and answered: the settings cannot be used, or the own key was revoked.
    pub problem: Option<String>,
    signers: Vec<PublicKey>,
    revoked: BTreeSet<Fingerprint>,
    trusted: Arc<TrustedKeys>,
}

impl SharedKeys {
    /// The keys of the store that settings describe under this name.
    ///
    /// # Errors
    /// When a key is not one.
    pub(super) fn new(engine: &Engine, store: &str) -> Result<Self> {
        let workspace = &engine.workspace;
        let own = workspace.own_key.clone();
        let keys = Arc::new(CurrentKeys::read(workspace, store, own.as_ref())?);
        let last = Mutex::new(LastRead { keys, watch: workspace.watch() });
        Ok(Self { store: store.to_owned(), roots: workspace.roots.clone(), own, last })
    }

    /// The keys that count now. Where the settings cannot be used any more, no person's key does: nothing is taken or answered
    /// until they can. What workers recorded stays readable, so that threads at work are not lost by an edit of the settings.
    #[must_use]
    pub fn current(&self) -> Arc<CurrentKeys> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.watch.is_unchanged() {
            return Arc::clone(&last.keys);
        }
        let read = match Workspace::open(self.roots.clone()) {
            Ok(workspace) => {
                last.watch = workspace.watch();
                CurrentKeys::read(&workspace, &self.store, self.own.as_ref())
            }
            Err(error) => Err(error.into()),
        };
        let keys = read.unwrap_or_else(|error| last.keys.closed(&self.roots, &error));
        last.keys = Arc::new(keys);
        Arc::clone(&last.keys)
    }
}

/// The key that made a signature, if it counts in one of these stores or is the own one; no revoked key does.
#[must_use]
pub fn find_signer(
    stores: &[Arc<SharedKeys>],
    own: &PublicKey,
    fingerprint: &Fingerprint,
) -> Option<PublicKey> {
    let current: Vec<Arc<CurrentKeys>> = stores.iter().map(|keys| keys.current()).collect();
    if current.iter().any(|keys| keys.is_revoked(fingerprint)) {
        return None;
    }
    let listed = current.iter().flat_map(|keys| keys.signers());
    listed.chain([own]).find(|key| key.fingerprint() == *fingerprint).cloned()
}

/// The keys that settings list under a store's `users` or `workers`.
fn listed_keys(settings: &MergedConfig, store: &str, field: &str) -> Result<Vec<PublicKey>> {
    let shown = one_line(store);
    let stores = settings.get("threads.stores").and_then(Value::as_object);
    let described = stores.and_then(|stores| stores.get(store)).ok_or_else(|| {
        let message = format!("no store `{shown}` in the settings: threads.stores.{shown}.url is missing");
        super::shared::settings_error(message)
    })?;
    let listed = described.get(field).and_then(Value::as_array).into_iter().flatten();
    let keys = listed.map(|key| {
        let text = key.as_str().unwrap_or_default();
        super::shared::parse_key(text).ok_or_else(|| {
            let message = format!("threads.stores.{shown}.{field}: `{}` is not a public key", one_line(text));
            super::shared::settings_error(message)
                .hint("it is the middle line of a public_key.pem: rye doctor --store shows yours")
        })
    });
    keys.collect()
}

/// The keys that the user revoked. A folder that cannot be read may hold any.
fn revoked_keys(roots: &Roots) -> std::io::Result<BTreeSet<Fingerprint>> {
    let folder = roots.user_ai().join(REVOKED_FOLDER);
    check_readable(&folder)?;
    Ok(revocations_in(&folder).into_iter().map(|revocation| revocation.fingerprint).collect())
}

fn check_readable(folder: &Path) -> std::io::Result<()> {
    match fs_err::read_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl CurrentKeys {
    fn read(workspace: &Workspace, store: &str, own: Option<&PublicKey>) -> Result<Self> {
        let users = listed_keys(&workspace.settings, store, "users")?;
        let workers = listed_keys(&workspace.settings, store, "workers")?;
        let revoked = revoked_keys(&workspace.roots)?;
        Ok(Self::new(users, workers, own, revoked))
    }

    /// What is listed, and the own key, less the revoked ones.
    pub(crate) fn new(
        mut users: Vec<PublicKey>,
        mut workers: Vec<PublicKey>,
        own: Option<&PublicKey>,
        revoked: BTreeSet<Fingerprint>,
    ) -> Self {
        let is_valid = |key: &PublicKey| !revoked.contains(&key.fingerprint());
        users.retain(is_valid);
        workers.retain(is_valid);
        let problem = own.filter(|own| !is_valid(own)).map(|own| revoked_text(&own.fingerprint()));
        let own = own.filter(|own| is_valid(own)).cloned();
        let signers: Vec<PublicKey> = users.iter().chain(&workers).chain(&own).cloned().collect();
        // Answers count if people gave them. A key that is listed as a worker's alone gives none.
        let is_person = |own: &&PublicKey| !workers.contains(own) || users.contains(own);
        let people = users.iter().chain(own.as_ref().filter(is_person));
        let trusted = TrustedKeys::new(signers.iter().cloned()).with_people(people);
        let trusted = Arc::new(trusted.without(revoked.iter().copied()));
        Self { users, workers, own, problem, signers, revoked, trusted }
    }

    /// What is left of these where they cannot be read again: nothing that people sign counts any more. Records of keys that
    /// counted stay readable, as long as it is known which are revoked.
    fn closed(&self, roots: &Roots, error: &Error) -> Self {
        let (mut revoked, mut signers) = (self.revoked.clone(), self.signers.clone());
        match revoked_keys(roots) {
            Ok(found) => revoked.extend(found),
            Err(_) => signers.clear(),
        }
        let is_valid = |key: &PublicKey| !revoked.contains(&key.fingerprint());
        signers.retain(is_valid);
        let workers = self.workers.iter().filter(|key| is_valid(key)).cloned().collect();
        let trusted = TrustedKeys::new(signers.iter().cloned()).with_people([]);
        let trusted = Arc::new(trusted.without(revoked.iter().copied()));
        let problem = Some(one_line(&error.to_string()));
        Self { users: Vec::new(), workers, own: None, problem, signers, revoked, trusted }
    }

    /// The keys of those whose submissions count: people, and the user of this machine.
    #[must_use]
    pub fn submitters(&self) -> Vec<PublicKey> {
        self.users.iter().chain(&self.own).cloned().collect()
    }

    /// The fingerprints of those whose threads a worker runs: workers, and the user of this machine.
    #[must_use]
    pub fn worker_names(&self) -> Vec<String> {
        self.workers.iter().chain(&self.own).map(|key| key.fingerprint().to_string()).collect()
    }

    /// The keys whose records count, the own one among them.
    #[must_use]
    pub fn signers(&self) -> &[PublicKey] {
        &self.signers
    }

    /// Whether the user revoked this key.
    #[must_use]
    pub fn is_revoked(&self, key: &Fingerprint) -> bool {
        self.revoked.contains(key)
    }

    /// As the store is given them.
    pub(super) fn trusted(&self) -> Arc<TrustedKeys> {
        Arc::clone(&self.trusted)
    }
}

/// The reason for a refusal, in words.
#[must_use]
pub fn revoked_text(key: &Fingerprint) -> String {
    format!("the key {key} was revoked")
}

#[cfg(test)]
#[path = "shared_keys_tests.rs"]
mod tests;
