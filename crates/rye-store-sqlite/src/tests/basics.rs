//! Threads are made, continue, and end.

use super::*;
use rye_thread::cost::Cost;
use rye_thread::status::ThreadStatus;

#[test]
fn committed_data_survives_reopening() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let mut step = ThreadCommit::new(thread_id(1), claim, 2_000);
    step.records = vec![record("second"), record("third")];
    step.cost = Some(Cost { turns: 1, input_tokens: 2, output_tokens: 3, spend: Nanos(4), elapsed_ms: 5 });
    step.status = Some(StatusChange::to(ThreadStatus::Running));
    step.transcript_head = Some(TranscriptHead { sequence: 7, hash: Digest::of(b"x") });
    assert_eq!(world.commit(step.clone()), CommitOutcome::Done);
    let folder = world.folder;
    drop(world.store);
    let store = open_store(folder.path());
    let bodies: Vec<Vec<u8>> =
        store.journal(&thread_id(1)).expect("a journal").into_iter().map(|record| record.body).collect();
    assert_eq!(bodies, [&b"first"[..], b"second", b"third"]);
    let row = store.thread(&thread_id(1)).expect("read").expect("a thread");
    assert_eq!((row.status, row.records, row.cost), (ThreadStatus::Running, 3, step.cost.expect("a cost")));
    assert_eq!(row.transcript_head, step.transcript_head);
    assert_eq!(row.updated_at, "1970-01-01T00:00:02.000Z");
    assert_eq!(row.owner, Some(current_owner()));
}

#[test]
fn legacy_ledger_name_links_to_database() {
    let world = test_store();
    let threads = world.folder.path().join("threads");
    assert_eq!(
        std::fs::read_link(threads.join("budget_ledger.db")).expect("a link"),
        Path::new("registry.db")
    );
}

#[test]
fn database_is_private_and_not_symlinked() {
    use std::os::unix::fs::PermissionsExt;
    let world = test_store();
    world.create(new_thread(1, None));
    let threads = world.folder.path().join("threads");
    for name in ["registry.db", "registry.db-wal"] {
        let mode = std::fs::metadata(threads.join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let other = tempfile::tempdir().expect("a folder");
    let linked = other.path().join("threads");
    lillux::file::create_dirs(&linked, true).expect("made");
    std::os::unix::fs::symlink(threads.join(DATABASE), linked.join(DATABASE)).expect("a link");
    assert!(open_at(&linked, &test_secret(), &LedgerSpec::default()).is_err());
    assert!(open_existing_at(&linked, &test_secret(), &LedgerSpec::default()).is_err());
}

#[test]
fn open_existing_creates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    let opened = open_existing_at(&threads, &test_secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_none() && !threads.exists());
    drop(open_store(folder.path()));
    let opened = open_existing_at(&threads, &test_secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_some_and(|store| store.thread(&thread_id(1)).expect("read").is_none()));
}

#[test]
fn changed_blob_is_refused() {
    let world = test_store();
    let digest = world.store.put_blob_blocking(b"big".to_vec(), 1).expect("kept");
    world.tamper("UPDATE blobs SET bytes = x'00'");
    assert_eq!(world.store.blob(&digest), Err(ThreadStoreError::NoBlob(digest.to_hex())));
}

#[test]
fn another_opening_changes_the_version() {
    let world = test_store();
    let mut changes = world.store.subscribe();
    let other = open_store(world.folder.path());
    let version = world.store.data_version().expect("a version");
    other.create_blocking(new_thread(1, None)).expect("created");
    assert_ne!(world.store.data_version().expect("a version"), version);
    assert_eq!(changes.try_recv(), None, "another opening's changes are not told here");
}

/// Polled by an executor, a read happens on a thread of the store; a caller that waits for it reads itself.
#[test]
fn asynchronous_reads_leave_their_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(folder.path(), &test_secret(), &LedgerSpec::default()).expect("a store");
    let reading_thread = || store.reading(|_, _| Ok(std::thread::current().id()));
    let here = std::thread::current().id();
    assert_eq!(rye_store::block_on(reading_thread()).expect("read"), here);
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut future = reading_thread();
    let waker = Arc::new(NotifyWaker(sender)).into();
    let mut context = std::task::Context::from_waker(&waker);
    let thread = loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(thread) => break thread.expect("read"),
            std::task::Poll::Pending => receiver.recv().expect("woken"),
        }
    };
    assert_ne!(thread, here);
}

struct NotifyWaker(std::sync::mpsc::Sender<()>);

impl std::task::Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}
