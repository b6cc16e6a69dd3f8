//! A store that is missing, empty, older, newer, damaged or sealed with another secret: each is distinguished, and none is
//! made new in silence.

use super::*;
use crate::schema;

/// A store with one thread and its folder, closed, with the secret beside the key.
struct ClosedStore {
    folder: TempDir,
}

impl ClosedStore {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let closed = Self { folder };
        let secret = ThreadSecret::load_or_create(&closed.keys()).expect("a secret");
        let store = open_at(&closed.threads(), &secret, &LedgerSpec::default()).expect("a store");
        rye_store::block_on(store.create(new_thread(1, None))).expect("created");
        lillux::file::create_dirs(&closed.threads().join(thread_id(1).as_str()), true).expect("made");
        closed
    }

    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn threads(&self) -> PathBuf {
        self.folder.path().join("threads")
    }

    fn database(&self) -> PathBuf {
        self.threads().join(DATABASE)
    }

    fn condition(&self) -> StoreCondition {
        inspect(&self.threads(), &self.keys()).expect("looked")
    }

    /// What reading and what running say.
    fn open_errors(&self) -> [Option<ThreadStoreError>; 2] {
        let spec = LedgerSpec::default();
        let secret = match ThreadSecret::load_or_create(&self.keys()) {
            Ok(secret) => secret,
            Err(error) => return [Some(error.clone()), Some(error)],
        };
        let threads = self.threads();
        [
            SqliteStore::open_existing(&threads, &secret, &spec).err(),
            SqliteStore::open(&threads, &secret, &spec).err(),
        ]
    }

    fn execute(&self, sql: &str) {
        #[expect(clippy::disallowed_methods, reason = "the test plays another program")]
        let connection = Connection::open(self.database()).expect("opened");
        connection.execute_batch(sql).expect("changed");
    }
}

#[test]
fn missing_database_is_not_made_new() {
    let lost = |store: &ClosedStore| ThreadStoreError::Lost { path: store.database(), folders: 1 };
    let store = ClosedStore::new();
    assert_eq!(store.condition(), StoreCondition::Ready { threads: 1 });
    lillux::file::remove(&store.database()).expect("removed");
    assert_eq!(store.condition(), StoreCondition::Lost { folders: 1 });
    assert_eq!(store.open_errors(), [Some(lost(&store)), Some(lost(&store))]);
    assert!(!store.database().exists());
    lillux::file::write_atomic(&store.database(), b"", lillux::file::FileMode::Private).expect("emptied");
    assert_eq!(store.condition(), StoreCondition::Lost { folders: 1 });
    assert_eq!(store.open_errors(), [Some(lost(&store)), Some(lost(&store))]);
    // Without the folder of a thread there is nothing to lose.
    lillux::file::remove_tree(&store.threads().join(thread_id(1).as_str())).expect("removed");
    assert_eq!(store.condition(), StoreCondition::Absent);
    assert_eq!(store.open_errors(), [None, None]);
}

#[test]
fn missing_secret_is_not_made_new() {
    let store = ClosedStore::new();
    let path = store.keys().join("thread_secret");
    lillux::file::remove(&path).expect("removed");
    assert_eq!(store.condition(), StoreCondition::SecretLost { path: path.clone() });
    let lost = Some(ThreadStoreError::SecretLost { path: path.clone() });
    assert_eq!(store.open_errors(), [lost.clone(), lost]);
    assert!(!path.exists());
    ThreadSecret::replace_lost(&store.keys()).expect("a new secret");
    assert_eq!(store.condition(), StoreCondition::OtherSecret { threads: 1 });
}

#[test]
fn older_database_is_read_and_migrated() {
    let store = ClosedStore::new();
    store.execute(
        "ALTER TABLE threads DROP COLUMN revision; ALTER TABLE threads DROP COLUMN row_mac;
         DROP INDEX threads_detached; ALTER TABLE threads DROP COLUMN detached; ALTER TABLE threads DROP COLUMN note;
         DROP TABLE waits; DROP TABLE cancel_requests; DELETE FROM facts; PRAGMA user_version = 1",
    );
    assert_eq!(store.condition(), StoreCondition::Older { found: 1 });
    let secret = ThreadSecret::load_or_create(&store.keys()).expect("a secret");
    let opened = SqliteStore::open_existing(&store.threads(), &secret, &LedgerSpec::default());
    let opened = share(opened.expect("opened").expect("a store"));
    let rows = opened.threads(&ThreadFilter::default()).expect("read");
    assert_eq!(rows.iter().map(|row| (&row.id, row.is_forged)).collect::<Vec<_>>(), [(&thread_id(1), false)]);
}

