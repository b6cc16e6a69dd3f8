//! Waiting: for money that is reserved and not spent, and for a place among a parent's children.

use rye_store::{WAIT_LEASE_MS, WaitKind};

use super::*;

fn waiting_call(thread: u64, claim: Claim, spend: u64, at_ms: u64) -> ThreadCommit {
    ThreadCommit {
        records: vec![record("granted")],
        reservation: Some(ReserveRequest { call: 1, spend: Nanos(spend), tokens: 0, can_wait: true }),
        needs_reservation: true,
        ..ThreadCommit::new(thread_id(thread), claim, at_ms)
    }
}

/// A call that waits keeps its turn: one that comes later gets only what is left beside it.
pub fn first_waiting_call_is_served_first(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new_thread(1, None) });
    for number in 2..=4 {
        world.create(new_thread(number, Some(1)));
    }
    let first = ThreadCommit { reservation: reserve(1, 70), ..commit_for(1, claim) };
    assert_eq!(world.commit(first), CommitOutcome::Done);
    let refused = |outcome| matches!(outcome, CommitOutcome::Refused(refusal) if refusal.is_only_reserved());
    assert!(refused(world.commit(waiting_call(2, claim, 80, 10))));
    assert_eq!(world.row(2).waiting, Some(WaitKind::Budget));
    assert_eq!(world.row(2).records, 1, "nothing of a refused commit is kept that needs its reservation");
    // 30 are free, and the first that waits needs more than there will be beside them.
    assert!(refused(world.commit(waiting_call(3, claim, 25, 11))));
    let settled = ThreadCommit { settlements: vec![settle(1, 0)], ..commit_for(1, claim) };
    assert_eq!(world.commit(settled), CommitOutcome::Done);
    assert!(refused(world.commit(waiting_call(3, claim, 25, 12))));
    assert!(refused(world.commit(waiting_call(4, claim, 20, 12))), "behind two others");
    assert_eq!(world.commit(waiting_call(2, claim, 80, 13)), CommitOutcome::Done);
    assert_eq!((world.row(2).waiting, world.row(2).records), (None, 2));
    assert!(refused(world.commit(waiting_call(3, claim, 25, 14))));
    let settled = ThreadCommit { settlements: vec![settle(1, 5)], ..commit_for(2, claim) };
    assert_eq!(world.commit(settled), CommitOutcome::Done);
    assert_eq!(world.commit(waiting_call(3, claim, 25, 15)), CommitOutcome::Done);
    assert_eq!(world.commit(waiting_call(4, claim, 20, 15)), CommitOutcome::Done);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

/// A thread that stops trying does not block the queue, and one that ends leaves it.
pub fn silent_waiter_loses_its_turn(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new_thread(1, None) });
    for number in 2..=4 {
        world.create(new_thread(number, Some(1)));
    }
    let first = ThreadCommit { reservation: reserve(1, 40), ..commit_for(1, claim) };
    assert_eq!(world.commit(first), CommitOutcome::Done);
    let late = 10 + WAIT_LEASE_MS + 1;
    let is_refused = |commit| matches!(world.commit(commit), CommitOutcome::Refused(_));
    assert!(is_refused(waiting_call(2, claim, 80, 10)));
    assert!(is_refused(waiting_call(3, claim, 50, 11)), "behind the first");
    assert_eq!(world.commit(waiting_call(3, claim, 50, late)), CommitOutcome::Done);
    let stopped =
        StatusChange { reason: Some(SuspendReason::Limit), ..StatusChange::to(ThreadStatus::Suspended) };
    world.commit(ThreadCommit { status: Some(stopped), ..commit_for(2, claim) });
    assert_eq!(world.row(2).waiting, None);
}

/// Children beyond those that may be at work wait, and get their places in the order in which they came.
pub fn children_get_places_in_order(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    let caps = SpawnCaps { concurrent_children: Some(2), queues_children: true, ..SpawnCaps::default() };
    let caps = SpawnCaps { total_threads: Some(4), ..caps };
    let create = |number| {
        let created = world.store.create_blocking(NewThread { caps, ..new_thread(number, Some(1)) });
        let CreateOutcome::Created { is_queued, .. } = created.expect("made") else { panic!("refused") };
        is_queued
    };
    assert_eq!([2, 3, 4, 5, 6].map(create), [false, false, true, true, true]);
    assert_eq!(world.row(4).waiting, Some(WaitKind::Concurrency));
    let admit = |number, at_ms| world.store.admit(&thread_id(number), claim, caps, at_ms).expect("asked");
    assert_eq!([2, 4, 5].map(|number| admit(number, 2_000)), [true, false, false]);
    let end = |number: u64| {
        let status = Some(StatusChange::to(ThreadStatus::Completed));
        world.commit(ThreadCommit { status, ..commit_for(number, claim) })
    };
    end(2);
    assert_eq!([5, 4, 6].map(|number| admit(number, 3_000)), [false, true, false]);
    assert_eq!(world.row(4).waiting, None);
    end(3);
    assert!(!admit(6, 3_000), "the fifth came before");
    assert!(admit(6, 3_000 + WAIT_LEASE_MS + 1), "the fifth does not ask any more");
    assert!(world.store.admit(&thread_id(5), Claim { epoch: 9 }, caps, 3_000).is_err(), "another claim");
}

/// A child that is suspended works on nothing: its place goes to the next.
pub fn suspended_children_leave_their_places(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    let caps = SpawnCaps { concurrent_children: Some(1), queues_children: true, ..SpawnCaps::default() };
    for number in [2, 3] {
        let created = world.store.create_blocking(NewThread { caps, ..new_thread(number, Some(1)) });
        assert!(
            matches!(created, Ok(CreateOutcome::Created { is_queued, .. }) if is_queued == (number == 3))
        );
    }
    let admit = || world.store.admit(&thread_id(3), claim, caps, 2_000).expect("asked");
    assert!(!admit());
    let stopped =
        StatusChange { reason: Some(SuspendReason::Budget), ..StatusChange::to(ThreadStatus::Suspended) };
    world.commit(ThreadCommit { status: Some(stopped), ..commit_for(2, claim) });
    assert!(admit());
}
