//! What every store of threads must hold to: one suite, run against each of them.
//!
//! ```text
//! rye_test::store_contract!(open_store);   // in a test of the store's crate
//! ```

pub mod approvals;
pub mod basics;
pub mod budget;
pub mod claims;
pub mod cluster;
pub mod properties;
pub mod retention;
pub mod rolling;
pub mod transfer;
pub mod waits;

use std::any::Any;

use lillux_hash::Digest;
use rye_store::{
    Approval, ApprovalDecision, Attribution, BudgetCaps, BudgetRefusal, BudgetResource, CancelRequest,
    ChargeScope, Claim, ClaimOutcome, ClaimPolicy, CommitOutcome, CreateOutcome, FolderDisposal,
    JournalRecord, LedgerRules, MAX_CANCEL_REQUEST_AGE_MS, NewThread, Owner, PruneOptions, Reservation,
    ReserveRequest, Settlement, SpawnCaps, StatusChange, StoreHandle, ThreadChange, ThreadCommit,
    ThreadFilter, ThreadRow, ThreadStoreError,
};
use rye_thread::cost::Cost;
use rye_thread::limits::ThreadLimits;
use rye_thread::money::Nanos;
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;
use serde_json::{Value, json};

/// Opens a new, empty store under these rules. What comes with it is kept as long as the store.
pub type OpenStore = fn(&LedgerRules) -> (StoreHandle, Box<dyn Any>);

/// Makes a test of each part of the contract, for the store that `$open` opens.
#[macro_export]
macro_rules! store_contract {
    ($open:expr) => {
        $crate::store_contract!(@each $open;
            approvals::questions_are_answered_once,
            approvals::answered_threads_are_found,
            approvals::repeated_question_undoes_its_commit,
            basics::thread_id_is_unique,
            basics::ended_thread_stays_ended,
            basics::suspended_thread_has_reason_and_resumes,
            basics::each_spawn_cap_is_enforced,
            basics::failing_commit_does_not_affect_batch,
            basics::failed_commit_changes_nothing,
            basics::trees_can_be_queried,
            basics::continuation_is_linked_both_ways,
            basics::blobs_are_shared_and_required,
            basics::subscribers_receive_local_changes,
            budget::call_is_reserved_on_every_ancestor,
            budget::tokens_are_budgeted_without_any_price,
            budget::refused_reservation_keeps_records,
            budget::crashed_call_is_charged_once,
            budget::clamp_limits_only_parent_charges,
            budget::release_on_status_closes_ledger_row,
            budget::charges_are_grouped_by_attribution,
            budget::oversized_numbers_are_rejected,
            budget::concurrent_children_never_exceed_budget,
            budget::only_one_end_wins,
            claims::stale_claim_cannot_commit,
            claims::last_commit_releases_the_claim,
            claims::only_threads_of_dead_processes_are_orphans,
            claims::child_of_detached_thread_is_detached,
            claims::claim_clears_the_note,
            claims::cancel_request_stays_until_cleared,
            claims::old_cancel_requests_are_removed,
            cluster::transcripts_are_kept_with_commits,
            cluster::submitted_threads_wait_for_workers,
            cluster::requested_threads_wait_for_workers_once,
            cluster::workers_are_listed_until_they_end,
            properties::ledger_sums_hold_and_caps_are_respected,
            retention::trees_in_use_are_not_pruned,
            retention::parts_go_with_their_threads,
            retention::blob_is_pruned_with_its_thread,
            retention::oldest_ended_trees_are_pruned,
            retention::automatic_prune_waits_a_day,
            rolling::trees_share_a_rolling_budget,
            rolling::clock_set_back_frees_no_money,
            rolling::unreserved_spend_counts_once,
            rolling::concurrent_trees_never_exceed_rolling_budget,
            transfer::threads_at_work_do_not_move,
            transfer::continued_trees_are_not_forgotten,
            transfer::trees_move_between_stores,
            waits::first_waiting_call_is_served_first,
            waits::silent_waiter_loses_its_turn,
            waits::children_get_places_in_order,
            waits::suspended_children_leave_their_places,
        );
    };
    (@each $open:expr; $($group:ident::$name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                $crate::store_contract::$group::$name($open);
            }
        )*
    };
}

/// A store under test.
struct TestStore {
    store: StoreHandle,
    _kept: Box<dyn Any>,
}

impl TestStore {
    fn new(open: OpenStore) -> Self {
        Self::with_rules(open, &LedgerRules::default())
    }

    fn with_rules(open: OpenStore, rules: &LedgerRules) -> Self {
        let (store, kept) = open(rules);
        Self { store, _kept: kept }
    }

    fn create(&self, new: NewThread) -> Claim {
        match self.store.create_blocking(new).expect("created") {
            CreateOutcome::Created { claim, .. } => claim,
            refused @ CreateOutcome::Refused { .. } => panic!("{refused:?}"),
        }
    }

    fn commit(&self, commit: ThreadCommit) -> CommitOutcome {
        self.store.commit_blocking(commit).expect("committed")
    }

    fn row(&self, number: u64) -> ThreadRow {
        self.store.thread(&thread_id(number)).expect("read").expect("a thread")
    }

    /// Suspends a thread that asks its user the question `one`.
    fn stop_to_ask(&self, thread: u64, claim: Claim) {
        let stop = StatusChange {
            reason: Some(SuspendReason::Approval),
            ..StatusChange::to(ThreadStatus::Suspended)
        };
        self.commit(ThreadCommit {
            approvals: vec![approval("one", thread)],
            status: Some(stop),
            is_last: true,
            ..commit_for(thread, claim)
        });
    }

    /// A person says yes to the question `one`.
    fn answer_question(&self) {
        self.store.answer_approval("one", &approvals::decision(true)).expect("answered");
    }
}

/// This process, to stores that ask the system and to those that do not.
#[must_use]
pub fn test_owner() -> Owner {
    Owner {
        pid: std::process::id(),
        pid_start: 0,
        boot_id: "this boot".to_owned(),
        host: "this host".to_owned(),
    }
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
        at_ms: 1_000,
    }
}

fn commit_for(thread: u64, claim: Claim) -> ThreadCommit {
    ThreadCommit::new(thread_id(thread), claim, 1)
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
        attribution: Attribution {
            item: "demo/hello".to_owned(),
            model: "model".to_owned(),
            tool: None,
            hook: None,
        },
    }
}

fn approval(id: &str, thread: u64) -> Approval {
    Approval {
        id: id.to_owned(),
        thread: thread_id(thread),
        kind: "tool".to_owned(),
        prompt: "may I".to_owned(),
        reason: "because".to_owned(),
        at_ms: 1,
        detail: Value::Null,
    }
}
