//! Who may ask: one-time codes, the tokens they are exchanged for, and how long those are good.
//!
//! Tokens are kept as digests beside the signing key, where no tool can read, so that a session survives a restart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// How long a one-time code is good.
pub(super) const CODE_TTL: Duration = Duration::from_secs(600);
/// Sessions at once; the one unused for longest ends for a new one.
const MAX_SESSIONS: usize = 64;
/// Codes at once; the oldest goes for a new one.
const MAX_CODES: usize = 8;
/// How far the time of last use on disk may lag behind.
const PERSIST_INTERVAL_MS: u64 = 30_000;
/// Wrong codes in a minute before they are not looked at any more.
const MAX_WRONG_CODES: u32 = 30;
/// Random bytes of codes and tokens.
const SECRET_BYTES: usize = 24;
/// The largest file of sessions that is read.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A session as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSession {
    /// The digest of its token.
    token: String,
    read_only: bool,
    used_ms: u64,
}

struct LiveSession {
    stored: StoredSession,
    persisted_ms: u64,
    ended: CancellationToken,
}

/// A session that a request belongs to.
#[derive(Clone)]
pub(super) struct SessionHandle {
    /// Whether it may change nothing, whatever the server may.
    pub(super) is_read_only: bool,
    /// Cancelled when the session is over.
    pub(super) ended: CancellationToken,
    digest: String,
}

/// A code that was not exchanged yet.
struct OpenCode {
    digest: String,
    until_ms: u64,
    /// What the session it is exchanged for is: that of the one who asked for the code.
    read_only: bool,
}

struct State {
    sessions: Vec<LiveSession>,
    codes: Vec<OpenCode>,
    wrong: (u64, u32),
}

/// The sessions of a server.
pub(super) struct Sessions {
    path: PathBuf,
    is_read_only: bool,
    idle_timeout: Duration,
    clock: fn() -> u64,
    state: Mutex<State>,
}

