//! An older copy of a store carries valid seals; the record in user space tells it from the latest.

#![expect(clippy::disallowed_methods, reason = "a store is copied byte by byte")]

use super::*;

/// A project's folder and a user's keys, side by side.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn threads(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).join("threads")
    }

    fn open(&self, name: &str) -> Store {
        let secret = secret().kept_in(&self.keys());
        Store::open(&self.threads(name), &secret, &LedgerSpec::default()).expect("a store")
    }

    /// A thread with one step after its first.
    fn step(&self, name: &str, number: u64) {
        let store = self.open(name);
        let Created::Done { claim, .. } = store.create_blocking(new(number, None)).expect("made") else {
            panic!("refused");
        };
        let mut step = Commit::new(id(number), claim, 1);
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

fn is_older<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Older { .. }))
}

#[test]
fn older_copy_of_store_is_refused_by_name() {
    let place = Place::new();
    place.step("project", 1);
    place.copy("project", "backup");
    let store = place.open("project");
    let claim = Claim { epoch: 1 };
    let mut step = Commit::new(id(1), claim, 2);
    step.records = vec![record("third")];
    store.commit_blocking(step).expect("committed");
    store.create_blocking(new(2, None)).expect("made");
    assert!(store.age().expect("read").is_current());
    assert!(store.age().expect("read").is_recorded);
    drop(store);
    place.remove("project");
    place.copy("backup", "project");
    let store = place.open("project");
    let age = store.age().expect("read");
    assert_eq!((age.older.as_slice(), age.missing.as_slice()), (&[id(1)][..], &[id(2)][..]));
    assert!(is_older(&store.journal(&id(1))));
    assert!(is_older(&store.refuse_older()));
    // New threads run; what is older stays so.
    store.create_blocking(new(3, None)).expect("made");
    assert!(is_older(&store.refuse_older()));
    store.accept_older().expect("accepted");
    assert_eq!(store.journal(&id(1)).expect("a journal").len(), 2);
    assert!(store.age().expect("read").is_current());
    drop(store);
    assert!(place.open("project").age().expect("read").is_current());
}

#[test]
fn store_put_back_after_a_new_one_is_refused() {
    let place = Place::new();
    place.step("project", 1);
    place.copy("project", "backup");
    place.remove("project");
    // Made by rye itself, empty: what was here is gone.
    place.step("project", 2);
    assert!(place.open("project").age().expect("read").is_current());
    place.remove("project");
    place.copy("backup", "project");
    let store = place.open("project");
    assert!(store.age().expect("read").is_other);
    assert!(is_older(&store.journal(&id(1))));
    // The same with the number of the newer store.
    drop(store);
    place.remove("project");
    place.step("project", 4);
    let number = schema::store_number(
        &connect(&place.threads("project").join(DATABASE), OpenFlags::empty()).expect("open"),
    )
    .expect("read")
    .expect("a number");
    place.remove("project");
    place.copy("backup", "project");
    tamper(
        &place.folder.path().join("project"),
        &format!("UPDATE facts SET value = {number} WHERE name = 'store'"),
    );
    let store = place.open("project");
    assert_eq!(store.age().expect("read").missing, [id(4)]);
    let refused = StoreError::Forged { thread: id(1), what: Forgery::Row };
    assert_eq!(store.sealed_thread(&id(1)).map(|row| row.is_some()), Err(refused));
}

#[test]
fn moved_store_keeps_its_record() {
    let place = Place::new();
    place.step("project", 1);
    place.copy("project", "backup");
    place.step("project", 2);
    std::fs::create_dir_all(place.folder.path().join("moved")).expect("made");
    std::fs::rename(place.threads("project"), place.threads("moved")).expect("moved");
    assert!(place.open("moved").age().expect("read").is_current());
    place.remove("moved");
    place.copy("backup", "moved");
    assert_eq!(place.open("moved").age().expect("read").missing, [id(2)]);
}

#[test]
fn copied_store_has_a_record_of_its_own() {
    let place = Place::new();
    place.step("project", 1);
    place.copy("project", "copy");
    place.step("project", 2);
    place.step("copy", 3);
    for name in ["project", "copy"] {
        let age = place.open(name).age().expect("read");
        assert!(age.is_current() && age.is_recorded, "{name}: {age:?}");
    }
}

