//! Leases: who may commit to a thread, and who may take it over.

use super::*;

/// A claim that is not the latest can do nothing.
pub fn stale_claim_cannot_commit(open: OpenStore) {
    let world = TestStore::new(open);
    let stale = world.create(new_thread(1, None));
    let this = test_owner();
    assert!(matches!(
        world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 1),
        Ok(ClaimOutcome::Held { .. })
    ));
    let forced = world.store.claim(&thread_id(1), &this, ClaimPolicy::Forced, 2).expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = forced else { panic!("{forced:?}") };
    let step =
        |claim| ThreadCommit { records: vec![record("late")], ..ThreadCommit::new(thread_id(1), claim, 1) };
    assert_eq!(world.store.commit_blocking(step(stale)), Err(ThreadStoreError::Fenced(thread_id(1))));
    assert_eq!(world.store.release_claim(&thread_id(1), stale), Err(ThreadStoreError::Fenced(thread_id(1))));
    let heartbeat =
        |claim| rye_store::block_on(world.store.heartbeat(vec![(thread_id(1), claim)], 9)).expect("written");
    assert_eq!((heartbeat(stale), heartbeat(claim)), (vec![(thread_id(1), stale)], vec![]));
    assert_eq!(world.store.thread(&thread_id(1)).expect("read").expect("a thread").heartbeat_ms, 9);
    world.store.release_claim(&thread_id(1), claim).expect("released");
    assert_eq!(world.store.commit_blocking(step(claim)), Err(ThreadStoreError::Fenced(thread_id(1))));
    assert_eq!(world.store.journal(&thread_id(1)).expect("a journal").len(), 1);
    assert!(matches!(
        world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 3),
        Ok(ClaimOutcome::Claimed { from: None, .. })
    ));
}

/// The last commit gives the thread up.
pub fn last_commit_releases_the_claim(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    let last = ThreadCommit {
        is_last: true,
        records: vec![record("last")],
        ..ThreadCommit::new(thread_id(1), claim, 1)
    };
    assert_eq!(world.commit(last.clone()), CommitOutcome::Done);
    assert_eq!(world.store.commit_blocking(last), Err(ThreadStoreError::Fenced(thread_id(1))));
    assert_eq!(world.store.thread(&thread_id(1)).expect("read").expect("a thread").owner, None);
    // A heartbeat that was on its way meanwhile does not take it for one that another process took.
    let heartbeat =
        |claim| rye_store::block_on(world.store.heartbeat(vec![(thread_id(1), claim)], 9)).expect("written");
    assert_eq!(heartbeat(claim), vec![]);
    let claimed = world.store.claim(&thread_id(1), &test_owner(), ClaimPolicy::Free, 3).expect("judged");
    assert!(matches!(claimed, ClaimOutcome::Claimed { .. }), "{claimed:?}");
    assert_eq!(heartbeat(claim), vec![(thread_id(1), claim)]);
}

/// Who may be taken from whom.
pub fn only_threads_of_dead_processes_are_orphans(open: OpenStore) {
    let world = TestStore::new(open);
    let this = test_owner();
    let gone = Owner { pid_start: this.pid_start + 1, ..this.clone() };
    let elsewhere = Owner { host: "elsewhere".to_owned(), ..gone.clone() };
    for (number, owner) in [(1, this.clone()), (2, gone), (3, elsewhere)] {
        let claim = world.create(NewThread { owner: Some(owner), ..new_thread(number, None) });
        let running = Some(StatusChange::to(ThreadStatus::Running));
        world.commit(ThreadCommit { status: running, ..ThreadCommit::new(thread_id(number), claim, 1) });
    }
    world.create(NewThread { owner: None, ..new_thread(4, None) });
    world.create(NewThread { owner: None, is_detached: true, ..new_thread(5, None) });
    let orphans = |policy: ClaimPolicy| -> Vec<ThreadId> {
        world.store.orphans(&this, policy).expect("read").into_iter().map(|row| row.id).collect()
    };
    assert_eq!(orphans(ClaimPolicy::Free), [thread_id(2), thread_id(5)]);
    // One that cannot be asked is taken to be gone once nothing was heard for long enough.
    assert_eq!(orphans(ClaimPolicy::Expired { now_ms: 11, lease_ms: 10 }), [thread_id(2), thread_id(5)]);
    assert_eq!(
        orphans(ClaimPolicy::Expired { now_ms: u64::MAX, lease_ms: 10 }),
        [thread_id(2), thread_id(3), thread_id(5)]
    );
    let try_claim = |policy| world.store.claim(&thread_id(3), &this, policy, 1).expect("judged");
    assert!(matches!(
        try_claim(ClaimPolicy::Expired { now_ms: 11, lease_ms: 10 }),
        ClaimOutcome::Held { .. }
    ));
    assert!(matches!(
        try_claim(ClaimPolicy::Expired { now_ms: u64::MAX, lease_ms: 10 }),
        ClaimOutcome::Claimed { .. }
    ));
}

