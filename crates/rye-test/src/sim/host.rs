//! Hosts: processes that start threads, give heartbeats, take over what others left, and die.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rye_agent::driver::{
    self, CancelSignal, DriverDeps, InterruptedCalls, PlaceRequest, ResumePoint, ThreadDriver,
    TranscriptWriter, wait_for_place,
};
use rye_agent::provider_chain::ProviderChain;
use rye_model::ModelProvider;
use rye_store::{
    Claim, ClaimOutcome, ClaimPolicy, CreateOutcome, JournalRecord, NewThread, Owner, SpawnCaps,
    ThreadFilter, WaitKind,
};
use rye_thread::journal::JournalHeader;
use rye_thread::machine::{ThreadEvent, ThreadState};
use rye_thread::money::Nanos;
use rye_thread::spec::ThreadSpec;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::children::SimChildren;
use super::journal::SimJournal;
use super::parts::{SimExecutor, SimModel, SimTools};
use super::world::{LEASE_MS, World, lock};
use super::{CrashPlan, PlantedBug};

/// How long a simulation takes at most, in its own time.
const MAX_DURATION: Duration = Duration::from_secs(4 * 3600);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
const SCAN_INTERVAL: Duration = Duration::from_secs(7);
const REQUEST_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long a child waits for its place.
const QUEUE_TIMEOUT_MS: u64 = 300_000;
/// How many threads there may be.
const SPAWN_CAPS: SpawnCaps = SpawnCaps {
    spawns: Some(4),
    depth: None,
    concurrent_children: Some(1),
    total_threads: Some(8),
    queues_children: true,
};

