//! Money and tokens: nobody spends what an ancestor does not have, and every sum holds.

use proptest::prelude::*;

use super::*;
use crate::status::ThreadStatus;

fn commit_for(thread: u64, claim: Claim) -> ThreadCommit {
    ThreadCommit::new(thread_id(thread), claim, 1)
}

#[test]
fn call_is_reserved_on_every_ancestor() {
    let world = test_store();
    let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new_thread(1, None) });
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, Some(2)));
    let call = ThreadCommit { reservation: reserve(1, 60), ..commit_for(3, claim) };
    assert_eq!(world.commit(call), CommitOutcome::Done);
    let sums = |thread: u64| {
        let row = world.store.ledger(&thread_id(thread)).expect("a row");
        (row.actual_spend.0, row.reserved_spend.0, row.subtree_spend.0, row.subtree_reserved.0)
    };
    assert_eq!((sums(3), sums(2), sums(1)), ((0, 60, 0, 60), (0, 0, 0, 60), (0, 0, 0, 60)));
    let call = ThreadCommit { reservation: reserve(1, 41), ..commit_for(2, claim) };
    let refusal = LedgerRefusal {
        refused_by: thread_id(1),
        resource: LedgerResource::Spend,
        limit: 100,
        used: 0,
        reserved: 60,
        requested: 41,
    };
    assert_eq!(world.commit(call.clone()), CommitOutcome::Refused(refusal));
    assert_eq!(sums(2), (0, 0, 0, 60), "what is refused is put aside nowhere");
    let settled = ThreadCommit { settlements: vec![settle(1, 7)], ..commit_for(3, claim) };
    assert_eq!(world.commit(settled.clone()), CommitOutcome::Done);
    assert_eq!((sums(3), sums(2), sums(1)), ((7, 0, 7, 0), (0, 0, 7, 0), (0, 0, 7, 0)));
    assert_eq!(world.commit(call), CommitOutcome::Done);
    assert_eq!(
        world.store.ledger(&thread_id(1)).expect("a row").remaining_spend(),
        Some(Nanos(100 - 7 - 41))
    );
    assert!(matches!(world.store.commit_blocking(settled), Err(ThreadStoreError::Conflict { .. })));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn tokens_are_budgeted_without_any_price() {
    let world = test_store();
    let claim = world.create(NewThread { max_tokens: Some(15), ..new_thread(1, None) });
    assert_eq!(
        world.commit(ThreadCommit { reservation: reserve(1, 0), ..commit_for(1, claim) }),
        CommitOutcome::Done
    );
    let refused = world.commit(ThreadCommit { reservation: reserve(2, 0), ..commit_for(1, claim) });
    let refusal = LedgerRefusal {
        refused_by: thread_id(1),
        resource: LedgerResource::Tokens,
        limit: 15,
        used: 0,
        reserved: 10,
        requested: 10,
    };
    assert_eq!(refused, CommitOutcome::Refused(refusal));
}

#[test]
fn refused_reservation_keeps_records() {
    let world = test_store();
    let claim = world.create(NewThread { max_spend: Some(Nanos(10)), ..new_thread(1, None) });
    world.commit(ThreadCommit { reservation: reserve(1, 10), ..commit_for(1, claim) });
    let next = ThreadCommit {
        records: vec![record("answer")],
        settlements: vec![settle(1, 9)],
        reservation: reserve(2, 2),
        status: Some(StatusChange::to(ThreadStatus::Running)),
        ..commit_for(1, claim)
    };
    assert!(matches!(
        world.commit(next),
        CommitOutcome::Refused(LedgerRefusal { used: 9, requested: 2, .. })
    ));
    assert_eq!(world.store.journal(&thread_id(1)).expect("a journal").len(), 2);
    assert_eq!(world.store.open_reservations(&thread_id(1)).expect("read"), []);
    // More was allowed: it goes on.
    let maxima = Some(BudgetCaps { spend: Some(Nanos(20)), tokens: None });
    let next = ThreadCommit { caps: maxima, reservation: reserve(2, 2), ..commit_for(1, claim) };
    assert_eq!(world.commit(next), CommitOutcome::Done);
    assert_eq!(world.store.journal(&thread_id(1)).expect("sealed anew").len(), 2);
}