/// Children of detached threads are detached.
pub fn child_of_detached_thread_is_detached(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(NewThread { is_detached: true, ..new_thread(1, None) });
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, Some(2)));
    world.create(new_thread(4, None));
    let is_detached =
        |number| world.store.thread(&thread_id(number)).expect("read").expect("a thread").is_detached;
    assert_eq!([1, 2, 3, 4].map(is_detached), [true, true, true, false]);
    assert!(world.store.has_detached().expect("read"));
}

/// A claim clears the note.
pub fn claim_clears_the_note(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(NewThread { owner: None, is_detached: true, ..new_thread(1, None) });
    let note = || world.store.thread(&thread_id(1)).expect("read").expect("a thread").note;
    world.store.set_note(&thread_id(1), "no key").expect("noted");
    assert_eq!(note().as_deref(), Some("no key"));
    let claimed = world.store.claim(&thread_id(1), &test_owner(), ClaimPolicy::Free, 1).expect("judged");
    assert!(matches!(claimed, ClaimOutcome::Claimed { .. }), "{claimed:?}");
    world.store.set_note(&thread_id(1), "too late").expect("noted");
    assert_eq!(note(), None);
}

/// A request to cancel is seen by every process, keeps its first reason, and stays until it is cleared.
pub fn cancel_request_stays_until_cleared(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(new_thread(1, None));
    world.create(new_thread(2, None));
    let missing = world.store.request_cancel(&thread_id(3), "enough", 1);
    assert!(matches!(missing, Err(ThreadStoreError::NoThread(_))), "{missing:?}");
    world.store.request_cancel(&thread_id(2), "enough", 1).expect("requested");
    world.store.request_cancel(&thread_id(1), "too slow", 2).expect("requested");
    world.store.request_cancel(&thread_id(2), "again", 3).expect("requested");
    let request =
        |number, reason: &str| CancelRequest { thread: thread_id(number), reason: reason.to_owned() };
    let requests = || world.store.cancel_requests().expect("read");
    assert_eq!(requests(), [request(1, "too slow"), request(2, "enough")]);
    world.store.clear_cancel_request(&thread_id(1)).expect("cleared");
    world.store.clear_cancel_request(&thread_id(3)).expect("nothing to clear");
    assert_eq!(requests(), [request(2, "enough")]);
}

/// Requests that no process took up for a day are removed.
pub fn old_cancel_requests_are_removed(open: OpenStore) {
    let world = TestStore::new(open);
    world.create(new_thread(1, None));
    world.create(new_thread(2, None));
    world.store.request_cancel(&thread_id(1), "enough", 1).expect("requested");
    world.store.request_cancel(&thread_id(2), "enough", MAX_CANCEL_REQUEST_AGE_MS + 2).expect("requested");
    let requests = world.store.cancel_requests().expect("read");
    assert_eq!(requests.iter().map(|request| &request.thread).collect::<Vec<_>>(), [&thread_id(2)]);
}
