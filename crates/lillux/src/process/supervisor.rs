//! The launcher and the supervisor: two single-threaded processes between the caller and the tool.
//!
//! The launcher isolates and waits; the supervisor (process 1 of the tool's pid namespace, or a subreaper where there
//! is none) ends the run when the tool ends, its time is up, it has too many processes, or the caller or the launcher
//! is gone. If the supervisor itself is killed, the launcher ends what is left.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

use super::child::{self, SetupStatus, SupervisorLink};
use super::descendants::ProcessTree;
use super::fork::{ForkResult, exit_immediately, fork};
use super::protocol::{
    self, LaunchMode, LaunchRequest, LauncherMessage, LauncherRole, PrewarmSpec, SupervisorReply,
};
use super::socket_broker::SocketBroker;
use super::{ExitReason, TERMINATION_GRACE, zygote};
use crate::sandbox::{self, IsolationState, Mechanism, Receipt, ReceiptRow, SandboxRule, SetupTiming};

/// How often descendants are counted. A fork bomb makes some hundreds of processes in this time.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// How many ended children are collected at once.
const MAX_REAPED: usize = 10_000;

/// Becomes the launcher, or the source of launchers, if this process was started as one, and then never returns.
///
/// It must be the first thing in `main`: the launcher may not have threads.
pub fn supervise_if_requested() {
    let mut words = std::env::args_os();
    if words.next().is_none_or(|name| name != protocol::LAUNCHER_ARGV0) {
        return;
    }
    let role = words.next().and_then(|word| LauncherRole::from_name(word.to_str()?));
    let (Some(role), Ok(control)) = (role, take_control_socket()) else {
        exit_immediately(2);
    };
    exit_immediately(match role {
        LauncherRole::Launcher | LauncherRole::Isolated => run_launcher(role, &control),
        LauncherRole::Zygote => zygote::serve(control),
    });
}

/// The socket that this process was given as its standard input. Nothing else it was given is passed on.
fn take_control_socket() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    super::fork::set_cloexec_all()?;
    Ok(control)
}

/// The launcher, until its run is over.
pub(super) fn run_launcher(role: LauncherRole, control: &OwnedFd) -> i32 {
    let result = SupervisorSetup::new().and_then(|setup| match role {
        LauncherRole::Isolated => prewarm_and_supervise(setup, control),
        LauncherRole::Launcher | LauncherRole::Zygote => isolate_and_supervise(setup, control),
    });
    match result {
        Ok(()) => 0,
        Err(reason) => {
            // If the caller is gone too, the exit code is all there is to say.
            let _ = protocol::send_line(control, &SupervisorReply::Failed { reason });
            1
        }
    }
}

/// What is to be run, and its descriptors.
type ReceivedRequest = (LaunchRequest, Vec<OwnedFd>);

