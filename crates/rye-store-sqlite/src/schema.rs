//! The layout of the database, and the way from one version to the next.

use rusqlite::{Connection, OptionalExtension};
use serde_json::Value;

use super::DbError;
use super::row_seal::{self, RowSealer};
use super::secret::Mac;
use rye_store::{LedgerRules, ThreadStoreError};

/// The version this code reads and writes.
pub(super) const VERSION: i64 = 5;

/// What settings say about the ledger's table: columns and indexes beyond those the store needs.
///
/// The store's own columns have fixed types, money in whole nano-dollars, whatever the settings call them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LedgerSpec {
    /// Columns.
    pub columns: Vec<ColumnSpec>,
    /// Indexes.
    pub indexes: Vec<IndexSpec>,
    /// The rules of booking.
    pub rules: LedgerRules,
}

/// A column of the ledger.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSpec {
    /// Its name: `[a-z_]+`.
    pub name: String,
    /// Its type: `TEXT`, `INTEGER`, `REAL` or `BLOB`.
    pub sql_type: String,
    /// Whether it may be empty.
    pub is_nullable: bool,
    /// What it holds unless something else is said: text, number or nothing.
    pub default: Option<Value>,
}

/// An index of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// Its name: `[a-z_]+`.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
}

/// The columns that the store itself needs.
const BUILTIN_COLUMNS: [&str; 18] = [
    "thread",
    "parent",
    "thread_id",
    "parent_thread_id",
    "reserved_spend",
    "actual_spend",
    "max_spend",
    "status",
    "created_at",
    "updated_at",
    "reserved_tokens",
    "actual_tokens",
    "max_tokens",
    "subtree_spend",
    "subtree_reserved",
    "subtree_tokens",
    "subtree_reserved_tokens",
    "unknown_spend",
];

/// Brings the database to this version and this schema, in one transaction that the caller has begun.
pub(super) fn migrate(connection: &Connection, spec: &LedgerSpec, mac: &Mac) -> Result<(), DbError> {
    let found = version(connection)?;
    create_tables(connection, found, VERSION)?;
    if found < 3 {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| DbError::from(ThreadStoreError::Failed(error.to_string())))?;
        let store = i64::from_be_bytes(bytes) & i64::MAX;
        connection.execute("INSERT INTO facts (name, value) VALUES (?1, ?2)", (STORE_ID_KEY, store))?;
        row_seal::seal_all(connection, &RowSealer { mac: mac.clone(), store })?;
    }
    if found < VERSION {
        connection.pragma_update(None, "user_version", VERSION)?;
    }
    extend_ledger(connection, spec)
}

/// Makes the tables and indexes of the versions after `from`, up to `to`.
pub(super) fn create_tables(connection: &Connection, from: i64, to: i64) -> Result<(), DbError> {
    for (migration, version) in MIGRATIONS.into_iter().zip(1..) {
        if from < version && version <= to {
            connection.execute_batch(migration)?;
        }
    }
    Ok(())
}

/// The statements by which settings made the ledger of `found` from that of `own`, as far as settings can.
pub(super) fn added_statements(found: &Connection, own: &Connection) -> Result<Vec<String>, DbError> {
    let mut statements = Vec::new();
    let known = ledger_names(own, LEDGER_COLUMNS)?;
    let mut columns = found.prepare(
        "SELECT name, type, \"notnull\", coalesce(dflt_value, '') FROM pragma_table_info('budget_ledger')",
    )?;
    let rows = columns.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, bool>(2)?, row.get(3)?))
    })?;
    for row in rows {
        let (name, sql_type, is_required, default): (String, String, bool, String) = row?;
        let is_plain = is_name(&name) && SQL_TYPES.contains(&sql_type.as_str()) && is_literal(&default);
        if is_plain && !known.contains(&name) {
            statements.push(add_column(&name, &sql_type, !is_required, &default));
        }
    }
    let known = ledger_names(own, LEDGER_INDEXES)?;
    for index in ledger_names(found, LEDGER_INDEXES)? {
        if known.contains(&index) || !is_name(&index) {
            continue;
        }
        let mut columns = found.prepare("SELECT name FROM pragma_index_info(?1) ORDER BY seqno")?;
        let columns: Vec<Option<String>> =
            columns.query_map([&index], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let columns: Option<Vec<String>> = columns.into_iter().collect();
        let plain = columns.filter(|columns| !columns.is_empty() && columns.iter().all(|name| is_name(name)));
        statements.extend(plain.map(|columns| add_index(&index, &columns)));
    }
    Ok(statements)
}

