//! Why the store of threads refuses, or cannot.

use std::path::PathBuf;

use rye_thread::thread_id::ThreadId;

/// Why the store refuses, or cannot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThreadStoreError {
    /// The database is damaged. Nothing is removed or rebuilt.
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
    /// The database is missing or empty, beside the folders of its threads.
    #[error("`{}` is missing or empty, beside {}", path.display(), rye_item::text::counted(*folders, "thread folder"))]
    Lost {
        /// The database.
        path: PathBuf,
        /// How many folders of threads there are.
        folders: usize,
    },
    /// The secret is gone, though threads were sealed with it.
    #[error("`{}` is missing: your threads are sealed with it", path.display())]
    SecretLost {
        /// Its file.
        path: PathBuf,
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
    /// Another process runs the thread now.
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
    /// A process runs the thread, and what was asked needs it to stand still.
    #[error("{thread} is running")]
    Running {
        /// The thread.
        thread: ThreadId,
    },
    /// A number or text is larger than the store holds.
    #[error("too large for the store: {0}")]
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
    /// The key that signs here is not that of a person.
    #[error("answer refused: {0} is a worker's key")]
    AnswerRefused(String),
    /// A folder of threads is a link.
    #[error("`{}` is a link, and nothing is written or removed through links there", .0.display())]
    Linked(PathBuf),
    /// The database or the system failed.
    #[error("the store of threads failed: {0}")]
    Failed(String),
}

/// What does not fit in a thread's record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The ledger names another parent or other maxima than the registry.
    #[error("its row of the ledger was changed: the parent or a maximum is not the one in the registry")]
    Ledger,
    /// The key that signed it was revoked.
    #[error("{what} is refused: the key {key} was revoked")]
    RevokedKey {
        /// What it signed.
        what: &'static str,
        /// Its fingerprint.
        key: String,
    },
}
