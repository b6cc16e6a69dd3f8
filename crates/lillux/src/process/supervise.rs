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

use super::child::{self, SupervisorLink, Verdict};
use super::fork::{Side, end_at_once, fork};
use super::socket_broker::SocketBroker;
use super::tree::Tree;
use super::wire::{self, Answer, Expected, Manner, Message, Order, Role};
use super::{End, GRACE, source};
use crate::confine::{self, Mechanism, Receipt, Row, Rule, Stage, Timing};

/// How often descendants are counted. A fork bomb makes some hundreds of processes in this time.
const TICK: Duration = Duration::from_millis(20);

/// How many ended children are collected at once.
const MAX_COLLECTED: usize = 10_000;

/// Becomes the launcher, or the source of launchers, if this process was started as one, and then never returns.
///
/// It must be the first thing in `main`: the launcher may not have threads.
pub fn supervise_if_asked() {
    let mut words = std::env::args_os();
    if words.next().is_none_or(|name| name != wire::MARK) {
        return;
    }
    let role = words.next().and_then(|word| Role::of(word.to_str()?));
    let (Some(role), Ok(control)) = (role, own_socket()) else {
        end_at_once(2);
    };
    end_at_once(match role {
        Role::Launcher | Role::Prepared => launch(role, &control),
        Role::Source => source::serve(control),
    });
}

/// The socket that this process was given as its standard input. Nothing else it was given is passed on.
fn own_socket() -> io::Result<OwnedFd> {
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    super::fork::inherit_nothing()?;
    Ok(control)
}

/// The launcher, until its run is over.
pub(super) fn launch(role: Role, control: &OwnedFd) -> i32 {
    let launched = Ground::new().and_then(|ground| match role {
        Role::Prepared => prepare_and_wait(ground, control),
        Role::Launcher | Role::Source => isolate_and_wait(ground, control),
    });
    match launched {
        Ok(()) => 0,
        Err(reason) => {
            // If the caller is gone too, the exit code is all there is to say.
            let _ = wire::send_line(control, &Answer::Failed { reason });
            1
        }
    }
}

/// What is to be run, and its descriptors.
type Given = (Order, Vec<OwnedFd>);

/// A caller that is gone before it gave its order, or something that is no caller: nobody is left to tell.
fn receive(control: &OwnedFd) -> Given {
    let given = match wire::receive_message(control) {
        Ok((Message::Order(order), descriptors)) => Ok((*order, descriptors)),
        // There is nothing to be laid out here: what comes is taken where it comes, and where the supervisor hears of it.
        Ok((Message::Expected(_), desk)) => match desk.first() {
            Some(desk) => {
                wire::receive_order(desk).and_then(|given| wire::receive_order(control).map(|_| given))
            }
            None => Err(io::ErrorKind::InvalidData.into()),
        },
        Err(error) => Err(error),
    };
    given.unwrap_or_else(|_| end_at_once(2))
}

fn isolate_and_wait(ground: Ground, control: &OwnedFd) -> Result<(), String> {
    let given = receive(control);
    let stage = match &given.0.confinement {
        Some(confinement) => confine::isolate(confinement)?,
        None => confine::gather(),
    };
    ground.supervise(stage, control, Some(given))
}

/// As [`isolate_and_wait`], with everything that does not depend on the order done before it comes.
fn prepare_and_wait(ground: Ground, control: &OwnedFd) -> Result<(), String> {
    match confine::isolate_ahead() {
        Some(stage) => ground.supervise(stage, control, None),
        // No namespaces are to be had here: the order says whether that is to be refused.
        None => isolate_and_wait(ground, control),
    }
}

/// What the launcher itself stands on, whatever it will run.
struct Ground {
    /// Opened before anything could be mounted over it.
    tree: Tree,
    own: Pid,
}

impl Ground {
    fn new() -> Result<Self, String> {
        let tree = Tree::open().map_err(|error| format!("`/proc` cannot be read: {error}"))?;
        let own = rustix::process::getpid();
        // A session of its own: a Ctrl-C at the terminal reaches the caller alone, who then cancels.
        rustix::process::setsid().map_err(|error| format!("no session: {error}"))?;
        Ok(Self { tree, own })
    }

