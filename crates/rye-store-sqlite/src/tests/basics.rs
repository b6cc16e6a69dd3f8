//! Threads are made, go on, and end.

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
