//! The threads of one place, to look at: nothing is made by looking. How each stands, and which one a person means.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use lillux::{Fingerprint, PublicKey, SecretKey};
use rye_engine::{Code, Engine, Error, Result};
use rye_space::Roots;
use serde_json::{Value, json};

use super::next_command::{continue_command, successor_command};
use crate::status::ThreadStatus;
use crate::store::{
    LedgerRow, LedgerRules, LedgerSpec, Owner, SHARED_LEASE_MS, SharedKeys, SharedStoreConfig, StoreHandle,
    ThreadFilter, ThreadRow, ThreadSecret, current_owner, fetch_transcript, find_signer, is_owner_gone,
    may_be_shared, open_existing_store,
};
use crate::thread_id::ThreadId;
use crate::threads::{rebuild_files, refuse_unresumable};
use crate::transcript::TranscriptSigner;

/// Digits of a thread's name.
const ID_DIGITS: usize = 12;
/// The fewest digits that name a thread.
const MIN_ID_DIGITS: usize = 4;

/// What a thread is called whose row in the registry is not as it was written.
pub const FORGED: &str = "forged";

/// What a thread is called that waits for reserved money or for its place.
pub const WAITING: &str = "waiting";

/// What a thread is called whose process is gone.
pub const INTERRUPTED: &str = "interrupted";

/// Whether a list can be asked for threads that stand so.
#[must_use]
pub fn is_listed_status(word: &str) -> bool {
    matches!(word, FORGED | WAITING | INTERRUPTED) || ThreadStatus::parse(word).is_some()
}

/// The share of its money, in hundredths, from which on a thread is short of it.
const LOW_BUDGET_PERCENT: u128 = 80;

/// Where threads are looked for.
pub trait ThreadsPlace {
    /// Where its spaces begin.
    fn roots(&self) -> &Roots;

    /// The engine there: only where the user's settings may name a store of threads, they are read.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn engine(&self) -> Result<Arc<Engine>>;
}

/// Threads to look at.
pub struct ThreadIndex {
    /// The store.
    pub store: StoreHandle,
    /// The folder with the files of threads.
    pub dir: PathBuf,
    /// This process, to judge others by.
    pub observer: Owner,
    /// What signs what is written again here.
    own_key: SecretKey,
    /// The keys whose transcripts count, beside the own one.
    keys: Vec<Arc<SharedKeys>>,
    /// The time, where machines share the store: their leases are judged by it.
    shared_clock: Option<rye_store_postgres::LocalClock>,
}

impl ThreadIndex {
    /// Opens what is there; `None` when there has never been a thread.
    ///
    /// # Errors
    /// When the store or the secret cannot be read.
    pub fn open(place: &impl ThreadsPlace) -> Result<Option<Self>> {
        match may_be_shared(place.roots()) {
            true => {
                let engine = place.engine()?;
                Self::open_with(&engine)
            }
            false => Self::open_files(place.roots(), Vec::new()),
        }
    }

    /// The same, with an engine that is open.
    ///
    /// # Errors
    /// As [`ThreadIndex::open`].
    pub fn open_with(engine: &Engine) -> Result<Option<Self>> {
        match SharedStoreConfig::current(engine)? {
            Some(config) => Self::open_shared(engine, &config).map(Some),
            None => Self::open_files(&engine.workspace.roots, SharedStoreConfig::all_keys(engine)),
        }
    }

    /// Opens a store that several machines share.
    ///
    /// # Errors
    /// When it cannot be reached, or there is no key to sign answers with.
    pub fn open_shared(engine: &Engine, config: &SharedStoreConfig) -> Result<Self> {
        let roots = &engine.workspace.roots;
        let own_key = engine.signing_key()?;
        let (base, started) = (engine.unix_nanoseconds() / 1_000_000, Instant::now());
        let now_ms = move || {
            let passed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            u64::try_from(base).unwrap_or(0).saturating_add(passed)
        };
        let clock: rye_store_postgres::LocalClock = Arc::new(now_ms);
        let store = config.open(engine, &roots.threads_dir(), LedgerRules::default(), Arc::clone(&clock))?;
        Ok(Self {
            store,
            dir: config.cache_dir(roots).join("files"),
            observer: current_owner(),
            own_key,
            keys: vec![Arc::clone(&config.keys)],
            shared_clock: Some(clock),
        })
    }

