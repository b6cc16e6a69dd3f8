//! What is forgotten, when, and what never is; each key of `cleanup` with what it changes.

use serde_json::{Value, json};

use super::*;
use rye_thread::config::{LedgerSchema, ThreadConfig};
use rye_thread::status::ThreadStatus;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// The shipped settings of the ledger with these over them.
fn ledger_settings(cleanup: &Value) -> LedgerSchema {
    let mut values = rye_test::shipped_config().values().clone();
    let over = json!({ "cleanup": cleanup });
    let merged = rye_item::merge::merge(&values["budget_ledger_schema"], &over);
    values.insert("budget_ledger_schema".to_owned(), merged);
    ThreadConfig::from_values(&values).expect("a configuration").ledger
}

impl TestStore {
    /// A thread that ended on this day, with a folder.
    fn add_ended(&self, new: NewThread, day: u64) {
        let id = new.id.clone();
        let claim = self.create(new);
        self.commit(ThreadCommit {
            status: Some(StatusChange::to(ThreadStatus::Completed)),
            ..ThreadCommit::new(id.clone(), claim, day * DAY)
        });
        self.create_folder(&id, 1);
    }

    fn create_folder(&self, id: &ThreadId, bytes: usize) {
        let folder = self.threads_dir().join(id.as_str());
        lillux::file::create_dirs(&folder, true).expect("made");
        lillux::file::append(&folder.join("transcript.jsonl"), &vec![b' '; bytes]).expect("written");
    }

    fn prune_candidates(&self, cleanup: &Value, day: u64) -> Vec<ThreadId> {
        self.store
            .prune_candidates(&PruneOptions::of_settings(&ledger_settings(cleanup), day * DAY))
            .expect("looked")
    }

    fn is_archived(&self, number: u64) -> bool {
        self.threads_dir().join("archive").join(thread_id(number).as_str()).is_dir()
    }
}

#[test]
fn archive_after_days_sets_prune_age() {
    let world = test_store();
    world.add_ended(new_thread(1, None), 1);
    assert_eq!(world.prune_candidates(&json!({}), 30), []);
    assert_eq!(world.prune_candidates(&json!({}), 31), [thread_id(1)]);
    assert_eq!(world.prune_candidates(&json!({"archive_after_days": 7}), 8), [thread_id(1)]);
    world.store.prune(&PruneOptions::of_settings(&ledger_settings(&json!({})), 31 * DAY)).expect("pruned");
    assert!(world.is_archived(1) && world.store.thread(&thread_id(1)).expect("read").is_none());
}

#[test]
fn keep_trees_bounds_ended_trees() {
    let world = test_store();
    for number in 1..=4 {
        world.add_ended(new_thread(number, None), number);
    }
    world.create(new_thread(9, None));
    assert_eq!(world.prune_candidates(&json!({}), 5), []);
    assert_eq!(world.prune_candidates(&json!({"keep_trees": 3}), 5), [thread_id(1)]);
    assert_eq!(
        world.prune_candidates(&json!({"keep_trees": 0}), 5),
        [thread_id(4), thread_id(3), thread_id(2), thread_id(1)]
    );
}

#[test]
fn max_megabytes_bounds_disk_usage() {
    let world = test_store();
    for number in 1..=3 {
        world.add_ended(new_thread(number, None), number);
        world.create_folder(&thread_id(number), 1 << 20);
    }
    assert_eq!(world.prune_candidates(&json!({"max_megabytes": 9}), 5), []);
    assert_eq!(world.prune_candidates(&json!({"max_megabytes": 3}), 5), [thread_id(1)]);
    let prune = PruneOptions::of_settings(&ledger_settings(&json!({"max_megabytes": 2})), 5 * DAY);
    assert_eq!(world.store.prune(&prune).expect("pruned").threads, [thread_id(2), thread_id(1)]);
    // There is no room for an archive either.
    assert!(!world.is_archived(1) && !world.threads_dir().join(thread_id(1).as_str()).exists());
}

