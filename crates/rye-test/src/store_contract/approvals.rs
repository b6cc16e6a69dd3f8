//! Questions to people, and their answers.

use super::*;

pub(super) fn decision(approved: bool) -> ApprovalDecision {
    let always = approved.then_some(rye_thread::machine::ApprovalScope::Item);
    ApprovalDecision {
        approved,
        message: None,
        changes: Value::Null,
        always,
        at_ms: 2,
        by: "a person".to_owned(),
    }
}

/// A question is open until it is answered, and is answered once.
pub fn questions_are_answered_once(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, None));
    world.commit(ThreadCommit { approvals: vec![approval("two", 2)], ..commit_for(2, claim) });
    rye_store::block_on(world.store.add_approval(Approval { at_ms: 0, ..approval("three", 3) }))
        .expect("asked");
    let open_ids = |below: Option<u64>| -> Vec<String> {
        let below = below.map(thread_id);
        let open = world.store.open_approvals(below.as_ref()).expect("read");
        assert_eq!(open.forged, Vec::<String>::new());
        open.approvals.into_iter().map(|approval| approval.id).collect()
    };
    assert_eq!(
        (open_ids(None), open_ids(Some(1))),
        (vec!["three".to_owned(), "two".to_owned()], vec!["two".to_owned()])
    );
    assert_eq!(world.store.answer_approval("two", &decision(true)), Ok(approval("two", 2)));
    let record = world.store.approval("two").expect("read").expect("a question");
    assert_eq!((record.approval, record.answer), (approval("two", 2), Some(decision(true))));
    for id in ["two", "nothing"] {
        let refused = world.store.answer_approval(id, &decision(false));
        assert_eq!(refused, Err(ThreadStoreError::NoApproval(id.to_owned())));
    }
    assert_eq!(world.store.approval("nothing").expect("read"), None);
    // What a thread asked that has ended since is not open.
    let end = Some(StatusChange::to(ThreadStatus::Cancelled));
    world.commit(ThreadCommit { status: end, ..commit_for(3, claim) });
    assert_eq!(open_ids(None), Vec::<String>::new());
    assert_eq!(
        rye_store::block_on(world.store.add_approval(approval("nine", 9))),
        Err(ThreadStoreError::NoThread(thread_id(9)))
    );
}

/// A thread that stopped to ask is found once all it asked is answered, unless a process has it.
pub fn answered_threads_are_found(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, None));
    let stop = Some(StatusChange::to(ThreadStatus::Suspended));
    let asked = vec![approval("first", 1), approval("second", 1)];
    world.commit(ThreadCommit {
        approvals: asked,
        status: stop.clone(),
        is_last: true,
        ..commit_for(1, claim)
    });
    world.commit(ThreadCommit { status: stop, is_last: true, ..commit_for(2, claim) });
    let answered = || world.store.answered_threads().expect("read");
    world.store.answer_approval("first", &decision(true)).expect("answered");
    assert_eq!(answered(), []);
    world.store.answer_approval("second", &decision(false)).expect("answered");
    assert_eq!(answered(), [thread_id(1)]);
    world.store.claim(&thread_id(1), &test_owner(), ClaimPolicy::Free, 3).expect("judged");
    assert_eq!(answered(), []);
}

/// A question that was asked before takes its whole commit back.
pub fn repeated_question_undoes_its_commit(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.commit(ThreadCommit { approvals: vec![approval("one", 1)], ..commit_for(1, claim) });
    let again = ThreadCommit {
        records: vec![record("never")],
        settlements: vec![settle(1, 5)],
        approvals: vec![approval("two", 1), approval("one", 1)],
        reservation: reserve(2, 5),
        ..commit_for(1, claim)
    };
    assert!(matches!(world.store.commit_blocking(again), Err(ThreadStoreError::Conflict { .. })));
    assert_eq!(world.store.approval("two").expect("read"), None);
    assert_eq!(world.store.journal(&thread_id(1)).expect("a journal").len(), 1);
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").actual_spend, Nanos(0));
    assert_eq!(world.store.open_reservations(&thread_id(1)).expect("read"), []);
}
