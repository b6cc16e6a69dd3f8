//! Threads are made, go on, and end.

use serde_json::json;

use super::*;
use crate::cost::Cost;
use crate::status::{Status, SuspendReason};

#[test]
fn what_was_committed_is_read_back_by_another_opening() {
    let world = world();
    let claim = world.create(new(1, None));
    let mut step = Commit::new(id(1), claim, 2_000);
    step.records = vec![record("second"), record("third")];
    step.cost = Some(Cost { turns: 1, input_tokens: 2, output_tokens: 3, spend: Nanos(4), elapsed_ms: 5 });
    step.status = Some(StatusChange::to(Status::Running));
    step.transcript_head = Some(Head { sequence: 7, hash: Digest::of(b"x") });
    assert_eq!(world.commit(step.clone()), Committed::Done);
    let folder = world.folder;
    drop(world.store);
    let store = open(folder.path());
    let bodies: Vec<Vec<u8>> =
        store.journal(&id(1)).expect("a journal").into_iter().map(|record| record.body).collect();
    assert_eq!(bodies, [&b"first"[..], b"second", b"third"]);
    let row = store.thread(&id(1)).expect("read").expect("a thread");
    assert_eq!((row.status, row.records, row.cost), (Status::Running, 3, step.cost.expect("a cost")));
    assert_eq!(row.transcript_head, step.transcript_head);
    assert_eq!(row.updated_at, "1970-01-01T00:00:02.000Z");
    assert_eq!(row.owner, Some(Owner::current()));
}

#[test]
fn the_ledgers_name_of_old_leads_to_the_same_database() {
    let world = world();
    let threads = world.folder.path().join("threads");
    assert_eq!(
        std::fs::read_link(threads.join("budget_ledger.db")).expect("a link"),
        Path::new("registry.db")
    );
}