#[test]
fn remove_archived_after_days_empties_archive() {
    let world = test_store();
    world.add_ended(new_thread(1, None), 1);
    world.store.prune(&PruneOptions::of_settings(&ledger_settings(&json!({})), 31 * DAY)).expect("pruned");
    // The time since it was archived counts, not the folder's own age.
    let at = |cleanup: &Value, day: u64| {
        world
            .store
            .prune(&PruneOptions::of_settings(&ledger_settings(cleanup), (31 + day) * DAY))
            .expect("pruned")
            .archived
    };
    assert_eq!(at(&json!({}), 179), 0);
    assert_eq!(at(&json!({"remove_archived_after_days": null}), 9999), 0);
    assert_eq!(at(&json!({"remove_archived_after_days": 10}), 11), 1);
    assert!(!world.is_archived(1));
}

#[test]
fn vacuum_interval_days_sets_vacuum_frequency() {
    let world = test_store();
    let at = |cleanup: &Value, day: u64| {
        world
            .store
            .prune(&PruneOptions::of_settings(&ledger_settings(cleanup), day * DAY))
            .expect("pruned")
            .is_vacuumed
    };
    assert!(at(&json!({}), 1));
    assert!(!at(&json!({}), 7));
    assert!(at(&json!({"vacuum_interval_days": 6}), 7));
    assert!(!at(&json!({"vacuum_interval_days": 30}), 20));
}

#[test]
fn orphan_folder_is_archived() {
    let world = test_store();
    world.create(new_thread(1, None));
    world.create_folder(&thread_id(1), 1);
    world.create_folder(&thread_id(2), 1);
    let far = 40_000 * DAY;
    world
        .store
        .prune(&PruneOptions::of_settings(
            &ledger_settings(&json!({"remove_archived_after_days": null})),
            far,
        ))
        .expect("pruned");
    assert!(world.is_archived(2) && world.threads_dir().join(thread_id(1).as_str()).is_dir());
}

#[test]
fn automatic_prune_runs_once_a_day() {
    let world = test_store();
    let prune = |day: u64| PruneOptions::of_settings(&ledger_settings(&json!({})), day * DAY);
    assert_eq!(world.store.prune_if_due(&prune(31)).expect("looked"), None, "there is nothing yet");
    world.add_ended(new_thread(1, None), 1);
    let first = world.store.prune_if_due(&prune(31)).expect("pruned").expect("due");
    assert_eq!(first.threads, [thread_id(1)]);
    assert_eq!(world.store.prune_if_due(&prune(31)).expect("looked"), None);
    assert!(world.store.prune_if_due(&prune(32)).expect("pruned").is_some());
}

#[test]
fn size_limit_shrinks_the_database_itself() {
    let world = test_store();
    // A journal that is gone leaves its pages in the database.
    let large = JournalRecord { body: vec![b'x'; 1 << 20], ..record("large") };
    let claim = world.create(new_thread(1, None));
    for _ in 0..4 {
        world.commit(ThreadCommit {
            records: vec![large.clone()],
            ..ThreadCommit::new(thread_id(1), claim, DAY)
        });
    }
    world.commit(ThreadCommit {
        status: Some(StatusChange::to(ThreadStatus::Completed)),
        ..ThreadCommit::new(thread_id(1), claim, DAY)
    });
    world.add_ended(new_thread(2, None), 2);
    // The database was rewritten not long ago.
    let settings = |cleanup: &Value| PruneOptions::of_settings(&ledger_settings(cleanup), 3 * DAY);
    world.store.prune(&settings(&json!({}))).expect("pruned");
    let report = world.store.prune(&settings(&json!({"max_megabytes": 2}))).expect("pruned");
    assert_eq!(report.threads, [thread_id(1)], "the newer one fits");
    assert!(report.is_vacuumed && report.stored_bytes.is_some_and(|bytes| bytes <= 2 << 20), "{report:?}");
}
