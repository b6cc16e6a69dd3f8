//! What is forgotten, when, and what never is.

use super::*;

const DAY: u64 = 24 * 60 * 60 * 1000;

fn options(day: u64) -> PruneOptions {
    PruneOptions {
        at_ms: day * DAY,
        after_days: Some(30),
        keep_trees: None,
        max_bytes: None,
        disposal: FolderDisposal::Archive,
        remove_archived_after_days: None,
        vacuum_interval_days: None,
    }
}

impl TestStore {
    fn end(&self, number: u64, status: ThreadStatus, day: u64) {
        self.commit(ThreadCommit {
            status: Some(StatusChange::to(status)),
            ..ThreadCommit::new(thread_id(number), Claim { epoch: 1 }, day * DAY)
        });
    }

    fn add_ended(&self, number: u64, day: u64) {
        self.create(new_thread(number, None));
        self.end(number, ThreadStatus::Completed, day);
    }

    fn prune_candidates(&self, options: &PruneOptions) -> Vec<ThreadId> {
        self.store.prune_candidates(options).expect("looked")
    }
}

/// What is in use stays, with all that belongs to it.
pub fn trees_in_use_are_not_pruned(open: OpenStore) {
    let world = TestStore::new(open);
    // 1 has a child at work; 2 is suspended; 3 asks; 4 continued in 5, which is at work; 6 continued in 7, both ended.
    world.create(new_thread(11, None));
    for (number, parent) in [(1, None), (12, Some(1)), (2, None), (3, None)] {
        world.create(new_thread(number, parent));
    }
    let claim = Claim { epoch: 1 };
    let end = |number: u64, status: ThreadStatus| world.end(number, status, 1);
    end(1, ThreadStatus::Completed);
    end(2, ThreadStatus::Suspended);
    let asks = approval("question", 3);
    world.commit(ThreadCommit { approvals: vec![asks], ..ThreadCommit::new(thread_id(3), claim, 1) });
    end(3, ThreadStatus::Completed);
    let goes_on = |number: u64, from: u64| NewThread {
        continuation_of: Some(thread_id(from)),
        ..new_thread(number, None)
    };
    world.create(new_thread(4, None));
    world.create(goes_on(5, 4));
    end(4, ThreadStatus::Continued);
    world.create(new_thread(6, None));
    world.create(goes_on(7, 6));
    end(6, ThreadStatus::Continued);
    world.add_ended(8, 1);
    assert_eq!(world.prune_candidates(&PruneOptions { keep_trees: Some(0), ..options(99) }), [thread_id(8)]);
    end(7, ThreadStatus::Completed);
    let mut gone = world.prune_candidates(&PruneOptions { after_days: Some(0), ..options(99) });
    gone.sort();
    assert_eq!(gone, [thread_id(6), thread_id(7), thread_id(8)]);
    world.store.prune(&PruneOptions { keep_trees: Some(0), ..options(99) }).expect("pruned");
    for number in [1, 12, 2, 3, 4, 5, 11] {
        assert!(world.store.journal(&thread_id(number)).is_ok(), "{number}");
    }
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

/// A part goes with the last thread that uses it.
pub fn blob_is_pruned_with_its_thread(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(new_thread(2, None));
    let part = world.store.put_blob_for(&thread_id(2), b"long".to_vec(), 1).expect("kept");
    assert!(matches!(
        world.store.put_blob_for(&thread_id(9), b"x".to_vec(), 1),
        Err(ThreadStoreError::NoThread(_))
    ));
    world.store.prune(&options(99)).expect("pruned");
    assert!(world.store.blob(&part).is_ok());
    let end = Some(StatusChange::to(ThreadStatus::Completed));
    world.commit(ThreadCommit { status: end, ..ThreadCommit::new(thread_id(2), Claim { epoch: 1 }, DAY) });
    world.store.prune(&options(99)).expect("pruned");
    assert!(world.store.blob(&part).is_err());
}

/// Age and number decide which ended trees go, the oldest first.
pub fn oldest_ended_trees_are_pruned(open: OpenStore) {
    let world = TestStore::new(open);
    for number in 1..=4 {
        world.add_ended(number, number);
    }
    world.create(new_thread(9, None));
    assert_eq!(world.prune_candidates(&options(5)), []);
    assert_eq!(world.prune_candidates(&options(32)), [thread_id(2), thread_id(1)]);
    let keep = |trees| PruneOptions { keep_trees: Some(trees), ..options(5) };
    assert_eq!(world.prune_candidates(&keep(3)), [thread_id(1)]);
    let report = world.store.prune(&keep(1)).expect("pruned");
    assert_eq!(report.threads, [thread_id(3), thread_id(2), thread_id(1)]);
    assert_eq!(world.store.thread(&thread_id(2)).expect("read"), None);
    assert_eq!(world.store.threads(&ThreadFilter::default()).expect("read").len(), 2);
}

/// Pruning by itself happens once a day, and not before there is something a day old.
pub fn automatic_prune_waits_a_day(open: OpenStore) {
    let world = TestStore::new(open);
    let prune = |day| world.store.prune_if_due(&options(day)).expect("looked");
    assert_eq!(prune(31), None, "there is nothing yet");
    world.add_ended(1, 1);
    assert!(world.store.is_prune_due(31 * DAY).expect("looked"));
    assert_eq!(prune(31).expect("due").threads, [thread_id(1)]);
    assert!(!world.store.is_prune_due(31 * DAY).expect("looked"));
    assert_eq!(prune(31), None);
    assert!(prune(32).is_some());
}

/// Parts go with the only threads that used them, but not those that were kept again a moment ago.
pub fn parts_go_with_their_threads(open: OpenStore) {
    let world = TestStore::new(open);
    let now = 40 * DAY;
    let keep = |bytes: &[u8], at_ms: u64| world.store.put_blob_blocking(bytes.to_vec(), at_ms).expect("kept");
    let (own, shared, again) =
        (keep(b"own", now - 60_000), keep(b"shared", now - 60_000), keep(b"again", now - 1));
    let unused = keep(b"about to be used", now - 60_000);
    world.create(NewThread { blobs: vec![own, shared, again], ..new_thread(1, None) });
    world.create(NewThread { blobs: vec![shared], ..new_thread(2, None) });
    world.commit(ThreadCommit {
        status: Some(StatusChange::to(ThreadStatus::Completed)),
        ..ThreadCommit::new(thread_id(1), Claim { epoch: 1 }, now - 50_000)
    });
    let report = world
        .store
        .prune(&PruneOptions { after_days: None, keep_trees: Some(0), ..options(40) })
        .expect("pruned");
    assert_eq!((report.threads, report.blobs), (vec![thread_id(1)], 1));
    let is_kept = |digest: &Digest| world.store.blob(digest).is_ok();
    assert_eq!([own, shared, again, unused].each_ref().map(is_kept), [false, true, true, true]);
}
