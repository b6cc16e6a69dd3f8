//! What machines that share no files need: transcripts, submissions, workers. A store of one machine has none of it.

use rye_store::{RESUME_KIND, Submission, TranscriptPart, resume_request_id};

use super::*;

/// A store keeps what commits carry, and replaces what was kept behind the place where a part begins.
pub fn transcripts_are_kept_with_commits(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    let part = |from: u64, text: &str| Some(TranscriptPart { from, bytes: text.as_bytes().to_vec() });
    let kept = |from: u64| {
        let bytes = world.store.transcript(&thread_id(1), from).expect("read");
        String::from_utf8(bytes).expect("text")
    };
    for (from, text) in [(0, "one\n"), (4, "two\n"), (8, "three\n")] {
        world.commit(ThreadCommit { transcript: part(from, text), ..commit_for(1, claim) });
    }
    if !world.store.keeps_transcripts() {
        return assert_eq!(kept(0), "");
    }
    assert_eq!(
        (kept(0).as_str(), kept(6).as_str(), kept(14).as_str()),
        ("one\ntwo\nthree\n", "o\nthree\n", "")
    );
    // A process that took the thread over writes again what the journal has, from the middle of a part on.
    world.commit(ThreadCommit { transcript: part(6, "O\n4\n"), ..commit_for(1, claim) });
    world.commit(ThreadCommit { transcript: part(10, "5\n"), ..commit_for(1, claim) });
    assert_eq!(kept(0), "one\ntwO\n4\n5\n");
    // What a process without the claim would add is not there.
    let stale =
        ThreadCommit { transcript: part(0, "stale\n"), ..commit_for(1, Claim { epoch: claim.epoch - 1 }) };
    assert_eq!(world.store.commit_blocking(stale), Err(ThreadStoreError::Fenced(thread_id(1))));
    assert_eq!(kept(0), "one\ntwO\n4\n5\n");
}

/// Workers find the threads of submitted trees that no process has, and no others.
pub fn submitted_threads_wait_for_workers(open: OpenStore) {
    let world = TestStore::new(open);
    let digest = world.store.put_blob_blocking(b"what is to be run".to_vec(), 1).expect("kept");
    let submitted = NewThread {
        owner: None,
        is_detached: true,
        blobs: vec![digest],
        submission: Some(digest),
        ..new_thread(1, None)
    };
    if !world.store.keeps_transcripts() {
        assert!(world.store.create_blocking(submitted).is_err(), "a store of one machine has no workers");
        return assert_eq!(world.store.submitted(&test_owner(), ClaimPolicy::Free, None).expect("read"), []);
    }
    world.create(submitted);
    world.create(NewThread { owner: None, is_detached: true, ..new_thread(2, None) });
    let this = test_owner();
    let waiting = || -> Vec<ThreadId> {
        let found = world.store.submitted(&this, ClaimPolicy::Free, None).expect("read");
        let expected = Submission { root: thread_id(1), digest };
        assert!(found.iter().all(|found| found.submission == expected), "{found:?}");
        found.into_iter().map(|found| found.row.id).collect()
    };
    assert_eq!(waiting(), [thread_id(1)]);
    let claimed = world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 1).expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
    assert_eq!(waiting(), []);
    // A child that is left to other workers is found too, and so is what continues the thread.
    world.create(NewThread { owner: None, ..new_thread(3, Some(1)) });
    world.create(NewThread { owner: None, continuation_of: Some(thread_id(1)), ..new_thread(4, None) });
    assert_eq!(waiting(), [thread_id(3), thread_id(4)]);
    assert!(world.store.submission(&thread_id(3)).expect("read").is_some());
    assert!(world.store.submission(&thread_id(2)).expect("read").is_none());
    let only = |number: u64| {
        let found = world.store.submitted(&this, ClaimPolicy::Free, Some(&thread_id(number))).expect("read");
        found.into_iter().map(|found| found.epoch).collect::<Vec<_>>()
    };
    assert_eq!([only(1), only(2), only(3)], [vec![], vec![], vec![1]]);
    // One that stopped to ask waits for the answer first.
    world.stop_to_ask(1, claim);
    assert!(!waiting().contains(&thread_id(1)));
    world.answer_question();
    assert!(waiting().contains(&thread_id(1)));
    assert!(only(1).iter().all(|epoch| *epoch > claim.epoch), "it was given up");
}

