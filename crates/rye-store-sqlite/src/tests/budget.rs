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
