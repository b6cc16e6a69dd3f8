//! The layout of the database, and the way from one version to the next. There is no way back.

use std::path::PathBuf;

use rye_store::ThreadStoreError;

use crate::address::PostgresAddress;
use crate::db::Db;
use crate::db_error::DbError;

/// The version this code reads and writes.
pub(crate) const VERSION: i64 = 2;

/// The steps from each version to the next.
const MIGRATIONS: [&str; 2] = [MIGRATION_1_TABLES, MIGRATION_2_WORKERS];

/// The version of a schema; 0 when there is none.
pub(crate) async fn version(db: &Db, address: &PostgresAddress) -> Result<i64, DbError> {
    // The catalog is read as a table: what a function says of names may be older than the lock that was just waited for.
    let find = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace
            ON pg_namespace.oid = relnamespace WHERE nspname = $1 AND relname = 'schema_versions')";
    match db.query_value::<bool>(find, &[&address.schema()]).await? {
        true => db.query_value("SELECT coalesce(max(version), 0) FROM schema_versions", &[]).await,
        false => Ok(0),
    }
}

/// Refuses a schema that newer code wrote.
pub(crate) fn check_version(found: i64, address: &PostgresAddress) -> Result<(), DbError> {
    if found > VERSION {
        let path = PathBuf::from(address.to_string());
        return Err(ThreadStoreError::Newer { path, found, known: VERSION }.into());
    }
    Ok(())
}

/// Brings a schema to this version. Of several processes one does it, and the others wait.
pub(crate) async fn migrate(db: &Db, address: &PostgresAddress) -> Result<(), DbError> {
    db.batch("BEGIN").await?;
    let migrated = migrate_within(db, address).await;
    match migrated {
        Ok(()) => db.batch("COMMIT").await,
        Err(error) => {
            // The connection is closed next, which takes the transaction back as well.
            let _ = db.batch("ROLLBACK").await;
            Err(error)
        }
    }
}

async fn migrate_within(db: &Db, address: &PostgresAddress) -> Result<(), DbError> {
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended('rye schema ' || $1, 0))::text";
    db.query(lock, &[&address.schema()]).await?;
    let found = version(db, address).await?;
    check_version(found, address)?;
    if found == 0 {
        db.batch(&format!("CREATE SCHEMA IF NOT EXISTS \"{}\"", address.schema())).await?;
    }
    let pending = MIGRATIONS.iter().zip(1_i64..).filter(|(_, version)| *version > found);
    for (statements, version) in pending {
        db.batch(statements).await?;
        db.execute("INSERT INTO schema_versions (version) VALUES ($1)", &[&version]).await?;
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
    let store = i64::from_be_bytes(bytes) & i64::MAX;
    let name = "INSERT INTO facts (name, value) VALUES ('store', $1) ON CONFLICT DO NOTHING";
    db.execute(name, &[&store]).await?;
    Ok(())
}

/// The store's own number: a copy has the same one, a new store another.
pub(crate) async fn store_id(db: &Db) -> Result<i64, DbError> {
    db.query_value("SELECT value FROM facts WHERE name = 'store'", &[]).await
}

