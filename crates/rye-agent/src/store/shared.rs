//! The store that several machines share: which one the user's signed settings name, how it is reached, whose keys count.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::PublicKey;
use lillux::file::LockedTempDir;
use rye_engine::{Code, Engine, Error, Result};
use rye_item::Space;
use rye_item::text::one_line;
use rye_space::Roots;
use rye_store::LedgerRules;
use rye_store_postgres::{
    DEFAULT_RETRY_FOR, LocalClock, PostgresAddress, PostgresCondition, PostgresOptions, PostgresStore,
    StoreKeys,
};
use serde_json::Value;

use super::password::find_password;
use super::shared_keys::SharedKeys;
use super::{StoreHandle, SystemProbe, ThreadStore, current_owner};
use crate::cluster::{ThreadDispatch, dispatch_of_settings};

/// For how long a heartbeat renews a lease where several machines share a store.
pub const SHARED_LEASE_MS: u64 = 30_000;

/// The setting that names the store.
const STORE_SETTING: &str = "threads.store";

/// How much of the user's `config.yaml` is looked at.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The schema that is used where settings name none.
const DEFAULT_SCHEMA: &str = "rye";

/// A store that several machines share, as the user's settings describe it.
#[derive(Clone, Debug)]
pub struct SharedStoreConfig {
    /// What the settings call it.
    pub name: String,
    /// The keys that count in it.
    pub keys: Arc<SharedKeys>,
    address: PostgresAddress,
    dispatch: Option<Arc<dyn ThreadDispatch>>,
}

/// Whether the user's settings may name a shared store: a look that is cheap where they do not.
#[must_use]
pub fn may_be_shared(roots: &Roots) -> bool {
    let path = roots.user_ai().join("config/config.yaml");
    let read = lillux::file::read_bounded(&path, MAX_CONFIG_BYTES);
    match read {
        // A key may be written with escapes.
        Ok((bytes, _)) => bytes.contains(&b'\\') || bytes.windows(7).any(|word| word == b"threads"),
        Err(error) => !error.is_absent(),
    }
}

impl SharedStoreConfig {
    /// The store that holds all threads of this user; `None` where each project has its own.
    ///
    /// # Errors
    /// When settings name one and do not describe it, or are not used because they are not signed.
    pub fn current(engine: &Engine) -> Result<Option<Self>> {
        if !may_be_shared(&engine.workspace.roots) {
            return Ok(None);
        }
        let settings = &engine.workspace.settings;
        let ignored = settings.ignored.iter().find(|ignored| {
            ignored.space == Space::User && (ignored.key == "*" || ignored.key.starts_with("threads"))
        });
        if let Some(ignored) = ignored {
            let message = format!("the setting `{}` is not used: {}", one_line(&ignored.key), ignored.reason);
            return Err(Error::new(Code::StoreUnusable, message)
                .detail("path", ignored.path.display().to_string())
                .hint(format!("read it, then: {}", ignored.sign_command())));
        }
        match settings.get(STORE_SETTING).and_then(Value::as_str) {
            None | Some("") => Ok(None),
            Some(name) => Self::named(engine, name).map(Some),
        }
    }

    /// The store that settings describe under this name.
    ///
    /// # Errors
    /// When they do not, or not completely.
    pub fn named(engine: &Engine, name: &str) -> Result<Self> {
        let settings = &engine.workspace.settings;
        let shown = one_line(name);
        let invalid = settings_error;
        let stores = settings.get("threads.stores").and_then(Value::as_object);
        let store = stores.and_then(|stores| stores.get(name)).ok_or_else(|| {
            invalid(format!("no store `{shown}` in the settings: threads.stores.{shown}.url is missing"))
        })?;
        let text = |key: &str| store.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let url = text("url").ok_or_else(|| invalid(format!("threads.stores.{shown}.url is missing")))?;
        let mut address = PostgresAddress::parse(url, text("schema").unwrap_or(DEFAULT_SCHEMA))?;
        if let Some(path) = text("certificates") {
            address = address.with_certificates(expand_home(path, &engine.host.home));
        }
        let dispatch = dispatch_of_settings(&shown, store.get("restate"))?;
        let variables = Arc::new(engine.host.variables.clone());
        let (home, variable) = (engine.host.home.clone(), text("password_env").map(str::to_owned));
        let server = address.server();
        let password = move || find_password(&variables, &home, variable.as_deref(), &server);
        Ok(Self {
            name: name.to_owned(),
            keys: Arc::new(SharedKeys::new(engine, name)?),
            address: address.with_password(Arc::new(password)),
            dispatch,
        })
    }

