//! The server is stopped in the middle of things, without warning.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rye_store::CommitOutcome;

use super::*;

#[expect(clippy::disallowed_methods, reason = "the script says how its database is restarted")]
fn restart(command: &str) {
    let status = Command::new("sh").args(["-c", command]).status().expect("the command runs");
    assert!(status.success(), "the database did not come back");
}

/// Everything that was answered is there once, in order, and nothing else.
#[test]
fn restarts_lose_and_repeat_nothing() {
    let Some(command) = setting("RYE_TEST_POSTGRES_RESTART") else {
        panic!("RYE_TEST_POSTGRES_RESTART: run scripts/check-postgres");
    };
    let restarts: u32 = setting("RYE_TEST_RESTARTS").and_then(|text| text.parse().ok()).unwrap_or(3);
    let schema = new_schema();
    let store = open(options(&schema));
    create(&store, new_thread(1, None));
    let is_done = Arc::new(AtomicBool::new(false));
    let back_at = Arc::new(Mutex::new(Instant::now()));
    let workers: Vec<_> = (2..10_u64)
        .map(|number| {
            let (schema, is_done, back_at) = (schema.clone(), Arc::clone(&is_done), Arc::clone(&back_at));
            let store = if number % 2 == 0 { store.clone() } else { open(options(&schema)) };
            let claim = create(&store, new_thread(number, Some(1)));
            std::thread::spawn(move || {
                let (mut call, mut longest) = (0, Duration::ZERO);
                while !is_done.load(Ordering::SeqCst) {
                    call += 1;
                    let commit = ThreadCommit {
                        records: vec![record(&call.to_string())],
                        settlements: (call > 1).then(|| settle(call - 1, 3)).into_iter().collect(),
                        reservation: reserve(call, 10),
                        ..commit_for(number, claim)
                    };
                    let begun = Instant::now();
                    assert_eq!(store.commit_blocking(commit), Ok(CommitOutcome::Done));
                    // What a commit took that was begun before the server was back, from then on.
                    let back = *back_at.lock().expect("a time");
                    if begun < back {
                        longest = longest.max(back.elapsed());
                    }
                }
                (number, call, longest)
            })
        })
        .collect();
    for _ in 0..restarts {
        std::thread::sleep(Duration::from_millis(300));
        restart(&command);
        *back_at.lock().expect("a time") = Instant::now();
    }
    std::thread::sleep(Duration::from_millis(300));
    is_done.store(true, Ordering::SeqCst);
    let (mut commits, mut longest) = (0, Duration::ZERO);
    for worker in workers {
        let (number, calls, slowest) = worker.join().expect("a worker");
        let journal = store.journal(&thread_id(number)).expect("a journal");
        let bodies: Vec<String> =
            journal.iter().skip(1).map(|entry| String::from_utf8_lossy(&entry.body).into_owned()).collect();
        assert_eq!(bodies, (1..=calls).map(|call| call.to_string()).collect::<Vec<_>>());
        (commits, longest) = (commits + calls, longest.max(slowest));
    }
    assert_eq!(store.audit().expect("audited"), Vec::<String>::new());
    println!(
        "{restarts} restarts, {commits} commits, going on at most {longest:?} after the server was back"
    );
}
