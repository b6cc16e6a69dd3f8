//! The engine: a workspace, a clock, and the state that stays warm between requests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use lillux::file::TempDirPool;
use lillux::process::Launcher;
use lillux::{SecretKey, canonicalize_existing};
use rye_exec::NativeTool;
use rye_item::{BundleId, ItemRef, Space};
use rye_space::installed::{self, BundleInstallation};
use rye_space::search::{SearchIndex, SpaceWatcher, index_path};
use rye_space::{ItemFile, ProtectedFolders, Roots, Workspace, keys};
use rye_trust::signature::Timestamp;
use rye_trust::{Admitted, DevModePolicy, Subject, TrustVerdict, admit};

use crate::chain_cache::ChainCache;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations;
use crate::policies;
use crate::verbs::execute::UsedItems;

/// Where the time comes from.
pub trait WallClock: Send + Sync {
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;

    /// Nanoseconds since 1970, as exactly as the clock knows them.
    fn unix_nanoseconds(&self) -> i64 {
        i64::try_from(self.unix_seconds()).unwrap_or(i64::MAX).saturating_mul(1_000_000_000)
    }
}

/// Whether unsigned and edited items of the project are forgiven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevMode {
    /// Not asked for.
    Off,
    /// Asked for, but this project may not have it.
    Refused,
    /// On.
    On,
}

/// Asks a person for the passphrase of the signing key.
#[derive(Clone)]
pub struct PassphrasePrompt(pub Arc<dyn Fn() -> std::io::Result<String> + Send + Sync>);

impl fmt::Debug for PassphrasePrompt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PassphrasePrompt")
    }
}

/// The variable that names a file with the passphrase of the signing key, such as `/dev/fd/3`.
pub const PASSPHRASE_FILE_VAR: &str = "RYE_KEY_PASSPHRASE_FILE";
/// The largest passphrase.
const MAX_PASSPHRASE_BYTES: u64 = 4096;

/// What the engine must know of the process it lives in, to run others.
#[derive(Clone, Debug, Default)]
pub struct HostEnvironment {
    /// The process environment.
    pub variables: BTreeMap<String, String>,
    /// The user's home.
    pub home: PathBuf,
    /// The folder the process works in, for tools outside any project.
    pub current_dir: PathBuf,
    /// Starts and supervises others: the own binary.
    pub launcher: Launcher,
    /// Folders for the temporary files of what it runs.
    pub temporary_folders: TempDirPool,
    /// Asks for the passphrase of the signing key, if a person is at the other end.
    pub passphrase_prompt: Option<PassphrasePrompt>,
}

/// How the engine behaves.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// `RYE_DEV_MODE=1` was set.
    pub wants_dev_mode: bool,
    /// The process stays: watch the spaces instead of comparing them at each search.
    pub is_warm: bool,
    /// What is around the process.
    pub host: HostEnvironment,
    /// Further functions that descriptors may name.
    pub natives: NativeTools,
}

/// Functions that descriptors may name, from the caller that opens the engine.
#[derive(Clone, Default)]
pub struct NativeTools(pub Vec<Arc<dyn NativeTool>>);

impl fmt::Debug for NativeTools {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|native| native.name())).finish()
    }
}

/// One workspace, opened, with what stays warm.
pub struct Engine {
    /// The workspace.
    pub workspace: Workspace,
    /// Whether development mode applies.
    pub dev_mode: DevMode,
    /// What is around the process.
    pub host: HostEnvironment,
    clock: Box<dyn WallClock>,
    is_warm: bool,
    pub(crate) chain_cache: ChainCache,
    pub(crate) lockfile_cache: locations::LockfileCache,
    pub(crate) used_items: UsedItems,
    pub(crate) policy_cache: policies::PolicyCache,
    pub(crate) natives: Vec<Arc<dyn NativeTool>>,
    protected: OnceLock<ProtectedFolders>,
    search: Mutex<SearchState>,
    /// The own key once it was decrypted, and its passphrase.
    unlocked: Mutex<Option<(SecretKey, String)>>,
}

