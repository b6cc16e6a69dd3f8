//! Several processes at one store: claims, races, and a death in the middle of writing.
//!
//! A child is this test binary again, told by a variable what to do and where.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::*;
use rye_thread::status::ThreadStatus;

const ACTION_VAR: &str = "RYE_TEST_STORE_ACT";
const FOLDER_VAR: &str = "RYE_TEST_STORE_FOLDER";

/// A child that is ended with its test.
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // One that has ended by itself needs no end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a test of several processes starts them")]
fn spawn_child(folder: &Path, act: &str) -> ChildGuard {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args(["--exact", "tests::processes::what_a_child_does", "--ignored", "--nocapture"])
        .env(ACTION_VAR, act)
        .env(FOLDER_VAR, folder)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped());
    ChildGuard(command.spawn().expect("a child"))
}

/// What a child said before it ended.
fn child_output(child: &mut ChildGuard) -> Vec<String> {
    let mut text = String::new();
    child.0.stdout.take().expect("its output").read_to_string(&mut text).expect("text");
    text.lines().filter_map(|line| line.strip_prefix("said: ").map(str::to_owned)).collect()
}

#[test]
#[ignore = "run by the tests that start it"]
#[expect(clippy::disallowed_methods, reason = "a child is told by variables what to do")]
fn what_a_child_does() {
    let (Ok(act), Ok(folder)) = (std::env::var(ACTION_VAR), std::env::var(FOLDER_VAR)) else {
        return;
    };
    if let Some(project) = act.strip_prefix("spend in ") {
        let store = rolling::open_project(Path::new(&folder), project);
        println!("said: {}", rolling::spend_in_project(&store, 500));
        return;
    }
    let store = open_store(Path::new(&folder));
    match act.as_str() {
        "write" => write_forever(&store),
        "claim" => {
            match store.claim(&thread_id(1), &current_owner(), ClaimPolicy::Free, 1).expect("judged") {
                ClaimOutcome::Claimed { .. } => {
                    println!("said: mine");
                    // It holds the thread until the test lets go of it.
                    let mut line = String::new();
                    std::io::stdin().read_line(&mut line).expect("the end");
                }
                ClaimOutcome::Held { .. } => println!("said: held"),
            }
        }
        "spend" => {
            let base: u64 = u64::from(std::process::id()) << 12;
            let mut funded = 0;
            for number in 0..40 {
                let thread = base + number;
                let created = store.create_blocking(new_thread(thread, Some(1))).expect("created");
                let CreateOutcome::Created { claim, .. } = created else { panic!("{created:?}") };
                let call = ThreadCommit {
                    reservation: reserve(1, 10),
                    ..ThreadCommit::new(thread_id(thread), claim, 1)
                };
                funded += u32::from(store.commit_blocking(call).expect("committed") == CommitOutcome::Done);
            }
            println!("said: {funded}");
        }
        other => panic!("{other}"),
    }
}

/// Calls are reserved and settled until the process is ended; what is durable is said.
fn write_forever(store: &StoreHandle) {
    let claims: Vec<Claim> = (1..=3)
        .map(|number| {
            let parent = (number > 1).then_some(number - 1);
            let Ok(CreateOutcome::Created { claim, .. }) = store.create_blocking(new_thread(number, parent))
            else {
                panic!("not created");
            };
            claim
        })
        .collect();
    for call in 1..1_000_000_u64 {
        let thread = call % 3 + 1;
        let claim = claims[usize::try_from(thread - 1).expect("small")];
        let mut step = ThreadCommit::new(thread_id(thread), claim, call);
        step.records = vec![record(&call.to_string())];
        step.reservation = reserve(call, 10);
        store.commit_blocking(step.clone()).expect("committed");
        step.reservation = None;
        step.settlements = vec![settle(call, 7)];
        store.commit_blocking(step).expect("committed");
        println!("said: {call}");
    }
}

