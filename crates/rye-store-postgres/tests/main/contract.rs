//! The store holds to the contract.

use std::any::Any;

use super::*;

/// Removes a test's schema.
struct SchemaGuard(String);

impl Drop for SchemaGuard {
    fn drop(&mut self) {
        tamper("public", &format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.0));
    }
}

fn open_for_contract(rules: &LedgerRules) -> (StoreHandle, Box<dyn Any>) {
    let schema = new_schema();
    let store = open(PostgresOptions { rules: rules.clone(), ..options(&schema) });
    (store, Box::new(SchemaGuard(schema)))
}

rye_test::store_contract!(open_for_contract);
