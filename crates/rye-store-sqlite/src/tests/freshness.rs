//! An older copy of a store carries valid seals; the record in user space tells it from the latest.

#![expect(clippy::disallowed_methods, reason = "a store is copied byte by byte")]

use super::*;

/// A project's folder and a user's keys, side by side.
struct TestHome {
    folder: TempDir,
}

impl TestHome {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn threads(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).join("threads")
    }

    fn open(&self, name: &str) -> StoreHandle {
        let secret = test_secret().with_keys_dir(&self.keys());
        open_at(&self.threads(name), &secret, &LedgerSpec::default()).expect("a store")
    }

    /// A thread with one step after its first.
    fn step(&self, name: &str, number: u64) {
        let store = self.open(name);
        let CreateOutcome::Created { claim, .. } =
            store.create_blocking(new_thread(number, None)).expect("made")
        else {
            panic!("refused");
        };
        let mut step = ThreadCommit::new(thread_id(number), claim, 1);
        step.records = vec![record("second")];
        store.commit_blocking(step).expect("committed");
    }

    fn copy(&self, from: &str, to: &str) {
        std::fs::create_dir_all(self.threads(to)).expect("made");
        for entry in std::fs::read_dir(self.threads(from)).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_file() {
                std::fs::copy(entry.path(), self.threads(to).join(entry.file_name())).expect("copied");
            }
        }
    }

    fn remove(&self, name: &str) {
        std::fs::remove_dir_all(self.threads(name)).expect("removed");
    }
}

fn is_older_error<T>(outcome: &Result<T, ThreadStoreError>) -> bool {
    matches!(outcome, Err(ThreadStoreError::Older { .. }))
}

#[test]
fn older_copy_of_store_is_refused_by_name() {
    let home = TestHome::new();
    home.step("project", 1);
    home.copy("project", "backup");
    let store = home.open("project");
    let claim = Claim { epoch: 1 };
    let mut step = ThreadCommit::new(thread_id(1), claim, 2);
    step.records = vec![record("third")];
    store.commit_blocking(step).expect("committed");
    store.create_blocking(new_thread(2, None)).expect("made");
    assert!(store.freshness().expect("read").is_current());
    assert!(store.freshness().expect("read").is_recorded);
    drop(store);
    home.remove("project");
    home.copy("backup", "project");
    let store = home.open("project");
    let age = store.freshness().expect("read");
    assert_eq!(
        (age.rolled_back.as_slice(), age.missing.as_slice()),
        (&[thread_id(1)][..], &[thread_id(2)][..])
    );
    assert!(is_older_error(&store.journal(&thread_id(1))));
    assert!(is_older_error(&store.ensure_current()));
    // New threads run; what is older stays so.
    store.create_blocking(new_thread(3, None)).expect("made");
    assert!(is_older_error(&store.ensure_current()));
    store.accept_older().expect("accepted");
    assert_eq!(store.journal(&thread_id(1)).expect("a journal").len(), 2);
    assert!(store.freshness().expect("read").is_current());
    drop(store);
    assert!(home.open("project").freshness().expect("read").is_current());
}

#[test]
fn restored_store_is_refused_after_replacement() {
    let home = TestHome::new();
    home.step("project", 1);
    home.copy("project", "backup");
    home.remove("project");
    // Made by rye itself, empty: what was here is gone.
    home.step("project", 2);
    assert!(home.open("project").freshness().expect("read").is_current());
    home.remove("project");
    home.copy("backup", "project");
    let store = home.open("project");
    assert!(store.freshness().expect("read").is_replaced);
    assert!(is_older_error(&store.journal(&thread_id(1))));
    // The same with the number of the newer store.
    drop(store);
    home.remove("project");
    home.step("project", 4);
    let number = schema::store_id(
        &connect(&home.threads("project").join(DATABASE), OpenFlags::empty()).expect("open"),
    )
    .expect("read")
    .expect("a number");
    home.remove("project");
    home.copy("backup", "project");
    tamper(
        &home.folder.path().join("project"),
        &format!("UPDATE facts SET value = {number} WHERE name = 'store'"),
    );
    let store = home.open("project");
    assert_eq!(store.freshness().expect("read").missing, [thread_id(4)]);
    let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Row };
    assert_eq!(store.verified_thread(&thread_id(1)).map(|row| row.is_some()), Err(refused));
}

#[test]
fn moved_store_keeps_its_record() {
    let home = TestHome::new();
    home.step("project", 1);
    home.copy("project", "backup");
    home.step("project", 2);
    std::fs::create_dir_all(home.folder.path().join("moved")).expect("made");
    std::fs::rename(home.threads("project"), home.threads("moved")).expect("moved");
    assert!(home.open("moved").freshness().expect("read").is_current());
    home.remove("moved");
    home.copy("backup", "moved");
    assert_eq!(home.open("moved").freshness().expect("read").missing, [thread_id(2)]);
}