/// The caller ended before it sent a request, or the peer is not a caller: there is no one to report to.
fn receive_request(control: &OwnedFd) -> ReceivedRequest {
    let request = match protocol::receive_message(control) {
        Ok((LauncherMessage::Launch(order), descriptors)) => Ok((*order, descriptors)),
        // There is nothing to be laid out here: what comes is taken where it comes, and where the supervisor hears of it.
        Ok((LauncherMessage::Prewarm(_), sockets)) => match sockets.first() {
            Some(sockets) => protocol::receive_request(sockets)
                .and_then(|request| protocol::receive_request(control).map(|_| request)),
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        Err(error) => Err(error),
    };
    request.unwrap_or_else(|_| exit_immediately(2))
}

fn isolate_and_supervise(setup: SupervisorSetup, control: &OwnedFd) -> Result<(), String> {
    let request = receive_request(control);
    let state = match &request.0.confinement {
        Some(confinement) => sandbox::isolate(confinement)?,
        None => sandbox::isolate_process_tree(),
    };
    setup.supervise(state, control, Some(request))
}

/// As [`isolate_and_supervise`], with everything that does not depend on the request done before it arrives.
fn prewarm_and_supervise(setup: SupervisorSetup, control: &OwnedFd) -> Result<(), String> {
    match sandbox::prewarm_namespaces() {
        Some(state) => setup.supervise(state, control, None),
        // No namespaces are to be had here: the order says whether that is to be refused.
        None => isolate_and_supervise(setup, control),
    }
}

/// What the launcher itself stands on, whatever it will run.
struct SupervisorSetup {
    /// Opened before anything could be mounted over it.
    tree: ProcessTree,
    pid: Pid,
}

impl SupervisorSetup {
    fn new() -> Result<Self, String> {
        let tree = ProcessTree::open().map_err(|error| format!("`/proc` cannot be read: {error}"))?;
        let own = rustix::process::getpid();
        // A session of its own: a Ctrl-C at the terminal reaches the caller alone, who then cancels.
        rustix::process::setsid().map_err(|error| format!("no session: {error}"))?;
        Ok(Self { tree, pid: own })
    }

    /// Forks the supervisor, which takes its order itself if none is given, and waits for its end.
    fn supervise(
        self,
        state: IsolationState,
        control: &OwnedFd,
        request: Option<ReceivedRequest>,
    ) -> Result<(), String> {
        let Self { tree, pid: own } = self;
        // The order holds secrets: no other process of this user may look into this one or the supervisor.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| format!("memory cannot be protected: {error}"))?;
        rustix::process::set_child_subreaper(Some(own)).map_err(|error| format!("no subreaper: {error}"))?;
        let (lifeline, lifeline_end) = pipe()?;
        match fork().map_err(|error| format!("no supervisor: {error}"))? {
            ForkResult::Child => {
                drop(lifeline_end);
                let run = || {
                    let priority = rustix::process::getpriority_process(None).ok();
                    let parent = ParentLink { control, lifeline, tree, launcher: own, priority };
                    let (mut supervisor, mut tool) = Supervisor::start(parent, state, request)?;
                    while supervisor.run(&mut tool)? {
                        tool = supervisor.start_next()?;
                    }
                    Ok::<(), String>(())
                };
                exit_immediately(match run() {
                    Ok(()) => 0,
                    Err(reason) => {
                        let _ = protocol::send_line(control, &SupervisorReply::Failed { reason });
                        1
                    }
                });
            }
            ForkResult::Parent(supervisor) => {
                drop(request);
                while let Err(Errno::INTR) = rustix::process::waitpid(Some(supervisor), WaitOptions::empty())
                {
                }
                if !state.has_pid_namespace {
                    tree.kill_all(own.as_raw_pid());
                }
                drop(lifeline_end);
                // The kernel takes its time to take mounts and namespaces apart; the caller need not wait for that.
                let _ = protocol::send_line(control, &SupervisorReply::Gone);
                lower_priority();
                Ok(())
            }
        }
    }
}

/// Starts what becomes the tool, and waits for its order.
fn wait_for_request(
    parent: &ParentLink<'_>,
    state: &IsolationState,
    spec: &PrewarmSpec,
    request_socket: OwnedFd,
) -> Result<(Tool, LaunchRequest), String> {
    let (start_gate, opener) = pipe()?;
    let tool = Tool::start(parent, spec.caller, move |link| {
        child::exec_prewarmed(spec, state, &request_socket, &start_gate, &link)
    })?;
    // The tool has received its request, or the caller is gone: then this process ends, and the tool with it.
    let (request, _) = receive_request(parent.control);
    if !spec.confinement.placeholders.is_empty() {
        sandbox::protect_placeholders(state, &spec.confinement)?;
        rustix::io::write(&opener, &[1]).map_err(|error| format!("the tool is gone: {error}"))?;
    }
    Ok((tool, request))
}

/// No further run is requested.
fn exit_quietly() -> ! {
    lower_priority();
    exit_immediately(0)
}

/// What ties the supervisor to those above it.
struct ParentLink<'a> {
    control: &'a OwnedFd,
    /// Closes when the launcher dies.
    lifeline: OwnedFd,
    tree: ProcessTree,
    launcher: Pid,
    /// What the supervisor's priority was before it was raised: that of tools.
    priority: Option<i32>,
}

struct Supervisor<'a> {
    request: LaunchRequest,
    parent: ParentLink<'a>,
    isolation: IsolationState,
    /// What was laid out for runs whose orders come later.
    prewarm_spec: Option<PrewarmSpec>,
}

/// The tool as its supervisor sees it.
struct Tool {
    pid: Pid,
    exit: OwnedFd,
    /// What the tool's process says before it becomes the tool; closes when it does.
    status: Option<OwnedFd>,
    status_bytes: Vec<u8>,
    exit_reason: Option<ExitReason>,
    broker: SocketBroker,
}