    /// Opens the place's own store, in which the transcripts of these count beside the user's own.
    fn open_files(roots: &Roots, keys: Vec<Arc<SharedKeys>>) -> Result<Option<Self>> {
        let dir = roots.threads_dir();
        let Some(secret) = ThreadSecret::load(&roots.signing_keys)? else {
            return Ok(None);
        };
        let store = open_existing_store(&dir, &secret, &LedgerSpec::default())?;
        let own_key = secret.transcript_key();
        let observer = current_owner();
        Ok(store.map(|store| Self { store, dir, observer, own_key, keys, shared_clock: None }))
    }

    /// The file of a thread's transcript, brought up to what the store keeps. Where that fails, it is read as it is.
    #[must_use]
    pub fn transcript_path(&self, id: &ThreadId) -> PathBuf {
        let fetched = fetch_transcript(&self.store, &self.dir, id);
        fetched.unwrap_or_else(|_| crate::transcript::path(&self.dir, id))
    }

    /// Whether machines share the store.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared_clock.is_some()
    }

    /// The key that signed a transcript, if it counts in this store.
    #[must_use]
    pub fn transcript_key(&self, fingerprint: &Fingerprint) -> Option<PublicKey> {
        find_signer(&self.keys, &self.own_key.public_key(), fingerprint)
    }

    /// The fingerprint of the key that signs what is written again here.
    #[must_use]
    pub fn own_fingerprint(&self) -> Fingerprint {
        self.own_key.public_key().fingerprint()
    }

    /// Opens what is there, to find the thread that `word` names.
    ///
    /// # Errors
    /// As [`ThreadIndex::open`] and [`ThreadIndex::find`].
    pub fn open_thread(place: &impl ThreadsPlace, word: &str) -> Result<(Self, ThreadRow)> {
        parse_digits(word)?;
        let index = Self::open(place)?.ok_or_else(|| not_found(word))?;
        let row = index.find(word)?;
        Ok((index, row))
    }

    /// Opens what is there, to find the thread that was started last, no child of another one.
    ///
    /// # Errors
    /// When there is none, or the store cannot be read.
    pub fn open_latest(place: &impl ThreadsPlace) -> Result<(Self, ThreadRow)> {
        let no_thread =
            || Error::new(Code::NoThread, "no threads here yet").hint("rye run DIRECTIVE starts one");
        let index = Self::open(place)?.ok_or_else(no_thread)?;
        let filter = ThreadFilter { is_root: true, limit: Some(1), ..ThreadFilter::default() };
        let row = index.store.threads(&filter)?.into_iter().next().ok_or_else(no_thread)?;
        Ok((index, row))
    }

    /// Has the files of a thread that is not at work written again where they lack what its journal holds; whether that
    /// was so. Where it fails, they are read as they are.
    pub fn rebuild_files(&self, id: &ThreadId, now_ms: u64) -> bool {
        let signer = TranscriptSigner::new(self.own_key.duplicate());
        let _ = self.transcript_path(id);
        rebuild_files(&self.store, &self.dir, id, &signer, now_ms).unwrap_or(false)
    }

    /// Refuses to answer what a suspended thread asks if its record or its transcript shows that it cannot be resumed.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn refuse_unresumable(&self, id: &ThreadId) -> Result<()> {
        refuse_unresumable(&self.store, &self.dir, id, &|signer| self.transcript_key(signer))
    }

    /// The thread that a person names: whole, or by at least four digits that no other begins with.
    ///
    /// # Errors
    /// When there is no such thread, several fit, or the word is not a name.
    pub fn find(&self, word: &str) -> Result<ThreadRow> {
        let digits = parse_digits(word)?;
        if digits.len() == ID_DIGITS {
            let id = ThreadId::parse(&format!("thread-{digits}")).map_err(|_| not_found(word))?;
            return self.store.thread(&id)?.ok_or_else(|| not_found(word));
        }
        let start = format!("thread-{digits}");
        let mut matches = self.store.threads(&ThreadFilter::default())?;
        matches.retain(|row| row.id.as_str().starts_with(&start));
        if matches.len() > 1 {
            let names: Vec<&str> = matches.iter().take(5).map(|row| row.id.as_str()).collect();
            let message = format!("`{digits}` matches {} threads", matches.len());
            return Err(Error::new(Code::Ambiguous, message).hint(format!("one of: {}", names.join(", "))));
        }
        matches.pop().ok_or_else(|| not_found(word))
    }

    /// Where a thread stands, in a word; `interrupted` is one whose process is gone.
    #[must_use]
    pub fn effective_status(&self, row: &ThreadRow) -> &'static str {
        if row.is_forged {
            return FORGED;
        }
        match row.waiting {
            _ if self.is_interrupted(row) => INTERRUPTED,
            Some(_) => WAITING,
            None if self.waits_for_worker(row) => WAITING,
            None => row.status.as_str(),
        }
    }

    /// Why a thread stands where it does, in brackets behind its status; empty where nothing is to be said.
    #[must_use]
    pub fn status_reason(&self, row: &ThreadRow) -> String {
        let waiting = row.waiting.filter(|_| self.effective_status(row) == WAITING);
        let reason = row.reason.filter(|_| !row.is_forged).map(|reason| reason.as_str());
        let worker = (self.waits_for_worker(row) && !row.is_forged).then_some("worker");
        let word = waiting.map(|waiting| waiting.as_str()).or(worker).or(reason);
        word.map(|word| format!(" ({word})")).unwrap_or_default()
    }

    /// Whether a thread is marked as running but has no live owner.
    #[must_use]
    pub fn is_interrupted(&self, row: &ThreadRow) -> bool {
        !row.is_forged
            && !row.is_submitted
            && row.status.is_at_work()
            && row.owner.as_ref().is_none_or(|owner| self.is_gone(owner, row.heartbeat_ms))
    }

    /// Whether a submitted thread waits for a worker.
    #[must_use]
    pub fn waits_for_worker(&self, row: &ThreadRow) -> bool {
        row.is_submitted
            && row.status.is_at_work()
            && row.owner.as_ref().is_none_or(|owner| self.is_gone(owner, row.heartbeat_ms))
    }

    /// Whether a process is gone, or has been silent for longer than its lease.
    fn is_gone(&self, owner: &Owner, heartbeat_ms: u64) -> bool {
        let is_silent = |now_ms: u64| heartbeat_ms.saturating_add(SHARED_LEASE_MS) < now_ms;
        is_owner_gone(owner, &self.observer)
            || (owner.host != self.observer.host
                && self.shared_clock.as_ref().is_some_and(|clock| is_silent(clock())))
    }

    /// Whether a process runs it, or is about to.
    #[must_use]
    pub fn is_active(&self, row: &ThreadRow) -> bool {
        matches!(row.status, ThreadStatus::Created | ThreadStatus::Running) && !self.is_interrupted(row)
    }

    /// A thread as JSON, one of several.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn to_value(&self, row: &ThreadRow) -> Result<Value> {
        let is_interrupted = self.is_interrupted(row);
        let reason = match row.reason.filter(|_| !row.is_forged) {
            Some(reason) => Some(reason.as_str()),
            None => is_interrupted.then_some(INTERRUPTED),
        };
        Ok(json!({
            "thread_id": row.id,
            "directive": row.directive,
            "status": if row.is_forged { FORGED } else { row.status.as_str() },
            "is_forged": row.is_forged,
            "parent_thread_id": row.parent,
            "turns": row.cost.turns,
            "tokens": row.cost.tokens(),
            "spend": row.cost.spend.dollars(),
            "subtree_spend": self.store.ledger(&row.id)?.subtree_spend.dollars(),
            "reason": reason,
            "waiting": row.waiting.filter(|_| !is_interrupted).map(|waiting| waiting.as_str()),
            "error": row.error,
            "is_interrupted": is_interrupted,
            "is_detached": row.is_detached,
            "note": row.note,
            "started_at": row.created_at,
            "elapsed_ms": row.cost.elapsed_ms,
            "forked_from": self.fork_source(row)?,
        }))
    }

    /// Why a thread needs attention: it asks, it has no owner, it reached a limit, or its budget is nearly used up.
    #[must_use]
    pub fn alerts(&self, row: &ThreadRow, ledger: &LedgerRow, has_approval: bool) -> Vec<&'static str> {
        let is_budget_low = || {
            let used = u128::from(ledger.subtree_spend.0) + u128::from(ledger.subtree_reserved.0);
            let max = ledger.caps.spend.map(|max| u128::from(max.0));
            !row.status.is_terminal()
                && max.is_some_and(|max| used * 100 >= max * LOW_BUDGET_PERCENT && used > 0)
        };
        let alerts = [
            (has_approval, "approval"),
            (self.is_interrupted(row), INTERRUPTED),
            (row.status == ThreadStatus::Suspended && !has_approval, "suspended"),
            (is_budget_low(), "budget"),
        ];
        alerts.into_iter().filter(|(applies, _)| *applies).map(|(_, mark)| mark).collect()
    }

    /// The command that lets a thread continue, if there is one.
    #[must_use]
    pub fn next_command(&self, row: &ThreadRow) -> Option<String> {
        if row.is_forged {
            return Some(format!("rye thread verify {}", row.id));
        }
        match row.status {
            ThreadStatus::Suspended => {
                let detail = row.result.as_ref().and_then(|result| result.get("detail"));
                let reason = row.reason.map(|reason| reason.as_str());
                Some(continue_command(&self.store, &row.id, &row.directive, reason, detail))
            }
            ThreadStatus::Created | ThreadStatus::Running if self.is_interrupted(row) => {
                Some(format!("rye thread resume {}", row.id))
            }
            ThreadStatus::Created | ThreadStatus::Running => Some(format!("rye thread tail {}", row.id)),
            ThreadStatus::Completed
            | ThreadStatus::Error
            | ThreadStatus::Cancelled
            | ThreadStatus::Killed => successor_command(&row.id, &row.directive, &row.provider),
            ThreadStatus::Continued => {
                row.continuation_thread_id.as_ref().map(|next| format!("rye thread show {next}"))
            }
        }
    }
}

/// The digits of the name that a person gave.
fn parse_digits(word: &str) -> Result<&str> {
    let digits = word.strip_prefix("thread-").unwrap_or(word);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if (MIN_ID_DIGITS..=ID_DIGITS).contains(&digits.len()) && digits.bytes().all(is_digit) {
        return Ok(digits);
    }
    let word = rye_item::text::one_line(word);
    let message =
        format!("invalid thread id `{word}`; ids look like thread-0a1b2c3d4e5f, and 0a1b is enough");
    Err(Error::new(Code::InvalidArgument, message).hint("rye thread list shows them"))
}

fn not_found(word: &str) -> Error {
    let message = format!("thread `{}` not found", rye_item::text::one_line(word));
    Error::new(Code::NoThread, message).hint("rye thread list --all shows every thread of this project")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_thread_names_are_validated() {
        for word in ["0a1b", "thread-0a1b", "thread-0a1b2c3d4e5f"] {
            assert!(parse_digits(word).is_ok(), "{word}");
        }
        for word in ["", "0a1", "thread-", "0A1B", "../a", "0a1b2c3d4e5f0", "hello"] {
            assert_eq!(parse_digits(word).map_err(|error| error.code), Err(Code::InvalidArgument), "{word}");
        }
    }
}
