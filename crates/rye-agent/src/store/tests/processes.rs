//! Several processes at one store: claims, races, and a death in the middle of writing.
//!
//! A child is this test binary again, told by a variable what to do and where.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::status::Status;

const ACT: &str = "RYE_TEST_STORE_ACT";
const FOLDER: &str = "RYE_TEST_STORE_FOLDER";

/// A child that is ended with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended by itself needs no end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a test of several processes starts them")]
fn child(folder: &Path, act: &str) -> Running {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args(["--exact", "store::tests::processes::what_a_child_does", "--ignored", "--nocapture"])
        .env(ACT, act)
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped());
    Running(command.spawn().expect("a child"))
}

/// What a child said before it ended.
fn said(child: &mut Running) -> Vec<String> {
    let mut text = String::new();
    child.0.stdout.take().expect("its output").read_to_string(&mut text).expect("text");
    text.lines().filter_map(|line| line.strip_prefix("said: ").map(str::to_owned)).collect()
}

#[test]
#[ignore = "run by the tests that start it"]
#[expect(clippy::disallowed_methods, reason = "a child is told by variables what to do")]
fn what_a_child_does() {
    let (Ok(act), Ok(folder)) = (std::env::var(ACT), std::env::var(FOLDER)) else {
        return;
    };
    let store = open(Path::new(&folder));
    match act.as_str() {
        "write" => write_for_ever(&store),
        "claim" => match store.claim(&id(1), &Owner::current(), Taking::Free, 1).expect("judged") {
            Claimed::Done { .. } => {
                println!("said: mine");
                // It holds the thread until the test lets go of it.
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).expect("the end");
            }
            Claimed::Held { .. } => println!("said: held"),
        },
        "spend" => {
            let base: u64 = u64::from(std::process::id()) << 12;
            let mut funded = 0;
            for number in 0..40 {
                let thread = base + number;
                let created = store.create_blocking(new(thread, Some(1))).expect("created");
                let Created::Done { claim, .. } = created else { panic!("{created:?}") };
                let call = Commit { reserve: reserve(1, 10), ..Commit::new(id(thread), claim, 1) };
                funded += u32::from(store.commit_blocking(call).expect("committed") == Committed::Done);
            }
            println!("said: {funded}");
        }
        other => panic!("{other}"),
    }
}

/// Calls are put aside and settled until somebody ends the process; what is durable is said.
fn write_for_ever(store: &Store) {
    let claims: Vec<Claim> = (1..=3)
        .map(|number| {
            let parent = (number > 1).then_some(number - 1);
            let Ok(Created::Done { claim, .. }) = store.create_blocking(new(number, parent)) else {
                panic!("not created");
            };
            claim
        })
        .collect();
    for call in 1..1_000_000_u64 {
        let thread = call % 3 + 1;
        let claim = claims[usize::try_from(thread - 1).expect("small")];
        let mut step = Commit::new(id(thread), claim, call);
        step.records = vec![record(&call.to_string())];
        step.reserve = reserve(call, 10);
        store.commit_blocking(step.clone()).expect("committed");
        step.reserve = None;
        step.settle = vec![settle(call, 7)];
        store.commit_blocking(step).expect("committed");
        println!("said: {call}");
    }
}

