//! Threads are made, go on, and end.

use serde_json::json;

use super::*;
use crate::cost::Cost;
use crate::status::{SuspendReason, ThreadStatus};

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
    assert_eq!(row.owner, Some(Owner::current()));
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
    assert!(ThreadStore::open(&linked, &test_secret(), &LedgerSpec::default()).is_err());
    assert!(ThreadStore::open_existing(&linked, &test_secret(), &LedgerSpec::default()).is_err());
}

#[test]
fn open_existing_creates_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    let opened =
        ThreadStore::open_existing(&threads, &test_secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_none() && !threads.exists());
    drop(open_store(folder.path()));
    let opened =
        ThreadStore::open_existing(&threads, &test_secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_some_and(|store| store.thread(&thread_id(1)).expect("read").is_none()));
}

#[test]
fn thread_id_is_unique() {
    let world = test_store();
    world.create(new_thread(1, None));
    assert_eq!(world.store.create_blocking(new_thread(1, None)), Err(ThreadStoreError::Exists(thread_id(1))));
    assert_eq!(
        world.store.create_blocking(new_thread(2, Some(9))),
        Err(ThreadStoreError::NoThread(thread_id(9)))
    );
}

#[test]
fn ended_thread_stays_ended() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let end = |status, at_ms| {
        let mut step = ThreadCommit::new(thread_id(1), claim, at_ms);
        step.status = Some(StatusChange { result: Some(json!({"a": 1})), ..StatusChange::to(status) });
        step.records = vec![record("end")];
        step
    };
    assert_eq!(world.commit(end(ThreadStatus::Completed, 5_000)), CommitOutcome::Done);
    let lost =
        CommitOutcome::Ended { status: ThreadStatus::Completed, at: "1970-01-01T00:00:05.000Z".to_owned() };
    assert_eq!(world.commit(end(ThreadStatus::Cancelled, 6_000)), lost);
    let row = world.store.thread(&thread_id(1)).expect("read").expect("a thread");
    assert_eq!((row.status, row.result, row.records), (ThreadStatus::Completed, Some(json!({"a": 1})), 3));
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").status, "completed");
    let child = world.store.create_blocking(new_thread(2, Some(1)));
    assert_eq!(child, Err(ThreadStoreError::ParentEnded { parent: thread_id(1) }));
}

#[test]
fn suspended_thread_has_reason_and_resumes() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let mut step = ThreadCommit::new(thread_id(1), claim, 1);
    step.status = Some(StatusChange {
        reason: Some(SuspendReason::Budget),
        ..StatusChange::to(ThreadStatus::Suspended)
    });
    world.commit(step.clone());
    let reason = || world.store.thread(&thread_id(1)).expect("read").expect("a thread").reason;
    assert_eq!(reason(), Some(SuspendReason::Budget));
    step.status = Some(StatusChange::to(ThreadStatus::Running));
    assert_eq!(world.commit(step), CommitOutcome::Done);
    assert_eq!(reason(), None);
}

#[test]
fn each_spawn_cap_is_enforced() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    let refused = |caps: SpawnCaps| {
        let created =
            world.store.create_blocking(NewThread { caps, ..new_thread(3, Some(1)) }).expect("judged");
        let CreateOutcome::Refused { cap, max, count } = created else { panic!("{created:?}") };
        (cap.as_str(), max, count)
    };
    let none = SpawnCaps::default();
    assert_eq!(refused(SpawnCaps { spawns: Some(1), ..none }), ("spawns", 1, 1));
    assert_eq!(refused(SpawnCaps { depth: Some(0), ..none }), ("depth", 0, 0));
    assert_eq!(
        refused(SpawnCaps { concurrent_children: Some(1), ..none }),
        ("max_concurrent_children", 1, 1)
    );
    assert_eq!(refused(SpawnCaps { total_threads: Some(2), ..none }), ("max_total_threads", 2, 2));
    assert!(world.store.thread(&thread_id(3)).expect("read").is_none());
    assert_eq!(world.store.thread(&thread_id(1)).expect("read").expect("a thread").spawn_count, 1);
    // A child that has ended makes room for another, not for a further start.
    let mut end = ThreadCommit::new(thread_id(2), claim, 1);
    end.status = Some(StatusChange::to(ThreadStatus::Completed));
    world.commit(end);
    let caps =
        SpawnCaps { spawns: Some(2), depth: Some(1), concurrent_children: Some(1), total_threads: Some(2) };
    world.create(NewThread { caps, ..new_thread(3, Some(1)) });
    assert_eq!(refused(caps), ("spawns", 2, 2));
}