/// Whether a text is a value as [`sql_literal`] writes one.
fn is_literal(text: &str) -> bool {
    let quoted = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
    match quoted {
        Some(inner) => !inner.replace("''", "").contains(['\'', '\0']),
        None => text == "NULL" || text.parse::<f64>().is_ok_and(f64::is_finite),
    }
}

/// Whether nothing is to be done to the database.
pub(super) fn is_current(connection: &Connection, spec: &LedgerSpec) -> Result<bool, DbError> {
    Ok(version(connection)? == VERSION && missing_statements(connection, spec)?.is_empty())
}

pub(super) fn version(connection: &Connection) -> Result<i64, DbError> {
    Ok(connection.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// What `facts` calls the store's own number.
const STORE_ID_KEY: &str = "store";

/// The store's own number: a copy has the same one, a new store another.
pub(super) fn store_id(connection: &Connection) -> Result<Option<i64>, DbError> {
    let find = "SELECT value FROM facts WHERE name = ?1";
    Ok(connection.query_row(find, [STORE_ID_KEY], |row| row.get(0)).optional()?)
}

/// Whether the database has any table.
pub(super) fn has_tables(connection: &Connection) -> Result<bool, DbError> {
    let find = "SELECT EXISTS (SELECT 1 FROM sqlite_schema)";
    Ok(connection.query_row(find, [], |row| row.get(0))?)
}

/// Whether the store has no thread.
pub(super) fn is_empty(connection: &Connection) -> Result<bool, DbError> {
    let find = "SELECT NOT EXISTS (SELECT 1 FROM threads)";
    Ok(connection.query_row(find, [], |row| row.get(0))?)
}

fn extend_ledger(connection: &Connection, spec: &LedgerSpec) -> Result<(), DbError> {
    for statement in missing_statements(connection, spec)? {
        connection.execute_batch(&statement).map_err(|error| {
            DbError::from(ThreadStoreError::Schema(rye_item::text::one_line(&error.to_string())))
        })?;
    }
    Ok(())
}

/// What is to be said to the database so that the ledger is as the settings want it.
fn missing_statements(connection: &Connection, spec: &LedgerSpec) -> Result<Vec<String>, DbError> {
    validate(spec)?;
    let columns = ledger_names(connection, LEDGER_COLUMNS)?;
    let indexes = ledger_names(connection, LEDGER_INDEXES)?;
    let mut statements = Vec::new();
    for column in spec.columns.iter().filter(|column| !columns.contains(&column.name)) {
        let default = column.default.as_ref().and_then(sql_literal).unwrap_or_else(|| "NULL".to_owned());
        statements.push(add_column(&column.name, &column.sql_type, column.is_nullable, &default));
    }
    for index in spec.indexes.iter().filter(|index| !indexes.contains(&index.name)) {
        statements.push(add_index(&index.name, &index.columns));
    }
    Ok(statements)
}

const LEDGER_COLUMNS: &str = "SELECT name FROM pragma_table_info('budget_ledger')";
const LEDGER_INDEXES: &str =
    "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'budget_ledger' ORDER BY rowid";

fn ledger_names(connection: &Connection, sql: &str) -> Result<Vec<String>, DbError> {
    let mut statement = connection.prepare(sql)?;
    let names = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(names)
}

fn add_column(name: &str, sql_type: &str, is_nullable: bool, default: &str) -> String {
    let null = if is_nullable { "" } else { " NOT NULL" };
    format!("ALTER TABLE budget_ledger ADD COLUMN \"{name}\" {sql_type}{null} DEFAULT {default}")
}

fn add_index(name: &str, columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| format!("\"{column}\"")).collect();
    format!("CREATE INDEX \"{name}\" ON budget_ledger ({})", columns.join(", "))
}

/// The types a column of settings may have.
const SQL_TYPES: [&str; 4] = ["TEXT", "INTEGER", "REAL", "BLOB"];

/// Names of columns and indexes in settings.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn validate(spec: &LedgerSpec) -> Result<(), DbError> {
    let invalid = |what: String| Err(DbError::from(ThreadStoreError::Schema(what)));
    let shown = rye_item::text::one_line;
    for column in &spec.columns {
        if !is_name(&column.name) {
            return invalid(format!(
                "`{}` is not a name for a column: a to z and _ are",
                shown(&column.name)
            ));
        }
        if BUILTIN_COLUMNS.contains(&column.name.as_str()) {
            continue;
        }
        if !SQL_TYPES.contains(&column.sql_type.as_str()) {
            return invalid(format!(
                "`{}` is not a type; there are TEXT, INTEGER, REAL, BLOB",
                shown(&column.sql_type)
            ));
        }
        let default = column.default.as_ref();
        if default.is_some_and(|default| sql_literal(default).is_none()) {
            return invalid(format!("the default of column `{}` is neither text nor number", column.name));
        }
        if !column.is_nullable && default.is_none_or(Value::is_null) {
            return invalid(format!("column `{}` needs a default, or `nullable: true`", column.name));
        }
    }
    for index in &spec.indexes {
        let is_column = |name: &String| {
            BUILTIN_COLUMNS.contains(&name.as_str()) || spec.columns.iter().any(|column| column.name == *name)
        };
        if !is_name(&index.name) {
            return invalid(format!("`{}` is not a name for an index: a to z and _ are", shown(&index.name)));
        }
        if index.columns.is_empty() || !index.columns.iter().all(is_column) {
            return invalid(format!("index `{}` names no column, or one that is not there", index.name));
        }
    }
    Ok(())
}