    /// The keys that count in any store that settings describe: threads that came from one keep their signatures. A store
    /// that is not described completely adds none.
    #[must_use]
    pub fn all_keys(engine: &Engine) -> Vec<Arc<SharedKeys>> {
        let stores = engine.workspace.settings.get("threads.stores").and_then(Value::as_object);
        let names = stores.into_iter().flat_map(|stores| stores.keys());
        names.filter_map(|name| Self::named(engine, name).ok()).map(|config| config.keys).collect()
    }

    /// What calls workers for threads that wait, if the settings name it.
    #[must_use]
    pub fn dispatch(&self) -> Option<Arc<dyn ThreadDispatch>> {
        self.dispatch.clone()
    }

    /// Where it is, without a password.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Looks at the database; changes nothing.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn inspect(&self, now_ms: u64) -> Result<PostgresCondition> {
        Ok(rye_store_postgres::inspect(&self.address, now_ms)?)
    }

    /// Opens it. What is signed is signed with the user's key.
    ///
    /// # Errors
    /// When there is no key, or it is locked; when the store cannot be reached, or is newer than this code.
    pub fn open(
        &self,
        engine: &Engine,
        place: &Path,
        rules: LedgerRules,
        clock: LocalClock,
    ) -> Result<StoreHandle> {
        let own = engine.signing_key()?;
        let current = Arc::clone(&self.keys);
        let keys = StoreKeys::new(own, Arc::new(move || current.current().trusted()));
        let options = PostgresOptions {
            address: self.address.clone(),
            keys,
            rules,
            probe: Arc::new(SystemProbe),
            clock,
            retry_for: DEFAULT_RETRY_FOR,
            origin: origin_of(place),
        };
        let opened = PostgresStore::open(options).map_err(|error| {
            let mut error = Error::from(error);
            error.hints.retain(|hint| hint != "rye doctor");
            error.hint(format!(
                "the store `{}` is {}: rye doctor --store",
                one_line(&self.name),
                self.address()
            ))
        });
        let store: Arc<dyn ThreadStore> = Arc::new(opened?);
        Ok(StoreHandle::from(store))
    }

    /// The folder below which files of this store's threads are kept on this machine. It may be lost at any time.
    #[must_use]
    pub fn cache_dir(&self, roots: &Roots) -> PathBuf {
        let name = lillux::Digest::of(self.address().as_bytes()).to_hex();
        roots.cache.join("stores").join(name.get(..16).unwrap_or_default())
    }

    /// A folder for the threads of one process, which goes with it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn work_dir(&self, roots: &Roots) -> Result<LockedTempDir> {
        let parent = self.cache_dir(roots);
        lillux::file::create_dirs(&parent, true)?;
        Ok(LockedTempDir::new(&parent, "work-")?)
    }
}

/// The place whose threads only processes of this place take over.
fn origin_of(place: &Path) -> String {
    let path = lillux::canonicalize_existing(place);
    let digest = lillux::Digest::of(path.as_os_str().as_encoded_bytes()).to_hex();
    format!("{}:{}", current_owner().host, digest.get(..16).unwrap_or_default())
}

pub(super) fn settings_error(message: String) -> Error {
    Error::new(Code::StoreUnusable, message).hint("see docs/cluster.md for the settings of a store")
}

/// A public key as settings write it: the middle line of its file.
pub(super) fn parse_key(text: &str) -> Option<PublicKey> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
    if text.is_empty() || !text.bytes().all(is_plain) {
        return None;
    }
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n");
    PublicKey::from_pem(&pem).ok()
}

/// A public key as settings write it.
#[must_use]
pub fn key_text(key: &PublicKey) -> String {
    let pem = key.to_pem();
    pem.lines().filter(|line| !line.starts_with("-----")).collect()
}

fn expand_home(path: &str, home: &Path) -> PathBuf {
    path.strip_prefix("~/").map_or_else(|| PathBuf::from(path), |rest| home.join(rest))
}

#[cfg(test)]
mod tests {
    use lillux::SecretKey;

    use super::*;

    #[test]
    fn keys_are_written_and_read_alike() {
        let key = SecretKey::from_seed(&[7; 32]).public_key();
        assert_eq!(parse_key(&key_text(&key)), Some(key));
        for text in ["", "MCow", "../key", "-----BEGIN PUBLIC KEY-----"] {
            assert_eq!(parse_key(text), None, "{text}");
        }
    }
}
