//! One connection to the database, with its prepared statements.

use std::cell::RefCell;
use std::collections::HashMap;

use tokio_postgres::tls::NoTls;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Row, Statement};

use crate::address::PostgresAddress;
use crate::db_error::DbError;

/// A value of a statement.
pub(crate) type SqlValue<'a> = &'a (dyn ToSql + Sync);

/// An open connection. Its own task drives it and ends with it.
pub(crate) struct Db {
    client: Client,
    statements: RefCell<HashMap<&'static str, Statement>>,
}

/// What the server says without being asked; `None` ends it.
pub(crate) type ServerMessages = tokio::sync::mpsc::UnboundedReceiver<()>;

impl Db {
    /// Connects. What `password` gives is used once and forgotten.
    pub(crate) async fn connect(address: &PostgresAddress) -> Result<(Self, ServerMessages), DbError> {
        let config = address.config()?;
        let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
        let client = match address.tls()? {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                drive(connection, sender);
                client
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls).await?;
                drive(connection, sender);
                client
            }
        };
        let db = Self { client, statements: RefCell::default() };
        db.batch(&address.session_settings()).await?;
        Ok((db, messages))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without values.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), DbError> {
        Ok(self.client.batch_execute(sql).await?)
    }

    async fn statement(&self, sql: &'static str) -> Result<Statement, DbError> {
        let known = self.statements.borrow().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.borrow_mut().insert(sql, statement.clone());
        Ok(statement)
    }

    /// Has statements prepared, so that they can be sent together without waiting.
    pub(crate) async fn prepare(&self, statements: &[&'static str]) -> Result<(), DbError> {
        for sql in statements {
            self.statement(sql).await?;
        }
        Ok(())
    }

    /// All rows that a statement gives.
    pub(crate) async fn query(
        &self,
        sql: &'static str,
        values: &[SqlValue<'_>],
    ) -> Result<Vec<Row>, DbError> {
        let statement = self.statement(sql).await?;
        Ok(self.client.query(&statement, values).await?)
    }

    /// The first row that a statement gives, if there is one.
    pub(crate) async fn query_opt(
        &self,
        sql: &'static str,
        values: &[SqlValue<'_>],
    ) -> Result<Option<Row>, DbError> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }

    /// The one value that a statement gives.
    pub(crate) async fn query_value<T>(
        &self,
        sql: &'static str,
        values: &[SqlValue<'_>],
    ) -> Result<T, DbError>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let row = self.query_opt(sql, values).await?;
        let row = row.ok_or_else(|| DbError::damaged("a question has no answer"))?;
        Ok(row.try_get(0)?)
    }

    /// Executes a statement; gives how many rows it changed.
    pub(crate) async fn execute(&self, sql: &'static str, values: &[SqlValue<'_>]) -> Result<u64, DbError> {
        let statement = self.statement(sql).await?;
        Ok(self.client.execute(&statement, values).await?)
    }
}

/// Drives a connection until it ends, and passes on that something was notified.
fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    sender: tokio::sync::mpsc::UnboundedSender<()>,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    tokio::task::spawn_local(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => {
                    // Without a receiver it is dropped.
                    let _ = sender.send(());
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            }
        }
    });
}
