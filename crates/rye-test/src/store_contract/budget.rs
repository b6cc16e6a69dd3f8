//! Money and tokens: no thread spends what an ancestor does not have, and every sum holds.

use super::*;

/// A reservation holds on every ancestor, or on none.
pub fn call_is_reserved_on_every_ancestor(open: OpenStore) {
    let world = TestStore::new(open);
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
    let refusal = BudgetRefusal {
        refused_by: thread_id(1),
        resource: BudgetResource::Spend,
        limit: 100,
        used: 0,
        reserved: 60,
        requested: 41,
        rolling: None,
    };
    assert_eq!(world.commit(call.clone()), CommitOutcome::Refused(refusal));
    assert_eq!(sums(2), (0, 0, 0, 60), "a refused call is reserved nowhere");
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

/// Tokens are budgeted too.
pub fn tokens_are_budgeted_without_any_price(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(NewThread { max_tokens: Some(15), ..new_thread(1, None) });
    assert_eq!(
        world.commit(ThreadCommit { reservation: reserve(1, 0), ..commit_for(1, claim) }),
        CommitOutcome::Done
    );
    let refused = world.commit(ThreadCommit { reservation: reserve(2, 0), ..commit_for(1, claim) });
    let refusal = BudgetRefusal {
        refused_by: thread_id(1),
        resource: BudgetResource::Tokens,
        limit: 15,
        used: 0,
        reserved: 10,
        requested: 10,
        rolling: None,
    };
    assert_eq!(refused, CommitOutcome::Refused(refusal));
}

/// What a refused commit says stays; what it asks for does not.
pub fn refused_reservation_keeps_records(open: OpenStore) {
    let world = TestStore::new(open);
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
        CommitOutcome::Refused(BudgetRefusal { used: 9, requested: 2, .. })
    ));
    assert_eq!(world.store.journal(&thread_id(1)).expect("a journal").len(), 2);
    assert_eq!(world.store.open_reservations(&thread_id(1)).expect("read"), []);
    // More was allowed: it continues.
    let maxima = Some(BudgetCaps { spend: Some(Nanos(20)), tokens: None });
    let next = ThreadCommit { caps: maxima, reservation: reserve(2, 2), ..commit_for(1, claim) };
    assert_eq!(world.commit(next), CommitOutcome::Done);
    assert_eq!(world.store.journal(&thread_id(1)).expect("a journal").len(), 2);
}

/// A call whose end is unknown is charged what is known of it, once, and no more than was reserved.
pub fn crashed_call_is_charged_once(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.commit(ThreadCommit { reservation: reserve(1, 30), ..commit_for(1, claim) });
    let open = world.store.open_reservations(&thread_id(1)).expect("read");
    assert_eq!(open, [Reservation { call: 1, spend: Nanos(30), tokens: 10 }]);
    let unknown = Settlement { is_unknown: true, ..settle(1, 12) };
    let again = ThreadCommit { settlements: vec![unknown], ..commit_for(1, claim) };
    world.commit(again.clone());
    assert!(matches!(world.store.commit_blocking(again), Err(ThreadStoreError::Conflict { .. })));
    let row = world.store.ledger(&thread_id(1)).expect("a row");
    assert_eq!((row.actual_spend, row.unknown_spend, row.actual_tokens), (Nanos(12), Nanos(12), 7));
    assert_eq!(world.store.charges(&thread_id(1), ChargeScope::Thread).expect("charges")[0].unknown, 1);
    world.commit(ThreadCommit { reservation: reserve(2, 30), ..commit_for(1, claim) });
    let unknown = Settlement { is_unknown: true, ..settle(2, 99) };
    world.commit(ThreadCommit { settlements: vec![unknown], ..commit_for(1, claim) });
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").actual_spend, Nanos(42));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

/// With the clamp, ancestors are charged no more than was reserved.
pub fn clamp_limits_only_parent_charges(open: OpenStore) {
    let rules = LedgerRules { clamp_to_reserved: true, ..LedgerRules::default() };
    let world = TestStore::with_rules(open, &rules);
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.commit(ThreadCommit { reservation: reserve(1, 10), ..commit_for(2, claim) });
    world.commit(ThreadCommit { settlements: vec![settle(1, 25)], ..commit_for(2, claim) });
    let spent = |thread| world.store.ledger(&thread_id(thread)).expect("a row").subtree_spend;
    assert_eq!((spent(2), spent(1)), (Nanos(25), Nanos(10)));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

/// The rules say which ends close a row.
pub fn release_on_status_closes_ledger_row(open: OpenStore) {
    for (closed_on, status) in
        [(None, "cancelled"), (Some("cancelled"), "cancelled"), (Some("completed"), "active")]
    {
        let closed_on = closed_on.map(|word| vec![word.to_owned()]);
        let rules = LedgerRules { release_on_status: closed_on, ..LedgerRules::default() };
        let world = TestStore::with_rules(open, &rules);
        let claim = world.create(new_thread(1, None));
        let change = StatusChange::to(ThreadStatus::Cancelled);
        world.commit(ThreadCommit { status: Some(change), ..commit_for(1, claim) });
        assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").status, status);
    }
}

/// Charges are grouped by purpose, the dearest first.
pub fn charges_are_grouped_by_attribution(open: OpenStore) {
    let world = TestStore::new(open);
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

/// Numbers and sums that do not fit are refused whole.
pub fn oversized_numbers_are_rejected(open: OpenStore) {
    let world = TestStore::new(open);
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

/// Many children at once are funded exactly as far as the parent can.
pub fn concurrent_children_never_exceed_budget(open: OpenStore) {
    let world = TestStore::new(open);
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

/// Of many ends at once one wins.
pub fn only_one_end_wins(open: OpenStore) {
    let world = TestStore::new(open);
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
