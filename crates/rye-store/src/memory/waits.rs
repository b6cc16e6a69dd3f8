//! Threads that wait for reserved money, or for a place among their parent's children.

use rye_thread::machine::{BudgetRefusal, BudgetResource};
use rye_thread::status::ThreadStatus;

use super::{MemoryTables, MemoryThread};
use crate::{ReserveRequest, SpawnCaps, WAIT_LEASE_MS, WaitKind};

/// A thread that waits.
#[derive(Clone, Debug)]
pub(super) struct MemoryWait {
    pub(super) kind: WaitKind,
    /// Who comes first.
    ticket: u64,
    /// The row of the ledger that is short.
    blocked_by: Option<i64>,
    spend: u64,
    tokens: u64,
    seen_ms: u64,
}

impl MemoryTables {
    /// What threads that came before `thread` wait for at a row of the ledger: money and tokens.
    pub(super) fn ahead(&self, thread: i64, row: i64, at_ms: u64) -> (u64, u64) {
        let own = self.waits.get(&thread).filter(|wait| wait.kind == WaitKind::Budget);
        let own = own.map_or(u64::MAX, |wait| wait.ticket);
        let older = self.waits.iter().filter(|(number, wait)| {
            **number != thread
                && wait.blocked_by == Some(row)
                && wait.ticket < own
                && wait.seen_ms.saturating_add(WAIT_LEASE_MS) >= at_ms
        });
        older.fold((0, 0), |(spend, tokens), (_, wait)| {
            (spend.saturating_add(wait.spend), tokens.saturating_add(wait.tokens))
        })
    }

    /// Keeps the thread's turn after a refusal, or gives it up.
    pub(super) fn after_reserve(
        &mut self,
        thread: i64,
        request: ReserveRequest,
        refusal: Option<&BudgetRefusal>,
        at_ms: u64,
    ) {
        let waits_for = refusal.filter(|refusal| request.can_wait && refusal.is_only_reserved());
        let Some(refusal) = waits_for else {
            self.waits.remove(&thread);
            return;
        };
        let (spend, tokens) = match refusal.resource {
            BudgetResource::Spend => (request.spend.0, 0),
            BudgetResource::Tokens => (0, request.tokens),
        };
        let ticket = self.waits.get(&thread).map_or_else(|| self.next_ticket(), |wait| wait.ticket);
        let blocked_by = self.rows.get(&refusal.refused_by).copied();
        let kind = WaitKind::Budget;
        self.waits.insert(thread, MemoryWait { kind, ticket, blocked_by, spend, tokens, seen_ms: at_ms });
    }

    fn next_ticket(&self) -> u64 {
        self.waits.values().map(|wait| wait.ticket).max().unwrap_or(0) + 1
    }

    /// Lets a new child wait for its place.
    pub(super) fn queue_child(&mut self, thread: i64, at_ms: u64) {
        let (kind, ticket) = (WaitKind::Concurrency, self.next_ticket());
        let wait = MemoryWait { kind, ticket, blocked_by: None, spend: 0, tokens: 0, seen_ms: at_ms };
        self.waits.insert(thread, wait);
    }

    /// Children of a parent that are at work: they have not ended or stopped, and do not wait for a place.
    pub(super) fn count_children_at_work(&self, parent: Option<i64>) -> u64 {
        self.count_placed(&|thread| thread.parent == parent && thread.row.status != ThreadStatus::Suspended)
    }

    /// Threads that have not ended and do not wait for a place.
    pub(super) fn count_placed(&self, is_counted: &dyn Fn(&MemoryThread) -> bool) -> u64 {
        let is_queued =
            |number: &i64| self.waits.get(number).is_some_and(|wait| wait.kind == WaitKind::Concurrency);
        let live = self.threads.iter().filter(|(_, thread)| thread.row.completed_at.is_none());
        live.filter(|(number, thread)| !is_queued(number) && is_counted(thread)).count() as u64
    }

    /// Children of a parent that wait for a place: all of them, or those that came before `ticket` and still say so.
    pub(super) fn count_queued(&self, parent: i64, before: Option<(u64, u64)>) -> u64 {
        let is_ahead = |wait: &MemoryWait| {
            before.is_none_or(|(ticket, at_ms)| {
                wait.ticket < ticket && wait.seen_ms.saturating_add(WAIT_LEASE_MS) >= at_ms
            })
        };
        let queued = self.waits.iter().filter(|(number, wait)| {
            wait.kind == WaitKind::Concurrency
                && is_ahead(wait)
                && self.threads.get(number).is_some_and(|thread| thread.parent == Some(parent))
        });
        queued.count() as u64
    }

    /// Gives a child its place, if it is its turn.
    pub(super) fn admit(&mut self, thread: i64, caps: SpawnCaps, at_ms: u64) -> bool {
        let Some(wait) = self.waits.get(&thread).filter(|wait| wait.kind == WaitKind::Concurrency) else {
            return true;
        };
        let ticket = wait.ticket;
        let (parent, root) =
            self.threads.get(&thread).map_or((None, 0), |thread| (thread.parent, thread.root));
        let ahead = parent.map_or(0, |parent| self.count_queued(parent, Some((ticket, at_ms))));
        let placed = self.count_children_at_work(parent);
        let total = self.count_placed(&|thread| thread.root == root);
        let is_turn = caps.concurrent_children.is_none_or(|max| placed + ahead < max)
            && caps.total_threads.is_none_or(|max| total < max);
        if is_turn {
            self.waits.remove(&thread);
        } else if let Some(wait) = self.waits.get_mut(&thread) {
            wait.seen_ms = at_ms;
        }
        is_turn
    }
}