impl<'a> Supervisor<'a> {
    /// Starts what becomes the tool, before its order comes if it is known what to hold it to.
    fn start(
        parent_link: ParentLink<'a>,
        mut state: IsolationState,
        received: Option<ReceivedRequest>,
    ) -> Result<(Self, Tool), String> {
        if state.has_pid_namespace {
            // A second net under the lifeline. Without the namespace the supervisor must live to end the others.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(|error| format!("no parent death signal: {error}"))?;
        } else {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .map_err(|error| format!("no subreaper: {error}"))?;
        }
        let (request, descriptors) = match received {
            Some(received) => received,
            None => {
                sandbox::prewarm_mounts(&mut state);
                match protocol::receive_message(parent_link.control) {
                    Ok((LauncherMessage::Launch(request), descriptors)) => {
                        let confinement = request.confinement.as_ref();
                        let confinement =
                            confinement.ok_or("a launcher that is confined already cannot run this")?;
                        sandbox::finish_isolation(&mut state, confinement, SetupTiming::Now)?;
                        (*request, descriptors)
                    }
                    Ok((LauncherMessage::Prewarm(expected), sockets)) => {
                        let sockets = sockets.into_iter().next().ok_or("a descriptor is missing")?;
                        return Self::prewarm(parent_link, state, *expected, sockets);
                    }
                    // The caller is gone.
                    Err(_) => exit_immediately(2),
                }
            }
        };
        sandbox::enter(&mut state, &request.limits);
        let tool = Tool::start(&parent_link, request.caller, |link| {
            child::exec_tool(&request, &state, descriptors, &link)
        })?;
        Ok((Self { request, parent: parent_link, isolation: state, prewarm_spec: None }, tool))
    }

    /// Lays everything out for an order to come, and waits for it.
    fn prewarm(
        parent: ParentLink<'a>,
        mut state: IsolationState,
        spec: PrewarmSpec,
        request_socket: OwnedFd,
    ) -> Result<(Self, Tool), String> {
        sandbox::finish_isolation(&mut state, &spec.confinement, SetupTiming::Prewarm)?;
        sandbox::enter(&mut state, &spec.limits);
        let (tool, request) = wait_for_request(&parent, &state, &spec, request_socket)?;
        Ok((Self { request, parent, isolation: state, prewarm_spec: Some(spec) }, tool))
    }

    /// The sandbox can be reused for a run with the same confinement: no process of the last run is left in it.
    fn start_next(&mut self) -> Result<Tool, String> {
        let message = protocol::receive_message(self.parent.control);
        let (Some(prewarm_spec), Ok((LauncherMessage::Prewarm(spec), request_socket))) =
            (&self.prewarm_spec, message)
        else {
            exit_quietly();
        };
        let (true, Some(request_socket)) = (*spec == *prewarm_spec, request_socket.into_iter().next()) else {
            exit_quietly()
        };
        sandbox::reset(&self.isolation)?;
        let (tool, request) = wait_for_request(&self.parent, &self.isolation, prewarm_spec, request_socket)?;
        self.request = request;
        Ok(tool)
    }

    /// Watches over the tool to its end. Says whether another run may follow.
    fn run(&self, tool: &mut Tool) -> Result<bool, String> {
        let own_number =
            self.parent.tree.own_pid().map_err(|error| format!("`/proc` cannot be read: {error}"))?;
        let end = self.watch(tool, own_number);
        tool.broker.stop();
        if !self.isolation.has_pid_namespace {
            self.parent.tree.kill_all(own_number);
        }
        let is_alone = self.isolation.has_pid_namespace && tool.has_no_descendants();
        // The caller may be gone, which is then why this is the end.
        let _ = protocol::send_line(self.parent.control, &self.reply(tool, end));
        if is_alone {
            // No process is left in the namespace: the caller need not wait until it is removed.
            let _ = protocol::send_line(self.parent.control, &SupervisorReply::Gone);
        }
        let can_reuse = is_alone && self.prewarm_spec.is_some();
        if is_alone && !can_reuse {
            lower_priority();
        }
        Ok(can_reuse)
    }