#[test]
fn crashed_call_is_charged_once() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    world.commit(ThreadCommit { reservation: reserve(1, 30), ..commit_for(1, claim) });
    let open = world.store.open_reservations(&thread_id(1)).expect("read");
    assert_eq!(open, [Reservation { call: 1, spend: Nanos(30), tokens: 10 }]);
    let unknown = Settlement { is_unknown: true, ..settle(1, 0) };
    let again = ThreadCommit { settlements: vec![unknown], ..commit_for(1, claim) };
    world.commit(again.clone());
    assert!(matches!(world.store.commit_blocking(again), Err(ThreadStoreError::Conflict { .. })));
    let row = world.store.ledger(&thread_id(1)).expect("a row");
    assert_eq!((row.actual_spend, row.unknown_spend, row.actual_tokens), (Nanos(30), Nanos(30), 10));
    assert_eq!(world.store.charges(&thread_id(1), ChargeScope::Thread).expect("charges")[0].unknown, 1);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn clamp_limits_only_parent_charges() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = LedgerSpec { clamp_to_reserved: true, ..LedgerSpec::default() };
    let store = ThreadStore::open(&folder.path().join("threads"), &test_secret(), &spec).expect("a store");
    let world = TestStore { folder, store };
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.commit(ThreadCommit { reservation: reserve(1, 10), ..commit_for(2, claim) });
    world.commit(ThreadCommit { settlements: vec![settle(1, 25)], ..commit_for(2, claim) });
    let spent = |thread| world.store.ledger(&thread_id(thread)).expect("a row").subtree_spend;
    assert_eq!((spent(2), spent(1)), (Nanos(25), Nanos(10)));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn release_on_status_closes_ledger_row() {
    for (closed_on, status) in
        [(None, "cancelled"), (Some("cancelled"), "cancelled"), (Some("completed"), "active")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let closed_on = closed_on.map(|word| vec![word.to_owned()]);
        let spec = LedgerSpec { release_on_status: closed_on, ..LedgerSpec::default() };
        let store =
            ThreadStore::open(&folder.path().join("threads"), &test_secret(), &spec).expect("a store");
        let world = TestStore { folder, store };
        let claim = world.create(new_thread(1, None));
        let change = StatusChange::to(ThreadStatus::Cancelled);
        world.commit(ThreadCommit { status: Some(change), ..commit_for(1, claim) });
        assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").status, status);
    }
}

#[test]
fn charges_are_grouped_by_attribution() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    let attribution = |tool: Option<&str>, hook: Option<&str>| Attribution {
        item: "demo/hello".to_owned(),
        model: "model".to_owned(),
        tool: tool.map(str::to_owned),
        hook: hook.map(str::to_owned),
    };
    let calls =
        [(1, 1, None, None), (1, 2, None, None), (1, 3, None, Some("compact")), (2, 1, Some("ask"), None)];
    for (thread, call, tool, hook) in calls {
        let settled = Settlement { attribution: attribution(tool, hook), ..settle(call, 10) };
        world.commit(ThreadCommit { settlements: vec![settled], ..commit_for(thread, claim) });
    }
    let charges = world.store.charges(&thread_id(1), ChargeScope::Subtree).expect("charges");
    let summary: Vec<_> = charges
        .iter()
        .map(|charge| (&charge.thread, &charge.attribution, charge.calls, charge.spend.0))
        .collect();
    let expected = [
        (&thread_id(1), &attribution(None, None), 2, 20),
        (&thread_id(1), &attribution(None, Some("compact")), 1, 10),
        (&thread_id(2), &attribution(Some("ask"), None), 1, 10),
    ];
    assert_eq!(summary, expected);
    assert_eq!(world.store.charges(&thread_id(1), ChargeScope::Thread).expect("charges").len(), 2);
}

#[test]
fn oversized_numbers_are_rejected() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let too_large = ThreadCommit { reservation: reserve(1, u64::MAX), ..commit_for(1, claim) };
    assert!(matches!(world.store.commit_blocking(too_large), Err(ThreadStoreError::TooLarge(_))));
    let max = Nanos::MAX.0;
    world.commit(ThreadCommit { settlements: vec![settle(1, max)], ..commit_for(1, claim) });
    let more = ThreadCommit { settlements: vec![settle(2, 1)], ..commit_for(1, claim) };
    assert!(matches!(world.store.commit_blocking(more), Err(ThreadStoreError::TooLarge(_))));
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").actual_spend, Nanos(max));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn tampered_ledger_fails_audit() {
    let world = test_store();
    world.create(new_thread(1, None));
    world.tamper("UPDATE budget_ledger SET subtree_spend = 5");
    let problems = world.store.audit().expect("audited");
    assert_eq!(problems, ["thread-000000000001: subtree_spend is 5, its calls come to 0"]);
}