#[test]
fn killed_writer_loses_no_committed_data() {
    for count in [1, 7, 40] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut running = spawn_child(folder.path(), "write");
        let output = BufReader::new(running.0.stdout.take().expect("its output"));
        let reported: Vec<u64> = output
            .lines()
            .filter_map(|line| {
                line.expect("a line").strip_prefix("said: ").and_then(|call| call.parse().ok())
            })
            .take(count)
            .collect();
        running.0.kill().expect("killed");
        running.0.wait().expect("gone");
        let store = open_store(folder.path());
        let (mut calls, mut in_flight) = (Vec::new(), 0);
        for thread in 1..=3 {
            let journal = store.journal(&thread_id(thread)).expect("verified");
            calls.extend(
                journal
                    .iter()
                    .skip(1)
                    .map(|record| String::from_utf8_lossy(&record.body).parse::<u64>().expect("a call")),
            );
            in_flight += store.open_reservations(&thread_id(thread)).expect("read").len();
        }
        calls.sort_unstable();
        calls.dedup();
        // A prefix of what was written: nothing missing in between, and nothing that was told missing at all.
        let last = calls.last().copied().unwrap_or(0);
        assert_eq!(calls, (1..=last).collect::<Vec<_>>());
        assert!(reported.last().copied() <= Some(last) && reported.len() == count);
        assert!(in_flight <= 1);
        assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
        // Its threads can be taken over, and calls in flight are settled once.
        let mut orphans = store.orphans(&current_owner(), ClaimPolicy::Free).expect("read");
        orphans.retain(|row| row.status == ThreadStatus::Created);
        assert_eq!(orphans.len(), 3);
        for thread in 1..=3 {
            let claimed =
                store.claim(&thread_id(thread), &current_owner(), ClaimPolicy::Free, 1).expect("judged");
            let ClaimOutcome::Claimed { claim, from: Some(_) } = claimed else { panic!("{claimed:?}") };
            let unknown = store.open_reservations(&thread_id(thread)).expect("read");
            let settled = unknown
                .iter()
                .map(|reservation| Settlement { is_unknown: true, ..settle(reservation.call, 0) });
            let step = ThreadCommit {
                settlements: settled.collect(),
                ..ThreadCommit::new(thread_id(thread), claim, 1)
            };
            store.commit_blocking(step).expect("committed");
            assert_eq!(store.open_reservations(&thread_id(thread)).expect("read"), []);
        }
        assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
    }
}

#[test]
fn dead_owner_can_be_replaced() {
    let world = test_store();
    world.create(NewThread { owner: None, ..new_thread(1, None) });
    let mut first = spawn_child(world.folder.path(), "claim");
    let mut second = spawn_child(world.folder.path(), "claim");
    // The one that got it waits; the other one ends by itself. Each says one thing.
    let mut outputs =
        [&mut first, &mut second].map(|running| BufReader::new(running.0.stdout.take().expect("its output")));
    let words = outputs.each_mut().map(|output| {
        output
            .lines()
            .find_map(|line| line.expect("a line").strip_prefix("said: ").map(str::to_owned))
            .expect("a word")
    });
    assert!(words == ["mine", "held"] || words == ["held", "mine"], "{words:?}");
    let this = current_owner();
    let outcome = world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 1).expect("judged");
    let ClaimOutcome::Held { by } = outcome else { panic!("{outcome:?}") };
    let winner = if words[0] == "mine" { &mut first } else { &mut second };
    assert_eq!(by.pid, winner.0.id());
    winner.0.kill().expect("killed");
    winner.0.wait().expect("gone");
    let claimed = world.store.claim(&thread_id(1), &this, ClaimPolicy::Free, 1).expect("judged");
    assert!(
        matches!(claimed, ClaimOutcome::Claimed { from: Some(ref from), .. } if *from == by),
        "{claimed:?}"
    );
}

#[test]
fn racing_processes_never_exceed_budget() {
    let world = test_store();
    world.create(NewThread { max_spend: Some(Nanos(500)), ..new_thread(1, None) });
    let mut children = [spawn_child(world.folder.path(), "spend"), spawn_child(world.folder.path(), "spend")];
    let funded: u32 = children
        .each_mut()
        .map(|child| child_output(child)[0].parse::<u32>().expect("a number"))
        .iter()
        .sum();
    assert_eq!(funded, 50);
    assert_eq!(world.store.ledger(&thread_id(1)).expect("a row").remaining_spend(), Some(Nanos(0)));
    assert_eq!(world.store.thread(&thread_id(1)).expect("read").expect("a thread").spawn_count, 80);
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
}

#[test]
fn racing_projects_never_exceed_rolling_budget() {
    let user = tempfile::tempdir().expect("a folder");
    let mut children = ["spend in one", "spend in other"].map(|act| spawn_child(user.path(), act));
    let funded = children.each_mut().map(|child| child_output(child)[0].parse::<u32>().expect("a number"));
    assert_eq!(funded.iter().sum::<u32>(), 50);
}