/// One life of a host.
pub(super) struct Process {
    pub(super) owner: Owner,
    is_alive: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
    pub(super) running: Mutex<BTreeMap<ThreadId, (Claim, CancelSignal)>>,
    /// When requests of people were last looked for.
    pub(super) polled_ms: AtomicU64,
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
            polled_ms: AtomicU64::new(0),
            frozen_until: Mutex::default(),
            restart_at: Mutex::default(),
        });
        let (beating, shared) = (Arc::clone(&process), Arc::clone(world));
        process.spawn(async move { beating.give_heartbeats(&shared).await });
        let (scanning, shared) = (Arc::clone(&process), Arc::clone(world));
        process.spawn(async move { scanning.take_over_orphans(&shared).await });
        let (watching, shared) = (Arc::clone(&process), Arc::clone(world));
        process.spawn(async move { watching.take_up_requests(&shared).await });
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

    /// The process ends in the middle of what it does; the one that calls this is never answered.
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

    /// Waits until the host continues.
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

    /// Cancels the threads of this host that people want ended. A request stays until the end is durable.
    async fn take_up_requests(&self, world: &World) {
        loop {
            tokio::time::sleep(REQUEST_POLL_INTERVAL).await;
            self.wait_until_thawed(world).await;
            if lock(&self.running).is_empty() {
                continue;
            }
            for request in world.store.cancel_requests().unwrap_or_default() {
                let Some((_, signal)) = lock(&self.running).get(&request.thread).cloned() else { continue };
                if !signal.cancel_token.is_cancelled() {
                    world.trace(format_args!("{} cancels {}", self.owner.host, request.thread));
                    signal.cancel(&request.reason);
                }
                if world.options.bug == PlantedBug::LostCancelRequest {
                    let _ = world.store.clear_cancel_request(&request.thread);
                }
            }
            self.polled_ms.store(world.now_ms(), Ordering::Relaxed);
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
    pub(super) async fn start_thread(self: &Arc<Self>, world: &Arc<World>, spec: &Arc<ThreadSpec>) -> bool {
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
            submission: None,
            at_ms,
        };
        let crash = self.crash_point(world);
        if crash == Some(true) {
            return self.die(world).await;
        }
        let created = world.store.create_blocking(new);
        world.trace(format_args!("{} makes {}: {created:?}", self.owner.host, own.thread_id));
        let claim = match created {
            Ok(CreateOutcome::Created { claim, is_queued, .. }) => {
                world.count(|report| report.queued_children += u64::from(is_queued));
                claim
            }
            Ok(CreateOutcome::Refused { .. }) | Err(_) => {
                return if crash.is_some() { self.die(world).await } else { false };
            }
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
        let point = ResumePoint {
            state: ThreadState::new(Arc::clone(spec)),
            transcript,
            interrupted: InterruptedCalls::default(),
        };
        self.drive(world, point, claim, ThreadEvent::Started);
        true
    }

    /// Takes a thread over, if it may be taken, and drives it on from where its journal ends. Gives whether it was taken.
    pub(super) async fn resume(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: &ThreadId,
        policy: ClaimPolicy,
        person: Option<PersonRequest>,
    ) -> bool {
        if world.store.thread(id).ok().flatten().is_none_or(|row| row.status.is_terminal()) {
            return false;
        }
        let crash = self.crash_point(world);
        if crash == Some(true) {
            return self.die(world).await;
        }
        let claimed = world.store.claim(id, &self.owner, policy, world.now_ms());
        world.trace(format_args!("{} claims {id}: {claimed:?}", self.owner.host));
        let Ok(ClaimOutcome::Claimed { claim, .. }) = claimed else {
            return if crash.is_some() { self.die(world).await } else { false };
        };
        lock(&world.claims).insert(id.clone(), claim);
        lock(&world.checker).add_takeover(id);
        world.count(|report| report.takeovers += 1);
        if crash == Some(false) {
            return self.die(world).await;
        }
        let Some(point) = self.resume_point(world, id) else {
            world.violation(format!("{id} cannot be resumed"));
            return true;
        };
        let first = match (person, point.state.status()) {
            (Some(PersonRequest::Cancel), _) => super::people::terminated(&point),
            (Some(PersonRequest::Resume { more }), ThreadStatus::Suspended) => {
                super::people::resumed(world, &point.state, more)
            }
            (None, ThreadStatus::Suspended) => super::people::resumed(world, &point.state, Nanos(0)),
            (None | Some(PersonRequest::Resume { .. }), _) => interrupted(&point),
        };
        if let Some(PersonRequest::Resume { .. }) = person {
            // As the runtime does: what asked for the end of a thread that now continues is forgotten.
            let _ = world.store.clear_cancel_request(id);
            lock(&world.checker).forget_cancel_request(id);
        }
        self.drive(world, point, claim, first);
        true
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
        let expected = world.store.thread(id).ok()??.transcript_head;
        let (state, transcript) =
            driver::replay_with_transcript(Arc::clone(&spec), records, &world.threads_dir, expected)
                .ok()??;
        let open = world.store.open_reservations(id).ok()?;
        let interrupted = driver::interrupted_calls(&state, &open, "");
        Some(ResumePoint { state, transcript, interrupted })
    }

    fn drive(self: &Arc<Self>, world: &Arc<World>, point: ResumePoint, claim: Claim, first: ThreadEvent) {
        let spec = Arc::clone(&point.state.spec);
        let id = spec.instance.thread_id.clone();
        let signal = CancelSignal::default();
        let journal = Arc::new(SimJournal::new(world, self, &spec, claim));
        let jitter = Arc::clone(world);
        let deps = DriverDeps {
            journal: Arc::clone(&journal) as Arc<_>,
            dispatcher: Arc::new(SimTools { world: Arc::clone(world) }),
            children: Arc::new(SimChildren::new(world, self)),
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
            stop_recorder: None,
        };
        let has_children = spec.instance.parent.is_none();
        let model = |index| -> Arc<dyn ModelProvider> {
            Arc::new(SimModel { journal: Arc::clone(&journal), index, has_children })
        };
        let fallbacks = (1..=spec.template.fallbacks.len()).map(model).collect();
        let providers = ProviderChain::new(model(0), fallbacks);
        let driver = ThreadDriver::new(deps, point, claim, providers, signal.clone());
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
            let is_ended =
                || world.store.thread(&id).ok().flatten().is_some_and(|row| row.status.is_terminal());
            if signal.cancel_token.is_cancelled() && is_ended() {
                let _ = world.store.clear_cancel_request(&id);
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
}

/// What a person wants of a thread that they take up.
#[derive(Clone, Copy, Debug)]
pub(super) enum PersonRequest {
    /// Its end.
    Cancel,
    /// That it continues, with so much more to spend.
    Resume {
        /// How much.
        more: Nanos,
    },
}

/// What a driver is given of a thread whose process died.
fn interrupted(point: &ResumePoint) -> ThreadEvent {
    let running = point.state.running_tools().into_iter();
    let repeatable = running.filter(|(_, item)| item.contains("sim/again")).map(|(index, _)| index);
    let (spend, spend_at_most) = (point.interrupted.spend(), point.interrupted.reserved);
    let tokens = point.interrupted.tokens();
    ThreadEvent::Interrupted { spend, spend_at_most, tokens, repeatable: repeatable.collect() }
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
    super::people::ask_for_ends(world);
    let end = Instant::now() + MAX_DURATION;
    let mut quiet = 0;
    // A person may still let a thread continue: it is over when nothing has happened for a while.
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
