//! The store against a real PostgreSQL, whose address is in `RYE_TEST_POSTGRES`. `scripts/check-postgres` starts one.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot set up its store has failed"
)]

mod contract;
mod faults;
mod forgery;
mod races;
mod restarts;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lillux::{Digest, PublicKey, SecretKey};
use rye_store::{
    Claim, CreateOutcome, JournalRecord, LedgerRules, NewThread, Owner, OwnerProbe, ReserveRequest,
    Settlement, SpawnCaps, StoreHandle, ThreadCommit, ThreadStore,
};
use rye_store_postgres::{PostgresAddress, PostgresOptions, PostgresStore, StoreKeys};
use rye_test::store_contract::test_owner;
use rye_thread::limits::ThreadLimits;
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

/// Knows of one process.
struct OneProcess;

impl OwnerProbe for OneProcess {
    fn is_running(&self, owner: &Owner) -> bool {
        *owner == test_owner()
    }
}

#[expect(clippy::disallowed_methods, reason = "the script says where its database is")]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn database_url() -> String {
    setting("RYE_TEST_POSTGRES").expect("RYE_TEST_POSTGRES: run scripts/check-postgres")
}

/// A schema that no other test uses.
fn new_schema() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::SeqCst);
    format!("test_{}_{number}_{}", std::process::id(), now_ms() % 1_000_000)
}

#[expect(clippy::disallowed_methods, reason = "leases are compared with the database's clock")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
    u64::try_from(since.as_millis()).expect("a time")
}

fn address(schema: &str) -> PostgresAddress {
    PostgresAddress::parse(&database_url(), schema).expect("an address")
}

fn options(schema: &str) -> PostgresOptions {
    PostgresOptions {
        address: address(schema),
        keys: keys(1, &[]),
        rules: LedgerRules::default(),
        probe: Arc::new(OneProcess),
        clock: Arc::new(now_ms),
        retry_for: Duration::from_secs(300),
        origin: "here".to_owned(),
    }
}

fn keys(own: u8, others: &[u8]) -> StoreKeys {
    let public = |seed: &u8| -> PublicKey { SecretKey::from_seed(&[*seed; 32]).public_key() };
    StoreKeys::fixed(SecretKey::from_seed(&[own; 32]), others.iter().map(public))
}

fn open(options: PostgresOptions) -> StoreHandle {
    let store: Arc<dyn ThreadStore> = Arc::new(PostgresStore::open(options).expect("a store"));
    StoreHandle::from(store)
}

/// Does something to the database past the store.
fn tamper(schema: &str, sql: &str) {
    let config: tokio_postgres::Config = database_url().parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("connected");
        let driver = tokio::spawn(connection);
        let sql = format!("SET search_path TO \"{schema}\"; {sql}");
        client.batch_execute(&sql).await.expect("tampered with");
        drop(client);
        let _ = driver.await;
    });
}

fn thread_id(number: u64) -> ThreadId {
    ThreadId::parse(&format!("thread-{number:012x}")).expect("a name")
}

fn record(body: &str) -> JournalRecord {
    JournalRecord { at_ms: 1_000, sequence: 1, body: body.as_bytes().to_vec() }
}

fn new_thread(number: u64, parent: Option<u64>) -> NewThread {
    NewThread {
        id: thread_id(number),
        directive: "demo/hello".to_owned(),
        title: "Hello".to_owned(),
        parent: parent.map(thread_id),
        continuation_of: None,
        limits: ThreadLimits::default(),
        max_spend: None,
        max_tokens: None,
        capabilities: Digest::of(b"none"),
        model: "model".to_owned(),
        provider: "provider".to_owned(),
        caps: SpawnCaps::default(),
        owner: Some(test_owner()),
        is_detached: false,
        blobs: Vec::new(),
        records: vec![record("first")],
        submission: None,
        at_ms: now_ms(),
    }
}

fn create(store: &StoreHandle, new: NewThread) -> Claim {
    match store.create_blocking(new).expect("created") {
        CreateOutcome::Created { claim, .. } => claim,
        refused @ CreateOutcome::Refused { .. } => panic!("{refused:?}"),
    }
}

fn commit_for(thread: u64, claim: Claim) -> ThreadCommit {
    ThreadCommit::new(thread_id(thread), claim, now_ms())
}

fn reserve(call: u64, spend: u64) -> Option<ReserveRequest> {
    Some(ReserveRequest { call, spend: Nanos(spend), tokens: 10, can_wait: false })
}

fn settle(call: u64, spend: u64) -> Settlement {
    Settlement {
        call,
        spend: Nanos(spend),
        input_tokens: 3,
        output_tokens: 4,
        is_unknown: false,
        attribution: rye_store::Attribution {
            item: "demo/hello".to_owned(),
            model: "model".to_owned(),
            tool: None,
            hook: None,
        },
    }
}
