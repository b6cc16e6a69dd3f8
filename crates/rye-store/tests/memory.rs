//! The store in memory holds to the contract.

use std::any::Any;
use std::sync::Arc;

use rye_store::{LedgerRules, MemoryStore, Owner, OwnerProbe, StoreHandle, ThreadStore};
use rye_test::store_contract::test_owner;

/// Knows of one process.
struct OneProcess;

impl OwnerProbe for OneProcess {
    fn is_running(&self, owner: &Owner) -> bool {
        *owner == test_owner()
    }
}

fn open_for_contract(rules: &LedgerRules) -> (StoreHandle, Box<dyn Any>) {
    let store: Arc<dyn ThreadStore> = Arc::new(MemoryStore::new(Arc::new(OneProcess), rules.clone()));
    (StoreHandle::from(store), Box::new(()))
}

rye_test::store_contract!(open_for_contract);
