//! What is forgotten, when, and what never is; each key of `cleanup` with what it changes.

use serde_json::{Value, json};

use super::*;
use crate::config::{Config, LedgerSchema};
use crate::status::Status;
use crate::store::Prune;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// The shipped settings of the ledger with these over them.
fn settings(cleanup: &Value) -> LedgerSchema {
    let mut values = crate::config::tests::shipped().values().clone();
    let over = json!({ "cleanup": cleanup });
    let merged = rye_item::merge::merge(&values["budget_ledger_schema"], &over);
    values.insert("budget_ledger_schema".to_owned(), merged);
    Config::from_values(&values).expect("a configuration").ledger
}

impl World {
    /// A thread that ended on this day, with a folder.
    fn ended(&self, new: NewThread, day: u64) {
        let id = new.id.clone();
        let claim = self.create(new);
        self.commit(Commit {
            status: Some(StatusChange::to(Status::Completed)),
            ..Commit::new(id.clone(), claim, day * DAY)
        });
        self.folder_of(&id, 1);
    }

    fn folder_of(&self, id: &ThreadId, bytes: usize) {
        let folder = self.store.folder().join(id.as_str());
        lillux::file::create_folders(&folder, true).expect("made");
        lillux::file::append(&folder.join("transcript.jsonl"), &vec![b' '; bytes]).expect("written");
    }

    fn gone(&self, cleanup: &Value, day: u64) -> Vec<ThreadId> {
        self.store.prunable(&Prune::of_settings(&settings(cleanup), day * DAY)).expect("looked")
    }

    fn is_archived(&self, number: u64) -> bool {
        self.store.folder().join("archive").join(id(number).as_str()).is_dir()
    }
}

#[test]
fn archive_after_days_is_when_an_ended_tree_goes() {
    let world = world();
    world.ended(new(1, None), 1);
    assert_eq!(world.gone(&json!({}), 30), []);
    assert_eq!(world.gone(&json!({}), 31), [id(1)]);
    assert_eq!(world.gone(&json!({"archive_after_days": 7}), 8), [id(1)]);
    world.store.prune(&Prune::of_settings(&settings(&json!({})), 31 * DAY)).expect("pruned");
    assert!(world.is_archived(1) && world.store.thread(&id(1)).expect("read").is_none());
}

#[test]
fn keep_trees_is_how_many_ended_trees_stay() {
    let world = world();
    for number in 1..=4 {
        world.ended(new(number, None), number);
    }
    world.create(new(9, None));
    assert_eq!(world.gone(&json!({}), 5), []);
    assert_eq!(world.gone(&json!({"keep_trees": 3}), 5), [id(1)]);
    assert_eq!(world.gone(&json!({"keep_trees": 0}), 5), [id(4), id(3), id(2), id(1)]);
}

#[test]
fn max_megabytes_is_how_much_room_is_taken() {
    let world = world();
    for number in 1..=3 {
        world.ended(new(number, None), number);
        world.folder_of(&id(number), 1 << 20);
    }
    assert_eq!(world.gone(&json!({"max_megabytes": 9}), 5), []);
    assert_eq!(world.gone(&json!({"max_megabytes": 3}), 5), [id(1)]);
    let prune = Prune::of_settings(&settings(&json!({"max_megabytes": 2})), 5 * DAY);
    assert_eq!(world.store.prune(&prune).expect("pruned").threads, [id(2), id(1)]);
    // There is no room for an archive either.
    assert!(!world.is_archived(1) && !world.store.folder().join(id(1).as_str()).exists());
}

#[test]
fn remove_archived_after_days_is_when_the_archive_is_emptied() {
    let world = world();
    world.ended(new(1, None), 1);
    world.store.prune(&Prune::of_settings(&settings(&json!({})), 31 * DAY)).expect("pruned");
    // The folder was made just now: by its age a moment before, or long after.
    let made = world.store.folder().join("archive").join(id(1).as_str());
    let made = made.metadata().and_then(|found| found.modified()).expect("a time");
    let made = made.duration_since(std::time::UNIX_EPOCH).expect("since").as_millis();
    let made = u64::try_from(made).expect("a time");
    let at = |cleanup: &Value, day: u64| {
        world.store.prune(&Prune::of_settings(&settings(cleanup), made + day * DAY)).expect("pruned").archived
    };
    assert_eq!(at(&json!({}), 179), 0);
    assert_eq!(at(&json!({"remove_archived_after_days": null}), 9999), 0);
    assert_eq!(at(&json!({"remove_archived_after_days": 10}), 11), 1);
    assert!(!world.is_archived(1));
}

