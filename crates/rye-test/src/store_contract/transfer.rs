//! Trees that move from one store to another of the same kind: everything of them arrives, or nothing.

use rye_store::{ThreadProgress, ThreadTransfer};

use super::*;

/// A tree of two threads that has stopped: a call was paid for, a question answered, a part kept.
fn stopped_tree(open: OpenStore) -> TestStore {
    let world = TestStore::new(open);
    let digest = world.store.put_blob_blocking(b"a shared part".to_vec(), 1).expect("kept");
    let root = NewThread { max_spend: Some(Nanos(100)), blobs: vec![digest], ..new_thread(1, None) };
    let above = world.create(root);
    let claim = world.create(new_thread(2, Some(1)));
    world.commit(ThreadCommit { reservation: reserve(1, 50), ..commit_for(2, claim) });
    world.commit(ThreadCommit {
        records: vec![record("more")],
        settlements: vec![settle(1, 30)],
        status: Some(StatusChange::to(ThreadStatus::Completed)),
        is_last: true,
        ..commit_for(2, claim)
    });
    world.stop_to_ask(1, above);
    world.answer_question();
    world
}

/// A tree arrives as it was, is sealed by the store that takes it, and can then be forgotten where it was.
pub fn trees_move_between_stores(open: OpenStore) {
    let world = stopped_tree(open);
    let Ok(roots) = world.store.transferable() else { return };
    assert_eq!(roots, [thread_id(1)]);
    let tree = world.store.export_tree(&thread_id(1)).expect("exported");
    assert_eq!(tree.iter().map(|one| one.id.clone()).collect::<Vec<_>>(), [thread_id(1), thread_id(2)]);
    let other = TestStore::new(open);
    // What the tree uses must be there first.
    assert!(other.store.import_tree(tree.clone(), 5).is_err());
    assert_eq!(other.store.thread(&thread_id(1)).expect("read"), None);
    other.store.put_blob_blocking(b"a shared part".to_vec(), 5).expect("kept");
    other.store.import_tree(tree.clone(), 5).expect("imported");
    assert_eq!(other.store.export_tree(&thread_id(1)).expect("exported"), tree);
    for number in [1, 2] {
        let (here, there) = (world.row(number), other.row(number));
        assert!(!there.is_forged);
        let facts = |row: &ThreadRow| (row.status, row.cost, row.created_at.clone(), row.records, row.limits);
        assert_eq!(facts(&there), facts(&here));
        let id = thread_id(number);
        assert_eq!(other.store.journal(&id).expect("verified"), world.store.journal(&id).expect("verified"));
        assert_eq!(other.store.ledger(&id).expect("a row"), world.store.ledger(&id).expect("a row"));
    }
    assert_eq!(other.store.audit().expect("audited"), Vec::<String>::new());
    assert_eq!(other.store.answered_threads().expect("read"), [thread_id(1)]);
    assert!(matches!(other.store.import_tree(tree.clone(), 5), Err(ThreadStoreError::Exists(_))));
    world.store.forget_tree(progress(&tree)).expect("forgotten");
    assert_eq!(world.store.threads(&ThreadFilter::default()).expect("read"), []);
    assert_eq!(world.store.transferable().expect("read"), Vec::<ThreadId>::new());
    // And back: it is the latest again where it was before.
    let tree = other.store.export_tree(&thread_id(1)).expect("exported");
    world.store.put_blob_blocking(b"a shared part".to_vec(), 6).expect("kept");
    world.store.import_tree(tree.clone(), 6).expect("imported");
    assert_eq!(world.store.export_tree(&thread_id(1)).expect("exported"), tree);
    assert!(world.store.freshness().expect("compared").is_current());
}

/// A tree with a thread at work stays where it is, and one that was changed on the way does not arrive.
pub fn threads_at_work_do_not_move(open: OpenStore) {
    let world = stopped_tree(open);
    let Ok(tree) = world.store.export_tree(&thread_id(1)) else { return };
    let other = TestStore::new(open);
    other.store.put_blob_blocking(b"a shared part".to_vec(), 5).expect("kept");
    let mut changed = tree.clone();
    if let Some(ThreadTransfer { journal, .. }) = changed.last_mut() {
        journal.pop();
    }
    assert!(matches!(other.store.import_tree(changed, 5), Err(ThreadStoreError::Conflict { .. })));
    assert_eq!(other.store.threads(&ThreadFilter::default()).expect("read"), []);
    let claimed = world.store.claim(&thread_id(1), &test_owner(), ClaimPolicy::Free, 3).expect("judged");
    assert!(matches!(claimed, ClaimOutcome::Claimed { .. }), "{claimed:?}");
    let refused = world.store.export_tree(&thread_id(1));
    assert!(matches!(refused, Err(ThreadStoreError::Running { .. })), "{refused:?}");
    assert!(matches!(world.store.forget_tree(progress(&tree)), Err(ThreadStoreError::Running { .. })));
}

/// A tree that continued after it was exported stays, as the other store has an older one.
pub fn continued_trees_are_not_forgotten(open: OpenStore) {
    let world = stopped_tree(open);
    let Ok(tree) = world.store.export_tree(&thread_id(1)) else { return };
    let exported = progress(&tree);
    let without_child = exported.iter().take(1).cloned().collect();
    assert!(matches!(world.store.forget_tree(without_child), Err(ThreadStoreError::Conflict { .. })));
    let mut unanswered = exported.clone();
    unanswered.iter_mut().for_each(|one| one.answers = 0);
    assert!(matches!(world.store.forget_tree(unanswered), Err(ThreadStoreError::Conflict { .. })));

    let claimed = world.store.claim(&thread_id(1), &test_owner(), ClaimPolicy::Free, 3).expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
    let stop =
        StatusChange { reason: Some(SuspendReason::Limit), ..StatusChange::to(ThreadStatus::Suspended) };
    world.commit(ThreadCommit {
        records: vec![record("more")],
        status: Some(stop),
        is_last: true,
        ..commit_for(1, claim)
    });
    assert!(matches!(world.store.forget_tree(exported), Err(ThreadStoreError::Conflict { .. })));
    let tree = world.store.export_tree(&thread_id(1)).expect("still there");
    world.store.forget_tree(progress(&tree)).expect("forgotten");
}

fn progress(tree: &[ThreadTransfer]) -> Vec<ThreadProgress> {
    tree.iter().map(|one| one.progress().expect("a whole row")).collect()
}
