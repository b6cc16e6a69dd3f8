//! Budgets of a day or a month over the stores of several projects and processes.

use super::*;
use rye_store::{BudgetPeriod, BudgetScope, RollingBudget, RollingUsage};

/// The user's budget of the first day.
pub(super) fn first_day(limit: u64) -> RollingBudget {
    RollingBudget {
        scope: BudgetScope::User,
        period: BudgetPeriod::Day,
        starts_ms: 0,
        ends_ms: 24 * 3_600_000,
        limit: Nanos(limit),
    }
}

/// The store of a project of the user whose folder is `user`.
pub(super) fn open_project(user: &Path, name: &str) -> StoreHandle {
    let secret = test_secret().with_keys_dir(&user.join("keys"));
    open_at(&user.join(name).join("threads"), &secret, &LedgerSpec::default()).expect("a store")
}

/// How many of 40 threads of a project get a call funded.
pub(super) fn spend_in_project(store: &StoreHandle, limit: u64) -> u32 {
    let mut funded = 0;
    for number in 0..40 {
        let thread = 1 + number;
        let created = store.create_blocking(new_thread(thread, None)).expect("created");
        let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
        let call = ThreadCommit {
            reservation: reserve(1, 10),
            rolling: vec![first_day(limit)],
            ..ThreadCommit::new(thread_id(thread), claim, 1)
        };
        funded += u32::from(store.commit_blocking(call).expect("committed") == CommitOutcome::Done);
    }
    funded
}

fn usage(store: &StoreHandle) -> RollingUsage {
    store.rolling_usage(&[first_day(500)]).expect("read")[0]
}

#[test]
fn projects_share_the_budget_of_their_user() {
    let user = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| open_project(user.path(), name));
    assert_eq!((spend_in_project(&one, 500), spend_in_project(&other, 500)), (40, 10));
    assert_eq!(usage(&one), RollingUsage { reserved: Nanos(500), ..RollingUsage::default() });
    assert_eq!(usage(&one), usage(&other));
}

#[test]
fn settlement_needs_no_settings() {
    let user = tempfile::tempdir().expect("a folder");
    assert_eq!(spend_in_project(&open_project(user.path(), "one"), 500), 40);
    // Another process, that ends a thread without having read any settings.
    let store = open_project(user.path(), "one");
    let end = ThreadCommit {
        settlements: vec![settle(1, 4)],
        ..ThreadCommit::new(thread_id(1), Claim { epoch: 1 }, 2)
    };
    assert_eq!(store.commit_blocking(end).expect("committed"), CommitOutcome::Done);
    let expected = RollingUsage { used: Nanos(4), reserved: Nanos(390), ahead: Nanos(0) };
    assert_eq!(usage(&store), expected);
}

#[test]
fn unusable_budget_database_refuses_calls() {
    let user = tempfile::tempdir().expect("a folder");
    let store = open_project(user.path(), "one");
    let created = store.create_blocking(new_thread(1, None)).expect("created");
    let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
    let database = user.path().join("keys").join(crate::rolling::ROLLING_DATABASE);
    lillux::file::write_atomic(&database, &[b'x'; 4096], lillux::file::FileMode::Private).expect("damaged");
    let call = ThreadCommit {
        reservation: reserve(1, 10),
        rolling: vec![first_day(500)],
        ..ThreadCommit::new(thread_id(1), claim, 1)
    };
    let error = store.commit_blocking(call).expect_err("refused").to_string();
    assert!(error.contains(crate::rolling::ROLLING_DATABASE), "{error}");
    assert_eq!(store.open_reservations(&thread_id(1)).expect("read"), []);
}

/// What a process that is killed between its two commits leaves: the budgets' commit, and not the store's.
fn commit_budgets_only(user: &Path, work: impl FnOnce(&crate::rolling::RollingDb, i64)) {
    let database = user.join("one/threads").join(DATABASE);
    let connection = connect(&database, OpenFlags::empty()).expect("a store");
    let store = schema::store_id(&connection).expect("read").expect("a number");
    let budgets = crate::rolling::RollingDb::new(user.join("keys").join(crate::rolling::ROLLING_DATABASE));
    work(&budgets, store);
    budgets.commit().expect("committed");
}

#[test]
fn killed_settlement_ends_as_the_store_says() {
    let user = tempfile::tempdir().expect("a folder");
    assert_eq!(spend_in_project(&open_project(user.path(), "one"), 500), 40);
    commit_budgets_only(user.path(), |budgets, store| {
        let call = crate::rolling::RollingCall { store, thread: &thread_id(1), call: 1 };
        budgets.settle(call, 4, &[]).expect("settled");
    });
    let store = open_project(user.path(), "one");
    assert_eq!(usage(&store), RollingUsage { used: Nanos(4), reserved: Nanos(390), ahead: Nanos(0) });
    // The thread continues without the answer that was lost: its call is charged an estimate.
    let end = ThreadCommit {
        settlements: vec![settle(1, 9)],
        ..ThreadCommit::new(thread_id(1), Claim { epoch: 1 }, 2)
    };
    assert_eq!(store.commit_blocking(end).expect("committed"), CommitOutcome::Done);
    assert_eq!(usage(&store), RollingUsage { used: Nanos(9), reserved: Nanos(390), ahead: Nanos(0) });
    assert_eq!(store.ledger(&thread_id(1)).expect("read").actual_spend, Nanos(9));
}

#[test]
fn killed_reservation_is_released_by_the_next() {
    let user = tempfile::tempdir().expect("a folder");
    let store = open_project(user.path(), "one");
    assert_eq!(spend_in_project(&store, 500), 40);
    drop(store);
    commit_budgets_only(user.path(), |budgets, store| {
        let call = crate::rolling::RollingCall { store, thread: &thread_id(2), call: 7 };
        let request = reserve(7, 50).expect("a request");
        let open = |_: &str, _| Ok(crate::rolling::RecordedCall::Open);
        assert_eq!(budgets.reserve(call, request, &[first_day(500)], open).expect("reserved"), None);
    });
    let store = open_project(user.path(), "one");
    assert_eq!(usage(&store).reserved, Nanos(450));
    let call = ThreadCommit {
        reservation: reserve(2, 10),
        rolling: vec![first_day(500)],
        ..ThreadCommit::new(thread_id(3), Claim { epoch: 1 }, 1)
    };
    assert_eq!(store.commit_blocking(call).expect("committed"), CommitOutcome::Done);
    assert_eq!(usage(&store), RollingUsage { reserved: Nanos(410), ..RollingUsage::default() });
}

#[test]
fn budgets_of_older_releases_are_extended() {
    let user = tempfile::tempdir().expect("a folder");
    let store = open_project(user.path(), "one");
    assert_eq!(spend_in_project(&store, 500), 40);
    drop(store);
    let database = user.path().join("keys").join(crate::rolling::ROLLING_DATABASE);
    let connection = connect(&database, OpenFlags::empty()).expect("budgets");
    connection.execute_batch("ALTER TABLE calls DROP COLUMN spent").expect("older");
    drop(connection);
    let store = open_project(user.path(), "one");
    let end = ThreadCommit {
        settlements: vec![settle(1, 4)],
        ..ThreadCommit::new(thread_id(1), Claim { epoch: 1 }, 2)
    };
    assert_eq!(store.commit_blocking(end).expect("committed"), CommitOutcome::Done);
    assert_eq!(usage(&store), RollingUsage { used: Nanos(4), reserved: Nanos(390), ahead: Nanos(0) });
}
