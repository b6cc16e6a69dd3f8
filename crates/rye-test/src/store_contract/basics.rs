//! Threads are made, continue, and end.

use super::*;

/// No two threads have one name, and a child needs its parent.
pub fn thread_id_is_unique(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(new_thread(1, None));
    assert_eq!(world.store.create_blocking(new_thread(1, None)), Err(ThreadStoreError::Exists(thread_id(1))));
    assert_eq!(
        world.store.create_blocking(new_thread(2, Some(9))),
        Err(ThreadStoreError::NoThread(thread_id(9)))
    );
}

/// The first end counts.
pub fn ended_thread_stays_ended(open: OpenStore) {
    let world = TestStore::new(open);
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

/// A reason goes when the thread continues.
pub fn suspended_thread_has_reason_and_resumes(open: OpenStore) {
    let world = TestStore::new(open);
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

/// Each cap refuses a child without writing anything.
pub fn each_spawn_cap_is_enforced(open: OpenStore) {
    let world = TestStore::new(open);
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
    let caps = SpawnCaps {
        spawns: Some(2),
        depth: Some(1),
        concurrent_children: Some(1),
        total_threads: Some(2),
        queues_children: false,
    };
    world.create(NewThread { caps, ..new_thread(3, Some(1)) });
    assert_eq!(refused(caps), ("spawns", 2, 2));
}

/// Commits that are made together fail one by one.
pub fn failing_commit_does_not_affect_batch(open: OpenStore) {
    let world = TestStore::new(open);
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

/// Trees, filters and totals.
pub fn trees_can_be_queried(open: OpenStore) {
    let world = TestStore::new(open);
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

/// A continuation and the thread it continues from know one another.
pub fn continuation_is_linked_both_ways(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(new_thread(1, None));
    world.create(NewThread { continuation_of: Some(thread_id(1)), ..new_thread(2, None) });
    world.create(NewThread { continuation_of: Some(thread_id(2)), ..new_thread(3, None) });
    let row = |number| world.store.thread(&thread_id(number)).expect("read").expect("a thread");
    assert_eq!(row(1).continuation_thread_id, Some(thread_id(2)));
    assert_eq!((row(3).continuation_of, row(3).chain_root_id), (Some(thread_id(2)), Some(thread_id(1))));
}

/// A part is kept once, and a thread needs its parts.
pub fn blobs_are_shared_and_required(open: OpenStore) {
    let world = TestStore::new(open);
    let put = |bytes: &[u8]| rye_store::block_on(world.store.put_blob(bytes.to_vec(), 1)).expect("kept");
    let digest = put(b"big");
    assert_eq!(put(b"big"), digest);
    assert_eq!(world.store.blob(&digest).expect("there"), b"big");
    world.create(NewThread { blobs: vec![digest], ..new_thread(1, None) });
    let absent = Digest::of(b"absent");
    let refused = world.store.create_blocking(NewThread { blobs: vec![absent], ..new_thread(2, None) });
    assert_eq!(refused, Err(ThreadStoreError::NoBlob(absent.to_hex())));
    assert_eq!(world.store.blob(&absent), Err(ThreadStoreError::NoBlob(absent.to_hex())));
}

/// Changes are told, and the version is another one.
pub fn subscribers_receive_local_changes(open: OpenStore) {
    let world = TestStore::new(open);
    let mut changes = world.store.subscribe();
    let version = world.store.data_version().expect("a version");
    let claim = world.create(new_thread(1, None));
    let created = ThreadChange { thread: thread_id(1), status: Some(ThreadStatus::Created) };
    assert_eq!(changes.try_recv(), Some(Ok(created)));
    assert_ne!(world.store.data_version().expect("a version"), version);
    let step = ThreadCommit { records: vec![record("second")], ..ThreadCommit::new(thread_id(1), claim, 1) };
    world.commit(step);
    let touched = ThreadChange { thread: thread_id(1), status: None };
    assert_eq!((changes.try_recv(), changes.try_recv()), (Some(Ok(touched)), None));
}

/// A commit that contradicts what is recorded changes nothing, not even its own thread.
pub fn failed_commit_changes_nothing(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new_thread(1, None) });
    world.create(new_thread(2, Some(1)));
    world.commit(ThreadCommit { reservation: reserve(1, 10), ..commit_for(2, claim) });
    let state = || {
        let ledgers = [1, 2].map(|number| world.store.ledger(&thread_id(number)).expect("a row"));
        let journal = world.store.journal(&thread_id(2)).expect("a journal");
        (world.row(1), world.row(2), ledgers, journal, world.store.open_reservations(&thread_id(2)))
    };
    let before = state();
    let commit = ThreadCommit {
        records: vec![record("never")],
        settlements: vec![settle(1, 3), settle(1, 3)],
        cost: Some(Cost { turns: 9, ..Cost::default() }),
        caps: Some(BudgetCaps { spend: Some(Nanos(1)), tokens: None }),
        status: Some(StatusChange::to(ThreadStatus::Completed)),
        is_last: true,
        ..commit_for(2, claim)
    };
    assert!(matches!(world.store.commit_blocking(commit), Err(ThreadStoreError::Conflict { .. })));
    let repeated =
        ThreadCommit { records: vec![record("never")], reservation: reserve(1, 1), ..commit_for(2, claim) };
    assert!(matches!(world.store.commit_blocking(repeated), Err(ThreadStoreError::Conflict { .. })));
    assert_eq!(state(), before);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}