#[test]
fn pruned_threads_are_not_missed() {
    let place = Place::new();
    let store = place.open("project");
    let Created::Done { claim, .. } = store.create_blocking(new(1, None)).expect("made") else {
        panic!("refused");
    };
    let mut last = Commit::new(id(1), claim, 2);
    last.status =
        Some(StatusChange { to: crate::status::Status::Completed, reason: None, result: None, error: None });
    last.is_last = true;
    store.commit_blocking(last).expect("ended");
    let prune = Prune {
        at_ms: 10_000,
        after_days: None,
        keep: Some(0),
        most_bytes: None,
        kept: Kept::Nothing,
        remove_archived_after_days: None,
        vacuum_interval_days: None,
    };
    assert_eq!(store.prune(&prune).expect("pruned").threads, [id(1)]);
    assert!(store.age().expect("read").is_current());
}

#[test]
fn damaged_record_says_less_and_never_more() {
    let place = Place::new();
    place.step("project", 1);
    let records = place.keys().join("thread_heads");
    let file = std::fs::read_dir(&records).expect("records").next().expect("one").expect("an entry").path();
    let text = std::fs::read(&file).expect("bytes");
    for cut in 0..text.len() {
        // What a power cut may leave: a shorter file, with noughts at its end.
        let mut bytes = text[..cut].to_vec();
        bytes.extend([0; 8]);
        std::fs::write(&file, bytes).expect("written");
        assert!(place.open("project").age().expect("read").is_current(), "cut at {cut}");
    }
    // The next step writes the first line again.
    std::fs::write(&file, [0; 8]).expect("written");
    place.step("project", 2);
    place.copy("project", "backup");
    place.step("project", 3);
    place.remove("project");
    place.copy("backup", "project");
    assert_eq!(place.open("project").age().expect("read").missing, [id(3)]);
    assert!(std::fs::read_to_string(&file).expect("a record").starts_with("rye thread heads 1 "));
}

#[test]
fn record_is_bounded_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.step("project", 1);
    let records = place.keys().join("thread_heads");
    let one = std::fs::read_dir(&records).expect("records").next().expect("one").expect("an entry").path();
    assert_eq!(std::fs::metadata(&one).expect("a file").permissions().mode() & 0o777, 0o600);
    for number in 0..600 {
        std::fs::write(records.join(format!("old-{number}")), "").expect("written");
    }
    place.step("another", 2);
    assert!(std::fs::read_dir(&records).expect("records").count() <= 512);
    for name in ["project", "another"] {
        assert!(place.open(name).age().expect("read").is_recorded, "{name}");
    }
    // A record that has grown is rewritten with the latest line of each thread.
    let line = "thread-00000000000f 1 00000000000000000000000000000000\n";
    lillux::file::append(&one, line.repeat(90_000).as_bytes()).expect("grown");
    lillux::file::append(&one, b"thread-00000000000f gone\n").expect("written");
    place.step("project", 3);
    assert!(std::fs::metadata(&one).expect("a file").len() < 1000);
    assert!(place.open("project").age().expect("read").is_current());
}

#[test]
fn threads_run_where_nothing_can_be_recorded() {
    let place = Place::new();
    std::fs::write(place.keys(), "not a folder").expect("written");
    place.step("project", 1);
    let age = place.open("project").age().expect("read");
    assert_eq!(age, StoreAge::default());
}

#[test]
fn rows_of_an_older_rye_are_sealed_once() {
    let place = Place::new();
    place.step("project", 1);
    place.step("project", 2);
    tamper(
        &place.folder.path().join("project"),
        "UPDATE threads SET head_mac = zeroblob(32) WHERE thread = 2;
         ALTER TABLE threads DROP COLUMN revision; ALTER TABLE threads DROP COLUMN row_mac;
         DELETE FROM facts WHERE name = 'store'; PRAGMA user_version = 2",
    );
    std::fs::remove_dir_all(place.keys()).expect("no record yet");
    let secret = secret().kept_in(&place.keys());
    let opened = Store::open_existing(&place.threads("project"), &secret, &LedgerSpec::default());
    let store = opened.expect("opened").expect("there");
    assert!(!store.thread(&id(1)).expect("read").expect("there").is_forged);
    assert!(store.thread(&id(2)).expect("read").expect("there").is_forged);
}
