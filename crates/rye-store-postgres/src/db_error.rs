//! What the database says, as an error of the store, and whether to try again.

use std::error::Error as _;
use std::path::PathBuf;

use rye_item::text::one_line;
use rye_store::ThreadStoreError;
use tokio_postgres::error::SqlState;

/// What an error means for the transaction it happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DbErrorKind {
    /// The store refuses. The transaction can go on if nothing of the refused work was written.
    Refused,
    /// A statement failed: the transaction can only be taken back.
    Statement,
    /// Another transaction stood in the way: the same work may succeed when it is done again.
    Contention,
    /// There is no connection, or it broke.
    Connection,
}

/// An error of the store on its way out of the database.
#[derive(Clone, Debug)]
pub(crate) struct DbError {
    pub(crate) error: ThreadStoreError,
    pub(crate) kind: DbErrorKind,
    /// The constraint that a statement would have violated.
    constraint: Option<String>,
    state: Option<SqlState>,
}

impl DbError {
    pub(crate) fn connection(reason: &str) -> Self {
        let error = ThreadStoreError::Failed(format!("the database cannot be reached: {}", one_line(reason)));
        Self { error, kind: DbErrorKind::Connection, constraint: None, state: None }
    }

    /// A row that this code did not write.
    pub(crate) fn damaged(reason: &str) -> Self {
        ThreadStoreError::Damaged { path: PathBuf::new(), reason: one_line(reason) }.into()
    }

    /// Whether a row would have been there twice, by this constraint.
    pub(crate) fn is_duplicate(&self, constraint: &str) -> bool {
        self.state == Some(SqlState::UNIQUE_VIOLATION) && self.constraint.as_deref() == Some(constraint)
    }

    /// The same failure of the statement, with this error.
    pub(crate) fn with_error(self, error: ThreadStoreError) -> Self {
        Self { error, ..self }
    }

    /// Whether the work may succeed when it is done again.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self.kind, DbErrorKind::Contention | DbErrorKind::Connection)
    }

    /// The store's error, naming the database.
    pub(crate) fn with_address(self, address: &str) -> ThreadStoreError {
        match self.error {
            ThreadStoreError::Damaged { path, reason } if path.as_os_str().is_empty() => {
                ThreadStoreError::Damaged { path: PathBuf::from(address), reason }
            }
            other => other,
        }
    }
}

impl From<ThreadStoreError> for DbError {
    fn from(error: ThreadStoreError) -> Self {
        Self { error, kind: DbErrorKind::Refused, constraint: None, state: None }
    }
}

/// The classes of SQL states in which the server ends the connection, or does not make one yet.
fn is_connection_state(state: &SqlState) -> bool {
    state.code().starts_with("08")
        || [
            SqlState::ADMIN_SHUTDOWN,
            SqlState::CRASH_SHUTDOWN,
            SqlState::CANNOT_CONNECT_NOW,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        ]
        .contains(state)
}

impl From<tokio_postgres::Error> for DbError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(reported) = error.as_db_error() else {
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            let reason = one_line(&format!("{error}{cause}"));
            let is_io = error.is_closed()
                || error.source().is_some_and(|source| source.downcast_ref::<std::io::Error>().is_some())
                || reason.contains("error connecting")
                || reason.contains("timeout");
            return if is_io { Self::connection(&reason) } else { Self::damaged(&reason) };
        };
        let state = reported.code().clone();
        let kind = match &state {
            state if is_connection_state(state) => DbErrorKind::Connection,
            state
                if [
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::LOCK_NOT_AVAILABLE,
                    SqlState::FOREIGN_KEY_VIOLATION,
                ]
                .contains(state) =>
            {
                DbErrorKind::Contention
            }
            _ => DbErrorKind::Statement,
        };
        let message = one_line(reported.message());
        let is_outgrown = [SqlState::NUMERIC_VALUE_OUT_OF_RANGE, SqlState::CHECK_VIOLATION].contains(&state);
        let is_damage = [SqlState::DATA_CORRUPTED, SqlState::INDEX_CORRUPTED].contains(&state);
        let shown = match kind {
            _ if is_outgrown => ThreadStoreError::TooLarge("a sum in the ledger"),
            _ if is_damage => ThreadStoreError::Damaged { path: PathBuf::new(), reason: message },
            DbErrorKind::Connection => {
                ThreadStoreError::Failed(format!("the database cannot be reached: {message}"))
            }
            DbErrorKind::Refused | DbErrorKind::Statement | DbErrorKind::Contention => {
                ThreadStoreError::Failed(format!("{message} ({})", state.code()))
            }
        };
        Self { error: shown, kind, constraint: reported.constraint().map(str::to_owned), state: Some(state) }
    }
}

/// PostgreSQL's integers are signed: what does not fit is refused, never wrapped.
pub(crate) fn to_integer(number: u64, what: &'static str) -> Result<i64, DbError> {
    i64::try_from(number).map_err(|_| ThreadStoreError::TooLarge(what).into())
}

/// A number of the database that is never negative.
pub(crate) fn to_number(number: i64) -> Result<u64, DbError> {
    u64::try_from(number).map_err(|_| DbError::damaged("a number is negative"))
}

/// A text as PostgreSQL can hold it: it has no NUL character.
pub(crate) fn to_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