#[test]
fn vacuum_interval_days_is_how_often_the_database_is_made_small() {
    let world = world();
    let at = |cleanup: &Value, day: u64| {
        world.store.prune(&Prune::of_settings(&settings(cleanup), day * DAY)).expect("pruned").is_vacuumed
    };
    assert!(at(&json!({}), 1));
    assert!(!at(&json!({}), 7));
    assert!(at(&json!({"vacuum_interval_days": 6}), 7));
    assert!(!at(&json!({"vacuum_interval_days": 30}), 20));
}

#[test]
fn what_is_in_use_stays_with_all_that_belongs_to_it() {
    let world = world();
    // 1 has a child at work; 2 is suspended; 3 asks; 4 went on in 5, which is at work; 6 went on in 7, both ended.
    world.create(new(11, None));
    for (number, parent) in [(1, None), (12, Some(1)), (2, None), (3, None)] {
        world.create(new(number, parent));
    }
    let claim = Claim { epoch: 1 };
    let end = |number: u64, status: Status| {
        world
            .commit(Commit { status: Some(StatusChange::to(status)), ..Commit::new(id(number), claim, DAY) });
    };
    end(1, Status::Completed);
    end(2, Status::Suspended);
    let asks = Approval {
        id: "question".to_owned(),
        thread: id(3),
        kind: "tool".to_owned(),
        what: "may I".to_owned(),
        why: "because".to_owned(),
        at_ms: 1,
        detail: Value::Null,
    };
    world.commit(Commit { asks: vec![asks], ..Commit::new(id(3), claim, 1) });
    end(3, Status::Completed);
    let goes_on = |number: u64, from: u64| NewThread { continuation_of: Some(id(from)), ..new(number, None) };
    world.create(new(4, None));
    world.create(goes_on(5, 4));
    end(4, Status::Continued);
    world.create(new(6, None));
    world.create(goes_on(7, 6));
    end(6, Status::Continued);
    world.ended(new(8, None), 1);
    assert_eq!(world.gone(&json!({"keep_trees": 0}), 99), [id(8)]);
    end(7, Status::Completed);
    let mut gone = world.gone(&json!({"archive_after_days": 0}), 99);
    gone.sort();
    assert_eq!(gone, [id(6), id(7), id(8)]);
    world.store.prune(&Prune::of_settings(&settings(&json!({"keep_trees": 0})), 99 * DAY)).expect("pruned");
    for number in [1, 12, 2, 3, 4, 5, 11] {
        assert!(world.store.journal(&id(number)).is_ok(), "{number}");
    }
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn a_part_that_a_thread_keeps_goes_with_it_and_not_before() {
    let world = world();
    world.create(new(2, None));
    let part = world.store.keep_for(&id(2), b"long".to_vec(), 1).expect("kept");
    assert!(matches!(world.store.keep_for(&id(9), b"x".to_vec(), 1), Err(StoreError::NoThread(_))));
    world.store.prune(&Prune::of_settings(&settings(&json!({})), 99 * DAY)).expect("pruned");
    assert!(world.store.blob(&part).is_ok());
    let end = Some(StatusChange::to(Status::Completed));
    world.commit(Commit { status: end, ..Commit::new(id(2), Claim { epoch: 1 }, DAY) });
    world.store.prune(&Prune::of_settings(&settings(&json!({})), 99 * DAY)).expect("pruned");
    assert!(world.store.blob(&part).is_err());
}

#[test]
fn a_folder_that_was_left_behind_is_put_away() {
    let world = world();
    world.create(new(1, None));
    world.folder_of(&id(1), 1);
    world.folder_of(&id(2), 1);
    let far = 40_000 * DAY;
    world
        .store
        .prune(&Prune::of_settings(&settings(&json!({"remove_archived_after_days": null})), far))
        .expect("pruned");
    assert!(world.is_archived(2) && world.store.folder().join(id(1).as_str()).is_dir());
}

#[test]
fn what_is_done_by_itself_is_done_once_a_day() {
    let world = world();
    let prune = |day: u64| Prune::of_settings(&settings(&json!({})), day * DAY);
    assert_eq!(world.store.prune_if_due(&prune(31)).expect("looked"), None, "there is nothing yet");
    world.ended(new(1, None), 1);
    let first = world.store.prune_if_due(&prune(31)).expect("pruned").expect("due");
    assert_eq!(first.threads, [id(1)]);
    assert_eq!(world.store.prune_if_due(&prune(31)).expect("looked"), None);
    assert!(world.store.prune_if_due(&prune(32)).expect("pruned").is_some());
}
