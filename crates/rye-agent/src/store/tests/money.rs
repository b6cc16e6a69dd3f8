//! Money and tokens: nobody spends what an ancestor does not have, and every sum holds.

use proptest::prelude::*;

use super::*;
use crate::status::Status;

fn step(thread: u64, claim: Claim) -> Commit {
    Commit::new(id(thread), claim, 1)
}

#[test]
fn a_call_is_put_aside_on_every_ancestor_and_settled_to_the_truth() {
    let world = world();
    let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new(1, None) });
    world.create(new(2, Some(1)));
    world.create(new(3, Some(2)));
    let call = Commit { reserve: reserve(1, 60), ..step(3, claim) };
    assert_eq!(world.commit(call), Committed::Done);
    let sums = |thread: u64| {
        let row = world.store.ledger(&id(thread)).expect("a row");
        (row.actual_spend.0, row.reserved_spend.0, row.subtree_spend.0, row.subtree_reserved.0)
    };
    assert_eq!((sums(3), sums(2), sums(1)), ((0, 60, 0, 60), (0, 0, 0, 60), (0, 0, 0, 60)));
    let call = Commit { reserve: reserve(1, 41), ..step(2, claim) };
    let shortage = Shortage { by: id(1), what: Resource::Spend, most: 100, used: 0, reserved: 60, asked: 41 };
    assert_eq!(world.commit(call.clone()), Committed::Refused(shortage));
    assert_eq!(sums(2), (0, 0, 0, 60), "what is refused is put aside nowhere");
    let settled = Commit { settle: vec![settle(1, 7)], ..step(3, claim) };
    assert_eq!(world.commit(settled.clone()), Committed::Done);
    assert_eq!((sums(3), sums(2), sums(1)), ((7, 0, 7, 0), (0, 0, 7, 0), (0, 0, 7, 0)));
    assert_eq!(world.commit(call), Committed::Done);
    assert_eq!(world.store.ledger(&id(1)).expect("a row").remaining_spend(), Some(Nanos(100 - 7 - 41)));
    assert!(matches!(world.store.commit_blocking(settled), Err(StoreError::Contradiction { .. })));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn tokens_are_budgeted_without_any_price() {
    let world = world();
    let claim = world.create(NewThread { max_tokens: Some(15), ..new(1, None) });
    assert_eq!(world.commit(Commit { reserve: reserve(1, 0), ..step(1, claim) }), Committed::Done);
    let refused = world.commit(Commit { reserve: reserve(2, 0), ..step(1, claim) });
    let shortage = Shortage { by: id(1), what: Resource::Tokens, most: 15, used: 0, reserved: 10, asked: 10 };
    assert_eq!(refused, Committed::Refused(shortage));
}

#[test]
fn records_and_settlements_stay_when_a_reservation_is_refused() {
    let world = world();
    let claim = world.create(NewThread { max_spend: Some(Nanos(10)), ..new(1, None) });
    world.commit(Commit { reserve: reserve(1, 10), ..step(1, claim) });
    let next = Commit {
        records: vec![record("answer")],
        settle: vec![settle(1, 9)],
        reserve: reserve(2, 2),
        status: Some(StatusChange::to(Status::Running)),
        ..step(1, claim)
    };
    assert!(matches!(world.commit(next), Committed::Refused(Shortage { used: 9, asked: 2, .. })));
    assert_eq!(world.store.journal(&id(1)).expect("a journal").len(), 2);
    assert_eq!(world.store.unsettled(&id(1)).expect("read"), []);
    // More was allowed: it goes on.
    let maxima = Some(Maxima { spend: Some(Nanos(20)), tokens: None });
    let next = Commit { maxima, reserve: reserve(2, 2), ..step(1, claim) };
    assert_eq!(world.commit(next), Committed::Done);
    assert_eq!(world.store.journal(&id(1)).expect("sealed anew").len(), 2);
}