    /// Forks the supervisor, which takes its order itself if none is given, and waits for its end.
    fn supervise(self, stage: Stage, control: &OwnedFd, given: Option<Given>) -> Result<(), String> {
        let Self { tree, own } = self;
        // The order holds secrets: no other process of this user may look into this one or the supervisor.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
            .map_err(|error| format!("memory cannot be protected: {error}"))?;
        rustix::process::set_child_subreaper(Some(own)).map_err(|error| format!("no subreaper: {error}"))?;
        let (lifeline, held) = pipe()?;
        match fork().map_err(|error| format!("no supervisor: {error}"))? {
            Side::Child => {
                drop(held);
                let run = || {
                    let priority = rustix::process::getpriority_process(None).ok();
                    let bond = Bond { control, lifeline, tree, launcher: own, priority };
                    let (mut supervisor, mut tool) = Supervisor::begin(bond, stage, given)?;
                    while supervisor.run(&mut tool)? {
                        tool = supervisor.begin_again()?;
                    }
                    Ok::<(), String>(())
                };
                end_at_once(match run() {
                    Ok(()) => 0,
                    Err(reason) => {
                        let _ = wire::send_line(control, &Answer::Failed { reason });
                        1
                    }
                });
            }
            Side::Parent(supervisor) => {
                drop(given);
                while let Err(Errno::INTR) = rustix::process::waitpid(Some(supervisor), WaitOptions::empty())
                {
                }
                if !stage.has_pid_namespace {
                    tree.end_all(own.as_raw_pid());
                }
                drop(held);
                // The kernel takes its time to take mounts and namespaces apart; the caller need not wait for that.
                let _ = wire::send_line(control, &Answer::Gone);
                step_back();
                Ok(())
            }
        }
    }
}

/// Starts what becomes the tool, and waits for its order.
fn await_order(
    bond: &Bond<'_>,
    stage: &Stage,
    expected: &Expected,
    desk: OwnedFd,
) -> Result<(Tool, Order), String> {
    let (gate, opener) = pipe()?;
    let tool = Tool::start(bond, expected.caller, move |link| {
        child::become_expected(expected, stage, &desk, &gate, &link)
    })?;
    // The tool has its order by now, or nobody wants it any more: then this process ends, and the tool with it.
    let (order, _) = receive(bond.control);
    if !expected.confinement.placeholders.is_empty() {
        confine::cover_placeholders(stage, &expected.confinement)?;
        rustix::io::write(&opener, &[1]).map_err(|error| format!("the tool is gone: {error}"))?;
    }
    Ok((tool, order))
}

/// Nobody wants another run.
fn end_quietly() -> ! {
    step_back();
    end_at_once(0)
}

/// What ties the supervisor to those above it.
struct Bond<'a> {
    control: &'a OwnedFd,
    /// Closes when the launcher dies.
    lifeline: OwnedFd,
    tree: Tree,
    launcher: Pid,
    /// What the supervisor's priority was before it was raised: that of tools.
    priority: Option<i32>,
}

struct Supervisor<'a> {
    order: Order,
    bond: Bond<'a>,
    stage: Stage,
    /// What was laid out for runs whose orders come later.
    laid_out: Option<Expected>,
}

/// The tool as its supervisor sees it.
struct Tool {
    pid: Pid,
    exit: OwnedFd,
    /// What the tool's process says before it becomes the tool; closes when it does.
    status: Option<OwnedFd>,
    said: Vec<u8>,
    end: Option<End>,
    broker: SocketBroker,
}