#[test]
fn copied_store_has_a_record_of_its_own() {
    let home = TestHome::new();
    home.step("project", 1);
    home.copy("project", "copy");
    home.step("project", 2);
    home.step("copy", 3);
    for name in ["project", "copy"] {
        let age = home.open(name).freshness().expect("read");
        assert!(age.is_current() && age.is_recorded, "{name}: {age:?}");
    }
}

#[test]
fn pruned_threads_are_not_reported_missing() {
    let home = TestHome::new();
    let store = home.open("project");
    let CreateOutcome::Created { claim, .. } = store.create_blocking(new_thread(1, None)).expect("made")
    else {
        panic!("refused");
    };
    let mut last = ThreadCommit::new(thread_id(1), claim, 2);
    last.status = Some(StatusChange {
        to: rye_thread::status::ThreadStatus::Completed,
        reason: None,
        result: None,
        error: None,
    });
    last.is_last = true;
    store.commit_blocking(last).expect("ended");
    let prune = PruneOptions {
        at_ms: 10_000,
        after_days: None,
        keep_trees: Some(0),
        max_bytes: None,
        disposal: FolderDisposal::Remove,
        remove_archived_after_days: None,
        vacuum_interval_days: None,
    };
    assert_eq!(store.prune(&prune).expect("pruned").threads, [thread_id(1)]);
    assert!(store.freshness().expect("read").is_current());
}

#[test]
fn damaged_head_log_is_still_current() {
    let home = TestHome::new();
    home.step("project", 1);
    let records = home.keys().join("thread_heads");
    let file = std::fs::read_dir(&records).expect("records").next().expect("one").expect("an entry").path();
    let text = std::fs::read(&file).expect("bytes");
    for cut in 0..text.len() {
        // What a power cut may leave: a shorter file, with noughts at its end.
        let mut bytes = text[..cut].to_vec();
        bytes.extend([0; 8]);
        std::fs::write(&file, bytes).expect("written");
        assert!(home.open("project").freshness().expect("read").is_current(), "cut at {cut}");
    }
    // The next step writes the first line again.
    std::fs::write(&file, [0; 8]).expect("written");
    home.step("project", 2);
    home.copy("project", "backup");
    home.step("project", 3);
    home.remove("project");
    home.copy("backup", "project");
    assert_eq!(home.open("project").freshness().expect("read").missing, [thread_id(3)]);
    assert!(std::fs::read_to_string(&file).expect("a record").starts_with("rye thread heads 1 "));
}

#[test]
fn record_is_bounded_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let home = TestHome::new();
    home.step("project", 1);
    let records = home.keys().join("thread_heads");
    let one = std::fs::read_dir(&records).expect("records").next().expect("one").expect("an entry").path();
    assert_eq!(std::fs::metadata(&one).expect("a file").permissions().mode() & 0o777, 0o600);
    for number in 0..600 {
        std::fs::write(records.join(format!("old-{number}")), "").expect("written");
    }
    home.step("another", 2);
    assert!(std::fs::read_dir(&records).expect("records").count() <= 512);
    for name in ["project", "another"] {
        assert!(home.open(name).freshness().expect("read").is_recorded, "{name}");
    }
    // A record that has grown is rewritten with the latest line of each thread.
    let line = "thread-00000000000f 1 00000000000000000000000000000000\n";
    lillux::file::append(&one, line.repeat(90_000).as_bytes()).expect("grown");
    lillux::file::append(&one, b"thread-00000000000f gone\n").expect("written");
    home.step("project", 3);
    assert!(std::fs::metadata(&one).expect("a file").len() < 1000);
    assert!(home.open("project").freshness().expect("read").is_current());
}

#[test]
fn threads_run_where_nothing_can_be_recorded() {
    let home = TestHome::new();
    std::fs::write(home.keys(), "not a folder").expect("written");
    home.step("project", 1);
    let age = home.open("project").freshness().expect("read");
    assert_eq!(age, StoreFreshness::default());
}

#[test]
fn rows_of_an_older_rye_are_sealed_once() {
    let home = TestHome::new();
    home.step("project", 1);
    home.step("project", 2);
    tamper(
        &home.folder.path().join("project"),
        "UPDATE threads SET head_mac = zeroblob(32) WHERE thread = 2;
         ALTER TABLE threads DROP COLUMN revision; ALTER TABLE threads DROP COLUMN row_mac;
         DROP TABLE waits; DROP TABLE cancel_requests;
         DELETE FROM facts WHERE name = 'store'; PRAGMA user_version = 2",
    );
    std::fs::remove_dir_all(home.keys()).expect("no record yet");
    let secret = test_secret().with_keys_dir(&home.keys());
    let opened = open_existing_at(&home.threads("project"), &secret, &LedgerSpec::default());
    let store = opened.expect("opened").expect("there");
    assert!(!store.thread(&thread_id(1)).expect("read").expect("there").is_forged);
    assert!(store.thread(&thread_id(2)).expect("read").expect("there").is_forged);
}
