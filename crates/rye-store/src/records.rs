//! What goes into the store and comes out of it.

use lillux_hash::Digest;
use serde_json::Value;

use rye_thread::cost::{Attribution, Cost};
use rye_thread::limits::ThreadLimits;
use rye_thread::machine::BudgetRefusal;
use rye_thread::money::Nanos;
use rye_thread::rolling::RollingBudget;
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;

use crate::{Owner, SpawnCap, SpawnCaps, TranscriptPart, WaitKind};

/// A thread that is about to be.
#[derive(Clone, Debug)]
pub struct NewThread {
    /// Its name, which no thread may have yet.
    pub id: ThreadId,
    /// The directive it runs.
    pub directive: String,
    /// What people see it called.
    pub title: String,
    /// The thread that starts it.
    pub parent: Option<ThreadId>,
    /// The thread it continues from.
    pub continuation_of: Option<ThreadId>,
    /// Its limits.
    pub limits: ThreadLimits,
    /// The most that it and all below it may spend.
    pub max_spend: Option<Nanos>,
    /// The most tokens that it and all below it may use.
    pub max_tokens: Option<u64>,
    /// What it may do, by hash.
    pub capabilities: Digest,
    /// The model.
    pub model: String,
    /// The provider.
    pub provider: String,
    /// How many threads there may be.
    pub caps: SpawnCaps,
    /// The process that runs it from the first moment on; none when it is only registered.
    pub owner: Option<Owner>,
    /// Whether it continues without the command that starts it. A child of such a thread does in any case.
    pub is_detached: bool,
    /// Shared parts that its records name; they must be in the store.
    pub blobs: Vec<Digest>,
    /// Its first records.
    pub records: Vec<JournalRecord>,
    /// The submission that lets any worker run it and all below it, by digest; it is one of the blobs.
    pub submission: Option<Digest>,
    /// Now.
    pub at_ms: u64,
}

/// What came of a new thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It is there. The claim is its owner's, if it has one.
    Created {
        /// Lets the owner commit.
        claim: Claim,
        /// Its level: 0 for the root of a tree.
        depth: u64,
        /// Whether it waits for its place: it may run once [`crate::ThreadStore::admit`] says so.
        is_queued: bool,
    },
    /// There are as many as there may be; nothing was written.
    Refused {
        /// Which cap.
        cap: SpawnCap,
        /// What it allows.
        max: u64,
        /// How many there are.
        count: u64,
    },
}

/// The right to commit to a thread, until another process claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its number: each claim of a thread has a higher one, and only the highest may commit.
    pub epoch: u64,
}

/// What came of claiming a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// It is the claimant's.
    Claimed {
        /// Lets it commit.
        claim: Claim,
        /// The process that had it and is gone.
        from: Option<Owner>,
    },
    /// A process that lives has it.
    Held {
        /// Which.
        by: Owner,
    },
}

/// What happened in one step, all of it durable or none.
#[derive(Clone, Debug)]
pub struct ThreadCommit {
    /// The thread.
    pub thread: ThreadId,
    /// The right to it.
    pub claim: Claim,
    /// Now.
    pub at_ms: u64,
    /// What to journal.
    pub records: Vec<JournalRecord>,
    /// Calls that have ended.
    pub settlements: Vec<Settlement>,
    /// The call that is to be made.
    pub reservation: Option<ReserveRequest>,
    /// Whether nothing of this is kept if the reservation is refused.
    pub needs_reservation: bool,
    /// Budgets of a day or a month that the reservation counts against, beside those of the tree. A settled call counts
    /// where it was reserved; one that was not reserved counts here.
    pub rolling: Vec<RollingBudget>,
    /// What the thread itself has used now.
    pub cost: Option<Cost>,
    /// New maxima, for a thread whose limits were raised.
    pub caps: Option<BudgetCaps>,
    /// New limits, for a thread that continues with others.
    pub limits: Option<ThreadLimits>,
    /// Where it stands.
    pub status: Option<StatusChange>,
    /// Questions to people.
    pub approvals: Vec<Approval>,
    /// How far its transcript goes.
    pub transcript_head: Option<TranscriptHead>,
    /// What its transcript has got since the last commit, for a store that keeps transcripts.
    pub transcript: Option<TranscriptPart>,
    /// Whether the thread is given up with this: the claim is worth nothing afterwards.
    pub is_last: bool,
}

