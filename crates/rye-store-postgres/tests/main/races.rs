//! Many at once: no more is granted than there is, whichever process asks.

use std::process::{Command, Stdio};
use std::time::Instant;

use rye_store::CommitOutcome;

use super::*;

/// Makes `count` children of thread 1 from number `first` on, each with a reservation of 10; gives how many were granted.
fn race(store: &StoreHandle, first: u64, count: u64) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for thread in first..first + count {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                let created = store.create(new_thread(thread, Some(1))).await.expect("created");
                let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
                let call = ThreadCommit { reservation: reserve(1, 10), ..commit_for(thread, claim) };
                store.commit(call).await.expect("committed") == CommitOutcome::Done
            }));
        }
        let mut granted = 0;
        for task in tasks {
            granted += u32::from(task.await.expect("a task"));
        }
        granted
    })
}

fn assert_spent(store: &StoreHandle) {
    assert_eq!(store.ledger(&thread_id(1)).expect("a row").remaining_spend(), Some(Nanos(0)));
    assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn three_writers_grant_exactly_the_budget() {
    let schema = new_schema();
    let stores = [(); 3].map(|()| open(options(&schema)));
    create(&stores[0], NewThread { max_spend: Some(Nanos(1_000)), ..new_thread(1, None) });
    let started = Instant::now();
    let threads: Vec<_> = stores
        .iter()
        .zip([1_000, 2_000, 3_000])
        .map(|(store, first)| {
            let store = store.clone();
            std::thread::spawn(move || race(&store, first, 100))
        })
        .collect();
    let granted: u32 = threads.into_iter().map(|thread| thread.join().expect("a race")).sum();
    assert_eq!(granted, 100);
    assert_spent(&stores[0]);
    println!("300 for 100 grants over 3 writers: {granted} granted in {:?}", started.elapsed());
}

/// Run by [`three_processes_grant_exactly_the_budget`], each in a process of its own.
#[test]
#[ignore = "a part of another test"]
fn race_in_this_process() {
    let schema = setting("RYE_TEST_SCHEMA").expect("a schema");
    let first = setting("RYE_TEST_FIRST").expect("a number").parse().expect("a number");
    println!("granted={}", race(&open(options(&schema)), first, 100));
}

#[expect(clippy::disallowed_methods, reason = "the test is its own child")]
fn start_child(schema: &str, first: u64) -> std::process::Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "races::race_in_this_process", "--ignored", "--nocapture"])
        .env("RYE_TEST_SCHEMA", schema)
        .env("RYE_TEST_FIRST", first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child")
}

#[test]
fn three_processes_grant_exactly_the_budget() {
    let schema = new_schema();
    let store = open(options(&schema));
    create(&store, NewThread { max_spend: Some(Nanos(1_000)), ..new_thread(1, None) });
    let children: Vec<_> =
        [1_000, 2_000, 3_000].into_iter().map(|first| start_child(&schema, first)).collect();
    let mut granted = 0;
    for child in children {
        let output = child.wait_with_output().expect("ended");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let count = text.lines().find_map(|line| line.split("granted=").nth(1)).expect("a count");
        granted += count.trim().parse::<u32>().expect("a number");
    }
    assert_eq!(granted, 100);
    assert_spent(&store);
    println!("300 for 100 grants over 3 processes: {granted} granted");
}

