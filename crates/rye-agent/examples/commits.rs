//! How many commits a second the store of threads takes: `commits FOLDER [COMMITTERS] [COMMITS]`.
//!
//! Each committer is a task with a thread of its own, below one parent. It alternates the two commits of a turn: records and
//! a reservation; records, a settlement and the cost.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use std::path::PathBuf;
use std::time::Instant;

use lillux::Digest;
use rye_agent::cost::Cost;
use rye_agent::limits::ThreadLimits;
use rye_agent::money::Nanos;
use rye_agent::store::{
    Attribution, CreateOutcome, JournalRecord, LedgerSpec, NewThread, ReserveRequest, Settlement, SpawnCaps,
    StoreHandle, ThreadCommit, ThreadSecret, current_owner, open_store,
};
use rye_agent::thread_id::ThreadId;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("commits FOLDER [COMMITTERS] [COMMITS]")?);
    let committers: u64 = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let commits: u64 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let store = open_store(
        &folder,
        &ThreadSecret::new([7; 32]).with_keys_dir(&folder.join("keys")),
        &LedgerSpec::default(),
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let root = random_id()?;
        store.create(thread(root.clone(), None)).await?;
        let start = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..committers {
            let (store, id) = (store.clone(), random_id()?);
            tasks.push(tokio::spawn(work(store, thread(id, Some(root.clone())), commits)));
        }
        for task in tasks {
            task.await??;
        }
        let (took, count) = (start.elapsed(), committers * (commits + 1));
        println!(
            "{count} commits of {committers} threads in {:.2} s: {:.0} a second",
            took.as_secs_f64(),
            f64::from(u32::try_from(count)?) / took.as_secs_f64()
        );
        Ok::<(), BoxError>(())
    })?;
    let problems = store.audit()?;
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ").into()) }
}

async fn work(store: StoreHandle, new: NewThread, commits: u64) -> Result<(), BoxError> {
    let id = new.id.clone();
    let CreateOutcome::Created { claim, .. } = store.create(new).await? else {
        return Err("refused".into());
    };
    for number in 0..commits {
        let mut commit = ThreadCommit::new(id.clone(), claim, number);
        commit.records = vec![JournalRecord { at_ms: number, sequence: number, body: vec![b'x'; 300] }];
        let call = number / 2;
        if number % 2 == 0 {
            commit.reservation =
                Some(ReserveRequest { call, spend: Nanos(100), tokens: 100, can_wait: false });
        } else {
            let attribution =
                Attribution { item: "demo".to_owned(), model: "model".to_owned(), tool: None, hook: None };
            commit.settlements = vec![Settlement {
                call,
                spend: Nanos(50),
                input_tokens: 40,
                output_tokens: 10,
                is_unknown: false,
                attribution,
            }];
            commit.cost = Some(Cost { turns: call, spend: Nanos(50 * call), ..Cost::default() });
        }
        store.commit(commit).await?;
    }
    Ok(())
}

fn thread(id: ThreadId, parent: Option<ThreadId>) -> NewThread {
    NewThread {
        id,
        directive: "demo".to_owned(),
        title: "demo".to_owned(),
        parent,
        continuation_of: None,
        limits: ThreadLimits::default(),
        max_spend: Some(Nanos::MAX),
        max_tokens: None,
        capabilities: Digest::of(b""),
        model: "model".to_owned(),
        provider: "offline".to_owned(),
        caps: SpawnCaps::default(),
        owner: Some(current_owner()),
        is_detached: false,
        submission: None,
        blobs: Vec::new(),
        records: vec![JournalRecord { at_ms: 0, sequence: 0, body: vec![b'x'; 300] }],
        at_ms: 0,
    }
}

fn random_id() -> Result<ThreadId, BoxError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(ThreadId::from_random(bytes))
}