#[test]
fn concurrent_children_never_exceed_budget() {
    let world = test_store();
    world.create(NewThread { max_spend: Some(Nanos(1_000)), ..new_thread(1, None) });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let funded = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..300 {
            let store = world.store.clone();
            tasks.push(tokio::spawn(async move {
                let thread = 100 + number;
                let created = store.create(new_thread(thread, Some(1))).await.expect("created");
                let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
                let call = ThreadCommit { reservation: reserve(1, 10), ..commit_for(thread, claim) };
                store.commit(call).await.expect("committed") == CommitOutcome::Done
            }));
        }
        let mut funded = 0;
        for task in tasks {
            funded += u32::from(task.await.expect("a task"));
        }
        funded
    });
    assert_eq!(funded, 100);
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").remaining_spend(), Some(Nanos(0)));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn only_one_end_wins() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ends = [
        ThreadStatus::Completed,
        ThreadStatus::Error,
        ThreadStatus::Cancelled,
        ThreadStatus::Killed,
        ThreadStatus::Continued,
    ];
    let outcomes = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..50 {
            let (store, end) = (world.store.clone(), ends[number % ends.len()]);
            let commit = ThreadCommit { status: Some(StatusChange::to(end)), ..commit_for(1, claim) };
            tasks.push(tokio::spawn(async move { (end, store.commit(commit).await.expect("committed")) }));
        }
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.expect("a task"));
        }
        outcomes
    });
    let winners: Vec<ThreadStatus> =
        outcomes.iter().filter(|(_, outcome)| *outcome == CommitOutcome::Done).map(|(end, _)| *end).collect();
    assert_eq!(winners.len(), 1);
    let row = world.store.thread(&thread_id(1)).expect("read").expect("a thread");
    assert_eq!(row.status, winners[0]);
    for (_, outcome) in outcomes {
        assert!(
            outcome == CommitOutcome::Done
                || matches!(outcome, CommitOutcome::Ended { status, .. } if status == row.status)
        );
    }
}

#[derive(Clone, Debug)]
enum LedgerOp {
    Reserve { thread: usize, spend: u64, tokens: u64 },
    Settle { pick: usize, spend: u64, is_unknown: bool },
}

fn arb_ops() -> impl Strategy<Value = Vec<LedgerOp>> {
    let act = prop_oneof![
        3 => (0..8_usize, 0..60_u64, 0..60_u64).prop_map(|(thread, spend, tokens)| LedgerOp::Reserve { thread, spend, tokens }),
        2 => (any::<usize>(), 0..60_u64, any::<bool>())
            .prop_map(|(pick, spend, is_unknown)| LedgerOp::Settle { pick, spend, is_unknown }),
    ];
    prop::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ledger_sums_hold_and_caps_are_respected(
        parents in prop::collection::vec(any::<prop::sample::Index>(), 7),
        maxima in prop::collection::vec((prop::option::of(20..200_u64), prop::option::of(20..200_u64)), 8),
        acts in arb_ops(),
    ) {
        let world = test_store();
        let mut claims = Vec::new();
        for (number, (spend, tokens)) in maxima.iter().enumerate() {
            let parent = (number > 0).then(|| parents[number - 1].index(number) as u64);
            claims.push(world.create(NewThread {
                max_spend: spend.map(Nanos),
                max_tokens: *tokens,
                ..new_thread(number as u64, parent)
            }));
        }
        let mut open: Vec<(usize, ReserveRequest)> = Vec::new();
        for (call, act) in acts.into_iter().enumerate() {
            match act {
                LedgerOp::Reserve { thread, spend, tokens } => {
                    let asked = ReserveRequest { call: call as u64, spend: Nanos(spend), tokens };
                    let commit = ThreadCommit { reservation: Some(asked), ..commit_for(thread as u64, claims[thread]) };
                    if world.commit(commit) == CommitOutcome::Done {
                        open.push((thread, asked));
                    }
                }
                LedgerOp::Settle { pick, spend, is_unknown } if !open.is_empty() => {
                    let (thread, asked) = open.swap_remove(pick % open.len());
                    // The worst case was put aside, so the truth is no more.
                    let settled = Settlement {
                        is_unknown,
                        input_tokens: asked.tokens / 2,
                        output_tokens: asked.tokens / 3,
                        ..settle(asked.call, spend.min(asked.spend.0))
                    };
                    world.commit(ThreadCommit { settlements: vec![settled], ..commit_for(thread as u64, claims[thread]) });
                }
                LedgerOp::Settle { .. } => {}
            }
            for (number, (most_spend, most_tokens)) in maxima.iter().enumerate() {
                let row = world.store.ledger(&thread_id(number as u64)).expect("a row");
                prop_assert!(most_spend.is_none_or(|most| row.subtree_spend.0 + row.subtree_reserved.0 <= most));
                prop_assert!(most_tokens.is_none_or(|most| row.subtree_tokens + row.subtree_reserved_tokens <= most));
            }
        }
        prop_assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
    }
}