    /// Waits for the end, whatever causes it. `None` when the caller is gone.
    fn watch(&self, tool: &mut Tool, own: i32) -> Option<ExitReason> {
        let mut deadline =
            Instant::now().checked_add(Duration::from_millis(self.request.timeout_milliseconds));
        let mut tick = Instant::now() + COUNT_INTERVAL;
        let mut stop_reason = None;
        let mut polls_caller = true;
        loop {
            let now = Instant::now();
            let wait = deadline.map_or(tick, |deadline| deadline.min(tick)).saturating_duration_since(now);
            let (caller, launcher, has_ended) = self.poll(tool, polls_caller, wait);
            if has_ended {
                tool.reap();
            }
            if let Some(end) = tool.exit_reason {
                tool.drain_status();
                return Some(stop_reason.unwrap_or(end));
            }
            if launcher {
                return None;
            }
            if caller {
                match self.read_event() {
                    SupervisorEvent::Cancel if stop_reason.is_none() => {
                        stop_reason = Some(ExitReason::Cancelled);
                        deadline = Some(terminate(tool.pid));
                    }
                    SupervisorEvent::CallerGone if self.request.mode == LaunchMode::Detached => {
                        polls_caller = false
                    }
                    SupervisorEvent::CallerGone => return None,
                    SupervisorEvent::Cancel | SupervisorEvent::Nothing => {}
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                if stop_reason.is_some() {
                    return stop_reason;
                }
                stop_reason = Some(ExitReason::TimedOut);
                deadline = Some(terminate(tool.pid));
            }
            if Instant::now() >= tick {
                let started = Instant::now();
                tool.reap();
                let count = self.parent.tree.descendants(own).len().saturating_sub(tool.broker.pending());
                if count > self.request.limits.processes as usize {
                    return Some(ExitReason::TooManyProcesses { limit: self.request.limits.processes });
                }
                // A large tree takes long to count; counting takes at most a tenth of a core.
                tick = Instant::now() + COUNT_INTERVAL.max(started.elapsed() * 10);
            }
        }
    }

    /// Whether the caller, the launcher, the tool's end have something to say.
    fn poll(&self, tool: &mut Tool, polls_caller: bool, wait: Duration) -> (bool, bool, bool) {
        let mut descriptors =
            vec![PollFd::new(&tool.exit, PollFlags::IN), PollFd::new(&self.parent.lifeline, PollFlags::IN)];
        if polls_caller {
            descriptors.push(PollFd::new(self.parent.control, PollFlags::IN));
        }
        let broker_index = descriptors.len();
        descriptors
            .extend(tool.broker.poll_fd().map(|broker_index| PollFd::new(broker_index, PollFlags::IN)));
        if let Some(status) = &tool.status {
            descriptors.push(PollFd::new(status, PollFlags::IN));
        }
        let has_broker = tool.broker.poll_fd().is_some();
        let wait = Timespec::try_from(wait).ok();
        // An interrupted or failed wait is a short one: every condition is looked at again.
        let _ = rustix::event::poll(&mut descriptors, wait.as_ref());
        let is_ready: Vec<bool> =
            descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        let has_call = has_broker && descriptors[broker_index].revents().contains(PollFlags::IN);
        drop(descriptors);
        if has_call {
            tool.broker.serve(self.request.confinement.as_ref().map(|confinement| &confinement.sockets));
        } else if has_broker && is_ready[broker_index] {
            // The last process that could call is exiting. Its end is reported a little later; to poll this meanwhile
            // would keep the processor from it.
            tool.broker.close();
        }
        let has_status = tool.status.is_some() && is_ready.last() == Some(&true);
        let wants_start = self.request.mode != LaunchMode::Wait;
        if has_status && tool.read_status() && wants_start && tool.setup_failure().is_none() {
            let _ = protocol::send_line(self.parent.control, &SupervisorReply::Started);
        }
        (polls_caller && is_ready[2], is_ready[1], is_ready[0])
    }

    fn read_event(&self) -> SupervisorEvent {
        let mut byte = [0];
        match rustix::io::read(self.parent.control, &mut byte) {
            Ok(1) if byte == [protocol::CANCEL] => SupervisorEvent::Cancel,
            Ok(1) | Err(Errno::INTR | Errno::AGAIN) => SupervisorEvent::Nothing,
            Ok(_) | Err(_) => SupervisorEvent::CallerGone,
        }
    }

    fn reply(&self, tool: &Tool, end: Option<ExitReason>) -> SupervisorReply {
        let mut rows = self.isolation.rows.clone();
        let (mechanism, detail) = if self.isolation.has_pid_namespace {
            (Mechanism::PidNamespace, "the process tree ends with its first process")
        } else {
            (Mechanism::Subreaper, "orphans are inherited, found and ended")
        };
        rows.push(ReceiptRow::new(SandboxRule::Descendants, mechanism, true, detail));
        rows.push(ReceiptRow::new(
            SandboxRule::Processes,
            Mechanism::ProcessCounter,
            true,
            format!(
                "at most {}, counted {} times a second",
                self.request.limits.processes,
                1000 / COUNT_INTERVAL.as_millis()
            ),
        ));
        match tool.setup_failure() {
            Some(SetupStatus::Failed { reason }) => return SupervisorReply::Failed { reason },
            Some(SetupStatus::Refused { reason, rows: setup_rows }) => {
                rows.extend(setup_rows);
                return SupervisorReply::Refused { reason, receipt: Receipt::from_rows(rows) };
            }
            Some(SetupStatus::Ready { .. }) | None => {}
        }
        rows.extend(tool.rows());
        let receipt = match self.request.confinement {
            Some(_) => Receipt::from_rows(rows),
            None => Receipt { rows, ..Receipt::default() },
        };
        SupervisorReply::Ended { end: end.unwrap_or(ExitReason::SupervisorLost), receipt }
    }
}

impl Tool {
    /// Forks the process that becomes the tool.
    fn start(
        parent: &ParentLink<'_>,
        caller: u32,
        exec: impl FnOnce(SupervisorLink),
    ) -> Result<Self, String> {
        let own = rustix::process::getpid();
        let (status, status_writer) = pipe()?;
        let (connections, reports) =
            super::launcher_pool::socket_pair().map_err(|error| format!("no socket pair: {error}"))?;
        let priority = parent.priority;
        let pid = match fork().map_err(|error| format!("no process for the tool: {error}"))? {
            ForkResult::Child => {
                drop((status, connections));
                if let Some(priority) = priority {
                    // Of the first tool it is this already.
                    let _ = rustix::process::setpriority_process(None, priority);
                }
                let mut protected_pids = vec![own.as_raw_pid(), parent.launcher.as_raw_pid()];
                protected_pids.extend(i32::try_from(caller));
                exec(SupervisorLink { protected_pids, status: status_writer, connection_listener: reports });
                exit_immediately(126)
            }
            ForkResult::Parent(pid) => pid,
        };
        // A tool that floods the machine must not starve its supervisor. Ordinary users may not raise the priority.
        let _ = rustix::process::setpriority_process(None, -20);
        let exit = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| format!("the tool cannot be watched: {error}"))?;
        let broker = SocketBroker::new(connections);
        Ok(Self { pid, exit, status: Some(status), status_bytes: Vec::new(), exit_reason: None, broker })
    }