impl<'a> Supervisor<'a> {
    /// Starts what becomes the tool, before its order comes if it is known what to hold it to.
    fn begin(bond: Bond<'a>, mut stage: Stage, given: Option<Given>) -> Result<(Self, Tool), String> {
        if stage.has_pid_namespace {
            // A second net under the lifeline. Without the namespace the supervisor must live to end the others.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
                .map_err(|error| format!("no parent death signal: {error}"))?;
        } else {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
                .map_err(|error| format!("no subreaper: {error}"))?;
        }
        let (order, descriptors) = match given {
            Some(given) => given,
            None => {
                confine::settle_ahead(&mut stage);
                match wire::receive_message(bond.control) {
                    Ok((Message::Order(order), descriptors)) => {
                        let confinement = order.confinement.as_ref();
                        let confinement =
                            confinement.ok_or("a launcher that is confined already cannot run this")?;
                        confine::isolate_for(&mut stage, confinement, Timing::Now)?;
                        (*order, descriptors)
                    }
                    Ok((Message::Expected(expected), desk)) => {
                        let desk = desk.into_iter().next().ok_or("a descriptor is missing")?;
                        return Self::expect(bond, stage, *expected, desk);
                    }
                    // Nobody is left to tell.
                    Err(_) => end_at_once(2),
                }
            }
        };
        confine::settle(&mut stage, &order.limits);
        let tool =
            Tool::start(&bond, order.caller, |link| child::become_tool(&order, &stage, descriptors, &link))?;
        Ok((Self { order, bond, stage, laid_out: None }, tool))
    }

    /// Lays everything out for an order to come, and waits for it.
    fn expect(
        bond: Bond<'a>,
        mut stage: Stage,
        expected: Expected,
        desk: OwnedFd,
    ) -> Result<(Self, Tool), String> {
        confine::isolate_for(&mut stage, &expected.confinement, Timing::Ahead)?;
        confine::settle(&mut stage, &expected.limits);
        let (tool, order) = await_order(&bond, &stage, &expected, desk)?;
        Ok((Self { order, bond, stage, laid_out: Some(expected) }, tool))
    }

    /// What was laid out serves another run that is held to the same: nobody of the last one is left in it.
    fn begin_again(&mut self) -> Result<Tool, String> {
        let message = wire::receive_message(self.bond.control);
        let (Some(laid_out), Ok((Message::Expected(expected), desk))) = (&self.laid_out, message) else {
            end_quietly();
        };
        let (true, Some(desk)) = (*expected == *laid_out, desk.into_iter().next()) else { end_quietly() };
        confine::renew(&self.stage)?;
        let (tool, order) = await_order(&self.bond, &self.stage, laid_out, desk)?;
        self.order = order;
        Ok(tool)
    }

    /// Watches over the tool to its end. Says whether another run may follow.
    fn run(&self, tool: &mut Tool) -> Result<bool, String> {
        let own_number =
            self.bond.tree.own_number().map_err(|error| format!("`/proc` cannot be read: {error}"))?;
        let end = self.watch(tool, own_number);
        tool.broker.stop();
        if !self.stage.has_pid_namespace {
            self.bond.tree.end_all(own_number);
        }
        let is_alone = self.stage.has_pid_namespace && tool.is_last();
        // The caller may be gone, which is then why this is the end.
        let _ = wire::send_line(self.bond.control, &self.answer(tool, end));
        if is_alone {
            // Nobody is left in the namespace: the caller need not wait until it is taken apart.
            let _ = wire::send_line(self.bond.control, &Answer::Gone);
        }
        let may_go_on = is_alone && self.laid_out.is_some();
        if is_alone && !may_go_on {
            step_back();
        }
        Ok(may_go_on)
    }