/// A value as SQL writes it.
fn sql_literal(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("NULL".to_owned()),
        Value::Bool(value) => Some(i64::from(*value).to_string()),
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) if !text.contains('\0') => Some(format!("'{}'", text.replace('\'', "''"))),
        Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// One script for each version, from the first.
const MIGRATIONS: [&str; 5] = [
    MIGRATION_1_TABLES,
    MIGRATION_2_DETACHED,
    MIGRATION_3_ROW_SEAL,
    MIGRATION_4_WAITS,
    MIGRATION_5_CANCEL_REQUESTS,
];

/// Threads that run without the command that started them, and a note about the last attempt to resume one.
const MIGRATION_2_DETACHED: &str = "
ALTER TABLE threads ADD COLUMN detached INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN note TEXT;
CREATE INDEX threads_detached ON threads (thread) WHERE detached = 1 AND completed_at IS NULL;
";

/// The seal of a thread's row, and how often it was renewed.
const MIGRATION_3_ROW_SEAL: &str = "
ALTER TABLE threads ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN row_mac BLOB NOT NULL DEFAULT x'';
";

/// Threads that wait for reserved money, or for a place among their parent's children.
const MIGRATION_4_WAITS: &str = "
CREATE TABLE IF NOT EXISTS waits (
    thread INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    ticket INTEGER NOT NULL,
    blocked_by INTEGER,
    spend INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
) STRICT;
";

