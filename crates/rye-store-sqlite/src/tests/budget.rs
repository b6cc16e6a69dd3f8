//! What the audit finds in a ledger that was tampered with.

use super::*;

#[test]
fn tampered_ledger_fails_audit() {
    let world = test_store();
    world.create(new_thread(1, None));
    world.tamper("UPDATE budget_ledger SET subtree_spend = 5");
    let problems = world.store.audit().expect("audited");
    assert_eq!(problems, ["thread-000000000001: subtree_spend is 5, its calls come to 0"]);
}

/// A root that may spend 100, and its child that may spend 80.
fn family() -> (TestStore, Claim) {
    let world = test_store();
    world.create(NewThread { max_spend: Some(Nanos(100)), max_tokens: Some(500), ..new_thread(1, None) });
    let claim = world.create(NewThread { max_spend: Some(Nanos(80)), ..new_thread(2, Some(1)) });
    (world, claim)
}

#[test]
fn edited_ledger_is_refused_and_named() {
    let forged = |number| ThreadStoreError::Forged { thread: thread_id(number), what: Forgery::Ledger };
    for (change, row) in [
        ("max_spend = NULL", 2),
        ("max_spend = 1000000", 2),
        ("max_tokens = 1000000", 2),
        ("parent = NULL", 2),
        ("parent = NULL, parent_thread_id = NULL", 2),
        ("parent_thread_id = 'thread-000000000009'", 2),
        ("max_spend = NULL", 1),
        ("max_tokens = NULL", 1),
        ("parent = 2", 1),
        ("thread_id = 'thread-000000000009'", 1),
    ] {
        let (world, claim) = family();
        world.tamper(&format!("UPDATE budget_ledger SET {change} WHERE thread = {row}"));
        let step = || ThreadCommit {
            reservation: reserve(1, 50),
            needs_reservation: true,
            ..ThreadCommit::new(thread_id(2), claim, 1)
        };
        assert_eq!(world.store.commit_blocking(step()), Err(forged(row)), "{change} of {row}");
        let later = ThreadCommit { needs_reservation: false, ..step() };
        assert_eq!(world.store.commit_blocking(later), Err(forged(row)), "{change} of {row}");
        // Verifying and resuming read the journal.
        assert_eq!(world.store.journal(&thread_id(row)), Err(forged(row)), "{change} of {row}");
    }
    let (world, claim) = family();
    world.tamper("DELETE FROM budget_ledger WHERE thread = 1");
    let step = ThreadCommit { reservation: reserve(1, 50), ..ThreadCommit::new(thread_id(2), claim, 1) };
    assert!(matches!(world.store.commit_blocking(step), Err(ThreadStoreError::Forged { .. })));
}

#[test]
fn edited_ancestor_is_refused() {
    let (world, claim) = family();
    // The registry and the ledger agree; the seal does not.
    world.tamper(
        "UPDATE budget_ledger SET max_spend = NULL; UPDATE threads SET max_spend = NULL WHERE thread = 1",
    );
    world.tamper("UPDATE budget_ledger SET max_spend = 80 WHERE thread = 2");
    let step = ThreadCommit { reservation: reserve(1, 50), ..ThreadCommit::new(thread_id(2), claim, 1) };
    let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Row };
    assert_eq!(world.store.commit_blocking(step), Err(refused));
}

/// New maxima are under the seal as soon as they are in force; what a call cost goes to the sealed parent.
#[test]
fn raised_maxima_and_charges_keep_the_seal() {
    let (world, claim) = family();
    let caps = BudgetCaps { spend: Some(Nanos(90)), tokens: None };
    let step = ThreadCommit {
        caps: Some(caps),
        reservation: reserve(1, 85),
        ..ThreadCommit::new(thread_id(2), claim, 1)
    };
    assert_eq!(world.commit(step), CommitOutcome::Done);
    world.tamper("UPDATE budget_ledger SET parent = NULL WHERE thread = 2");
    let step = ThreadCommit { settlements: vec![settle(1, 60)], ..ThreadCommit::new(thread_id(2), claim, 2) };
    world.commit(step);
    world.tamper("UPDATE budget_ledger SET parent = 1 WHERE thread = 2");
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").subtree_spend, Nanos(60));
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}