#[test]
fn only_old_ended_trees_are_pruned() {
    const DAY: u64 = 24 * 60 * 60 * 1000;
    let world = test_store();
    let part = rye_store::block_on(world.store.put_blob(b"old".to_vec(), 1)).expect("kept");
    let shared = rye_store::block_on(world.store.put_blob(b"shared".to_vec(), 1)).expect("kept");
    let threads = world.folder.path().join("threads");
    // 1 with its child 2 ended long ago; of 3 and 4 the child lives; 5 ended yesterday.
    for (number, parent, blobs) in [
        (1, None, vec![part, shared]),
        (2, Some(1), vec![]),
        (3, None, vec![shared]),
        (4, Some(3), vec![]),
        (5, None, vec![]),
    ] {
        world.create(NewThread { blobs, ..new_thread(number, parent) });
        let folder = threads.join(thread_id(number).as_str());
        lillux::file::create_dirs(&folder, true).expect("made");
        lillux::file::append(&folder.join("transcript.jsonl"), b"{}\n").expect("written");
    }
    let claim = Claim { epoch: 1 };
    for (number, day) in [(1, 1), (2, 2), (3, 1), (5, 39)] {
        let end = Some(StatusChange::to(ThreadStatus::Completed));
        world.commit(ThreadCommit { status: end, ..ThreadCommit::new(thread_id(number), claim, day * DAY) });
    }
    let prune = PruneOptions {
        at_ms: 40 * DAY,
        after_days: Some(30),
        keep_trees: None,
        max_bytes: None,
        disposal: FolderDisposal::Archive,
        remove_archived_after_days: None,
        vacuum_interval_days: Some(7),
    };
    assert_eq!(world.store.prune_candidates(&prune).expect("looked"), [thread_id(2), thread_id(1)]);
    let pruned = world.store.prune(&prune).expect("pruned");
    assert_eq!(
        pruned,
        PruneReport {
            threads: vec![thread_id(2), thread_id(1)],
            blobs: 1,
            archived: 0,
            is_vacuumed: true,
            stored_bytes: None
        }
    );
    assert!(threads.join("archive").join(thread_id(1).as_str()).join("transcript.jsonl").is_file());
    assert!(!threads.join(thread_id(1).as_str()).exists() && threads.join(thread_id(3).as_str()).exists());
    assert_eq!(world.store.threads(&ThreadFilter::default()).expect("read").len(), 3);
    assert!(world.store.blob(&part).is_err() && world.store.blob(&shared).is_ok());
    assert_eq!(world.store.audit().expect("audited"), Vec::<String>::new());
    let again = PruneOptions { after_days: Some(0), disposal: FolderDisposal::Remove, ..prune };
    let pruned = world.store.prune(&again).expect("pruned");
    assert_eq!(
        pruned,
        PruneReport {
            threads: vec![thread_id(5)],
            blobs: 0,
            archived: 0,
            is_vacuumed: false,
            stored_bytes: None
        }
    );
    assert!(!threads.join(thread_id(5).as_str()).exists());
    assert!(world.store.journal(&thread_id(4)).is_ok());
}

/// A link in the place of a thread's folder: nothing behind it is written, moved or removed.
#[test]
#[expect(clippy::disallowed_methods, reason = "files of the test itself")]
fn prune_follows_no_links() {
    for disposal in [FolderDisposal::Archive, FolderDisposal::Remove] {
        let world = test_store();
        let threads = world.threads_dir();
        let outside = world.folder.path().join("outside");
        lillux::file::create_dirs(&outside.join("sub"), true).expect("made");
        std::fs::write(outside.join("sub/kept"), "kept").expect("written");
        for number in [1, 2] {
            world.create(new_thread(number, None));
            let end = Some(StatusChange::to(ThreadStatus::Completed));
            world.commit(ThreadCommit {
                status: end,
                ..ThreadCommit::new(thread_id(number), Claim { epoch: 1 }, 1)
            });
        }
        std::os::unix::fs::symlink(&outside, threads.join(thread_id(1).as_str())).expect("linked");
        std::fs::write(threads.join(thread_id(2).as_str()), "a file").expect("written");
        let prune = PruneOptions {
            at_ms: 1_000_000_000,
            after_days: Some(0),
            keep_trees: None,
            max_bytes: None,
            disposal,
            remove_archived_after_days: Some(0),
            vacuum_interval_days: None,
        };
        assert_eq!(world.store.prune(&prune).expect("pruned").threads.len(), 2);
        // A second time for the archive.
        world.store.prune(&prune).expect("pruned");
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).expect("a folder").flatten();
            entries.map(|entry| entry.file_name().into_string().expect("a name")).collect::<Vec<_>>()
        };
        assert_eq!((names(&outside), names(&outside.join("sub"))), (vec!["sub".into()], vec!["kept".into()]));
        for number in [1, 2] {
            assert!(threads.join(thread_id(number).as_str()).symlink_metadata().is_err(), "{number}");
        }
    }
}