#[test]
fn failing_commit_does_not_affect_batch() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let results = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..50_u64 {
            let store = world.store.clone();
            let mut step = ThreadCommit::new(thread_id(1), claim, 1);
            step.records = vec![record(&number.to_string())];
            // This one has written its record before it fails.
            if number % 10 == 3 {
                step.settlements = vec![Settlement { is_unknown: true, ..settle(number, 1) }];
            }
            tasks.push(tokio::spawn(async move { store.commit(step).await }));
        }
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.expect("a task"));
        }
        results
    });
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), number % 10 == 3, "{number}: {result:?}");
    }
    assert_eq!(world.store.journal(&thread_id(1)).expect("intact").len(), 1 + 45);
}

#[test]
fn trees_can_be_queried() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, Some(2)));
    world.create(new_thread(4, None));
    let ids = |rows: Vec<ThreadRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(
        ids(world.store.subtree(&thread_id(1)).expect("rows")),
        [thread_id(1), thread_id(2), thread_id(3)]
    );
    assert_eq!(ids(world.store.children(&thread_id(1)).expect("rows")), [thread_id(2)]);
    assert_eq!(ids(world.store.ancestors(&thread_id(3)).expect("rows")), [thread_id(2), thread_id(1)]);
    let roots = ThreadFilter { is_root: true, ..ThreadFilter::default() };
    assert_eq!(ids(world.store.threads(&roots).expect("rows")), [thread_id(4), thread_id(1)]);
    let mut step = ThreadCommit::new(thread_id(3), claim, 1);
    step.status = Some(StatusChange::to(ThreadStatus::Running));
    step.cost = Some(Cost { turns: 2, spend: Nanos(5), ..Cost::default() });
    world.commit(step);
    let running =
        ThreadFilter { statuses: vec![ThreadStatus::Running], limit: Some(9), ..ThreadFilter::default() };
    assert_eq!(ids(world.store.threads(&running).expect("rows")), [thread_id(3)]);
    let totals = world.store.tree_totals(&thread_id(1)).expect("totals");
    assert_eq!(totals.counts, [(ThreadStatus::Created, 2), (ThreadStatus::Running, 1)]);
    assert_eq!((totals.cost.turns, totals.cost.spend), (2, Nanos(5)));
}

#[test]
fn continuation_is_linked_both_ways() {
    let world = test_store();
    world.create(new_thread(1, None));
    world.create(NewThread { continuation_of: Some(thread_id(1)), ..new_thread(2, None) });
    world.create(NewThread { continuation_of: Some(thread_id(2)), ..new_thread(3, None) });
    let row = |number| world.store.thread(&thread_id(number)).expect("read").expect("a thread");
    assert_eq!(row(1).continuation_thread_id, Some(thread_id(2)));
    assert_eq!((row(3).continuation_of, row(3).chain_root_id), (Some(thread_id(2)), Some(thread_id(1))));
}

#[test]
fn blobs_are_shared_and_required() {
    let world = test_store();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let put = |bytes: &[u8]| runtime.block_on(world.store.put_blob(bytes.to_vec(), 1)).expect("kept");
    let digest = put(b"big");
    assert_eq!(put(b"big"), digest);
    assert_eq!(world.store.blob(&digest).expect("there"), b"big");
    world.create(NewThread { blobs: vec![digest], ..new_thread(1, None) });
    let absent = Digest::of(b"absent");
    let refused = world.store.create_blocking(NewThread { blobs: vec![absent], ..new_thread(2, None) });
    assert_eq!(refused, Err(ThreadStoreError::NoBlob(absent.to_hex())));
    world.tamper("UPDATE blobs SET bytes = x'00'");
    assert_eq!(world.store.blob(&digest), Err(ThreadStoreError::NoBlob(digest.to_hex())));
}

#[test]
fn subscribers_receive_local_changes() {
    let world = test_store();
    let mut changes = world.store.subscribe();
    let version = world.store.data_version().expect("a version");
    let claim = world.create(new_thread(1, None));
    assert_eq!(
        changes.try_recv().expect("told"),
        ThreadChange { thread: thread_id(1), status: Some(ThreadStatus::Created) }
    );
    assert_ne!(world.store.data_version().expect("a version"), version);
    let other = open_store(world.folder.path());
    let version = world.store.data_version().expect("a version");
    let mut step = ThreadCommit::new(thread_id(1), claim, 1);
    step.records = vec![record("elsewhere")];
    other.commit_blocking(step).expect("committed");
    assert_ne!(world.store.data_version().expect("a version"), version);
    assert!(changes.try_recv().is_err(), "another opening's changes are not told here");
}
