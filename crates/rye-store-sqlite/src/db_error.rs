//! What the database says, as an error of the store.

use std::path::{Path, PathBuf};

use rye_store::ThreadStoreError;

/// An error of the store on its way out of the database: the database's path is not in it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DbError(ThreadStoreError);

impl DbError {
    /// The store's error, naming the database.
    pub(crate) fn with_path(self, database: &Path) -> ThreadStoreError {
        match self.0 {
            ThreadStoreError::Damaged { reason, .. } => {
                ThreadStoreError::Damaged { path: database.to_owned(), reason }
            }
            other => other,
        }
    }
}

impl From<DbError> for ThreadStoreError {
    fn from(error: DbError) -> Self {
        error.0
    }
}

impl From<ThreadStoreError> for DbError {
    fn from(error: ThreadStoreError) -> Self {
        Self(error)
    }
}

impl From<rusqlite::Error> for DbError {
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
        Self(if is_damage {
            ThreadStoreError::Damaged { path: PathBuf::new(), reason }
        } else {
            ThreadStoreError::Failed(reason)
        })
    }
}

impl From<std::io::Error> for DbError {
    fn from(error: std::io::Error) -> Self {
        Self(match lillux::file::LinkedFolder::of(&error) {
            Some(link) => ThreadStoreError::Linked(link.path.clone()),
            None => ThreadStoreError::Failed(rye_item::text::one_line(&error.to_string())),
        })
    }
}

/// SQLite's integers are signed: what does not fit is refused, never wrapped.
pub(crate) fn to_sqlite_integer(number: u64, what: &'static str) -> Result<i64, DbError> {
    i64::try_from(number).map_err(|_| ThreadStoreError::TooLarge(what).into())
}
