//! Hosts: processes that start threads, give heartbeats, take over what others left, and die.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rye_agent::driver::{
    self, CancelSignal, DriverDeps, PlaceRequest, ResumePoint, ThreadDriver, TranscriptWriter, wait_for_place,
};
use rye_store::{
    ApprovalDecision, Claim, ClaimOutcome, ClaimPolicy, CreateOutcome, JournalRecord, NewThread, Owner,
    SpawnCaps, ThreadFilter, WaitKind,
};
use rye_thread::journal::JournalHeader;
use rye_thread::machine::{ApprovalAnswer, ThreadEvent, ThreadOutcome, ThreadState};
use rye_thread::money::Nanos;
use rye_thread::spec::ThreadSpec;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use serde_json::Value;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::CrashPlan;
use super::journal::SimJournal;
use super::parts::{SimExecutor, SimModel, SimTools};
use super::world::{LEASE_MS, World, lock};

/// How long a simulation takes at most, in its own time.
const MAX_DURATION: Duration = Duration::from_secs(4 * 3600);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const SCAN_INTERVAL: Duration = Duration::from_secs(7);
/// How long a child waits for its place.
const QUEUE_TIMEOUT_MS: u64 = 300_000;
/// How many threads there may be.
const SPAWN_CAPS: SpawnCaps = SpawnCaps {
    spawns: Some(4),
    depth: None,
    concurrent_children: Some(2),
    total_threads: Some(8),
    queues_children: true,
};

/// One life of a host.
pub(super) struct Process {
    pub(super) owner: Owner,
    is_alive: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
    running: Mutex<BTreeMap<ThreadId, (Claim, CancelSignal)>>,
    frozen_until: Mutex<Option<Instant>>,
    /// When the next life begins.
    restart_at: Mutex<Option<Instant>>,
}

impl Process {
    fn start(world: &Arc<World>, host: usize, life: u64) -> Arc<Self> {
        let process = Arc::new(Self {
            owner: Owner {
                pid: 1,
                pid_start: life,
                boot_id: format!("boot-{life}"),
                host: format!("host-{host}"),
            },
            is_alive: AtomicBool::new(true),
            tasks: Mutex::default(),
            running: Mutex::default(),
            frozen_until: Mutex::default(),
            restart_at: Mutex::default(),
        });
        let (beating, scanning) = (Arc::clone(&process), Arc::clone(&process));
        let (world_of_beats, world_of_scans) = (Arc::clone(world), Arc::clone(world));
        process.spawn(async move { beating.give_heartbeats(&world_of_beats).await });
        process.spawn(async move { scanning.take_over_orphans(&world_of_scans).await });
        process
    }