/// A suspended thread that a person asks to resume waits for workers, until it has continued once.
pub fn requested_threads_wait_for_workers_once(open: OpenStore) {
    let world = TestStore::new(open);
    let this = test_owner();
    let decision = |limit: &str| ApprovalDecision {
        approved: true,
        message: None,
        changes: serde_json::json!({"turns": limit}),
        at_ms: 2,
        by: "a person".to_owned(),
        always: None,
    };
    if !world.store.keeps_transcripts() {
        world.create(new_thread(1, None));
        return assert!(world.store.request_resume(&thread_id(1), &decision("+1")).is_err());
    }
    let digest = world.store.put_blob_blocking(b"what is to be run".to_vec(), 1).expect("kept");
    world.create(NewThread { blobs: vec![digest], submission: Some(digest), ..new_thread(1, None) });
    let waiting = || {
        let found = world.store.submitted(&this, ClaimPolicy::Free, None).expect("read");
        found.into_iter().map(|found| (found.row.id, found.row.records)).collect::<Vec<_>>()
    };
    let stop = |claim: Claim| {
        let status = StatusChange {
            reason: Some(SuspendReason::Provider),
            ..StatusChange::to(ThreadStatus::Suspended)
        };
        let records = vec![record("stopped")];
        world.commit(ThreadCommit { records, status: Some(status), is_last: true, ..commit_for(1, claim) });
    };
    assert!(world.store.request_resume(&thread_id(1), &decision("+1")).is_err(), "it is running");
    let claimed = world.store.claim(&thread_id(1), &this, ClaimPolicy::Forced, 1).expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
    stop(claim);
    assert_eq!(waiting(), []);
    world.store.request_resume(&thread_id(1), &decision("+1")).expect("requested");
    world.store.request_resume(&thread_id(1), &decision("+2")).expect("requested again");
    let records = world.row(1).records;
    assert_eq!(waiting(), [(thread_id(1), records)]);
    let request = world.store.approval(&resume_request_id(&thread_id(1), records)).expect("read");
    let request = request.expect("a request");
    assert_eq!((request.approval.kind.as_str(), request.answer), (RESUME_KIND, Some(decision("+2"))));
    assert_eq!(world.store.open_approvals(None).expect("read").approvals, []);
    // It does not answer a question, and other processes do not take it for one that does.
    assert_eq!(world.store.answered_threads().expect("read"), []);
    let claimed = world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 1).expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
    assert_eq!(waiting(), []);
    stop(claim);
    assert_eq!(waiting(), [], "it has continued once");
}

/// A worker is listed with what it offers, until it ends.
pub fn workers_are_listed_until_they_end(open: OpenStore) {
    let world = TestStore::new(open);
    if !world.store.keeps_transcripts() {
        return assert!(world.store.put_worker("one", "{}", 1).is_err());
    }
    let listed = || -> Vec<(String, String)> {
        let workers = world.store.workers().expect("read");
        assert!(workers.iter().all(|worker| worker.signer.is_some()), "{workers:?}");
        workers.into_iter().map(|worker| (worker.name, worker.body)).collect()
    };
    let pair = |name: &str, body: &str| (name.to_owned(), body.to_owned());
    for (name, body) in [("two", "{}"), ("one", "{}"), ("two", "{\"labels\": []}")] {
        world.store.put_worker(name, body, 1).expect("noted");
    }
    assert_eq!(listed(), [pair("one", "{}"), pair("two", "{\"labels\": []}")]);
    world.store.put_worker("one", "", 1).expect("noted");
    assert_eq!(listed(), [pair("two", "{\"labels\": []}")]);
}