#[test]
fn a_call_in_flight_at_a_crash_is_charged_as_put_aside_exactly_once() {
    let world = world();
    let claim = world.create(new(1, None));
    world.commit(Commit { reserve: reserve(1, 30), ..step(1, claim) });
    let left = world.store.unsettled(&id(1)).expect("read");
    assert_eq!(left, [Reservation { call: 1, spend: Nanos(30), tokens: 10 }]);
    let unknown = Settle { is_unknown: true, ..settle(1, 0) };
    let again = Commit { settle: vec![unknown], ..step(1, claim) };
    world.commit(again.clone());
    assert!(matches!(world.store.commit_blocking(again), Err(StoreError::Contradiction { .. })));
    let row = world.store.ledger(&id(1)).expect("a row");
    assert_eq!((row.actual_spend, row.unknown_spend, row.actual_tokens), (Nanos(30), Nanos(30), 10));
    assert_eq!(world.store.charges(&id(1), Scope::Thread).expect("charges")[0].unknown, 1);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn the_truth_is_recorded_and_a_clamp_only_limits_what_parents_are_charged() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = LedgerSpec { is_clamped: true, ..LedgerSpec::default() };
    let store = Store::open(&folder.path().join("threads"), &secret(), &spec).expect("a store");
    let world = World { folder, store };
    let claim = world.create(new(1, None));
    world.create(new(2, Some(1)));
    world.commit(Commit { reserve: reserve(1, 10), ..step(2, claim) });
    world.commit(Commit { settle: vec![settle(1, 25)], ..step(2, claim) });
    let spent = |thread| world.store.ledger(&id(thread)).expect("a row").subtree_spend;
    assert_eq!((spent(2), spent(1)), (Nanos(25), Nanos(10)));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_row_of_the_ledger_is_closed_when_its_thread_ends_as_the_settings_say() {
    for (closed_on, status) in
        [(None, "cancelled"), (Some("cancelled"), "cancelled"), (Some("completed"), "active")]
    {
        let folder = tempfile::tempdir().expect("a folder");
        let closed_on = closed_on.map(|word| vec![word.to_owned()]);
        let spec = LedgerSpec { closed_on, ..LedgerSpec::default() };
        let store = Store::open(&folder.path().join("threads"), &secret(), &spec).expect("a store");
        let world = World { folder, store };
        let claim = world.create(new(1, None));
        let change = StatusChange::to(Status::Cancelled);
        world.commit(Commit { status: Some(change), ..step(1, claim) });
        assert_eq!(world.store.ledger(&id(1)).expect("a row").status, status);
    }
}

#[test]
fn what_a_tree_cost_is_told_by_item_model_tool_hook_and_child() {
    let world = world();
    let claim = world.create(new(1, None));
    world.create(new(2, Some(1)));
    let of = |tool: Option<&str>, hook: Option<&str>| Attribution {
        item: "demo/hello".to_owned(),
        model: "model".to_owned(),
        tool: tool.map(str::to_owned),
        hook: hook.map(str::to_owned),
    };
    let calls =
        [(1, 1, None, None), (1, 2, None, None), (1, 3, None, Some("compact")), (2, 1, Some("ask"), None)];
    for (thread, call, tool, hook) in calls {
        let settled = Settle { attribution: of(tool, hook), ..settle(call, 10) };
        world.commit(Commit { settle: vec![settled], ..step(thread, claim) });
    }
    let charges = world.store.charges(&id(1), Scope::Subtree).expect("charges");
    let told: Vec<_> = charges
        .iter()
        .map(|charge| (&charge.thread, &charge.attribution, charge.calls, charge.spend.0))
        .collect();
    let expected = [
        (&id(1), &of(None, None), 2, 20),
        (&id(1), &of(None, Some("compact")), 1, 10),
        (&id(2), &of(Some("ask"), None), 1, 10),
    ];
    assert_eq!(told, expected);
    assert_eq!(world.store.charges(&id(1), Scope::Thread).expect("charges").len(), 2);
}

#[test]
fn numbers_that_do_not_fit_are_refused_not_wrapped() {
    let world = world();
    let claim = world.create(new(1, None));
    let too_large = Commit { reserve: reserve(1, u64::MAX), ..step(1, claim) };
    assert!(matches!(world.store.commit_blocking(too_large), Err(StoreError::TooLarge(_))));
    let most = Nanos::MOST.0;
    world.commit(Commit { settle: vec![settle(1, most)], ..step(1, claim) });
    let more = Commit { settle: vec![settle(2, 1)], ..step(1, claim) };
    assert!(matches!(world.store.commit_blocking(more), Err(StoreError::TooLarge(_))));
    assert_eq!(world.store.ledger(&id(1)).expect("a row").actual_spend, Nanos(most));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_ledger_that_was_changed_does_not_pass_the_audit() {
    let world = world();
    world.create(new(1, None));
    world.tamper("UPDATE budget_ledger SET subtree_spend = 5");
    let problems = world.store.audit().expect("audited");
    assert_eq!(problems, ["thread-000000000001: subtree_spend is 5, its calls come to 0"]);
}

#[test]
fn of_many_children_exactly_as_many_are_funded_as_there_is_money() {
    let world = world();
    world.create(NewThread { max_spend: Some(Nanos(1_000)), ..new(1, None) });
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let funded = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..300 {
            let store = world.store.clone();
            tasks.push(tokio::spawn(async move {
                let thread = 100 + number;
                let created = store.create(new(thread, Some(1))).await.expect("created");
                let Created::Done { claim, .. } = created else { panic!("{created:?}") };
                let call = Commit { reserve: reserve(1, 10), ..step(thread, claim) };
                store.commit(call).await.expect("committed") == Committed::Done
            }));
        }
        let mut funded = 0;
        for task in tasks {
            funded += u32::from(task.await.expect("a task"));
        }
        funded
    });
    assert_eq!(funded, 100);
    assert_eq!(world.store.ledger(&id(1)).expect("a row").remaining_spend(), Some(Nanos(0)));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn of_many_ends_one_counts() {
    let world = world();
    let claim = world.create(new(1, None));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ends = [Status::Completed, Status::Error, Status::Cancelled, Status::Killed, Status::Continued];
    let outcomes = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..50 {
            let (store, end) = (world.store.clone(), ends[number % ends.len()]);
            let commit = Commit { status: Some(StatusChange::to(end)), ..step(1, claim) };
            tasks.push(tokio::spawn(async move { (end, store.commit(commit).await.expect("committed")) }));
        }
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.expect("a task"));
        }
        outcomes
    });
    let winners: Vec<Status> =
        outcomes.iter().filter(|(_, outcome)| *outcome == Committed::Done).map(|(end, _)| *end).collect();
    assert_eq!(winners.len(), 1);
    let row = world.store.thread(&id(1)).expect("read").expect("a thread");
    assert_eq!(row.status, winners[0]);
    for (_, outcome) in outcomes {
        assert!(
            outcome == Committed::Done
                || matches!(outcome, Committed::Ended { status, .. } if status == row.status)
        );
    }
}

