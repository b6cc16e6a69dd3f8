//! Why the store of threads refuses, or cannot.

use std::path::PathBuf;

use rye_engine::{Code, Error};

use crate::thread_id::ThreadId;

/// Why the store refuses, or cannot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadStoreError {
    /// The database is damaged. Nothing is removed or made anew.
    #[error("`{}` is damaged: {reason}", path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What the database says.
        reason: String,
    },
    /// A newer RYE wrote it.
    #[error("`{}` has version {found}; this rye knows versions up to {known}", path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The last version that is known.
        known: i64,
    },
    /// What the store holds of a thread is not what was written.
    #[error("the record of {thread} cannot be relied on: {what}")]
    Forged {
        /// The thread.
        thread: ThreadId,
        /// What does not fit.
        what: Forgery,
    },
    /// The store is not the one that was last used here, or an older copy of it.
    #[error("the threads in `{}` are older than when you last used them: {what}", folder.display())]
    Older {
        /// The folder of threads.
        folder: PathBuf,
        /// What is older or missing.
        what: String,
    },
    /// There is no such thread.
    #[error("there is no {0}")]
    NoThread(ThreadId),
    /// A thread of this name is there already.
    #[error("{0} is there already")]
    Exists(ThreadId),
    /// A child was asked of a thread that has ended.
    #[error("{parent} has ended: it starts no more threads")]
    ParentEnded {
        /// The parent.
        parent: ThreadId,
    },
    /// Somebody else runs the thread by now.
    #[error("{0} is now owned by another process")]
    Fenced(ThreadId),
    /// The commit contradicts what is recorded.
    #[error("{thread}: {what}")]
    Conflict {
        /// The thread.
        thread: ThreadId,
        /// What does not fit.
        what: String,
    },
    /// A number or text is larger than the store holds.
    #[error("{0} is more than the store can hold")]
    TooLarge(&'static str),
    /// A shared part is not there, or is not what its name says.
    #[error("the store has no intact part `{0}`")]
    NoBlob(String),
    /// The secret cannot be used.
    #[error("`{}` {reason}", path.display())]
    Secret {
        /// Its file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The ledger's schema cannot be used.
    #[error("the ledger's schema: {0}")]
    Schema(String),
    /// There is no such question, or it is answered.
    #[error("there is no open question `{0}`")]
    NoApproval(String),
    /// A folder of threads is a link.
    #[error(transparent)]
    Linked(#[from] lillux::file::LinkedFolder),
    /// The database or the system failed.
    #[error("the store of threads failed: {0}")]
    Failed(String),
}

/// What does not fit in a thread's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forgery {
    /// The head was not written with this user's secret.
    #[error("its head was not written with your secret (another user's, or forged)")]
    Head,
    /// Entries are missing, or there are too many.
    #[error("entries are missing from its journal, or were added")]
    Truncated,
    /// Entries are not those that were written.
    #[error("its journal was changed")]
    Changed,
    /// The registry's row is not the one that was written.
    #[error("its row in the registry was changed")]
    Row,
}

impl From<rusqlite::Error> for ThreadStoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        let is_damage = matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
            || matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::IntegralValueOutOfRange(..)
                    | rusqlite::Error::InvalidColumnType(..)
                    | rusqlite::Error::Utf8Error(..)
            );
        let reason = rye_item::text::one_line(&error.to_string());
        // The path is filled in where it is known.
        if is_damage { Self::Damaged { path: PathBuf::new(), reason } } else { Self::Failed(reason) }
    }
}

impl From<std::io::Error> for ThreadStoreError {
    fn from(error: std::io::Error) -> Self {
        match lillux::file::LinkedFolder::of(&error) {
            Some(link) => Self::Linked(link.clone()),
            None => Self::Failed(rye_item::text::one_line(&error.to_string())),
        }
    }
}

impl ThreadStoreError {
    /// The same, naming the database.
    pub(super) fn with_path(self, database: &std::path::Path) -> Self {
        match self {
            Self::Damaged { reason, .. } => Self::Damaged { path: database.to_owned(), reason },
            other => other,
        }
    }
}

impl From<ThreadStoreError> for Error {
    fn from(error: ThreadStoreError) -> Self {
        let message = error.to_string();
        match error {
            ThreadStoreError::Damaged { path, .. } => Self::new(Code::StoreDamaged, message)
                .detail("path", path.display().to_string())
                .hint("restore it from a backup; or move it away: threads in it are then forgotten"),
            // It was there when a record that names it was written.
            ThreadStoreError::NoBlob(_) => Self::new(Code::StoreDamaged, message)
                .hint("restore `.ai/threads` from a backup; or start a new thread"),
            ThreadStoreError::Newer { path, .. } => Self::new(Code::StoreNewer, message)
                .detail("path", path.display().to_string())
                .hint("use the newer rye; an older one would lose what it does not know"),
            ThreadStoreError::Forged { thread, .. } => Self::new(Code::ThreadForged, message)
                .detail("thread_id", thread.as_str())
                .hint(format!("what its transcript says: rye thread verify {thread}"))
                .hint("start a new thread: this one cannot be resumed"),
            ThreadStoreError::Older { folder, .. } => Self::new(Code::StoreOlder, message)
                .detail("path", folder.display().to_string())
                .hint("which threads are older: rye thread verify --all")
                .hint("if you restored this folder yourself: rye thread verify --accept-older"),
            ThreadStoreError::NoThread(thread) => Self::new(Code::NoThread, message)
                .detail("thread_id", thread.as_str())
                .hint("which there are: rye thread list"),
            ThreadStoreError::Fenced(thread) => Self::new(Code::ThreadHeld, message)
                .detail("thread_id", thread.as_str())
                .hint(format!("watch it: rye thread tail {thread}")),
            ThreadStoreError::NoApproval(_) => {
                Self::new(Code::NoQuestion, message).hint("which are open: rye thread list")
            }
            ThreadStoreError::Secret { path, .. } => Self::new(Code::ThreadSecret, message)
                .detail("path", path.display().to_string())
                .hint(format!(
                    "if no one else has read it: chmod 600 {}",
                    rye_item::text::shell_word(&path.display().to_string())
                ))
                .hint("otherwise remove it; threads from before can then not be resumed"),
            ThreadStoreError::Schema(_) => Self::new(Code::LedgerSchema, message)
                .hint("see where it comes from: rye config show --origin"),
            ThreadStoreError::Linked(link) => Self::linked_folder(&link),
            ThreadStoreError::Exists(_)
            | ThreadStoreError::ParentEnded { .. }
            | ThreadStoreError::Conflict { .. }
            | ThreadStoreError::TooLarge(_)
            | ThreadStoreError::Failed(_) => Self::new(Code::StoreFailed, message).hint("rye doctor"),
        }
    }
}

/// SQLite's integers are signed: what does not fit is refused, never wrapped.
pub(super) fn to_sqlite_integer(number: u64, what: &'static str) -> Result<i64, ThreadStoreError> {
    i64::try_from(number).map_err(|_| ThreadStoreError::TooLarge(what))
}
