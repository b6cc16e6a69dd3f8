//! Where the database is, and how a connection to it is made.
//!
//! The address holds no password: that comes from a file or a variable, is asked for at each connection, and appears in no
//! message.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rye_item::text::one_line;
use rye_store::ThreadStoreError;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::db_error::DbError;
use crate::tls::MakeRustls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// After so long without a word from a network peer the connection counts as broken.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A transaction that its process leaves open for so long is taken back, and its locks with it: the process is frozen.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "4s";

/// The channel of notifications is called after the schema, and may have 63 bytes.
const MAX_SCHEMA_BYTES: usize = 58;

/// Longer than any wait for a lock that is given up in time.
const LOCK_TIMEOUT: &str = "20s";

/// Gives the password, or says why there is none.
pub type PasswordSource = Arc<dyn Fn() -> Result<Option<String>, String> + Send + Sync>;

/// A database and a schema in it.
#[derive(Clone)]
pub struct PostgresAddress {
    config: Config,
    schema: String,
    password: PasswordSource,
    certificates: Option<PathBuf>,
    needs_tls: bool,
    tls: Arc<OnceLock<Result<MakeRustls, String>>>,
}

impl fmt::Debug for PostgresAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PostgresAddress({self})")
    }
}

/// The database that an address names, as files of passwords name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// The host, or the folder of its socket.
    pub host: String,
    /// The port.
    pub port: String,
    /// The database.
    pub database: String,
    /// The role.
    pub user: String,
}

impl fmt::Display for PostgresAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerName { host, port, database, user } = self.server();
        let shown = format!("postgres://{user}@{host}:{port}/{database} (schema {})", self.schema);
        formatter.write_str(&one_line(&shown))
    }
}

