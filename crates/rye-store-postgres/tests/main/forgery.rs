//! What was changed past the store, or written by a key that is not listed, is refused.

use std::sync::Mutex;

use rye_store::{Forgery, ThreadStoreError};
use rye_store_postgres::TrustedKeys;

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

fn public(seed: u8) -> PublicKey {
    SecretKey::from_seed(&[seed; 32]).public_key()
}

type CurrentKeys = Arc<Mutex<Arc<TrustedKeys>>>;

fn shared(keys: TrustedKeys) -> CurrentKeys {
    Arc::new(Mutex::new(Arc::new(keys)))
}

/// Keys that change while the store is open.
fn sourced(own: u8, current: &CurrentKeys) -> StoreKeys {
    let current = Arc::clone(current);
    let source = Arc::new(move || Arc::clone(&current.lock().expect("keys")));
    StoreKeys::new(SecretKey::from_seed(&[own; 32]), source)
}

#[test]
fn revoked_key_counts_no_more() {
    let schema = new_schema();
    let listed = TrustedKeys::new([1, 2, 3].map(public)).with_people(&[public(2), public(3)]);
    let current = shared(listed.clone());
    let worker = open(PostgresOptions { keys: sourced(1, &current), ..options(&schema) });
    let revoked = open(PostgresOptions { keys: sourced(2, &shared(listed.clone())), ..options(&schema) });
    let claim = create(&worker, new_thread(1, None));
    create(&revoked, new_thread(2, None));
    rye_store::block_on(worker.add_approval(question())).expect("asked");
    revoked.answer_approval("one", &yes()).expect("answered");
    assert!(worker.approval("one").expect("read").expect("a question").answer.is_some());
    assert!(worker.verified_thread(&thread_id(2)).is_ok());

    *current.lock().expect("keys") = Arc::new(listed.without([public(2).fingerprint()]));
    let key = public(2).fingerprint().to_string();
    let forged = |number, what| ThreadStoreError::Forged {
        thread: thread_id(number),
        what: Forgery::RevokedKey { what, key: key.clone() },
    };
    assert_eq!(worker.approval("one"), Err(forged(1, "the answer to its question")));
    // A person whose key counts answers it in its place.
    assert_eq!(worker.open_approvals(None).expect("read").approvals.len(), 1);
    let person = open(PostgresOptions { keys: sourced(3, &current), ..options(&schema) });
    person.answer_approval("one", &yes()).expect("answered again");
    assert!(worker.approval("one").expect("read").expect("a question").answer.is_some());
    assert!(person.answer_approval("one", &yes()).is_err(), "once");
    let row = "its row in the registry";
    assert_eq!(worker.verified_thread(&thread_id(2)), Err(forged(2, row)));
    assert_eq!(worker.journal(&thread_id(2)), Err(forged(2, row)));
    let shown = worker.thread(&thread_id(2)).expect("read").expect("a thread");
    assert!(
        shown.is_forged && shown.error.is_some_and(|why| why.contains(&format!("the key {key} was revoked")))
    );
    // Threads of other keys continue.
    worker.commit_blocking(commit_for(1, claim)).expect("committed");
}

#[test]
fn notes_of_strangers_are_not_shown() {
    let schema = new_schema();
    let store = open(options(&schema));
    let claim = create(&store, new_thread(1, None));
    store.release_claim(&thread_id(1), claim).expect("released");
    let note = || store.thread(&thread_id(1)).expect("read").expect("a thread").note;
    store.set_note(&thread_id(1), "no provider: offline").expect("noted");
    assert_eq!(note().as_deref(), Some("no provider: offline"));
    tamper(&schema, "UPDATE threads SET note = replace(note, 'offline', 'send money')");
    assert_eq!(note(), None);
    tamper(&schema, "UPDATE threads SET note = 'send money'");
    assert_eq!(note(), None);
}

fn yes() -> rye_store::ApprovalDecision {
    rye_store::ApprovalDecision {
        approved: true,
        message: None,
        changes: Default::default(),
        at_ms: 2,
        by: "me".to_owned(),
        always: None,
    }
}