fn random_hex() -> Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| Error::new(Code::Io, error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Secrets are compared by their digests: how long that takes says nothing about the secret.
fn digest(secret: &str) -> String {
    Digest::of(secret.as_bytes()).to_hex()
}

fn refused(message: &str) -> Error {
    Error::new(Code::SessionRefused, message)
        .hint("open the address that `rye ui` prints; Enter there prints a new one")
}

impl Sessions {
    /// Those of the last server of this place, as far as they are good.
    pub(super) fn load(
        signing_keys: &Path,
        place: &Path,
        is_read_only: bool,
        idle_timeout: Duration,
        clock: fn() -> u64,
    ) -> Result<Arc<Self>> {
        let place = Digest::of(place.as_os_str().as_encoded_bytes()).to_hex();
        let path = signing_keys.join(format!("ui_sessions_{}.json", &place[..16]));
        file::create_dirs(signing_keys, true)?;
        // What cannot be read holds no session: people start with a new code.
        let stored: Vec<StoredSession> = match file::read_bounded(&path, MAX_FILE_BYTES) {
            Ok((bytes, _)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let live = |stored: StoredSession| LiveSession {
            persisted_ms: stored.used_ms,
            stored,
            ended: CancellationToken::new(),
        };
        let sessions = stored.into_iter().take(MAX_SESSIONS).map(live).collect();
        let state = Mutex::new(State { sessions, codes: Vec::new(), wrong: (0, 0) });
        Ok(Arc::new(Self { path, is_read_only, idle_timeout, clock, state }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a session is good without being used.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// A code that can be exchanged once, for the one who started the server.
    pub(super) fn new_code(&self) -> Result<String> {
        self.code_for(self.is_read_only)
    }

    /// A code that can be exchanged once, for a session that may do no more than `session` does.
    pub(super) fn new_code_of(&self, session: &SessionHandle) -> Result<String> {
        self.code_for(session.is_read_only)
    }

    fn code_for(&self, read_only: bool) -> Result<String> {
        let code = random_hex()?;
        let until = (self.clock)().saturating_add(u64::try_from(CODE_TTL.as_millis()).unwrap_or(u64::MAX));
        let mut state = self.lock();
        let excess = (state.codes.len() + 1).saturating_sub(MAX_CODES);
        state.codes.drain(..excess);
        state.codes.push(OpenCode { digest: digest(&code), until_ms: until, read_only });
        Ok(code)
    }

    /// Exchanges a code for the token of a new session.
    ///
    /// # Errors
    /// When the code was used, is too old, or never was one; `Err(None)` when there were too many wrong ones.
    pub(super) fn exchange(&self, code: &str) -> std::result::Result<(String, SessionHandle), Option<Error>> {
        let now = (self.clock)();
        let sent = digest(code);
        let mut state = self.lock();
        state.codes.retain(|code| code.until_ms > now);
        let Some(found) = state.codes.iter().position(|code| code.digest == sent) else {
            if now.saturating_sub(state.wrong.0) > 60_000 {
                state.wrong = (now, 0);
            }
            state.wrong.1 = state.wrong.1.saturating_add(1);
            let is_over = state.wrong.1 > MAX_WRONG_CODES;
            return Err((!is_over).then(|| refused("the code is wrong, was used already, or is too old")));
        };
        let read_only = state.codes.remove(found).read_only || self.is_read_only;
        let token = random_hex().map_err(Some)?;
        let stored = StoredSession { token: digest(&token), read_only, used_ms: now };
        if state.sessions.len() >= MAX_SESSIONS
            && let Some(oldest) =
                (0..state.sessions.len()).min_by_key(|index| state.sessions[*index].stored.used_ms)
        {
            state.sessions.swap_remove(oldest).ended.cancel();
        }
        let session = LiveSession { persisted_ms: now, stored, ended: CancellationToken::new() };
        let handle = self.handle(&session);
        state.sessions.push(session);
        self.persist(&mut state, now);
        Ok((token, handle))
    }

    fn handle(&self, session: &LiveSession) -> SessionHandle {
        SessionHandle {
            is_read_only: session.stored.read_only || self.is_read_only,
            ended: session.ended.clone(),
            digest: session.stored.token.clone(),
        }
    }

    /// The session of a token, if it is good; it counts as used now.
    pub(super) fn find(&self, token: &str) -> Option<SessionHandle> {
        let sent = digest(token);
        self.find_digest(&sent)
    }

    /// Whether a session is still good; it counts as used now.
    pub(super) fn touch(&self, session: &SessionHandle) -> bool {
        self.find_digest(&session.digest).is_some()
    }

    fn find_digest(&self, sent: &str) -> Option<SessionHandle> {
        let now = (self.clock)();
        let max_idle = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let mut state = self.lock();
        let before = state.sessions.len();
        state.sessions.retain(|session| {
            let is_good = now.saturating_sub(session.stored.used_ms) <= max_idle;
            if !is_good {
                session.ended.cancel();
            }
            is_good
        });
        let is_changed = state.sessions.len() != before;
        let found = state.sessions.iter_mut().find(|session| session.stored.token == sent).map(|session| {
            session.stored.used_ms = session.stored.used_ms.max(now);
            let is_due = now.saturating_sub(session.persisted_ms) >= PERSIST_INTERVAL_MS;
            (self.handle(session), is_due)
        });
        if is_changed || found.as_ref().is_some_and(|(_, is_due)| *is_due) {
            self.persist(&mut state, now);
        }
        found.map(|(handle, _)| handle)
    }

    /// Ends a session.
    pub(super) fn end(&self, session: &SessionHandle) {
        let mut state = self.lock();
        state.sessions.retain(|known| known.stored.token != session.digest);
        session.ended.cancel();
        let now = (self.clock)();
        self.persist(&mut state, now);
    }

    /// Writes down when each was last used, when the server ends.
    pub(super) fn save(&self) {
        let mut state = self.lock();
        let now = (self.clock)();
        self.persist(&mut state, now);
    }

    fn persist(&self, state: &mut State, now: u64) {
        state.sessions.iter_mut().for_each(|session| session.persisted_ms = now);
        let stored: Vec<&StoredSession> = state.sessions.iter().map(|session| &session.stored).collect();
        let Ok(bytes) = serde_json::to_vec(&stored) else { return };
        // If it fails, the sessions end with the server.
        let _ = file::write_atomic(&self.path, &bytes, FileMode::Private);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(1_000_000);

    fn now() -> u64 {
        NOW.load(Ordering::SeqCst)
    }

    #[test]
    fn codes_and_sessions_expire() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Path::new("/somewhere");
        let open = |is_read_only| {
            Sessions::load(folder.path(), place, is_read_only, Duration::from_secs(60), now)
                .expect("sessions")
        };
        let sessions = open(true);
        let code = sessions.new_code().expect("a code");
        let Ok((token, _)) = sessions.exchange(&code) else { panic!("no session") };
        assert!(sessions.exchange(&code).is_err(), "used");
        assert!(sessions.find(&token).is_some());
        assert!(sessions.find("other").is_none());
        let old = sessions.new_code().expect("a code");
        NOW.fetch_add(50_000, Ordering::SeqCst);
        assert!(sessions.find(&token).is_some());
        NOW.fetch_add(50_000, Ordering::SeqCst);
        sessions.save();
        // A session that could only read stays so.
        let next = open(false);
        assert!(next.find(&token).expect("kept").is_read_only);
        NOW.fetch_add(61_000, Ordering::SeqCst);
        assert!(next.find(&token).is_none(), "idle");
        NOW.fetch_add(600_000, Ordering::SeqCst);
        assert!(sessions.exchange(&old).is_err(), "old");
    }

    #[test]
    fn codes_give_no_more_than_their_session() {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = || 1_000_000_u64;
        let open = |is_read_only| {
            let place = Path::new("/elsewhere");
            Sessions::load(folder.path(), place, is_read_only, Duration::from_secs(60), clock)
                .expect("sessions")
        };
        let exchange = |sessions: &Sessions, code: &str| match sessions.exchange(code) {
            Ok(made) => made,
            Err(_) => panic!("no session"),
        };
        let first = open(true);
        let (token, _) = exchange(&first, &first.new_code().expect("a code"));
        // The server is started again, and may be written to now.
        let next = open(false);
        let reader = next.find(&token).expect("kept");
        let (second, made) = exchange(&next, &next.new_code_of(&reader).expect("a code"));
        assert!(made.is_read_only);
        // It stays so however often that is done, and after another start.
        let (_, third) = exchange(&next, &next.new_code_of(&made).expect("a code"));
        assert!(third.is_read_only);
        assert!(open(false).find(&second).expect("kept").is_read_only);
        // The code that the server prints is its owner's.
        let (writer_token, writer) = exchange(&next, &next.new_code().expect("a code"));
        assert!(!writer.is_read_only);
        let (_, beside) = exchange(&next, &next.new_code_of(&writer).expect("a code"));
        assert!(!beside.is_read_only);
        // A server that may only be looked at makes every session so while it runs, and codes for good.
        let last = open(true);
        let writer = last.find(&writer_token).expect("kept");
        let (made_there, _) = exchange(&last, &last.new_code_of(&writer).expect("a code"));
        let again = open(false);
        assert!(!again.find(&writer_token).expect("kept").is_read_only);
        assert!(again.find(&made_there).expect("kept").is_read_only);
    }
}