impl PostgresAddress {
    /// Reads an address like `postgres://user@host:5432/database`.
    ///
    /// # Errors
    /// When it is none, holds a password, names a remote host without TLS, or the schema's name is none.
    pub fn parse(url: &str, schema: &str) -> Result<Self, ThreadStoreError> {
        let invalid = |reason: &str| ThreadStoreError::Failed(format!("invalid store address: {reason}"));
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(invalid("it begins with postgres://"));
        }
        // The parser's own message may repeat parts of the text, and with them a password.
        let mut config =
            Config::from_str(url).map_err(|_| invalid("expected postgres://user@host:5432/database"))?;
        if config.get_password().is_some() {
            return Err(invalid("it holds a password; name a file or a variable that has it"));
        }
        if config.get_user().is_none() || config.get_dbname().is_none() {
            return Err(invalid("it names no user or no database"));
        }
        if config.get_options().is_some() || !config.get_hostaddrs().is_empty() {
            return Err(invalid("`options` and `hostaddr` are not supported"));
        }
        let is_remote = config.get_hosts().iter().any(|host| !is_local(host));
        let needs_tls = is_remote || config.get_ssl_mode() == SslMode::Require;
        if is_remote && config.get_ssl_mode() == SslMode::Disable {
            return Err(invalid("`sslmode=disable` is for this machine only"));
        }
        config.ssl_mode(if needs_tls { SslMode::Require } else { SslMode::Disable });
        config.application_name("rye");
        config.connect_timeout(CONNECT_TIMEOUT);
        config.keepalives(true);
        config.keepalives_idle(Duration::from_secs(10));
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
        let is_name = !schema.is_empty()
            && schema.len() <= MAX_SCHEMA_BYTES
            && schema.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
            && !schema.starts_with("pg_")
            && !schema.as_bytes().first().is_some_and(u8::is_ascii_digit);
        if !is_name {
            let shown = one_line(schema);
            return Err(invalid(&format!("`{shown}` is not a schema name: a to z, 0 to 9 and _ are")));
        }
        Ok(Self {
            config,
            schema: schema.to_owned(),
            password: Arc::new(|| Ok(None)),
            certificates: None,
            needs_tls,
            tls: Arc::default(),
        })
    }

    /// The same, with a password.
    #[must_use]
    pub fn with_password(self, password: PasswordSource) -> Self {
        Self { password, ..self }
    }

    /// The same, with the server's certificate checked against those in this file.
    #[must_use]
    pub fn with_certificates(self, file: PathBuf) -> Self {
        Self { certificates: Some(file), tls: Arc::default(), ..self }
    }

    /// The database it names.
    #[must_use]
    pub fn server(&self) -> ServerName {
        let user = self.config.get_user().unwrap_or("").to_owned();
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432).to_string();
        let database = self.config.get_dbname().map_or_else(|| user.clone(), str::to_owned);
        ServerName { host, port, database, user }
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// What to connect with.
    pub(crate) fn config(&self) -> Result<Config, DbError> {
        let mut config = self.config.clone();
        match (self.password)() {
            Ok(Some(password)) => {
                config.password(password);
            }
            Ok(None) => {}
            Err(reason) => {
                let reason = format!("the password of the database: {}", one_line(&reason));
                return Err(ThreadStoreError::Failed(reason).into());
            }
        }
        Ok(config)
    }

    /// TLS, unless the database is on this machine and the address does not ask for it.
    pub(crate) fn tls(&self) -> Result<Option<MakeRustls>, DbError> {
        if !self.needs_tls {
            return Ok(None);
        }
        let make = || {
            let config = lillux::http::tls_client_config(self.certificates.as_deref())?;
            Ok(MakeRustls(Arc::new(config)))
        };
        let tls = self.tls.get_or_init(make).clone();
        tls.map(Some).map_err(|reason| ThreadStoreError::Failed(reason).into())
    }

    /// The channel of notifications.
    pub(crate) fn channel(&self) -> String {
        format!("rye_{}", self.schema)
    }

    /// What each connection begins with.
    pub(crate) fn session_settings(&self) -> String {
        format!(
            "SET search_path TO \"{}\"; SET synchronous_commit TO on; SET default_transaction_isolation TO 'read committed';
             SET idle_in_transaction_session_timeout TO '{IDLE_IN_TRANSACTION_TIMEOUT}'; SET lock_timeout TO '{LOCK_TIMEOUT}';
             SET client_min_messages TO warning;",
            self.schema
        )
    }
}

/// Whether a host is this machine.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_never_shows_or_holds_a_password() {
        let refused = PostgresAddress::parse("postgres://rye:s3cret@db/rye", "rye").expect_err("refused");
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
        let address = PostgresAddress::parse("postgres://rye@db:6000/team", "rye").expect("an address");
        let address = address.with_password(Arc::new(|| Ok(Some("s3cret".to_owned()))));
        assert_eq!(address.to_string(), "postgres://rye@db:6000/team (schema rye)");
        assert!(!format!("{address:?}").contains("s3cret"));
    }

    #[test]
    fn remote_hosts_need_tls() {
        let mode = |url: &str| PostgresAddress::parse(url, "rye").map(|address| address.needs_tls);
        assert_eq!(mode("postgres://rye@db.example/team"), Ok(true));
        assert_eq!(mode("postgres://rye@db.example/team?sslmode=prefer"), Ok(true));
        assert!(mode("postgres://rye@db.example/team?sslmode=disable").is_err());
        assert_eq!(mode("postgres://rye@127.0.0.1/team"), Ok(false));
        assert_eq!(mode("postgres://rye@127.0.0.1/team?sslmode=require"), Ok(true));
        assert_eq!(mode("postgres://rye@localhost,db.example/team"), Ok(true));
        assert_eq!(mode("postgres://rye@/team?host=/var/run/postgresql"), Ok(false));
    }

    #[test]
    fn schema_names_are_plain() {
        for name in ["", "Rye", "rye\"; DROP", "pg_rye", "1rye", &"r".repeat(61)] {
            assert!(PostgresAddress::parse("postgres://rye@localhost/team", name).is_err(), "{name}");
        }
    }
}