#[test]
fn newer_and_damaged_databases_are_named() {
    let store = ClosedStore::new();
    store.execute("PRAGMA user_version = 99");
    assert_eq!(store.condition(), StoreCondition::Newer { found: 99, known: schema::VERSION });
    assert!(store.open_errors().iter().all(|error| matches!(error, Some(ThreadStoreError::Newer { .. }))));
    let noise = [b"not a database".as_slice(), &[7; 4096]].concat();
    lillux::file::write_atomic(&store.database(), &noise, lillux::file::FileMode::Private).expect("written");
    assert!(matches!(store.condition(), StoreCondition::Damaged { .. }));
    assert!(store.open_errors().iter().all(|error| matches!(error, Some(ThreadStoreError::Damaged { .. }))));
}

#[test]
fn database_with_foreign_schema_is_refused() {
    for sql in [
        "CREATE TRIGGER zero AFTER UPDATE ON budget_ledger BEGIN UPDATE budget_ledger SET subtree_spend = 0; END",
        "CREATE TRIGGER forget AFTER INSERT ON cancel_requests BEGIN DELETE FROM cancel_requests; END",
        "CREATE VIEW more AS SELECT * FROM threads",
        "CREATE TABLE more (a INTEGER)",
        "CREATE INDEX budget_more ON budget_ledger (actual_spend) WHERE actual_spend > 0",
        "CREATE UNIQUE INDEX more ON budget_ledger (actual_spend)",
        "CREATE INDEX more ON budget_ledger (abs(actual_spend))",
        "CREATE INDEX more ON calls (spend)",
        "ALTER TABLE budget_ledger ADD COLUMN more INTEGER AS (actual_spend + 1)",
        "ALTER TABLE budget_ledger ADD COLUMN more INTEGER NOT NULL DEFAULT 0 CHECK (actual_spend < 5)",
        "ALTER TABLE threads ADD COLUMN more INTEGER",
        "DROP INDEX threads_root",
        "DROP TABLE cancel_requests;
         CREATE TABLE cancel_requests (thread INTEGER PRIMARY KEY ON CONFLICT IGNORE, reason TEXT NOT NULL,
             at_ms INTEGER NOT NULL) STRICT",
    ] {
        let closed = ClosedStore::new();
        closed.execute(sql);
        assert!(
            matches!(closed.condition(), StoreCondition::Damaged { .. }),
            "{sql}: {:?}",
            closed.condition()
        );
        for error in closed.open_errors() {
            assert!(matches!(error, Some(ThreadStoreError::Damaged { .. })), "{sql}: {error:?}");
        }
    }
}

#[test]
fn ledger_extended_by_settings_is_its_own() {
    let closed = ClosedStore::new();
    let column = |name: &str, sql_type: &str, default| ColumnSpec {
        name: name.to_owned(),
        sql_type: sql_type.to_owned(),
        is_nullable: false,
        default: Some(default),
    };
    let spec = LedgerSpec {
        columns: vec![
            column("team", "TEXT", serde_json::json!("it's ours")),
            column("weight", "REAL", serde_json::json!(1.5)),
        ],
        indexes: vec![IndexSpec {
            name: "by_team".to_owned(),
            columns: vec!["team".to_owned(), "thread".to_owned()],
        }],
        ..LedgerSpec::default()
    };
    let secret = ThreadSecret::load_or_create(&closed.keys()).expect("a secret");
    drop(SqliteStore::open(&closed.threads(), &secret, &spec).expect("extended"));
    assert_eq!(closed.open_errors(), [None, None]);
    assert_eq!(closed.condition(), StoreCondition::Ready { threads: 1 });
}
