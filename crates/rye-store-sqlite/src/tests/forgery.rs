//! Writes into the database without the user's secret are detected, and no thread continues from them.

#![expect(clippy::disallowed_methods, reason = "what was written is compared byte by byte")]

use rusqlite::OptionalExtension;
use serde_json::json;

use super::*;

/// Two threads with three records each.
fn two_threads() -> TestStore {
    let world = test_store();
    for number in [1, 2] {
        let claim = world.create(NewThread { max_spend: Some(Nanos(100)), ..new_thread(number, None) });
        let mut step = ThreadCommit::new(thread_id(number), claim, 1);
        step.records = vec![record(&format!("second of {number}")), record(&format!("third of {number}"))];
        world.commit(step);
    }
    world
}

#[test]
fn forged_journal_is_refused_with_reason() {
    let row = "(SELECT thread FROM threads WHERE thread_id = 'thread-000000000001')";
    let cases: [(&str, String, Forgery); 11] = [
        (
            "an edited body",
            format!("UPDATE journal SET body = x'00' WHERE thread = {row} AND seq = 2"),
            Forgery::Changed,
        ),
        (
            "an edited time",
            format!("UPDATE journal SET at_ms = 7 WHERE thread = {row} AND seq = 1"),
            Forgery::Changed,
        ),
        (
            "an edited number",
            format!("UPDATE journal SET sequence = 9 WHERE thread = {row} AND seq = 3"),
            Forgery::Changed,
        ),
        ("a cut end", format!("DELETE FROM journal WHERE thread = {row} AND seq = 3"), Forgery::Truncated),
        ("a cut middle", format!("DELETE FROM journal WHERE thread = {row} AND seq = 2"), Forgery::Truncated),
        (
            "an added entry",
            format!(
                "INSERT INTO journal (thread, seq, at_ms, sequence, body) VALUES ({row}, 4, 1, 1, x'00')"
            ),
            Forgery::Truncated,
        ),
        (
            "entries in another order",
            format!(
                "UPDATE journal SET seq = 99 WHERE thread = {row} AND seq = 2;
                 UPDATE journal SET seq = 2 WHERE thread = {row} AND seq = 3;
                 UPDATE journal SET seq = 3 WHERE thread = {row} AND seq = 99"
            ),
            Forgery::Changed,
        ),
        (
            "two threads' entries swapped",
            "UPDATE journal SET thread = 3 - thread + 1000; UPDATE journal SET thread = thread - 1000"
                .to_owned(),
            Forgery::Changed,
        ),
        (
            "two threads' heads swapped",
            "UPDATE threads SET thread_id = 'x' WHERE thread = 1;
             UPDATE threads SET thread_id = 'thread-000000000001' WHERE thread = 2"
                .to_owned(),
            Forgery::Head,
        ),
        (
            "an edited seal",
            format!("UPDATE threads SET head_mac = zeroblob(32) WHERE thread = {row}"),
            Forgery::Head,
        ),
        (
            "a raised maximum",
            format!("UPDATE threads SET max_spend = 1000 WHERE thread = {row}"),
            Forgery::Head,
        ),
    ];
    for (name, sql, what) in cases {
        let world = two_threads();
        assert_eq!(world.store.journal(&thread_id(1)).expect("intact").len(), 3, "{name}");
        world.tamper(&sql);
        assert_eq!(
            world.store.journal(&thread_id(1)),
            Err(ThreadStoreError::Forged { thread: thread_id(1), what }),
            "{name}"
        );
    }
}

#[test]
fn forged_row_is_flagged_and_refused() {
    let columns = [
        "status = 'completed', completed_at = '2026-01-01T00:00:00Z'",
        "result = '{\"result\":\"forged\"}'",
        "error = 'forged'",
        "reason = 'limit'",
        "title = 'forged'",
        "directive = 'forged'",
        "spend = 0, turns = 7",
        "spawn_count = 99",
        "limits = '{}'",
        "model = 'forged'",
        "capabilities = 'forged'",
        "depth = 3",
        "root = 2",
        "parent = 2",
        "continuation_of = 'thread-000000000002'",
        "continuation_thread_id = 'thread-000000000002'",
        "transcript_sequence = 1, transcript_hash = zeroblob(32)",
        "detached = 1",
        "updated_at = 'forged'",
        "revision = revision + 1",
        "row_mac = zeroblob(32)",
        "row_mac = x''",
        "row_mac = (SELECT row_mac FROM threads WHERE thread = 2)",
    ];
    for change in columns {
        let world = two_threads();
        assert!(!world.store.thread(&thread_id(1)).expect("read").expect("there").is_forged, "{change}");
        world.tamper(&format!("UPDATE threads SET {change} WHERE thread = 1"));
        let row = world.store.thread(&thread_id(1)).expect("read").expect("there");
        assert!(row.is_forged && row.result.is_none(), "{change}");
        let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Row };
        assert_eq!(world.store.verified_thread(&thread_id(1)), Err(refused.clone()), "{change}");
        // A step or a child would seal it again.
        let step = ThreadCommit::new(thread_id(1), Claim { epoch: 1 }, 2);
        assert_eq!(world.store.commit_blocking(step), Err(refused.clone()), "{change}");
        assert_eq!(world.store.create_blocking(new_thread(3, Some(1))).map(drop), Err(refused), "{change}");
        assert!(!world.store.thread(&thread_id(2)).expect("read").expect("there").is_forged, "{change}");
    }
}