/// The index and its watcher, opened at the first search.
#[derive(Default)]
pub(crate) struct SearchState {
    pub(crate) index: Option<SearchIndex>,
    pub(crate) watcher: Option<SpaceWatcher>,
}

impl Engine {
    /// Opens the workspace below `roots`.
    ///
    /// # Errors
    /// When the roots are refused or the binary is damaged.
    pub fn open(roots: Roots, options: EngineOptions, clock: Box<dyn WallClock>) -> Result<Self> {
        let interrupted = crate::verbs::install::recover(&roots);
        let mut workspace = Workspace::open(roots)?;
        if !workspace.new_handovers.is_empty() {
            let now = Timestamp::from_unix(clock.unix_seconds());
            let record = crate::verbs::keys::record_handovers(&workspace, now.as_ref());
            if record.is_changed {
                workspace = Workspace::open(workspace.roots)?;
            }
            workspace.notices.extend(record.notices);
        }
        workspace.notices.extend(interrupted);
        let dev_mode = match (options.wants_dev_mode, workspace.can_use_dev_mode()) {
            (false, _) => DevMode::Off,
            (true, false) => DevMode::Refused,
            (true, true) => DevMode::On,
        };
        Ok(Self {
            workspace,
            dev_mode,
            host: options.host,
            clock,
            is_warm: options.is_warm,
            chain_cache: ChainCache::default(),
            lockfile_cache: locations::LockfileCache::default(),
            used_items: UsedItems::default(),
            policy_cache: policies::PolicyCache::default(),
            natives: rye_tools::all().into_iter().map(Arc::from).chain(options.natives.0).collect(),
            protected: OnceLock::new(),
            search: Mutex::default(),
            unlocked: Mutex::default(),
        })
    }

    /// Whether items that their signature covers only partly may be executed.
    #[must_use]
    pub fn allows_partial_coverage(&self) -> bool {
        self.workspace.settings.get("integrity.partial_coverage").and_then(serde_json::Value::as_str)
            == Some("allow")
    }

    /// Folders that tools never get as a writable root.
    pub fn protected_folders(&self) -> &ProtectedFolders {
        self.protected.get_or_init(|| ProtectedFolders::read(&self.workspace.roots, &self.host.home))
    }

    /// Opens the workspace again if anything it was opened from has changed.
    ///
    /// # Errors
    /// As [`Engine::open`]; the old workspace then stays.
    pub fn refresh(&mut self) -> Result<()> {
        if !self.workspace.is_current() {
            self.workspace = Workspace::open(self.workspace.roots.clone())?;
            if self.dev_mode != DevMode::Off {
                self.dev_mode =
                    if self.workspace.can_use_dev_mode() { DevMode::On } else { DevMode::Refused };
            }
            *self.search_state() = SearchState::default();
            self.chain_cache.clear();
            self.lockfile_cache.clear();
            self.policy_cache.clear();
        }
        Ok(())
    }

    /// Whether a tool's author says that doing it twice does no more than doing it once: `idempotent: true`.
    #[must_use]
    pub fn is_idempotent(&self, item: &ItemRef) -> bool {
        let Ok(located) = self.workspace.spaces.locate(item, None) else { return false };
        let Ok(admitted) = self.admit_cached(located) else { return false };
        let fields = &admitted.parsed().fields;
        ["idempotent", "__idempotent__", "IDEMPOTENT"]
            .iter()
            .any(|key| fields.get(*key).and_then(serde_json::Value::as_bool) == Some(true))
    }

    /// Now, to the second.
    ///
    /// # Errors
    /// When the clock is beyond the year 9999.
    pub fn now(&self) -> Result<Timestamp> {
        Timestamp::from_unix(self.clock.unix_seconds())
            .ok_or_else(|| Error::new(Code::Io, "the clock is out of range"))
    }

