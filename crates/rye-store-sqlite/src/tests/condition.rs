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
         DELETE FROM facts; PRAGMA user_version = 1",
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