#[derive(Clone, Debug)]
enum Act {
    Reserve { thread: usize, spend: u64, tokens: u64 },
    Settle { pick: usize, spend: u64, is_unknown: bool },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0..8_usize, 0..60_u64, 0..60_u64).prop_map(|(thread, spend, tokens)| Act::Reserve { thread, spend, tokens }),
        2 => (any::<usize>(), 0..60_u64, any::<bool>())
            .prop_map(|(pick, spend, is_unknown)| Act::Settle { pick, spend, is_unknown }),
    ];
    prop::collection::vec(act, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_put_aside_and_settled_the_sums_hold_and_no_maximum_is_passed(
        parents in prop::collection::vec(any::<prop::sample::Index>(), 7),
        maxima in prop::collection::vec((prop::option::of(20..200_u64), prop::option::of(20..200_u64)), 8),
        acts in acts(),
    ) {
        let world = world();
        let mut claims = Vec::new();
        for (number, (spend, tokens)) in maxima.iter().enumerate() {
            let parent = (number > 0).then(|| parents[number - 1].index(number) as u64);
            claims.push(world.create(NewThread {
                max_spend: spend.map(Nanos),
                max_tokens: *tokens,
                ..new(number as u64, parent)
            }));
        }
        let mut open: Vec<(usize, Reserve)> = Vec::new();
        for (call, act) in acts.into_iter().enumerate() {
            match act {
                Act::Reserve { thread, spend, tokens } => {
                    let asked = Reserve { call: call as u64, spend: Nanos(spend), tokens };
                    let commit = Commit { reserve: Some(asked), ..step(thread as u64, claims[thread]) };
                    if world.commit(commit) == Committed::Done {
                        open.push((thread, asked));
                    }
                }
                Act::Settle { pick, spend, is_unknown } if !open.is_empty() => {
                    let (thread, asked) = open.swap_remove(pick % open.len());
                    // The worst case was put aside, so the truth is no more.
                    let settled = Settle {
                        is_unknown,
                        input_tokens: asked.tokens / 2,
                        output_tokens: asked.tokens / 3,
                        ..settle(asked.call, spend.min(asked.spend.0))
                    };
                    world.commit(Commit { settle: vec![settled], ..step(thread as u64, claims[thread]) });
                }
                Act::Settle { .. } => {}
            }
            for (number, (most_spend, most_tokens)) in maxima.iter().enumerate() {
                let row = world.store.ledger(&id(number as u64)).expect("a row");
                prop_assert!(most_spend.is_none_or(|most| row.subtree_spend.0 + row.subtree_reserved.0 <= most));
                prop_assert!(most_tokens.is_none_or(|most| row.subtree_tokens + row.subtree_reserved_tokens <= most));
            }
        }
        prop_assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
    }
}