#[test]
fn trees_in_any_order_do_not_deadlock() {
    let schema = new_schema();
    let stores = [open(options(&schema)), open(options(&schema))];
    let claims: Vec<Claim> = (1..=8).map(|number| create(&stores[0], new_thread(number, None))).collect();
    let threads: Vec<_> = stores
        .iter()
        .zip([false, true])
        .map(|(store, is_reversed)| {
            let (store, claims) = (store.clone(), claims.clone());
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                runtime.block_on(async {
                    for _ in 0..20 {
                        let mut order: Vec<u64> = (1..=8).collect();
                        if is_reversed {
                            order.reverse();
                        }
                        let commits = order.iter().map(|number| {
                            let claim = claims[usize::try_from(*number).expect("small") - 1];
                            let records = vec![record("step")];
                            store.commit(ThreadCommit { records, ..commit_for(*number, claim) })
                        });
                        for outcome in futures_util::future::join_all(commits).await {
                            assert_eq!(outcome, Ok(CommitOutcome::Done));
                        }
                    }
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no failure"));
    for number in 1..=8 {
        assert_eq!(stores[0].journal(&thread_id(number)).expect("a journal").len(), 41);
    }
}

/// Commits that are written together see each other: calls, maxima and entries of one thread and of its parent.
#[test]
fn commits_of_one_batch_build_on_each_other() {
    let schema = new_schema();
    let store = open(options(&schema));
    let parent = create(&store, NewThread { max_spend: Some(Nanos(25)), ..new_thread(1, None) });
    let child = create(&store, new_thread(2, Some(1)));
    let other = create(&store, new_thread(3, Some(1)));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let step = |number: u64, claim: Claim, call: u64, settled: Option<u64>| ThreadCommit {
        records: vec![record(&call.to_string())],
        settlements: settled.map(|call| settle(call, 4)).into_iter().collect(),
        reservation: reserve(call, 10),
        ..commit_for(number, claim)
    };
    let more = rye_store::BudgetCaps { spend: Some(Nanos(40)), tokens: None };
    let outcomes = runtime.block_on(futures_util::future::join_all([
        store.commit(step(2, child, 1, None)),
        store.commit(step(3, other, 1, None)),
        store.commit(step(3, other, 2, None)),
        store.commit(ThreadCommit { reservation: reserve(1, 0), ..step(2, child, 1, None) }),
        store.commit(ThreadCommit { caps: Some(more), ..commit_for(1, parent) }),
        store.commit(step(2, child, 2, Some(1))),
        store.commit(step(3, other, 3, Some(1))),
    ]));
    let is_done: Vec<bool> = outcomes.iter().map(|one| *one == Ok(CommitOutcome::Done)).collect();
    // The third has no money; the fourth is a call that was made before.
    assert_eq!(is_done, [true, true, false, false, true, true, true], "{outcomes:?}");
    assert!(matches!(outcomes[2], Ok(CommitOutcome::Refused(_))));
    let bodies = |number: u64| -> Vec<String> {
        let journal = store.journal(&thread_id(number)).expect("a journal");
        journal.iter().skip(1).map(|entry| String::from_utf8_lossy(&entry.body).into_owned()).collect()
    };
    assert_eq!(
        (bodies(2), bodies(3)),
        (vec!["1".into(), "2".into()], vec!["1".into(), "2".into(), "3".into()])
    );
    let row = store.ledger(&thread_id(1)).expect("a row");
    assert_eq!((row.subtree_spend, row.subtree_reserved), (Nanos(8), Nanos(20)));
    assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
}

/// How many commits a second two writers make in one tree; measured, not judged.
#[test]
fn two_writers_commit_in_one_tree() {
    const CHILDREN: u64 = 64;
    let count: u64 = setting("RYE_TEST_COMMITS").and_then(|text| text.parse().ok()).unwrap_or(10);
    let schema = new_schema();
    let stores = [open(options(&schema)), open(options(&schema))];
    create(&stores[0], new_thread(1, None));
    let started = Arc::new(std::sync::Barrier::new(3));
    let threads: Vec<_> = stores
        .iter()
        .zip([1_000, 2_000])
        .map(|(store, first)| {
            let (store, started) = (store.clone(), Arc::clone(&started));
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                let claims: Vec<(u64, Claim)> = (first..first + CHILDREN)
                    .map(|number| (number, create(&store, new_thread(number, Some(1)))))
                    .collect();
                started.wait();
                runtime.block_on(async {
                    let run = |(number, claim): (u64, Claim)| {
                        let store = store.clone();
                        async move {
                            for call in 1..=count {
                                let commit = ThreadCommit {
                                    records: vec![record("step")],
                                    settlements: (call > 1)
                                        .then(|| settle(call - 1, 3))
                                        .into_iter()
                                        .collect(),
                                    reservation: reserve(call, 10),
                                    ..commit_for(number, claim)
                                };
                                assert_eq!(store.commit(commit).await, Ok(CommitOutcome::Done));
                            }
                        }
                    };
                    futures_util::future::join_all(claims.into_iter().map(run)).await;
                });
            })
        })
        .collect();
    started.wait();
    let begun = Instant::now();
    threads.into_iter().for_each(|thread| thread.join().expect("no failure"));
    let commits = 2 * CHILDREN * count;
    let per_second = f64::from(u32::try_from(commits).expect("few")) / begun.elapsed().as_secs_f64();
    println!("{commits} commits in one tree by two writers: {per_second:.0} per second");
    assert_eq!(stores[0].audit().expect("audited"), Vec::<String>::new());
}