#[test]
fn truncated_journal_needs_the_secret() {
    let world = two_threads();
    let head = chain::next_hash(&chain::genesis(&thread_id(1)), 1, &record("first"));
    world.tamper(&format!(
        "DELETE FROM journal WHERE thread = 1 AND seq > 1; UPDATE threads SET head_seq = 1, head_hash = x'{head}' WHERE thread = 1"
    ));
    let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Head };
    assert_eq!(world.store.journal(&thread_id(1)), Err(refused));
}

#[test]
fn store_with_other_secret_is_refused() {
    let world = two_threads();
    let threads = world.folder.path().join("threads");
    drop(world.store);
    let other = open_at(&threads, &ThreadSecret::new([1; 32]), &LedgerSpec::default()).expect("opened");
    let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Head };
    assert_eq!(other.journal(&thread_id(1)), Err(refused));
    // Threads of its own are none the worse for it.
    other.create_blocking(new_thread(3, None)).expect("created");
    assert_eq!(other.journal(&thread_id(3)).expect("a journal").len(), 1);
}

#[test]
fn damaged_database_is_left_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    lillux::file::create_dirs(&threads, true).expect("made");
    let database = threads.join(DATABASE);
    std::fs::write(&database, "this is not a database, and long enough to be taken for one".repeat(99))
        .expect("written");
    let before = std::fs::read(&database).expect("bytes");
    let opened = open_at(&threads, &test_secret(), &LedgerSpec::default());
    assert!(
        matches!(opened, Err(ThreadStoreError::Damaged { ref path, .. }) if path.ends_with(DATABASE)),
        "{opened:?}"
    );
    assert_eq!(std::fs::read(&database).expect("bytes"), before);
}

#[test]
fn older_database_migrates_newer_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    lillux::file::create_dirs(&threads, true).expect("made");
    // Version 0: a file that a process has begun.
    tamper(folder.path(), "CREATE TABLE other (x)");
    let store = open_store(folder.path());
    store.create_blocking(new_thread(1, None)).expect("created");
    drop(store);
    tamper(folder.path(), "PRAGMA user_version = 99");
    for opened in [
        open_at(&threads, &test_secret(), &LedgerSpec::default()).map(Some),
        open_existing_at(&threads, &test_secret(), &LedgerSpec::default()),
    ] {
        assert!(matches!(opened, Err(ThreadStoreError::Newer { found: 99, .. })), "{opened:?}");
    }
}

#[test]
fn settings_extend_the_ledger_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let threads = folder.path().join("threads");
    let column = |name: &str, kind: &str| ColumnSpec {
        name: name.to_owned(),
        sql_type: kind.to_owned(),
        is_nullable: true,
        default: None,
    };
    let mut spec = LedgerSpec {
        columns: vec![column("thread_id", "TEXT"), column("actual_spend", "REAL")],
        indexes: vec![IndexSpec {
            name: "idx_budget_parent".to_owned(),
            columns: vec!["parent_thread_id".to_owned()],
        }],
        rules: LedgerRules { clamp_to_reserved: true, release_on_status: None },
    };
    drop(open_at(&threads, &test_secret(), &spec).expect("opened"));
    spec.columns.push(ColumnSpec {
        default: Some(json!("it's")),
        is_nullable: false,
        ..column("team", "TEXT")
    });
    drop(open_at(&threads, &test_secret(), &spec).expect("extended"));
    let store = SqliteStore::open(&threads, &test_secret(), &spec).expect("opened again");
    rye_store::block_on(store.create(new_thread(1, None))).expect("created");
    let found: Option<(String, String)> = store
        .read(|connection| {
            let sql = "SELECT team, typeof(actual_spend) FROM budget_ledger";
            Ok(connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
        })
        .expect("read");
    assert_eq!(found, Some(("it's".to_owned(), "integer".to_owned())), "money stays whole");
    let invalid = [
        column("Team", "TEXT"),
        column("a\" TEXT); DROP TABLE threads; --", "TEXT"),
        column("other", "TEXT; DROP TABLE threads"),
        ColumnSpec { is_nullable: false, ..column("other", "TEXT") },
        ColumnSpec { default: Some(json!([1])), ..column("other", "TEXT") },
    ];
    for column in invalid {
        let spec = LedgerSpec { columns: vec![column.clone()], ..LedgerSpec::default() };
        let opened = open_at(&threads, &test_secret(), &spec);
        assert!(matches!(opened, Err(ThreadStoreError::Schema(_))), "{column:?}: {opened:?}");
    }
    for columns in [vec![], vec!["absent".to_owned()]] {
        let spec = LedgerSpec {
            indexes: vec![IndexSpec { name: "idx".to_owned(), columns }],
            ..LedgerSpec::default()
        };
        assert!(matches!(open_at(&threads, &test_secret(), &spec), Err(ThreadStoreError::Schema(_))));
    }
}