    /// Collects children that have ended: orphans, and the tool itself.
    fn reap(&mut self) {
        // Bounded, so that a tool that makes orphans without pause cannot keep the supervisor from its other duties.
        for _ in 0..MAX_REAPED {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => self.exit_reason = Some(exit_reason(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Whether it has ended and nothing it started is left: whatever lives in a pid namespace is below its first process.
    fn has_no_descendants(&mut self) -> bool {
        self.reap();
        matches!(rustix::process::wait(WaitOptions::NOHANG), Err(Errno::CHILD))
    }

    /// Takes what is there. Says whether the process has become the tool or given up.
    fn read_status(&mut self) -> bool {
        let Some(status) = &self.status else {
            return false;
        };
        let mut buffer = [0; 4096];
        match rustix::io::read(status, &mut buffer) {
            Ok(count) if count > 0 => self.status_bytes.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => {
                self.status = None;
                return true;
            }
        }
        false
    }

    fn drain_status(&mut self) {
        while self.status.is_some() {
            self.read_status();
        }
    }

    fn setup_statuses(&self) -> impl Iterator<Item = SetupStatus> {
        self.status_bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
    }

    /// Why it did not become the tool, if it did not.
    fn setup_failure(&self) -> Option<SetupStatus> {
        self.setup_statuses().find(|verdict| !matches!(verdict, SetupStatus::Ready { .. }))
    }

    fn rows(&self) -> Vec<ReceiptRow> {
        self.setup_statuses()
            .find_map(|verdict| match verdict {
                SetupStatus::Ready { rows } => Some(rows),
                SetupStatus::Failed { .. } | SetupStatus::Refused { .. } => None,
            })
            .unwrap_or_default()
    }
}

enum SupervisorEvent {
    Nothing,
    Cancel,
    CallerGone,
}

/// Asks the tool and its group to end. Says until when they may take.
fn terminate(pid: Pid) -> Instant {
    for signal in [Signal::TERM, Signal::CONT] {
        // It may have ended already.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
    Instant::now() + TERMINATION_GRACE
}

/// Lets everybody else go first: what is left to do is to be taken apart.
fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 19);
}

fn exit_reason(status: WaitStatus) -> ExitReason {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitReason::Exited(code),
        (None, Some(signal)) => ExitReason::Signalled(signal),
        (None, None) => ExitReason::SupervisorLost,
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("no pipe: {error}"))
}