impl ThreadCommit {
    /// Nothing yet.
    #[must_use]
    pub fn new(thread: ThreadId, claim: Claim, at_ms: u64) -> Self {
        Self {
            thread,
            claim,
            at_ms,
            records: Vec::new(),
            settlements: Vec::new(),
            reservation: None,
            needs_reservation: false,
            rolling: Vec::new(),
            cost: None,
            caps: None,
            limits: None,
            status: None,
            approvals: Vec::new(),
            transcript_head: None,
            transcript: None,
            is_last: false,
        }
    }
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// When it happened.
    pub at_ms: u64,
    /// The number of its first event in the transcript.
    pub sequence: u64,
    /// The machine's event, as JSON.
    pub body: Vec<u8>,
}

/// The worst that a call can cost, reserved for it on the thread and on every ancestor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveRequest {
    /// The call's number in its thread, never used before.
    pub call: u64,
    /// Money.
    pub spend: Nanos,
    /// Tokens in and out.
    pub tokens: u64,
    /// Whether the thread keeps its turn if only what others have reserved stands in its way.
    pub can_wait: bool,
}

/// What a call did cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The call's number.
    pub call: u64,
    /// Money.
    pub spend: Nanos,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Whether this is an estimate because the real spend is unknown; the reservation is the upper bound.
    pub is_unknown: bool,
    /// What it was for.
    pub attribution: Attribution,
}

/// A call that is in flight, or was when its process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The call's number.
    pub call: u64,
    /// Money reserved.
    pub spend: Nanos,
    /// Tokens reserved.
    pub tokens: u64,
}

/// The most a thread and all below it may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCaps {
    /// Money.
    pub spend: Option<Nanos>,
    /// Tokens.
    pub tokens: Option<u64>,
}

/// Where a thread stands from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusChange {
    /// Where.
    pub to: ThreadStatus,
    /// Why it is suspended.
    pub reason: Option<SuspendReason>,
    /// What it gave.
    pub result: Option<Value>,
    /// Why it failed.
    pub error: Option<String>,
}

impl StatusChange {
    /// Nothing but the status.
    #[must_use]
    pub fn to(to: ThreadStatus) -> Self {
        Self { to, reason: None, result: None, error: None }
    }
}

/// How far a transcript goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TranscriptHead {
    /// The number of its last chained event.
    pub sequence: u64,
    /// That event's hash.
    pub hash: Digest,
}

/// What came of a commit. Records, settlements and cost are durable in each case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// All of it is.
    Done,
    /// The reservation was refused: the call must not be made.
    Refused(BudgetRefusal),
    /// The thread had ended before: neither the new status nor the reservation counts.
    Ended {
        /// As what.
        status: ThreadStatus,
        /// When, as text.
        at: String,
    },
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Approval {
    /// Its name.
    pub id: String,
    /// The thread that asks.
    pub thread: ThreadId,
    /// What kind of question: `limit`, `tool`, ….
    pub kind: String,
    /// What is asked for.
    pub prompt: String,
    /// Why.
    pub reason: String,
    /// When it was asked.
    pub at_ms: u64,
    /// Further facts.
    pub detail: Value,
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ApprovalDecision {
    /// Whether it is allowed.
    pub approved: bool,
    /// What the person said.
    pub message: Option<String>,
    /// What the person changed.
    pub changes: Value,
    /// When.
    pub at_ms: u64,
    /// Who.
    pub by: String,
    /// What a yes covers from now on, beyond the call it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always: Option<rye_thread::machine::ApprovalScope>,
}

/// Questions that are open, and those that were forged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenApprovals {
    /// Open questions, the oldest first.
    pub approvals: Vec<Approval>,
    /// Names of rows that were not written with the user's secret.
    pub forged: Vec<String>,
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRecord {
    /// The question.
    pub approval: Approval,
    /// The answer, if there is one.
    pub answer: Option<ApprovalDecision>,
}

/// How long a request to end a thread is kept when no process takes it up.
pub const MAX_CANCEL_REQUEST_AGE_MS: u64 = 24 * 60 * 60 * 1000;

/// A request to end a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelRequest {
    /// The thread.
    pub thread: ThreadId,
    /// Why.
    pub reason: String,
}