#[test]
fn the_database_is_private_and_a_link_in_its_place_is_not_followed() {
    use std::os::unix::fs::PermissionsExt;
    let world = world();
    world.create(new(1, None));
    let threads = world.folder.path().join("threads");
    for name in ["registry.db", "registry.db-wal"] {
        let mode = std::fs::metadata(threads.join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let other = tempfile::tempdir().expect("a folder");
    let linked = other.path().join("threads");
    lillux::file::create_folders(&linked, true).expect("made");
    std::os::unix::fs::symlink(threads.join(DATABASE), linked.join(DATABASE)).expect("a link");
    assert!(Store::open(&linked, &secret(), &LedgerSpec::default()).is_err());
    assert!(Store::open_existing(&linked, &secret(), &LedgerSpec::default()).is_err());
}

#[test]
fn a_reading_command_makes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    let opened = Store::open_existing(&threads, &secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_none() && !threads.exists());
    drop(open(folder.path()));
    let opened = Store::open_existing(&threads, &secret(), &LedgerSpec::default()).expect("looked");
    assert!(opened.is_some_and(|store| store.thread(&id(1)).expect("read").is_none()));
}

#[test]
fn a_name_is_given_once() {
    let world = world();
    world.create(new(1, None));
    assert_eq!(world.store.create_blocking(new(1, None)), Err(StoreError::Exists(id(1))));
    assert_eq!(world.store.create_blocking(new(2, Some(9))), Err(StoreError::NoThread(id(9))));
}

#[test]
fn an_ended_thread_stays_ended_and_starts_no_child() {
    let world = world();
    let claim = world.create(new(1, None));
    let end = |status, at_ms| {
        let mut step = Commit::new(id(1), claim, at_ms);
        step.status = Some(StatusChange { result: Some(json!({"a": 1})), ..StatusChange::to(status) });
        step.records = vec![record("end")];
        step
    };
    assert_eq!(world.commit(end(Status::Completed, 5_000)), Committed::Done);
    let lost = Committed::Ended { status: Status::Completed, at: "1970-01-01T00:00:05.000Z".to_owned() };
    assert_eq!(world.commit(end(Status::Cancelled, 6_000)), lost);
    let row = world.store.thread(&id(1)).expect("read").expect("a thread");
    assert_eq!((row.status, row.result, row.records), (Status::Completed, Some(json!({"a": 1})), 3));
    assert_eq!(world.store.ledger(&id(1)).expect("a row").status, "completed");
    let child = world.store.create_blocking(new(2, Some(1)));
    assert_eq!(child, Err(StoreError::ParentEnded { parent: id(1) }));
}

#[test]
fn a_suspended_thread_says_why_and_can_go_on() {
    let world = world();
    let claim = world.create(new(1, None));
    let mut step = Commit::new(id(1), claim, 1);
    step.status =
        Some(StatusChange { reason: Some(SuspendReason::Budget), ..StatusChange::to(Status::Suspended) });
    world.commit(step.clone());
    let reason = || world.store.thread(&id(1)).expect("read").expect("a thread").reason;
    assert_eq!(reason(), Some(SuspendReason::Budget));
    step.status = Some(StatusChange::to(Status::Running));
    assert_eq!(world.commit(step), Committed::Done);
    assert_eq!(reason(), None);
}

#[test]
fn each_cap_on_children_is_held_and_named() {
    let world = world();
    let claim = world.create(new(1, None));
    world.create(new(2, Some(1)));
    let refused = |caps: Caps| {
        let created = world.store.create_blocking(NewThread { caps, ..new(3, Some(1)) }).expect("judged");
        let Created::Refused { cap, most, count } = created else { panic!("{created:?}") };
        (cap.as_str(), most, count)
    };
    let none = Caps::default();
    assert_eq!(refused(Caps { spawns: Some(1), ..none }), ("spawns", 1, 1));
    assert_eq!(refused(Caps { depth: Some(0), ..none }), ("depth", 0, 0));
    assert_eq!(refused(Caps { concurrent_children: Some(1), ..none }), ("max_concurrent_children", 1, 1));
    assert_eq!(refused(Caps { total_threads: Some(2), ..none }), ("max_total_threads", 2, 2));
    assert!(world.store.thread(&id(3)).expect("read").is_none());
    assert_eq!(world.store.thread(&id(1)).expect("read").expect("a thread").spawn_count, 1);
    // A child that has ended makes room for another, not for a further start.
    let mut end = Commit::new(id(2), claim, 1);
    end.status = Some(StatusChange::to(Status::Completed));
    world.commit(end);
    let caps = Caps { spawns: Some(2), depth: Some(1), concurrent_children: Some(1), total_threads: Some(2) };
    world.create(NewThread { caps, ..new(3, Some(1)) });
    assert_eq!(refused(caps), ("spawns", 2, 2));
}

#[test]
fn one_bad_commit_among_many_fails_alone() {
    let world = world();
    let claim = world.create(new(1, None));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let results = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..50_u64 {
            let store = world.store.clone();
            let mut step = Commit::new(id(1), claim, 1);
            step.records = vec![record(&number.to_string())];
            // This one has written its record before it fails.
            if number % 10 == 3 {
                step.settle = vec![Settle { is_unknown: true, ..settle(number, 1) }];
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
    assert_eq!(world.store.journal(&id(1)).expect("intact").len(), 1 + 45);
}

#[test]
fn trees_are_found_from_every_side() {
    let world = world();
    let claim = world.create(new(1, None));
    world.create(new(2, Some(1)));
    world.create(new(3, Some(2)));
    world.create(new(4, None));
    let ids = |rows: Vec<ThreadRow>| rows.into_iter().map(|row| row.id).collect::<Vec<_>>();
    assert_eq!(ids(world.store.subtree(&id(1)).expect("rows")), [id(1), id(2), id(3)]);
    assert_eq!(ids(world.store.children(&id(1)).expect("rows")), [id(2)]);
    assert_eq!(ids(world.store.ancestors(&id(3)).expect("rows")), [id(2), id(1)]);
    let roots = Filter { is_root: true, ..Filter::default() };
    assert_eq!(ids(world.store.threads(&roots).expect("rows")), [id(4), id(1)]);
    let mut step = Commit::new(id(3), claim, 1);
    step.status = Some(StatusChange::to(Status::Running));
    step.cost = Some(Cost { turns: 2, spend: Nanos(5), ..Cost::default() });
    world.commit(step);
    let running = Filter { statuses: vec![Status::Running], limit: Some(9), ..Filter::default() };
    assert_eq!(ids(world.store.threads(&running).expect("rows")), [id(3)]);
    let totals = world.store.tree_totals(&id(1)).expect("totals");
    assert_eq!(totals.counts, [(Status::Created, 2), (Status::Running, 1)]);
    assert_eq!((totals.cost.turns, totals.cost.spend), (2, Nanos(5)));
}

#[test]
fn a_thread_that_goes_on_from_another_is_linked_both_ways() {
    let world = world();
    world.create(new(1, None));
    world.create(NewThread { continuation_of: Some(id(1)), ..new(2, None) });
    world.create(NewThread { continuation_of: Some(id(2)), ..new(3, None) });
    let row = |number| world.store.thread(&id(number)).expect("read").expect("a thread");
    assert_eq!(row(1).continuation_thread_id, Some(id(2)));
    assert_eq!((row(3).continuation_of, row(3).chain_root_id), (Some(id(2)), Some(id(1))));
}

#[test]
fn shared_parts_are_kept_once_and_must_be_there() {
    let world = world();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let put = |bytes: &[u8]| runtime.block_on(world.store.put_blob(bytes.to_vec(), 1)).expect("kept");
    let digest = put(b"big");
    assert_eq!(put(b"big"), digest);
    assert_eq!(world.store.blob(&digest).expect("there"), b"big");
    world.create(NewThread { blobs: vec![digest], ..new(1, None) });
    let absent = Digest::of(b"absent");
    let refused = world.store.create_blocking(NewThread { blobs: vec![absent], ..new(2, None) });
    assert_eq!(refused, Err(StoreError::NoBlob(absent.to_hex())));
    world.tamper("UPDATE blobs SET bytes = x'00'");
    assert_eq!(world.store.blob(&digest), Err(StoreError::NoBlob(digest.to_hex())));
}

#[test]
fn those_who_listen_hear_of_changes_and_of_other_openings() {
    let world = world();
    let mut heard = world.store.subscribe();
    let version = world.store.data_version().expect("a version");
    let claim = world.create(new(1, None));
    assert_eq!(heard.try_recv().expect("told"), Change { thread: id(1), status: Some(Status::Created) });
    assert_ne!(world.store.data_version().expect("a version"), version);
    let other = open(world.folder.path());
    let version = world.store.data_version().expect("a version");
    let mut step = Commit::new(id(1), claim, 1);
    step.records = vec![record("elsewhere")];
    other.commit_blocking(step).expect("committed");
    assert_ne!(world.store.data_version().expect("a version"), version);
    assert!(heard.try_recv().is_err(), "another opening's changes are not told here");
}