const MIGRATION_5_CANCEL_REQUESTS: &str = "
CREATE TABLE IF NOT EXISTS cancel_requests (
    thread INTEGER PRIMARY KEY,
    reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;
";

/// Strict tables refuse a sum that has outgrown whole numbers, where others would turn it into a rounded one.
///
/// Times that people read are text in UTC; money is in nano-dollars. `thread` is the number by which tables name a thread.
const MIGRATION_1_TABLES: &str = "
CREATE TABLE threads (
    thread INTEGER PRIMARY KEY,
    thread_id TEXT NOT NULL UNIQUE,
    directive TEXT NOT NULL,
    title TEXT NOT NULL,
    parent INTEGER REFERENCES threads (thread),
    parent_id TEXT,
    root INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'created',
    reason TEXT,
    result TEXT,
    error TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    completed_at TEXT,
    turns INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    spend INTEGER NOT NULL DEFAULT 0,
    elapsed_ms INTEGER NOT NULL DEFAULT 0,
    limits TEXT NOT NULL,
    spawn_count INTEGER NOT NULL DEFAULT 0,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    continuation_of TEXT,
    continuation_thread_id TEXT,
    chain_root_id TEXT,
    pid INTEGER,
    pid_start INTEGER,
    boot_id TEXT,
    host TEXT,
    epoch INTEGER NOT NULL,
    heartbeat_ms INTEGER NOT NULL,
    head_seq INTEGER NOT NULL,
    head_hash BLOB NOT NULL,
    head_mac BLOB NOT NULL,
    max_spend INTEGER,
    max_tokens INTEGER,
    transcript_sequence INTEGER,
    transcript_hash BLOB
) STRICT;
CREATE INDEX threads_parent ON threads (parent);
CREATE INDEX threads_root ON threads (root);
CREATE INDEX threads_status ON threads (status);
CREATE INDEX threads_live_children ON threads (parent) WHERE completed_at IS NULL;
CREATE INDEX threads_live_tree ON threads (root) WHERE completed_at IS NULL;
CREATE INDEX threads_pid ON threads (pid) WHERE pid IS NOT NULL;

CREATE TABLE journal (
    entry INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX journal_thread ON journal (thread, seq);

CREATE TABLE budget_ledger (
    thread INTEGER PRIMARY KEY,
    parent INTEGER,
    thread_id TEXT NOT NULL UNIQUE,
    parent_thread_id TEXT,
    reserved_spend INTEGER NOT NULL DEFAULT 0,
    actual_spend INTEGER NOT NULL DEFAULT 0,
    max_spend INTEGER,
    status TEXT NOT NULL DEFAULT 'active',
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    reserved_tokens INTEGER NOT NULL DEFAULT 0,
    actual_tokens INTEGER NOT NULL DEFAULT 0,
    max_tokens INTEGER,
    subtree_spend INTEGER NOT NULL DEFAULT 0,
    subtree_reserved INTEGER NOT NULL DEFAULT 0,
    subtree_tokens INTEGER NOT NULL DEFAULT 0,
    subtree_reserved_tokens INTEGER NOT NULL DEFAULT 0,
    unknown_spend INTEGER NOT NULL DEFAULT 0,
    CHECK (reserved_spend >= 0 AND actual_spend >= 0 AND reserved_tokens >= 0 AND actual_tokens >= 0 AND subtree_spend >= 0
        AND subtree_reserved >= 0 AND subtree_tokens >= 0 AND subtree_reserved_tokens >= 0)
) STRICT;

CREATE TABLE calls (
    thread INTEGER NOT NULL,
    call INTEGER NOT NULL,
    reserved_spend INTEGER NOT NULL,
    reserved_tokens INTEGER NOT NULL,
    is_settled INTEGER NOT NULL DEFAULT 0,
    is_unknown INTEGER NOT NULL DEFAULT 0,
    spend INTEGER NOT NULL DEFAULT 0,
    passed_on INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    item TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '',
    tool TEXT,
    hook TEXT,
    PRIMARY KEY (thread, call)
) WITHOUT ROWID, STRICT;

CREATE TABLE blobs (
    blob INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    at_ms INTEGER NOT NULL,
    bytes BLOB NOT NULL
) STRICT;
CREATE TABLE uses (
    thread INTEGER NOT NULL,
    blob INTEGER NOT NULL,
    PRIMARY KEY (thread, blob)
) WITHOUT ROWID, STRICT;
CREATE INDEX uses_blob ON uses (blob);

CREATE TABLE approvals (
    id TEXT NOT NULL PRIMARY KEY,
    thread INTEGER NOT NULL,
    kind TEXT NOT NULL,
    what TEXT NOT NULL,
    why TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    detail TEXT NOT NULL,
    mac BLOB NOT NULL,
    answer TEXT,
    answer_mac BLOB
) STRICT;
CREATE INDEX approvals_thread ON approvals (thread);

CREATE TABLE facts (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT;
";