    /// Seconds since 1970.
    #[must_use]
    pub fn unix_seconds(&self) -> u64 {
        self.clock.unix_seconds()
    }

    /// Nanoseconds since 1970, to tell whether a file has settled.
    #[must_use]
    pub fn unix_nanoseconds(&self) -> i64 {
        self.clock.unix_nanoseconds()
    }

    /// The own signing key.
    ///
    /// # Errors
    /// When it is missing, loose, no key or revoked: what it signs would count nowhere.
    pub fn signing_key(&self) -> Result<SecretKey> {
        self.checked_key(self.own_secret_key()?)
    }

    /// As [`Engine::signing_key`], without asking for a passphrase: for what can do without it.
    ///
    /// # Errors
    /// As [`Engine::signing_key`], and when it is encrypted and was not decrypted before.
    pub fn unlocked_signing_key(&self) -> Result<SecretKey> {
        let known = self.unlocked_key().as_ref().map(|(key, _)| key.duplicate());
        match known {
            Some(key) => self.checked_key(key),
            None => self.checked_key(keys::own_secret_key(&self.workspace.roots.signing_keys)?),
        }
    }

    fn unlocked_key(&self) -> MutexGuard<'_, Option<(SecretKey, String)>> {
        self.unlocked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The own private key, decrypted if need be, whether it is trusted or not.
    ///
    /// # Errors
    /// When it is missing, loose, no key, or locked.
    pub(crate) fn own_secret_key(&self) -> Result<SecretKey> {
        let folder = &self.workspace.roots.signing_keys;
        match keys::own_secret_key(folder) {
            Err(keys::OwnKeyError::Locked { .. }) => {}
            other => return Ok(other?),
        }
        let own = self.workspace.own_key.as_ref();
        if let Some((key, _)) = self.unlocked_key().as_ref()
            && own == Some(&key.public_key())
        {
            return Ok(key.duplicate());
        }
        let Some(passphrase) = self.read_passphrase()? else { return Ok(keys::own_secret_key(folder)?) };
        let key = keys::unlock_own_key(folder, &passphrase)?;
        *self.unlocked_key() = Some((key.duplicate(), passphrase));
        Ok(key)
    }

    /// The passphrase of the own key, if the key is encrypted.
    ///
    /// # Errors
    /// When there is none to be had, or it is wrong.
    pub(crate) fn own_passphrase(&self) -> Result<Option<String>> {
        if !keys::is_own_key_encrypted(&self.workspace.roots.signing_keys)? {
            return Ok(None);
        }
        self.own_secret_key()?;
        Ok(self.unlocked_key().as_ref().map(|(_, passphrase)| passphrase.clone()))
    }

    /// The passphrase from the file that the environment names, or from a person. `None` if there is neither.
    ///
    /// # Errors
    /// When the file cannot be read, or holds none.
    pub fn read_passphrase(&self) -> Result<Option<String>> {
        if let Some(path) = self.host.variables.get(PASSPHRASE_FILE_VAR).filter(|path| !path.is_empty()) {
            let read = lillux::file::read_stream(path.as_ref(), MAX_PASSPHRASE_BYTES);
            let bytes = read.map_err(|error| {
                Error::new(Code::KeyLocked, format!("{PASSPHRASE_FILE_VAR} `{path}` cannot be read: {error}"))
                    .hint("name a file with the passphrase in its first line, or unset the variable")
            })?;
            let text = String::from_utf8(bytes).unwrap_or_default();
            let line = text.lines().next().unwrap_or_default();
            if line.is_empty() {
                let message = format!("{PASSPHRASE_FILE_VAR} `{path}` holds no passphrase");
                return Err(Error::new(Code::KeyLocked, message).hint("it is the first line of the file"));
            }
            return Ok(Some(line.to_owned()));
        }
        match &self.host.passphrase_prompt {
            Some(prompt) => Ok(Some((prompt.0)()?)),
            None => Ok(None),
        }
    }

