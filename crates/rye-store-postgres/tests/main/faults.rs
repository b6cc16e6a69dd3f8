//! Clocks that differ, processes that freeze, and changes by others.

use std::time::Instant;

use rye_store::{ClaimOutcome, ClaimPolicy, CommitOutcome, StatusChange};
use rye_thread::status::ThreadStatus;

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn host(name: &str) -> Owner {
    Owner { host: name.to_owned(), ..test_owner() }
}

/// A process whose clock is an hour ahead takes no thread over whose holder is alive, and both see the same heartbeat.
#[test]
fn leases_follow_the_database_clock() {
    let schema = new_schema();
    let here = open(options(&schema));
    let ahead = open(PostgresOptions { clock: Arc::new(|| now_ms() + HOUR_MS), ..options(&schema) });
    let new = NewThread { owner: Some(host("one")), ..new_thread(1, None) };
    let claim = create(&here, new);
    let running = Some(StatusChange::to(ThreadStatus::Running));
    here.commit_blocking(ThreadCommit { status: running, ..commit_for(1, claim) }).expect("running");
    let lease_ms = 30_000;
    let policy = ClaimPolicy::Expired { now_ms: now_ms() + HOUR_MS, lease_ms };
    assert!(ahead.orphans(&host("two"), policy).expect("read").is_empty());
    let claimed = ahead.claim(&thread_id(1), &host("two"), policy, now_ms() + HOUR_MS).expect("asked");
    assert!(matches!(claimed, ClaimOutcome::Held { .. }), "{claimed:?}");
    tamper(&schema, "UPDATE threads SET lease_ms = lease_ms - 31000");
    assert_eq!(ahead.orphans(&host("two"), policy).expect("read").len(), 1);
    let claimed = ahead.claim(&thread_id(1), &host("two"), policy, now_ms() + HOUR_MS).expect("asked");
    assert!(matches!(claimed, ClaimOutcome::Claimed { .. }), "{claimed:?}");
    // The first holder wakes up: nothing of it is written.
    let late = ThreadCommit { records: vec![record("late")], ..commit_for(1, claim) };
    assert!(matches!(here.commit_blocking(late), Err(rye_store::ThreadStoreError::Fenced(_))));
    let renewed = ClaimPolicy::Expired { now_ms: now_ms(), lease_ms };
    assert!(here.orphans(&host("one"), renewed).expect("read").is_empty(), "the new lease counts");
}

/// A process that is frozen within a transaction holds its tree's lock only for seconds.
#[test]
fn frozen_transaction_loses_its_locks() {
    let schema = new_schema();
    let store = open(options(&schema));
    let claim = create(&store, new_thread(1, None));
    let config: tokio_postgres::Config = database_url().parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connected");
        let driver = tokio::spawn(connection);
        // As the store's own connections are set up.
        let freeze = format!(
            "SET search_path TO \"{schema}\"; SET idle_in_transaction_session_timeout TO '4s'; BEGIN;
             SELECT thread FROM threads FOR UPDATE"
        );
        client.batch_execute(&freeze).await.expect("frozen");
        let begun = Instant::now();
        let step = ThreadCommit { records: vec![record("step")], ..commit_for(1, claim) };
        let store = store.clone();
        let outcome = tokio::task::spawn_blocking(move || store.commit_blocking(step)).await.expect("a task");
        assert_eq!(outcome, Ok(CommitOutcome::Done));
        println!("a frozen transaction held its tree for {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(50), "the server did not end it");
        drop(client);
        let _ = driver.await;
    });
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    begun.elapsed()
}

#[test]
fn changes_of_others_are_noticed() {
    let schema = new_schema();
    let (one, other) = (open(options(&schema)), open(options(&schema)));
    create(&one, new_thread(1, None));
    wait_until("the other listens", || other.data_version().expect("a version") > 0);
    std::thread::sleep(Duration::from_millis(1_500));
    let before = other.data_version().expect("a version");
    one.request_cancel(&thread_id(1), "enough", now_ms()).expect("asked");
    let noticed = wait_until("the change", || other.data_version().expect("a version") != before);
    assert_eq!(other.cancel_requests().expect("read").len(), 1);
    println!("a change of another process was noticed after {noticed:?}");
}

#[test]
fn cut_connections_are_made_again() {
    let schema = new_schema();
    let store = open(options(&schema));
    let claim = create(&store, new_thread(1, None));
    for round in 0..20 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'rye'";
        let step = ThreadCommit { records: vec![record(&round.to_string())], ..commit_for(1, claim) };
        let commit = {
            let store = store.clone();
            std::thread::spawn(move || store.commit_blocking(step))
        };
        tamper(&schema, cut);
        assert_eq!(commit.join().expect("a thread"), Ok(CommitOutcome::Done));
    }
    let journal = store.journal(&thread_id(1)).expect("a journal");
    let bodies: Vec<String> =
        journal.iter().skip(1).map(|entry| String::from_utf8_lossy(&entry.body).into_owned()).collect();
    assert_eq!(bodies, (0..20).map(|round| round.to_string()).collect::<Vec<_>>());
}

/// The server's certificate is checked: against the file that is named, else against the system's.
#[test]
fn connections_over_tls_check_the_certificate() {
    let url = setting("RYE_TEST_POSTGRES_TLS").expect("RYE_TEST_POSTGRES_TLS: run scripts/check-postgres");
    let file = setting("RYE_TEST_POSTGRES_CA").expect("RYE_TEST_POSTGRES_CA: run scripts/check-postgres");
    let schema = new_schema();
    let untrusted = PostgresAddress::parse(&url, &schema).expect("an address");
    let refused = PostgresStore::open(PostgresOptions { address: untrusted.clone(), ..options(&schema) });
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let address = untrusted.with_certificates(file.into());
    let store = open(PostgresOptions { address: address.clone(), ..options(&schema) });
    create(&store, new_thread(1, None));
    let condition = rye_store_postgres::inspect(&address, now_ms()).expect("looked at");
    assert_eq!((condition.version, condition.threads), (condition.known, 1));
    assert!(condition.skew_ms.abs() < 60_000, "{condition:?}");
}

#[test]
fn large_parts_are_kept_in_chunks() {
    let schema = new_schema();
    let store = open(options(&schema));
    let bytes: Vec<u8> = (0..(7_u32 << 19)).map(|number| (number % 251) as u8).collect();
    let part = store.put_blob_blocking(bytes.clone(), 1).expect("written");
    let empty = store.put_blob_blocking(Vec::new(), 1).expect("written");
    assert_eq!(store.put_blob_blocking(bytes.clone(), 2), Ok(part));
    assert_eq!(store.blob(&part).expect("read"), bytes);
    assert_eq!(store.blob(&empty).expect("read"), Vec::<u8>::new());
    tamper(&schema, "DELETE FROM blob_chunks WHERE chunk = 1");
    assert!(matches!(store.blob(&part), Err(rye_store::ThreadStoreError::NoBlob(_))));
}