/// A thread as the registry has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadRow {
    /// Its name.
    pub id: ThreadId,
    /// The directive it runs.
    pub directive: String,
    /// What people see it called.
    pub title: String,
    /// The thread that started it.
    pub parent: Option<ThreadId>,
    /// Its level: 0 for the root of a tree.
    pub depth: u64,
    /// Where it stands.
    pub status: ThreadStatus,
    /// Why it is suspended.
    pub reason: Option<SuspendReason>,
    /// What it gave.
    pub result: Option<Value>,
    /// Why it failed.
    pub error: Option<String>,
    /// When it was made, in UTC.
    pub created_at: String,
    /// When it last changed.
    pub updated_at: String,
    /// When it ended.
    pub completed_at: Option<String>,
    /// What it itself has used.
    pub cost: Cost,
    /// Its limits when it was made.
    pub limits: ThreadLimits,
    /// Children it has started.
    pub spawn_count: u64,
    /// The model.
    pub model: String,
    /// The provider.
    pub provider: String,
    /// What it may do, by hash.
    pub capabilities: String,
    /// The thread it continues from.
    pub continuation_of: Option<ThreadId>,
    /// The thread that continues from it.
    pub continuation_thread_id: Option<ThreadId>,
    /// The first thread of those that continue from one another.
    pub chain_root_id: Option<ThreadId>,
    /// The process that runs it.
    pub owner: Option<Owner>,
    /// When that process last gave a sign.
    pub heartbeat_ms: u64,
    /// Whether it continues without the command that started it.
    pub is_detached: bool,
    /// Whether it was submitted: workers run it.
    pub is_submitted: bool,
    /// Why no process continues with it, if one tried.
    pub note: Option<String>,
    /// What it waits for in the store.
    pub waiting: Option<WaitKind>,
    /// How many records its journal has.
    pub records: u64,
    /// How far its transcript goes.
    pub transcript_head: Option<TranscriptHead>,
    /// Whether the row is not as this user's rye wrote it: nothing in it can be relied on.
    pub is_forged: bool,
}

/// Which threads.
#[derive(Clone, Debug, Default)]
pub struct ThreadFilter {
    /// Standing here; any, when empty.
    pub statuses: Vec<ThreadStatus>,
    /// Only roots of trees.
    pub is_root: bool,
    /// Running this directive.
    pub directive: Option<String>,
    /// At most so many, the newest first.
    pub limit: Option<u64>,
}

/// Threads that changed behind a place in the order of a store's journals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangedThreads {
    /// The place behind the records that were looked at.
    pub position: u64,
    /// The threads as they stand now.
    pub threads: Vec<ThreadRow>,
    /// Whether there are no further records.
    pub is_complete: bool,
}

/// A thread's row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerRow {
    /// The thread.
    pub thread: ThreadId,
    /// The most that it and all below it may use.
    pub caps: BudgetCaps,
    /// What it itself has spent.
    pub actual_spend: Nanos,
    /// What is reserved for its own call in flight.
    pub reserved_spend: Nanos,
    /// What it and all below it have spent.
    pub subtree_spend: Nanos,
    /// What is reserved for calls in flight of it and all below it.
    pub subtree_reserved: Nanos,
    /// Tokens it itself has used.
    pub actual_tokens: u64,
    /// Tokens reserved for its own call in flight.
    pub reserved_tokens: u64,
    /// Tokens that it and all below it have used.
    pub subtree_tokens: u64,
    /// Tokens reserved for it and all below it.
    pub subtree_reserved_tokens: u64,
    /// Of what it itself has spent, the part that is estimated because the real spend is unknown.
    pub unknown_spend: Nanos,
    /// `active`, or how it ended.
    pub status: String,
}

impl LedgerRow {
    /// Money that is left; `None` is any amount.
    #[must_use]
    pub fn remaining_spend(&self) -> Option<Nanos> {
        self.caps.spend.map(|max| max.minus(self.subtree_spend).minus(self.subtree_reserved))
    }

    /// Tokens that are left; `None` is any number.
    #[must_use]
    pub fn remaining_tokens(&self) -> Option<u64> {
        let used = self.subtree_tokens.saturating_add(self.subtree_reserved_tokens);
        self.caps.tokens.map(|max| max.saturating_sub(used))
    }
}

/// What calls for one purpose have cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The thread that made them.
    pub thread: ThreadId,
    /// What they were for.
    pub attribution: Attribution,
    /// How many.
    pub calls: u64,
    /// Money.
    pub spend: Nanos,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// How many of them are charged an estimate because the real spend is unknown.
    pub unknown: u64,
}

/// A tree of threads in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeTotals {
    /// What its threads themselves have used, together.
    pub cost: Cost,
    /// Money reserved for calls in flight.
    pub reserved: Nanos,
    /// How many threads stand where; those with none left out.
    pub counts: Vec<(ThreadStatus, u64)>,
}

/// How much of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeScope {
    /// The thread alone.
    Thread,
    /// It and all below it.
    Subtree,
}

/// Something changed in a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadChange {
    /// Which.
    pub thread: ThreadId,
    /// Where it stands now, when that changed.
    pub status: Option<ThreadStatus>,
}

/// The rules of booking that settings may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerRules {
    /// Whether a parent is charged no more than was reserved (`report_actual.clamp_to_reserved`). What the thread itself
    /// spent is recorded in any case.
    pub clamp_to_reserved: bool,
    /// How a thread must end for its row to be closed (`release.on_status`); `None` is in any way.
    pub release_on_status: Option<Vec<String>>,
}