    /// What no tool reads, whatever it asks for: the folder of the signing key, and the file that the environment names for its
    /// passphrase.
    pub(crate) fn key_files(&self) -> Vec<PathBuf> {
        let named = self.host.variables.get(PASSPHRASE_FILE_VAR).filter(|path| !path.is_empty());
        let passphrase = named.map(|path| canonicalize_existing(&self.host.current_dir.join(path)));
        // What a shell hands over is an open file, and may lie anywhere.
        let is_path = |path: &PathBuf| !path.starts_with("/dev") && !path.starts_with("/proc");
        let keys = self.workspace.roots.signing_keys.clone();
        std::iter::once(keys).chain(passphrase.filter(is_path)).collect()
    }

    /// Refuses a key that is revoked or has no valid document.
    fn checked_key(&self, key: SecretKey) -> Result<SecretKey> {
        let folder = &self.workspace.roots.signing_keys;
        let fingerprint = key.public_key().fingerprint();
        match self.workspace.keys.revocation(&fingerprint) {
            None if self.workspace.keys.is_trusted_everywhere(&key.public_key()) => Ok(key),
            None => Err(Error::new(
                Code::Untrusted,
                format!("your signing key {fingerprint} has no valid identity document: its signatures would not be trusted"),
            )
            .hint("if it is your key: rye init")),
            Some(revocation) => Err(Error::new(
                Code::Revoked,
                format!("your signing key {fingerprint} is revoked: {}", revocation.reason),
            )
            .hint(format!("move `{}` away, then run rye init for a new key", folder.display()))),
        }
    }

    /// Lets a located item pass if a key that counts vouches for it, or development mode forgives it.
    pub(crate) fn admit(&self, located: ItemFile) -> Result<Admitted<ItemFile>> {
        let item: ItemRef = located.item().clone();
        admit(located, &self.workspace.keys, self.dev_mode_policy()).map_err(|refusal| {
            let subject = &refusal.subject;
            let error =
                Error::refused(&self.workspace, &item, subject.space(), &subject.path, &refusal.report);
            match self.providing_bundle(subject).filter(|_| refusal.report.verdict == TrustVerdict::Untrusted)
            {
                Some(id) if self.workspace.approvals.pins_of(&id).next().is_some() => {
                    error.hint(format!("or install the bundle `{id}` again: rye install SOURCE"))
                }
                Some(id) => error.hint(format!(
                    "the bundle `{id}` installed it; to trust its signer for that bundle and nothing \
                     else: rye bundle trust {id}"
                )),
                None => error,
            }
        })
    }

    /// The bundle whose lockfile says that it brought this file, true or not.
    fn providing_bundle(&self, located: &ItemFile) -> Option<BundleId> {
        let ai = match located.space() {
            Space::Project => self.workspace.roots.project_ai()?,
            Space::User => self.workspace.roots.user_ai(),
            Space::System(_) => return None,
        };
        let file = located.manifest_path()?;
        let is_provider = |id: &BundleId| {
            let lock = BundleInstallation::read(&ai, located.space(), id).lock;
            lock.is_ok_and(|lock| lock.files.iter().any(|path| path.as_str() == file))
        };
        installed::installed_ids(&ai).into_iter().find(is_provider)
    }

    /// What development mode forgives here.
    pub(crate) fn dev_mode_policy(&self) -> DevModePolicy {
        match self.dev_mode {
            DevMode::On => DevModePolicy::AllowOwnUnsigned,
            DevMode::Off | DevMode::Refused => DevModePolicy::Enforce,
        }
    }

    pub(crate) fn search_state(&self) -> MutexGuard<'_, SearchState> {
        // A panic while searching leaves at worst a stale index, which the next search compares again.
        self.search.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn is_warm(&self) -> bool {
        self.is_warm
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        index_path(&self.workspace.roots)
    }
}
