//! What a store of threads refuses, as users see it.

use rye_store::ThreadStoreError;

use crate::{Code, Error};

impl From<ThreadStoreError> for Error {
    fn from(error: ThreadStoreError) -> Self {
        let message = error.to_string();
        match error {
            ThreadStoreError::Damaged { path, .. } => Self::new(Code::StoreDamaged, message)
                .detail("path", path.display().to_string())
                .hint("restore it from a backup; or list its threads again from their folders: rye thread rebuild"),
            ThreadStoreError::Lost { path, .. } => Self::new(Code::StoreLost, message)
                .detail("path", path.display().to_string())
                .hint("restore it from a backup; or list its threads again from their folders: rye thread rebuild"),
            ThreadStoreError::SecretLost { path } => Self::new(Code::ThreadSecret, message)
                .detail("path", path.display().to_string())
                .hint("restore it from a backup; then every thread can be resumed")
                .hint("without one, list the threads here again from their folders: rye thread rebuild"),
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
            ThreadStoreError::Running { thread } => Self::new(Code::ThreadHeld, message)
                .hint(format!("wait for it, or end it: rye thread cancel {thread}")),
            ThreadStoreError::NoApproval(_) => {
                Self::new(Code::NoQuestion, message).hint("which are open: rye thread list")
            }
            ThreadStoreError::AnswerRefused(_) => Self::new(Code::StoreUnusable, message)
                .hint("answer with the key of a person who is listed in threads.stores.NAME.users"),
            ThreadStoreError::Secret { path, .. } => Self::new(Code::ThreadSecret, message)
                .detail("path", path.display().to_string())
                .hint(format!(
                    "if no one else has read it: chmod 600 {}",
                    rye_item::text::shell_word(&path.display().to_string())
                ))
                .hint("otherwise remove it, then: rye thread rebuild; threads from before cannot be resumed then"),
            ThreadStoreError::Schema(_) => Self::new(Code::LedgerSchema, message)
                .hint("see where it comes from: rye config show --origin"),
            ThreadStoreError::Linked(path) => Self::linked_folder(&lillux::file::LinkedFolder { path }),
            ThreadStoreError::Exists(_)
            | ThreadStoreError::ParentEnded { .. }
            | ThreadStoreError::Conflict { .. }
            | ThreadStoreError::TooLarge(_)
            | ThreadStoreError::Failed(_) => Self::new(Code::StoreFailed, message).hint("rye doctor"),
        }
    }
}