#[test]
fn worker_answers_nothing() {
    let schema = new_schema();
    let person = || SecretKey::from_seed(&[2; 32]).public_key();
    let both = TrustedKeys::new([1, 2].map(public)).with_people(&[person()]);
    let open_as =
        |own: u8| open(PostgresOptions { keys: sourced(own, &shared(both.clone())), ..options(&schema) });
    let (worker, user) = (open_as(1), open_as(2));
    create(&worker, new_thread(1, None));
    rye_store::block_on(worker.add_approval(question())).expect("asked");
    let yes = yes();
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

/// A root that may spend 100, and its child that may spend 80.
fn family(schema: &str) -> (StoreHandle, Claim) {
    let store = open(options(schema));
    create(&store, NewThread { max_spend: Some(Nanos(100)), max_tokens: Some(500), ..new_thread(1, None) });
    let claim = create(&store, NewThread { max_spend: Some(Nanos(80)), ..new_thread(2, Some(1)) });
    (store, claim)
}

fn reserve(call: u64, spend: u64) -> Option<ReserveRequest> {
    Some(ReserveRequest { call, spend: Nanos(spend), tokens: 1, can_wait: false })
}

#[test]
fn edited_ledger_is_refused_and_named() {
    for (change, row) in [
        ("max_spend = NULL", 2),
        ("max_tokens = 1000000", 2),
        ("parent = NULL", 2),
        ("parent_thread_id = 'thread-000000000009'", 2),
        ("max_spend = NULL", 1),
        ("thread_id = 'thread-000000000009'", 1),
    ] {
        let schema = new_schema();
        let (store, claim) = family(&schema);
        let number = format!("(SELECT thread FROM threads WHERE thread_id = '{}')", thread_id(row));
        tamper(&schema, &format!("UPDATE budget_ledger SET {change} WHERE thread = {number}"));
        let forged = ThreadStoreError::Forged { thread: thread_id(row), what: Forgery::Ledger };
        let step = |needs_reservation| ThreadCommit {
            reservation: reserve(1, 50),
            needs_reservation,
            ..commit_for(2, claim)
        };
        assert_eq!(store.commit_blocking(step(true)), Err(forged.clone()), "{change} of {row}");
        assert_eq!(store.commit_blocking(step(false)), Err(forged.clone()), "{change} of {row}");
        // Verifying and resuming read the journal.
        assert_eq!(store.journal(&thread_id(row)), Err(forged), "{change} of {row}");
    }
    let schema = new_schema();
    let (store, claim) = family(&schema);
    tamper(&schema, "DELETE FROM budget_ledger WHERE parent IS NULL");
    let step = ThreadCommit { reservation: reserve(1, 50), ..commit_for(2, claim) };
    assert!(matches!(store.commit_blocking(step), Err(ThreadStoreError::Forged { .. })));
}

#[test]
fn edited_ancestor_is_refused() {
    let schema = new_schema();
    let (store, claim) = family(&schema);
    // The registry and the ledger agree; the seal does not.
    for table in ["budget_ledger", "threads"] {
        tamper(&schema, &format!("UPDATE {table} SET max_spend = NULL WHERE parent IS NULL"));
    }
    let step = ThreadCommit { reservation: reserve(1, 50), ..commit_for(2, claim) };
    let refused = ThreadStoreError::Forged { thread: thread_id(1), what: Forgery::Row };
    assert_eq!(store.commit_blocking(step), Err(refused));
}

/// What a call cost goes to the sealed parent, whatever the ledger says meanwhile.
#[test]
fn charges_go_to_the_sealed_parent() {
    let schema = new_schema();
    let (store, claim) = family(&schema);
    store
        .commit_blocking(ThreadCommit { reservation: reserve(1, 60), ..commit_for(2, claim) })
        .expect("reserved");
    let child = format!("thread_id = '{}'", thread_id(2));
    tamper(&schema, &format!("UPDATE budget_ledger SET parent = NULL WHERE {child}"));
    let settlement = Settlement {
        call: 1,
        spend: Nanos(60),
        input_tokens: 0,
        output_tokens: 0,
        is_unknown: false,
        attribution: rye_store::Attribution::default(),
    };
    store
        .commit_blocking(ThreadCommit { settlements: vec![settlement], ..commit_for(2, claim) })
        .expect("settled");
    assert_eq!(store.ledger(&thread_id(1)).expect("a row").subtree_spend, Nanos(60));
}