fn test_approval(name: &str, thread: u64) -> Approval {
    Approval {
        id: name.to_owned(),
        thread: thread_id(thread),
        kind: "limit".to_owned(),
        prompt: "spend 2.00".to_owned(),
        reason: "1.00 is used up".to_owned(),
        at_ms: 5,
        detail: json!({"limit_code": "spend_exceeded"}),
    }
}

fn approved_decision() -> ApprovalDecision {
    ApprovalDecision {
        approved: true,
        message: None,
        changes: json!({"spend": 2}),
        at_ms: 6,
        by: "me".to_owned(),
        always: None,
    }
}

#[test]
fn approval_is_answered_once() {
    let world = test_store();
    let claim = world.create(new_thread(1, None));
    world.create(new_thread(2, Some(1)));
    world.create(new_thread(3, None));
    let mut step = ThreadCommit::new(thread_id(2), claim, 1);
    step.approvals = vec![test_approval("q", 2)];
    world.commit(step);
    let open = |below: Option<u64>| {
        world.store.open_approvals(below.map(thread_id).as_ref()).expect("read").approvals
    };
    assert_eq!(open(None), [test_approval("q", 2)]);
    assert_eq!((open(Some(1)).len(), open(Some(3)).len()), (1, 0));
    assert_eq!(
        world.store.answer_approval("q", &approved_decision()).expect("answered"),
        test_approval("q", 2)
    );
    assert_eq!(open(None), []);
    let record = world.store.approval("q").expect("read").expect("there");
    assert_eq!(record.answer, Some(approved_decision()));
    assert_eq!(
        world.store.answer_approval("q", &approved_decision()),
        Err(ThreadStoreError::NoApproval("q".to_owned()))
    );
    assert_eq!(
        world.store.answer_approval("x", &approved_decision()),
        Err(ThreadStoreError::NoApproval("x".to_owned()))
    );
}

#[test]
fn forged_approvals_are_reported() {
    let forgeries = [
        "UPDATE approvals SET what = 'spend 9.00'",
        "UPDATE approvals SET detail = '{}'",
        "UPDATE approvals SET thread = 2",
        "UPDATE approvals SET mac = zeroblob(32)",
        "UPDATE approvals SET answer = '{\"approved\":true,\"message\":null,\"changes\":null,\"at_ms\":1,\"by\":\"x\"}'",
        "UPDATE approvals SET answer_mac = zeroblob(32)",
        // An answer that was given to another question.
        "UPDATE approvals SET answer = (SELECT answer FROM approvals WHERE id = 'other'),
                answer_mac = (SELECT answer_mac FROM approvals WHERE id = 'other') WHERE id = 'q'",
    ];
    for sql in forgeries {
        let world = two_threads();
        rye_store::block_on(world.store.add_approval(test_approval("other", 1))).expect("asked");
        world.store.answer_approval("other", &approved_decision()).expect("answered");
        rye_store::block_on(world.store.add_approval(test_approval("q", 1))).expect("asked");
        world
            .tamper(&format!("{sql}{}", if sql.contains("WHERE id = 'q'") { "" } else { " WHERE id = 'q'" }));
        let open = world.store.open_approvals(None).expect("read");
        assert_eq!((open.approvals.len(), open.forged.as_slice()), (0, &["q".to_owned()][..]), "{sql}");
        assert_eq!(world.store.approval("q").expect("read"), None, "{sql}");
        assert!(world.store.answer_approval("q", &approved_decision()).is_err(), "{sql}");
    }
}