#[test]
fn after_a_death_in_the_middle_of_writing_all_that_was_told_is_there_and_sums_hold() {
    for told in [1, 7, 40] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut running = child(folder.path(), "write");
        let output = BufReader::new(running.0.stdout.take().expect("its output"));
        let heard: Vec<u64> = output
            .lines()
            .filter_map(|line| {
                line.expect("a line").strip_prefix("said: ").and_then(|call| call.parse().ok())
            })
            .take(told)
            .collect();
        running.0.kill().expect("killed");
        running.0.wait().expect("gone");
        let store = open(folder.path());
        let (mut calls, mut in_flight) = (Vec::new(), 0);
        for thread in 1..=3 {
            let journal = store.journal(&id(thread)).expect("verified");
            calls.extend(
                journal
                    .iter()
                    .skip(1)
                    .map(|record| String::from_utf8_lossy(&record.body).parse::<u64>().expect("a call")),
            );
            in_flight += store.unsettled(&id(thread)).expect("read").len();
        }
        calls.sort_unstable();
        calls.dedup();
        // A prefix of what was written: nothing missing in between, and nothing that was told missing at all.
        let last = calls.last().copied().unwrap_or(0);
        assert_eq!(calls, (1..=last).collect::<Vec<_>>());
        assert!(heard.last().copied() <= Some(last) && heard.len() == told);
        assert!(in_flight <= 1);
        assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
        // Its threads can be taken over, and calls in flight are settled once.
        let mut orphans = store.orphans(&Owner::current(), Taking::Free).expect("read");
        orphans.retain(|row| row.status == Status::Created);
        assert_eq!(orphans.len(), 3);
        for thread in 1..=3 {
            let taken = store.claim(&id(thread), &Owner::current(), Taking::Free, 1).expect("judged");
            let Claimed::Done { claim, from: Some(_) } = taken else { panic!("{taken:?}") };
            let unknown = store.unsettled(&id(thread)).expect("read");
            let settled = unknown.iter().map(|left| Settle { is_unknown: true, ..settle(left.call, 0) });
            let step = Commit { settle: settled.collect(), ..Commit::new(id(thread), claim, 1) };
            store.commit_blocking(step).expect("committed");
            assert_eq!(store.unsettled(&id(thread)).expect("read"), []);
        }
        assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
    }
}

#[test]
fn of_two_processes_one_gets_the_thread_and_the_next_when_it_is_dead() {
    let world = world();
    world.create(NewThread { owner: None, ..new(1, None) });
    let mut first = child(world.folder.path(), "claim");
    let mut second = child(world.folder.path(), "claim");
    // Whoever got it waits; the other one ends by itself. Each says one thing.
    let mut outputs =
        [&mut first, &mut second].map(|running| BufReader::new(running.0.stdout.take().expect("its output")));
    let words = outputs.each_mut().map(|output| {
        output
            .lines()
            .find_map(|line| line.expect("a line").strip_prefix("said: ").map(str::to_owned))
            .expect("a word")
    });
    assert!(words == ["mine", "held"] || words == ["held", "mine"], "{words:?}");
    let this = Owner::current();
    let held = world.store.claim(&id(1), &this, Taking::Free, 1).expect("judged");
    let Claimed::Held { by } = held else { panic!("{held:?}") };
    let winner = if words[0] == "mine" { &mut first } else { &mut second };
    assert_eq!(by.pid, winner.0.id());
    winner.0.kill().expect("killed");
    winner.0.wait().expect("gone");
    let taken = world.store.claim(&id(1), &this, Taking::Free, 1).expect("judged");
    assert!(matches!(taken, Claimed::Done { from: Some(ref from), .. } if *from == by), "{taken:?}");
}