/// Times that people read are text in UTC; money is in nano-dollars; `thread` is the number by which tables name a thread.
/// `lease_ms` and `seen_ms` are times of the database's clock.
const MIGRATION_1_TABLES: &str = "
CREATE TABLE schema_versions (version BIGINT PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT now());
CREATE TABLE facts (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE writers (writer BIGINT PRIMARY KEY, batch BIGINT NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now())
    WITH (fillfactor = 20);
CREATE SEQUENCE thread_numbers;
CREATE SEQUENCE tickets;

CREATE TABLE threads (
    thread BIGINT PRIMARY KEY,
    thread_id TEXT NOT NULL CONSTRAINT threads_thread_id UNIQUE,
    directive TEXT NOT NULL,
    title TEXT NOT NULL,
    parent BIGINT REFERENCES threads (thread),
    parent_id TEXT,
    root BIGINT NOT NULL,
    depth BIGINT NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    result TEXT,
    error TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    completed_at TEXT,
    turns BIGINT NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    spend BIGINT NOT NULL,
    elapsed_ms BIGINT NOT NULL,
    limits TEXT NOT NULL,
    spawn_count BIGINT NOT NULL,
    model TEXT NOT NULL,
    provider TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    continuation_of TEXT,
    continuation_thread_id TEXT,
    chain_root_id TEXT,
    head_seq BIGINT NOT NULL,
    head_hash BYTEA NOT NULL,
    max_spend BIGINT,
    max_tokens BIGINT,
    transcript_sequence BIGINT,
    transcript_hash BYTEA,
    detached BOOLEAN NOT NULL,
    revision BIGINT NOT NULL,
    signer TEXT NOT NULL,
    seal TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    pid BIGINT,
    pid_start BIGINT,
    boot_id TEXT,
    host TEXT,
    lease_ms BIGINT NOT NULL,
    note TEXT
) WITH (fillfactor = 70);
CREATE INDEX threads_parent ON threads (parent);
CREATE INDEX threads_root ON threads (root);
CREATE INDEX threads_status ON threads (status, thread);
CREATE INDEX threads_live_children ON threads (parent) WHERE completed_at IS NULL;
CREATE INDEX threads_live_tree ON threads (root) WHERE completed_at IS NULL;
CREATE INDEX threads_detached ON threads (thread) WHERE detached AND completed_at IS NULL;

CREATE TABLE journal (
    thread BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (thread, seq)
);

CREATE TABLE budget_ledger (
    thread BIGINT PRIMARY KEY,
    parent BIGINT,
    thread_id TEXT NOT NULL CONSTRAINT budget_ledger_thread_id UNIQUE,
    parent_thread_id TEXT,
    reserved_spend BIGINT NOT NULL DEFAULT 0,
    actual_spend BIGINT NOT NULL DEFAULT 0,
    max_spend BIGINT,
    status TEXT NOT NULL DEFAULT 'active',
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    reserved_tokens BIGINT NOT NULL DEFAULT 0,
    actual_tokens BIGINT NOT NULL DEFAULT 0,
    max_tokens BIGINT,
    subtree_spend BIGINT NOT NULL DEFAULT 0,
    subtree_reserved BIGINT NOT NULL DEFAULT 0,
    subtree_tokens BIGINT NOT NULL DEFAULT 0,
    subtree_reserved_tokens BIGINT NOT NULL DEFAULT 0,
    unknown_spend BIGINT NOT NULL DEFAULT 0,
    CHECK (reserved_spend >= 0 AND actual_spend >= 0 AND reserved_tokens >= 0 AND actual_tokens >= 0 AND subtree_spend >= 0
        AND subtree_reserved >= 0 AND subtree_tokens >= 0 AND subtree_reserved_tokens >= 0)
) WITH (fillfactor = 50);

CREATE TABLE calls (
    thread BIGINT NOT NULL,
    call BIGINT NOT NULL,
    reserved_spend BIGINT NOT NULL,
    reserved_tokens BIGINT NOT NULL,
    is_settled BOOLEAN NOT NULL DEFAULT FALSE,
    is_unknown BOOLEAN NOT NULL DEFAULT FALSE,
    spend BIGINT NOT NULL DEFAULT 0,
    passed_on BIGINT NOT NULL DEFAULT 0,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    item TEXT NOT NULL DEFAULT '',
    model TEXT NOT NULL DEFAULT '',
    tool TEXT,
    hook TEXT,
    PRIMARY KEY (thread, call)
);

CREATE TABLE blobs (
    blob BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest BYTEA NOT NULL CONSTRAINT blobs_digest UNIQUE,
    at_ms BIGINT NOT NULL
);
CREATE TABLE blob_chunks (
    blob BIGINT NOT NULL REFERENCES blobs (blob) ON DELETE CASCADE,
    chunk BIGINT NOT NULL,
    bytes BYTEA NOT NULL,
    PRIMARY KEY (blob, chunk)
);
ALTER TABLE blob_chunks ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TABLE uses (
    thread BIGINT NOT NULL,
    blob BIGINT NOT NULL REFERENCES blobs (blob),
    PRIMARY KEY (thread, blob)
);
CREATE INDEX uses_blob ON uses (blob);

CREATE TABLE approvals (
    id TEXT NOT NULL CONSTRAINT approvals_id PRIMARY KEY,
    thread BIGINT NOT NULL,
    kind TEXT NOT NULL,
    what TEXT NOT NULL,
    why TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    detail TEXT NOT NULL,
    signer TEXT NOT NULL,
    seal TEXT NOT NULL,
    answer TEXT,
    answer_signer TEXT,
    answer_seal TEXT
);
CREATE INDEX approvals_thread ON approvals (thread);

CREATE TABLE waits (
    thread BIGINT PRIMARY KEY,
    kind TEXT NOT NULL,
    ticket BIGINT NOT NULL,
    blocked_by BIGINT,
    spend BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    seen_ms BIGINT NOT NULL
);
CREATE INDEX waits_blocked_by ON waits (blocked_by) WHERE kind = 'budget';

CREATE TABLE cancel_requests (thread BIGINT PRIMARY KEY, reason TEXT NOT NULL, at_ms BIGINT NOT NULL);

CREATE TABLE rolling_periods (
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    starts_ms BIGINT NOT NULL,
    ends_ms BIGINT NOT NULL,
    spent BIGINT NOT NULL DEFAULT 0,
    reserved BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, period, ends_ms, starts_ms),
    CHECK (spent >= 0 AND reserved >= 0)
);
CREATE TABLE rolling_calls (
    thread_id TEXT NOT NULL,
    call BIGINT NOT NULL,
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    starts_ms BIGINT NOT NULL,
    ends_ms BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    is_settled BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (thread_id, call, scope, period)
);
CREATE INDEX rolling_calls_open ON rolling_calls (thread_id) WHERE NOT is_settled;
";

/// Transcripts, where trees belong, and workers. `seen_ms` is a time of the database's clock.
const MIGRATION_2_WORKERS: &str = "
CREATE TABLE transcripts (
    thread BIGINT NOT NULL,
    start BIGINT NOT NULL,
    bytes BYTEA NOT NULL,
    PRIMARY KEY (thread, start)
);
ALTER TABLE transcripts ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TABLE placements (
    thread BIGINT PRIMARY KEY,
    origin TEXT NOT NULL,
    submission BYTEA,
    submitted BIGINT NOT NULL
);
CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    signer TEXT NOT NULL,
    seal TEXT NOT NULL,
    seen_ms BIGINT NOT NULL
);
";