    /// Waits for the end, whatever brings it. `None` when nobody is left to hear of it.
    fn watch(&self, tool: &mut Tool, own: i32) -> Option<End> {
        let mut deadline = Instant::now().checked_add(Duration::from_millis(self.order.timeout_milliseconds));
        let mut tick = Instant::now() + TICK;
        let mut asked = None;
        let mut hears_caller = true;
        loop {
            let now = Instant::now();
            let wait = deadline.map_or(tick, |deadline| deadline.min(tick)).saturating_duration_since(now);
            let (caller, launcher, has_ended) = self.poll(tool, hears_caller, wait);
            if has_ended {
                tool.collect();
            }
            if let Some(end) = tool.end {
                tool.listen();
                return Some(asked.unwrap_or(end));
            }
            if launcher {
                return None;
            }
            if caller {
                match self.hear() {
                    Heard::Cancel if asked.is_none() => {
                        asked = Some(End::Cancelled);
                        deadline = Some(ask_to_end(tool.pid));
                    }
                    Heard::Gone if self.order.manner == Manner::Detached => hears_caller = false,
                    Heard::Gone => return None,
                    Heard::Cancel | Heard::Nothing => {}
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                if asked.is_some() {
                    return asked;
                }
                asked = Some(End::TimedOut);
                deadline = Some(ask_to_end(tool.pid));
            }
            if Instant::now() >= tick {
                let started = Instant::now();
                tool.collect();
                let count = self.bond.tree.descendants(own).len().saturating_sub(tool.broker.pending());
                if count > self.order.limits.processes as usize {
                    return Some(End::TooManyProcesses { limit: self.order.limits.processes });
                }
                // A large tree takes long to count; counting takes at most a tenth of a core.
                tick = Instant::now() + TICK.max(started.elapsed() * 10);
            }
        }
    }

    /// Whether the caller, the launcher, the tool's end have something to say.
    fn poll(&self, tool: &mut Tool, hears_caller: bool, wait: Duration) -> (bool, bool, bool) {
        let mut descriptors =
            vec![PollFd::new(&tool.exit, PollFlags::IN), PollFd::new(&self.bond.lifeline, PollFlags::IN)];
        if hears_caller {
            descriptors.push(PollFd::new(self.bond.control, PollFlags::IN));
        }
        let asks = descriptors.len();
        descriptors.extend(tool.broker.descriptor().map(|asks| PollFd::new(asks, PollFlags::IN)));
        if let Some(status) = &tool.status {
            descriptors.push(PollFd::new(status, PollFlags::IN));
        }
        let has_broker = tool.broker.descriptor().is_some();
        let wait = Timespec::try_from(wait).ok();
        // An interrupted or failed wait is a short one: every condition is looked at again.
        let _ = rustix::event::poll(&mut descriptors, wait.as_ref());
        let is_ready: Vec<bool> =
            descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect();
        drop(descriptors);
        if has_broker && is_ready[asks] {
            tool.broker.serve(self.order.confinement.as_ref().map(|confinement| &confinement.sockets));
        }
        let has_status = tool.status.is_some() && is_ready.last() == Some(&true);
        let wants_start = self.order.manner != Manner::Awaited;
        if has_status && tool.listen_once() && wants_start && tool.verdict().is_none() {
            let _ = wire::send_line(self.bond.control, &Answer::Started);
        }
        (hears_caller && is_ready[2], is_ready[1], is_ready[0])
    }

    fn hear(&self) -> Heard {
        let mut byte = [0];
        match rustix::io::read(self.bond.control, &mut byte) {
            Ok(1) if byte == [wire::CANCEL] => Heard::Cancel,
            Ok(1) | Err(Errno::INTR | Errno::AGAIN) => Heard::Nothing,
            Ok(_) | Err(_) => Heard::Gone,
        }
    }

    fn answer(&self, tool: &Tool, end: Option<End>) -> Answer {
        let mut rows = self.stage.rows.clone();
        let (mechanism, detail) = if self.stage.has_pid_namespace {
            (Mechanism::PidNamespace, "the process tree ends with its first process")
        } else {
            (Mechanism::Subreaper, "orphans are inherited, found and ended")
        };
        rows.push(Row::new(Rule::Descendants, mechanism, true, detail));
        rows.push(Row::new(
            Rule::Processes,
            Mechanism::Counting,
            true,
            format!(
                "at most {}, counted {} times a second",
                self.order.limits.processes,
                1000 / TICK.as_millis()
            ),
        ));
        match tool.verdict() {
            Some(Verdict::Failed { reason }) => return Answer::Failed { reason },
            Some(Verdict::Refused { reason, rows: more }) => {
                rows.extend(more);
                return Answer::Refused { reason, receipt: Receipt::of(rows) };
            }
            Some(Verdict::Ready { .. }) | None => {}
        }
        rows.extend(tool.rows());
        let receipt = match self.order.confinement {
            Some(_) => Receipt::of(rows),
            None => Receipt { rows, ..Receipt::default() },
        };
        Answer::Ended { end: end.unwrap_or(End::SupervisorLost), receipt }
    }
}

impl Tool {
    /// Forks the process that becomes the tool.
    fn start(bond: &Bond<'_>, caller: u32, become_tool: impl FnOnce(SupervisorLink)) -> Result<Self, String> {
        let own = rustix::process::getpid();
        let (status, said) = pipe()?;
        let (connections, reports) =
            super::launcher::pair().map_err(|error| format!("no socket pair: {error}"))?;
        let priority = bond.priority;
        let pid = match fork().map_err(|error| format!("no process for the tool: {error}"))? {
            Side::Child => {
                drop((status, connections));
                if let Some(priority) = priority {
                    // Of the first tool it is this already.
                    let _ = rustix::process::setpriority_process(None, priority);
                }
                let mut guarded = vec![own.as_raw_pid(), bond.launcher.as_raw_pid()];
                guarded.extend(i32::try_from(caller));
                become_tool(SupervisorLink { guarded, status: said, connections: reports });
                end_at_once(126)
            }
            Side::Parent(pid) => pid,
        };
        // A tool that floods the machine must not starve whoever ends it. Ordinary users may not ask for this.
        let _ = rustix::process::setpriority_process(None, -20);
        let exit = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|error| format!("the tool cannot be watched: {error}"))?;
        let broker = SocketBroker::new(connections);
        Ok(Self { pid, exit, status: Some(status), said: Vec::new(), end: None, broker })
    }

