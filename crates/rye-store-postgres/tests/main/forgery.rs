//! What was changed past the store, or written by a key that is not listed, is refused.

use rye_store::{Forgery, ThreadStoreError};

use super::*;

#[test]
fn changed_rows_and_journals_are_refused() {
    let schema = new_schema();
    let store = open(options(&schema));
    let claim = create(&store, new_thread(1, None));
    create(&store, new_thread(2, None));
    tamper(&schema, "UPDATE threads SET max_spend = 5 WHERE thread_id LIKE '%1'");
    let row = store.thread(&thread_id(1)).expect("read").expect("a thread");
    assert!(row.is_forged);
    let forged = |what| ThreadStoreError::Forged { thread: thread_id(1), what };
    assert_eq!(store.commit_blocking(commit_for(1, claim)), Err(forged(Forgery::Row)));
    assert_eq!(store.create_blocking(new_thread(3, Some(1))), Err(forged(Forgery::Row)));
    assert_eq!(store.journal(&thread_id(1)), Err(forged(Forgery::Head)));
    let forged = |what| Err(ThreadStoreError::Forged { thread: thread_id(2), what });
    tamper(
        &schema,
        "UPDATE journal SET body = 'other' WHERE thread = (SELECT thread FROM threads WHERE thread_id LIKE '%2')",
    );
    assert_eq!(store.journal(&thread_id(2)), forged(Forgery::Changed));
    tamper(&schema, "DELETE FROM journal");
    assert_eq!(store.journal(&thread_id(2)), forged(Forgery::Truncated));
}

#[test]
fn only_listed_signers_count() {
    let schema = new_schema();
    let worker = open(PostgresOptions { keys: keys(1, &[2]), ..options(&schema) });
    let user = open(PostgresOptions { keys: keys(2, &[1]), ..options(&schema) });
    let stranger = open(PostgresOptions { keys: keys(3, &[1, 2]), ..options(&schema) });
    create(&worker, new_thread(1, None));
    create(&stranger, new_thread(2, None));
    let is_forged = |number| user.thread(&thread_id(number)).expect("read").expect("a thread").is_forged;
    assert!(!is_forged(1));
    assert!(is_forged(2));
    assert!(user.journal(&thread_id(1)).is_ok());
    assert!(user.journal(&thread_id(2)).is_err());
    assert!(user.create_blocking(new_thread(3, Some(2))).is_err());
}

fn question() -> rye_store::Approval {
    rye_store::Approval {
        id: "one".to_owned(),
        thread: thread_id(1),
        kind: "tool".to_owned(),
        prompt: "may I".to_owned(),
        reason: "because".to_owned(),
        at_ms: 1,
        detail: Default::default(),
    }
}

#[test]
fn answer_without_signature_does_not_count() {
    let schema = new_schema();
    let store = open(options(&schema));
    create(&store, new_thread(1, None));
    rye_store::block_on(store.add_approval(question())).expect("asked");
    let yes = r#"{"approved":true,"message":null,"changes":null,"at_ms":2,"by":"me"}"#;
    tamper(
        &schema,
        &format!("UPDATE approvals SET answer = '{yes}', answer_signer = signer, answer_seal = seal"),
    );
    assert_eq!(store.approval("one").expect("read"), None);
    assert_eq!(store.open_approvals(None).expect("read").forged, ["one".to_owned()]);
}

#[test]
fn worker_answers_nothing() {
    let schema = new_schema();
    let person = || SecretKey::from_seed(&[2; 32]).public_key();
    let worker = keys(1, &[2]).with_people([&person()]);
    let worker = open(PostgresOptions { keys: worker, ..options(&schema) });
    let user = keys(2, &[1]).with_people([&person()]);
    let user = open(PostgresOptions { keys: user, ..options(&schema) });
    create(&worker, new_thread(1, None));
    rye_store::block_on(worker.add_approval(question())).expect("asked");
    let yes = rye_store::ApprovalDecision {
        approved: true,
        message: None,
        changes: Default::default(),
        at_ms: 2,
        by: "me".to_owned(),
        always: None,
    };
    let fingerprint = SecretKey::from_seed(&[1; 32]).public_key().fingerprint().to_string();
    let refused = worker.answer_approval("one", &yes);
    assert_eq!(refused, Err(ThreadStoreError::AnswerRefused(fingerprint)));
    // The question is still open, to those who may answer it.
    user.answer_approval("one", &yes).expect("answered");
    let read = worker.approval("one").expect("read").expect("a question");
    assert!(read.answer.expect("an answer").approved);
}

#[test]
fn newer_schema_is_refused() {
    let schema = new_schema();
    drop(open(options(&schema)));
    tamper(&schema, "INSERT INTO schema_versions (version) VALUES (99)");
    let refused = PostgresStore::open(options(&schema)).expect_err("refused");
    assert!(matches!(refused, ThreadStoreError::Newer { found: 99, .. }), "{refused:?}");
}

#[test]
fn text_with_nul_is_kept_readable() {
    let schema = new_schema();
    let store = open(options(&schema));
    create(&store, NewThread { title: "a\0b".to_owned(), ..new_thread(1, None) });
    assert_eq!(store.thread(&thread_id(1)).expect("read").expect("a thread").title, "a\u{fffd}b");
}