    pub(super) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }

    /// Runs a task that ends with the process.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.is_alive() {
            let handle = tokio::spawn(task).abort_handle();
            let mut tasks = lock(&self.tasks);
            tasks.retain(|task| !task.is_finished());
            tasks.push(handle);
        }
    }

    /// The process ends in the middle of what it does; whoever calls this is never answered.
    pub(super) async fn die<T>(&self, world: &World) -> T {
        self.is_alive.store(false, Ordering::Relaxed);
        world.count(|report| report.crashes += 1);
        world.trace(format_args!("{} dies", self.owner.host));
        let delay = Duration::from_millis(world.rng.range(1, 60_000));
        *lock(&self.restart_at) = Some(Instant::now() + delay);
        lock(&self.tasks).drain(..).for_each(|task| task.abort());
        std::future::pending().await
    }

    /// Now and then a host stands still for longer than its leases last.
    pub(super) fn freeze_by_chance(&self, world: &World) {
        if world.options.crashes == CrashPlan::Random && world.rng.chance(15) {
            let ms = world.rng.range(LEASE_MS / 2, 3 * LEASE_MS);
            world.trace(format_args!("{} freezes for {ms}", self.owner.host));
            *lock(&self.frozen_until) = Some(Instant::now() + Duration::from_millis(ms));
        }
    }

    /// Waits until the host goes on.
    pub(super) async fn wait_until_thawed(&self, _world: &World) {
        loop {
            let until = *lock(&self.frozen_until);
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                Some(_) | None => return,
            }
        }
    }

    async fn give_heartbeats(&self, world: &World) {
        loop {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            self.wait_until_thawed(world).await;
            let held: Vec<(ThreadId, Claim)> =
                lock(&self.running).iter().map(|(id, (claim, _))| (id.clone(), *claim)).collect();
            // One that was taken is found out at its next commit.
            let _ = rye_store::block_on(world.store.heartbeat(held, world.now_ms()));
        }
    }

    async fn take_over_orphans(self: Arc<Self>, world: &Arc<World>) {
        // A new life looks at once.
        world.pause(0, 1000).await;
        loop {
            self.wait_until_thawed(world).await;
            let now_ms = world.now_ms();
            let policy = ClaimPolicy::Expired { now_ms, lease_ms: LEASE_MS };
            for row in world.store.orphans(&self.owner, policy).unwrap_or_default() {
                // What another thread of this life has in hand is not left.
                if row.owner.as_ref() != Some(&self.owner) {
                    self.resume(world, &row.id, policy, None).await;
                }
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    }

    /// Makes a thread, and drives it; `false` when there may be no more.
    async fn start_thread(self: &Arc<Self>, world: &Arc<World>, spec: &Arc<ThreadSpec>) -> bool {
        let own = &spec.instance;
        let at_ms = world.now_ms();
        let header = JournalHeader::new(own.clone(), "template".to_owned());
        let new = NewThread {
            id: own.thread_id.clone(),
            directive: spec.template.directive.clone(),
            title: "sim".to_owned(),
            parent: own.parent.clone(),
            continuation_of: None,
            limits: own.limits,
            max_spend: own.limits.spend,
            max_tokens: None,
            capabilities: lillux::Digest::of(b"sim"),
            model: spec.template.model.clone(),
            provider: spec.template.provider.clone(),
            caps: SPAWN_CAPS,
            owner: Some(self.owner.clone()),
            is_detached: false,
            blobs: Vec::new(),
            records: vec![JournalRecord { at_ms, sequence: 1, body: header.to_bytes().expect("a header") }],
            at_ms,
        };
        let crash = self.crash_point(world);
        if crash == Some(true) {
            return self.die(world).await;
        }
        let created = world.store.create_blocking(new);
        world.trace(format_args!("{} makes {}: {created:?}", self.owner.host, own.thread_id));
        let claim = match created {
            Ok(CreateOutcome::Created { claim, .. }) => claim,
            Ok(CreateOutcome::Refused { .. }) | Err(_) => return false,
        };
        lock(&world.checker).add_thread(spec);
        lock(&world.claims).insert(own.thread_id.clone(), claim);
        if crash == Some(false) {
            return self.die(world).await;
        }
        let Ok(transcript) = TranscriptWriter::create(&world.threads_dir, &own.thread_id) else {
            world.violation(format!("{}: no transcript", own.thread_id));
            return false;
        };
        let point =
            ResumePoint { state: ThreadState::new(Arc::clone(spec)), transcript, unsettled: Vec::new() };
        self.drive(world, point, claim, ThreadEvent::Started);
        true
    }

    /// Takes a thread over, if it may be taken, and drives it on from where its journal ends. `more` is what a person
    /// allows it in addition.
    async fn resume(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: &ThreadId,
        policy: ClaimPolicy,
        more: Option<Nanos>,
    ) {
        let crash = self.crash_point(world);
        if crash == Some(true) {
            return self.die(world).await;
        }
        let claimed = world.store.claim(id, &self.owner, policy, world.now_ms());
        world.trace(format_args!("{} claims {id}: {claimed:?}", self.owner.host));
        let Ok(ClaimOutcome::Claimed { claim, .. }) = claimed else { return };
        lock(&world.claims).insert(id.clone(), claim);
        lock(&world.checker).add_takeover(id);
        world.count(|report| report.takeovers += 1);
        if crash == Some(false) {
            return self.die(world).await;
        }
        let Some(point) = self.resume_point(world, id) else {
            return world.violation(format!("{id} cannot be resumed"));
        };
        let first = match point.state.status() {
            ThreadStatus::Suspended => answer_by_person(world, &point.state, more),
            _ => interrupted(&point),
        };
        self.drive(world, point, claim, first);
    }

    /// What a thread's journal says, and the calls that were in flight.
    fn resume_point(&self, world: &World, id: &ThreadId) -> Option<ResumePoint> {
        let spec = lock(&world.checker).spec(id)?;
        let records = world.store.journal(id).ok()?;
        let header = JournalHeader::parse(&records.first()?.body).ok()?;
        if header.own != spec.instance {
            return None;
        }
        let records = records.get(1..)?;
        let (state, transcript) =
            driver::replay_with_transcript(Arc::clone(&spec), records, &world.threads_dir).ok()?;
        let unsettled = driver::interrupted_settlements(&state, &world.store.open_reservations(id).ok()?);
        Some(ResumePoint { state, transcript, unsettled })
    }

    fn drive(self: &Arc<Self>, world: &Arc<World>, point: ResumePoint, claim: Claim, first: ThreadEvent) {
        let spec = Arc::clone(&point.state.spec);
        let id = spec.instance.thread_id.clone();
        let signal = CancelSignal::default();
        let journal = Arc::new(SimJournal::new(world, self, &id, claim));
        let jitter = Arc::clone(world);
        let deps = DriverDeps {
            journal: Arc::clone(&journal) as Arc<_>,
            dispatcher: Arc::new(SimTools { world: Arc::clone(world) }),
            children: Arc::new(SimChildren { world: Arc::clone(world), process: Arc::clone(self) }),
            listener: None,
            clock: Arc::clone(world) as Arc<_>,
            redactor: Arc::clone(&world.redactor),
            signer: Arc::clone(&world.signer),
            token_issuer: Arc::clone(&world.token_issuer),
            threads_dir: world.threads_dir.clone(),
            blocking: Arc::new(SimExecutor { world: Arc::clone(world), process: Arc::clone(self) }),
            jitter: Arc::new(move || u32::try_from(jitter.rng.below(1001)).unwrap_or(500)),
            budget: None,
            artifacts: None,
        };
        let provider = Arc::new(SimModel { journal, has_children: spec.instance.parent.is_none() });
        let driver = ThreadDriver::new(deps, point, claim, provider, signal.clone());
        lock(&self.running).insert(id.clone(), (claim, signal.clone()));
        if world.rng.chance(40) {
            let (world, signal) = (Arc::clone(world), signal.clone());
            self.spawn(async move {
                world.pause(10, 20_000).await;
                signal.cancel("the simulation");
            });
        }
        let (process, world) = (Arc::clone(self), Arc::clone(world));
        self.spawn(async move {
            let row = world.store.thread(&id).ok().flatten();
            let is_queued = row.is_some_and(|row| row.waiting == Some(WaitKind::Concurrency));
            let request = PlaceRequest { thread: &id, claim, caps: SPAWN_CAPS, timeout_ms: QUEUE_TIMEOUT_MS };
            let place = match is_queued {
                true => wait_for_place(world.store.shared(), &*world, &request, &signal, first).await,
                false => Ok(first),
            };
            let outcome = match place {
                Ok(first) => driver.run(first).await,
                Err(error) => Err(error.into()),
            };
            if lock(&process.running).get(&id).is_some_and(|(held, _)| *held == claim) {
                lock(&process.running).remove(&id);
            }
            match outcome {
                Ok((outcome, state)) => process.on_stopped(&world, &id, &outcome, &state).await,
                Err(error) => {
                    world.trace(format_args!("{} gives {id} up: {error}", process.owner.host));
                    let _ = world.store.release_claim(&id, claim);
                }
            }
        });
    }

    /// A thread has ended, or waits for a person; sometimes that person allows more.
    async fn on_stopped(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: &ThreadId,
        outcome: &ThreadOutcome,
        state: &ThreadState,
    ) {
        world.trace(format_args!("{} {id} stops: {}", self.owner.host, outcome.status));
        if outcome.status != ThreadStatus::Suspended || !world.rng.chance(400) {
            return;
        }
        world.pause(100, 20_000).await;
        for request in state.pending_approvals() {
            let answer = ApprovalDecision {
                approved: true,
                message: None,
                changes: Value::Null,
                always: None,
                at_ms: world.now_ms(),
                by: "a person".to_owned(),
            };
            let _ = world.store.answer_approval(&request.id, &answer);
        }
        let more = Nanos(world.rng.range(50_000, 500_000));
        self.resume(world, id, ClaimPolicy::Free, Some(more)).await;
    }
}

/// What a driver is told of a thread whose process died.
fn interrupted(point: &ResumePoint) -> ThreadEvent {
    let spend = point.unsettled.iter().fold(Nanos(0), |sum, settlement| sum.plus(settlement.spend));
    let running = point.state.running_tools().into_iter();
    let repeatable = running.filter(|(_, item)| item.contains("sim/again")).map(|(index, _)| index);
    ThreadEvent::Interrupted { spend, repeatable: repeatable.collect() }
}

/// A person lets a thread go on with more.
fn answer_by_person(world: &World, state: &ThreadState, more: Option<Nanos>) -> ThreadEvent {
    let mut limits = state.limits;
    let more = more.unwrap_or_default();
    limits.spend = limits.spend.map(|spend| spend.plus(more));
    limits.turns = limits.turns.map(|turns| turns + world.rng.range(1, 5));
    let answers = state.pending_approvals().iter().map(|request| ApprovalAnswer {
        request_id: request.id.clone(),
        approved: true,
        message: None,
        by: "a person".to_owned(),
        always: None,
    });
    ThreadEvent::Resumed { limits, message: None, by: "a person".to_owned(), answers: answers.collect() }
}

/// The children of threads: started once, waited for, found again after a crash.
pub(super) struct SimChildren {
    world: Arc<World>,
    process: Arc<Process>,
}

mod children {
    use rye_agent::driver::{BoxFuture, ChildHandle, Children};
    use rye_thread::action::Action;
    use rye_thread::machine::ToolResult;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    impl SimChildren {
        async fn run_child(
            &self,
            parent: &ThreadSpec,
            cancel: &CancellationToken,
            handle: &ChildHandle,
        ) -> ToolResult {
            let id = handle.child();
            let is_there = self.world.store.thread(id).is_ok_and(|row| row.is_some());
            if !is_there {
                let spec = self.world.new_spec(id.clone(), Some(parent));
                if !self.process.start_thread(&self.world, &spec).await {
                    return ToolResult::failure(r#"{"status":"error","error":"no more children"}"#);
                }
            }
            handle.notify_started("sim/work");
            self.wait(id, cancel).await
        }

        async fn wait(&self, id: &ThreadId, cancel: &CancellationToken) -> ToolResult {
            loop {
                let status = self.world.store.thread(id).ok().flatten().map(|row| row.status);
                match status {
                    Some(status) if status.is_terminal() || status == ThreadStatus::Suspended => {
                        let content = json!({"status": status.as_str(), "thread_id": id}).to_string();
                        let is_error = status != ThreadStatus::Completed;
                        let (child, child_status) = (Some(id.clone()), Some(status));
                        return ToolResult { content, is_error, duration_ms: 0, child, child_status };
                    }
                    None => return ToolResult::failure("the child was lost"),
                    Some(_) => {}
                }
                if cancel.is_cancelled()
                    && let Some((_, signal)) = lock(&self.process.running).get(id)
                {
                    signal.cancel("its parent was cancelled");
                }
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        }
    }

    impl Children for SimChildren {
        fn spawn(
            self: Arc<Self>,
            parent: Arc<ThreadSpec>,
            _call: Action,
            cancel_token: CancellationToken,
            handle: ChildHandle,
        ) -> BoxFuture<'static, ToolResult> {
            Box::pin(async move { self.run_child(&parent, &cancel_token, &handle).await })
        }

        fn orchestrate(
            self: Arc<Self>,
            _caller: Arc<ThreadSpec>,
            _call: Action,
            _cancel_token: CancellationToken,
        ) -> BoxFuture<'static, ToolResult> {
            Box::pin(std::future::ready(ToolResult::failure("not simulated")))
        }

        fn run_for_hook(
            self: Arc<Self>,
            _parent: Arc<ThreadSpec>,
            _hook: String,
            _call: Action,
            _cancel_token: CancellationToken,
        ) -> BoxFuture<'static, Value> {
            Box::pin(std::future::ready(json!({"status": "success", "data": {}})))
        }
    }
}