#[test]
fn two_processes_that_race_for_money_get_no_more_than_there_is() {
    let world = world();
    world.create(NewThread { max_spend: Some(Nanos(500)), ..new(1, None) });
    let mut children = [child(world.folder.path(), "spend"), child(world.folder.path(), "spend")];
    let funded: u32 =
        children.each_mut().map(|child| said(child)[0].parse::<u32>().expect("a number")).iter().sum();
    assert_eq!(funded, 50);
    assert_eq!(world.store.ledger(&id(1)).expect("a row").remaining_spend(), Some(Nanos(0)));
    assert_eq!(world.store.thread(&id(1)).expect("read").expect("a thread").spawn_count, 80);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn whoever_lost_a_thread_cannot_commit_to_it() {
    let world = world();
    let stale = world.create(new(1, None));
    let this = Owner::current();
    assert!(matches!(world.store.claim(&id(1), &this, Taking::Free, 1), Ok(Claimed::Held { .. })));
    let forced = world.store.claim(&id(1), &this, Taking::Forced, 2).expect("judged");
    let Claimed::Done { claim, .. } = forced else { panic!("{forced:?}") };
    let step = |claim| Commit { records: vec![record("late")], ..Commit::new(id(1), claim, 1) };
    assert_eq!(world.store.commit_blocking(step(stale)), Err(StoreError::Fenced(id(1))));
    assert_eq!(world.store.release_claim(&id(1), stale), Err(StoreError::Fenced(id(1))));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let beat = |claim| runtime.block_on(world.store.heartbeat(vec![(id(1), claim)], 9)).expect("written");
    assert_eq!((beat(stale), beat(claim)), (vec![(id(1), stale)], vec![]));
    assert_eq!(world.store.thread(&id(1)).expect("read").expect("a thread").heartbeat_ms, 9);
    world.store.release_claim(&id(1), claim).expect("released");
    assert_eq!(world.store.commit_blocking(step(claim)), Err(StoreError::Fenced(id(1))));
    assert_eq!(world.store.journal(&id(1)).expect("a journal").len(), 1);
    assert!(matches!(
        world.store.claim(&id(1), &this, Taking::Free, 3),
        Ok(Claimed::Done { from: None, .. })
    ));
}

#[test]
fn the_last_commit_gives_the_thread_up() {
    let world = world();
    let claim = world.create(new(1, None));
    let last = Commit { is_last: true, records: vec![record("last")], ..Commit::new(id(1), claim, 1) };
    assert_eq!(world.commit(last.clone()), Committed::Done);
    assert_eq!(world.store.commit_blocking(last), Err(StoreError::Fenced(id(1))));
    assert_eq!(world.store.thread(&id(1)).expect("read").expect("a thread").owner, None);
    // A heartbeat that was on its way meanwhile does not take it for one that somebody else took.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let beat = |claim| runtime.block_on(world.store.heartbeat(vec![(id(1), claim)], 9)).expect("written");
    assert_eq!(beat(claim), vec![]);
    let taken = world.store.claim(&id(1), &Owner::current(), Taking::Free, 3).expect("judged");
    assert!(matches!(taken, Claimed::Done { .. }), "{taken:?}");
    assert_eq!(beat(claim), vec![(id(1), claim)]);
}

#[test]
fn only_threads_whose_process_is_gone_are_orphans() {
    let world = world();
    let this = Owner::current();
    let gone = Owner { pid_start: this.pid_start + 1, ..this.clone() };
    let elsewhere = Owner { host: "elsewhere".to_owned(), ..gone.clone() };
    for (number, owner) in [(1, this.clone()), (2, gone), (3, elsewhere)] {
        let claim = world.create(NewThread { owner: Some(owner), ..new(number, None) });
        let running = Some(StatusChange::to(Status::Running));
        world.commit(Commit { status: running, ..Commit::new(id(number), claim, 1) });
    }
    world.create(NewThread { owner: None, ..new(4, None) });
    world.create(NewThread { owner: None, is_detached: true, ..new(5, None) });
    let orphans = |taking: Taking| -> Vec<ThreadId> {
        world.store.orphans(&this, taking).expect("read").into_iter().map(|row| row.id).collect()
    };
    assert_eq!(orphans(Taking::Free), [id(2), id(5)]);
    // Whoever cannot be asked is believed to be gone once nothing was heard for long enough.
    assert_eq!(orphans(Taking::Silent { since_ms: 1 }), [id(2), id(5)]);
    assert_eq!(orphans(Taking::Silent { since_ms: u64::MAX }), [id(2), id(3), id(5)]);
    let taken = |taking| world.store.claim(&id(3), &this, taking, 1).expect("judged");
    assert!(matches!(taken(Taking::Silent { since_ms: 1 }), Claimed::Held { .. }));
    assert!(matches!(taken(Taking::Silent { since_ms: u64::MAX }), Claimed::Done { .. }));
}

#[test]
fn a_child_of_a_thread_that_goes_on_by_itself_does_too() {
    let world = world();
    world.create(NewThread { is_detached: true, ..new(1, None) });
    world.create(new(2, Some(1)));
    world.create(new(3, Some(2)));
    world.create(new(4, None));
    let is_detached = |number| world.store.thread(&id(number)).expect("read").expect("a thread").is_detached;
    assert_eq!([1, 2, 3, 4].map(is_detached), [true, true, true, false]);
    assert!(world.store.has_detached().expect("read"));
}

#[test]
fn why_nobody_goes_on_is_forgotten_when_somebody_does() {
    let world = world();
    world.create(NewThread { owner: None, is_detached: true, ..new(1, None) });
    let note = || world.store.thread(&id(1)).expect("read").expect("a thread").note;
    world.store.note(&id(1), "no key").expect("noted");
    assert_eq!(note().as_deref(), Some("no key"));
    let taken = world.store.claim(&id(1), &Owner::current(), Taking::Free, 1).expect("judged");
    assert!(matches!(taken, Claimed::Done { .. }), "{taken:?}");
    world.store.note(&id(1), "too late").expect("noted");
    assert_eq!(note(), None);
}

#[test]
fn only_whole_trees_that_ended_long_ago_are_forgotten() {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let world = world();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let part = runtime.block_on(world.store.put_blob(b"old".to_vec(), 1)).expect("kept");
    let shared = runtime.block_on(world.store.put_blob(b"shared".to_vec(), 1)).expect("kept");
    let threads = world.folder.path().join("threads");
    // 1 with its child 2 ended long ago; of 3 and 4 the child lives; 5 ended yesterday.
    for (number, parent, blobs) in [
        (1, None, vec![part, shared]),
        (2, Some(1), vec![]),
        (3, None, vec![shared]),
        (4, Some(3), vec![]),
        (5, None, vec![]),
    ] {
        world.create(NewThread { blobs, ..new(number, parent) });
        let folder = threads.join(id(number).as_str());
        lillux::file::create_folders(&folder, true).expect("made");
        lillux::file::append(&folder.join("transcript.jsonl"), b"{}\n").expect("written");
    }
    let claim = Claim { epoch: 1 };
    for (number, day) in [(1, 1), (2, 2), (3, 1), (5, 39)] {
        let end = Some(StatusChange::to(Status::Completed));
        world.commit(Commit { status: end, ..Commit::new(id(number), claim, day * DAY) });
    }
    let prune = Prune {
        at_ms: 40 * DAY,
        after_days: Some(30),
        keep: None,
        most_bytes: None,
        kept: Kept::Archived,
        remove_archived_after_days: None,
        vacuum_interval_days: Some(7),
    };
    assert_eq!(world.store.prunable(&prune).expect("looked"), [id(2), id(1)]);
    let pruned = world.store.prune(&prune).expect("pruned");
    assert_eq!(pruned, Pruned { threads: vec![id(2), id(1)], blobs: 1, archived: 0, is_vacuumed: true });
    assert!(threads.join("archive").join(id(1).as_str()).join("transcript.jsonl").is_file());
    assert!(!threads.join(id(1).as_str()).exists() && threads.join(id(3).as_str()).exists());
    assert_eq!(world.store.threads(&Filter::default()).expect("read").len(), 3);
    assert!(world.store.blob(&part).is_err() && world.store.blob(&shared).is_ok());
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
    let again = Prune { after_days: Some(0), kept: Kept::Nothing, ..prune };
    let pruned = world.store.prune(&again).expect("pruned");
    assert_eq!(pruned, Pruned { threads: vec![id(5)], blobs: 0, archived: 0, is_vacuumed: false });
    assert!(!threads.join(id(5).as_str()).exists());
    assert!(world.store.journal(&id(4)).is_ok());
}