    /// Collects children that have ended: orphans, and the tool itself.
    fn collect(&mut self) {
        // Bounded, so that a tool that makes orphans without pause cannot keep the supervisor from its other duties.
        for _ in 0..MAX_COLLECTED {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.pid => self.end = Some(end_of(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Whether it has ended and nothing it started is left: whatever lives in a pid namespace is below its first process.
    fn is_last(&mut self) -> bool {
        self.collect();
        matches!(rustix::process::wait(WaitOptions::NOHANG), Err(Errno::CHILD))
    }

    /// Takes what is there. Says whether the process has become the tool or given up.
    fn listen_once(&mut self) -> bool {
        let Some(status) = &self.status else {
            return false;
        };
        let mut buffer = [0; 4096];
        match rustix::io::read(status, &mut buffer) {
            Ok(count) if count > 0 => self.said.extend_from_slice(&buffer[..count]),
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => {
                self.status = None;
                return true;
            }
        }
        false
    }

    fn listen(&mut self) {
        while self.status.is_some() {
            self.listen_once();
        }
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        self.said.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok())
    }

    /// Why it did not become the tool, if it did not.
    fn verdict(&self) -> Option<Verdict> {
        self.verdicts().find(|verdict| !matches!(verdict, Verdict::Ready { .. }))
    }

    fn rows(&self) -> Vec<Row> {
        self.verdicts()
            .find_map(|verdict| match verdict {
                Verdict::Ready { rows } => Some(rows),
                Verdict::Failed { .. } | Verdict::Refused { .. } => None,
            })
            .unwrap_or_default()
    }
}

enum Heard {
    Nothing,
    Cancel,
    Gone,
}

/// Asks the tool and its group to end. Says until when they may take.
fn ask_to_end(pid: Pid) -> Instant {
    for signal in [Signal::TERM, Signal::CONT] {
        // It may have ended already.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
    Instant::now() + GRACE
}

/// Lets everybody else go first: what is left to do is to be taken apart.
fn step_back() {
    let _ = rustix::process::setpriority_process(None, 19);
}

fn end_of(status: WaitStatus) -> End {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Signalled(signal),
        (None, None) => End::SupervisorLost,
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd), String> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|error| format!("no pipe: {error}"))
}
