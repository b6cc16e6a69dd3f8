//! Budgets of a day or a month: no thread spends what the period does not have, whatever the clock says.

use rye_store::{BudgetPeriod, BudgetScope, RollingBudget, RollingRefusal, RollingUsage};

use super::*;

const DAY_MS: u64 = 24 * 3_600_000;

/// The user's budget of a day.
fn day(number: u64, limit: u64) -> RollingBudget {
    RollingBudget {
        scope: BudgetScope::User,
        period: BudgetPeriod::Day,
        starts_ms: number * DAY_MS,
        ends_ms: (number + 1) * DAY_MS,
        limit: Nanos(limit),
    }
}

fn usage(world: &TestStore, budget: RollingBudget) -> (u64, u64, u64) {
    let found = world.store.rolling_usage(&[budget]).expect("read");
    let RollingUsage { used, reserved, ahead } = found[0];
    (used.0, reserved.0, ahead.0)
}

fn call(thread: u64, claim: Claim, number: u64, spend: u64, rolling: Vec<RollingBudget>) -> ThreadCommit {
    ThreadCommit { reservation: reserve(number, spend), rolling, ..commit_for(thread, claim) }
}

fn settled(thread: u64, claim: Claim, number: u64, spend: u64) -> ThreadCommit {
    ThreadCommit { settlements: vec![settle(number, spend)], ..commit_for(thread, claim) }
}

/// Trees share the budget of a day, and the next day has its own.
pub fn trees_share_a_rolling_budget(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, None));
    let project = RollingBudget { scope: BudgetScope::Project("/site".to_owned()), ..day(1, 1_000) };
    assert_eq!(world.commit(call(2, claim, 1, 60, vec![day(1, 100), project.clone()])), CommitOutcome::Done);
    let refused = call(3, claim, 1, 50, vec![day(1, 100), project.clone()]);
    let refusal = BudgetRefusal {
        refused_by: thread_id(3),
        resource: BudgetResource::Spend,
        limit: 100,
        used: 0,
        reserved: 60,
        requested: 50,
        rolling: Some(RollingRefusal { budget: "day budget of user".to_owned(), frees_ms: 2 * DAY_MS }),
    };
    assert_eq!(world.commit(refused.clone()), CommitOutcome::Refused(refusal));
    assert_eq!(world.store.open_reservations(&thread_id(3)).expect("read"), [], "it is reserved nowhere");
    assert_eq!(usage(&world, project.clone()), (0, 60, 0), "nor in the other budget");
    world.commit(settled(2, claim, 1, 20));
    assert_eq!(usage(&world, day(1, 100)), (20, 0, 0));
    assert_eq!(world.commit(refused), CommitOutcome::Done);
    assert_eq!(usage(&world, day(1, 100)), (20, 50, 0));
    // The call counts in the day it was reserved in.
    world.commit(ThreadCommit { rolling: vec![day(2, 100)], ..settled(3, claim, 1, 30) });
    assert_eq!((usage(&world, day(1, 100)), usage(&world, day(2, 100))), ((50, 0, 0), (0, 0, 0)));
    assert_eq!(world.commit(call(3, claim, 2, 100, vec![day(2, 100)])), CommitOutcome::Done);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

/// A clock that is set back, or another time zone, frees nothing that was spent.
pub fn clock_set_back_frees_no_money(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    assert_eq!(world.commit(call(1, claim, 1, 90, vec![day(5, 100)])), CommitOutcome::Done);
    world.commit(settled(1, claim, 1, 90));
    let yesterday = call(1, claim, 2, 20, vec![day(4, 100)]);
    assert!(matches!(world.commit(yesterday), CommitOutcome::Refused(BudgetRefusal { used: 90, .. })));
    assert_eq!(usage(&world, day(4, 100)), (90, 0, 90));
    let hours = 6 * 3_600_000;
    let elsewhere =
        RollingBudget { starts_ms: 5 * DAY_MS + hours, ends_ms: 6 * DAY_MS + hours, ..day(5, 100) };
    let moved = call(1, claim, 2, 20, vec![elsewhere]);
    assert!(matches!(world.commit(moved), CommitOutcome::Refused(BudgetRefusal { used: 90, .. })));
    assert_eq!(world.commit(call(1, claim, 2, 100, vec![day(6, 100)])), CommitOutcome::Done);
}

/// What was not reserved counts when it is settled, once; what costs nothing is never refused.
pub fn unreserved_spend_counts_once(open: OpenStore) {
    let world = TestStore::new(open);
    let claim = world.create(new_thread(1, None));
    world.commit(ThreadCommit { rolling: vec![day(1, 100)], ..settled(1, claim, 7, 140) });
    assert_eq!(usage(&world, day(1, 100)), (140, 0, 0));
    let again = ThreadCommit { rolling: vec![day(1, 100)], ..settled(1, claim, 7, 140) };
    assert!(matches!(world.store.commit_blocking(again), Err(ThreadStoreError::Conflict { .. })));
    assert_eq!(usage(&world, day(1, 100)), (140, 0, 0));
    assert_eq!(world.commit(call(1, claim, 8, 0, vec![day(1, 100)])), CommitOutcome::Done);
    assert!(matches!(
        world.commit(call(1, claim, 9, 1, vec![day(1, 100)])),
        CommitOutcome::Refused(BudgetRefusal { used: 140, .. })
    ));
    // More is allowed now.
    assert_eq!(world.commit(call(1, claim, 9, 1, vec![day(1, 200)])), CommitOutcome::Done);
}

/// Many trees at once are funded exactly as far as the day allows.
pub fn concurrent_trees_never_exceed_rolling_budget(open: OpenStore) {
    let world = TestStore::new(open);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let funded = runtime.block_on(async {
        let mut tasks = Vec::new();
        for number in 0..300 {
            let store = world.store.clone();
            tasks.push(tokio::spawn(async move {
                let thread = 100 + number;
                let created = store.create(new_thread(thread, None)).await.expect("created");
                let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
                let commit = call(thread, claim, 1, 10, vec![day(1, 1_000)]);
                store.commit(commit).await.expect("committed") == CommitOutcome::Done
            }));
        }
        let mut funded = 0;
        for task in tasks {
            funded += u32::from(task.await.expect("a task"));
        }
        funded
    });
    assert_eq!(funded, 100);
    assert_eq!(usage(&world, day(1, 1_000)), (0, 1_000, 0));
}