/// Simulates until every thread has stopped, or for as long as it may take.
pub(super) async fn run(world: &Arc<World>) {
    let hosts = usize::try_from(world.rng.range(2, 3)).unwrap_or(2);
    let mut lives = 1;
    let first: Vec<Arc<Process>> = (0..hosts).map(|host| Process::start(world, host, lives)).collect();
    *lock(&world.processes) = first.clone();
    for _ in 0..world.rng.range(1, 2) {
        let (process, world) =
            (Arc::clone(&first[world.rng.below(hosts as u64) as usize]), Arc::clone(world));
        let starter = Arc::clone(&process);
        process.spawn(async move {
            world.pause(0, 2000).await;
            let spec = world.new_spec(world.new_id(), None);
            starter.start_thread(&world, &spec).await;
        });
    }
    let end = Instant::now() + MAX_DURATION;
    let mut quiet = 0;
    // A person may still let a thread go on: it is over when nothing has happened for a while.
    while quiet < 30 && Instant::now() < end {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let processes = lock(&world.processes).clone();
        for (host, process) in processes.iter().enumerate() {
            let is_due = lock(&process.restart_at).is_some_and(|at| at <= Instant::now());
            if !process.is_alive() && is_due {
                lives += 1;
                world.trace(format_args!("{} starts again", process.owner.host));
                lock(&world.processes)[host] = Process::start(world, host, lives);
            }
        }
        let rows = world.store.threads(&ThreadFilter::default()).unwrap_or_default();
        let is_stopped =
            rows.iter().all(|row| row.status.is_terminal() || row.status == ThreadStatus::Suspended);
        quiet = if is_stopped { quiet + 1 } else { 0 };
    }
    for process in lock(&world.processes).iter() {
        lock(&process.tasks).drain(..).for_each(|task| task.abort());
    }
    tokio::task::yield_now().await;
}
