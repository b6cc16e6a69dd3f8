//! What the drivers of all threads of a space share: where they commit, what runs their calls, what they write with.

use std::path::PathBuf;
use std::sync::Arc;

use rye_engine::Result;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::SharedEngineProvider;
use super::preparer::ThreadPreparer;
use super::records::ThreadRecords;
use super::responses::{StoreBudget, ThreadArtifacts};
use crate::action::Action;
use crate::callback::TokenIssuer;
use crate::dispatch::{Dispatcher, EngineDispatcher};
use crate::driver::{
    BoxFuture, ChildHandle, Children, DriverDeps, Listener, MillisClock, SlottedPool, StopRecorder,
    ThreadJournal, system_jitter,
};
use crate::envelope::ResultEnvelope;
use crate::machine::ToolResult;
use crate::rolling::{RollingBudget, RollingBudgets};
use crate::spec::ThreadSpec;
use crate::store::{CommitOutcome, StoreHandle, ThreadCommit, ThreadStore, ThreadStoreError};
use crate::thread_id::ThreadId;

/// What drivers get.
pub(super) struct DriverSetup {
    pub(super) journal: Arc<CommitJournal>,
    pub(super) preparer: Arc<ThreadPreparer>,
    pub(super) records: Arc<ThreadRecords>,
    pub(super) dispatcher: Arc<EngineDispatcher>,
    pub(super) token_issuer: Arc<TokenIssuer>,
    pub(super) listener: Option<Arc<dyn Listener>>,
    pub(super) clock: Arc<dyn MillisClock>,
    /// `.ai/threads` of the space.
    pub(super) folder: PathBuf,
    /// What tools that run in their own threads reach of the store.
    pub(super) store: StoreHandle,
    /// What else is recorded of threads that stop.
    pub(super) stop_recorder: Option<Arc<dyn StopRecorder>>,
}

impl DriverSetup {
    /// What the driver of this thread gets.
    pub(super) fn deps(&self, id: &ThreadId, children: Arc<dyn Children>) -> DriverDeps {
        DriverDeps {
            journal: Arc::clone(&self.journal) as Arc<dyn ThreadJournal>,
            dispatcher: Arc::clone(&self.dispatcher) as Arc<dyn Dispatcher>,
            children,
            listener: self.listener.clone(),
            clock: Arc::clone(&self.clock),
            redactor: self.preparer.redactor(),
            signer: self.records.signer(),
            token_issuer: Arc::clone(&self.token_issuer),
            threads_dir: self.folder.clone(),
            blocking: Arc::new(SlottedPool(Arc::clone(&self.preparer.blocking_slots))),
            jitter: Arc::new(system_jitter),
            budget: Some(Arc::new(StoreBudget(self.store.clone()))),
            artifacts: Some(Arc::new(ThreadArtifacts(self.store.clone(), id.clone(), self.clock.now_ms()))),
            stop_recorder: self.stop_recorder.clone(),
        }
    }
}

/// The store as drivers commit to it: with who asks a person, and the budgets of days and months that a call counts against.
pub(super) struct CommitJournal {
    pub(super) store: Arc<dyn ThreadStore>,
    pub(super) records: Arc<ThreadRecords>,
    pub(super) engine: SharedEngineProvider,
    pub(super) clock: Arc<dyn MillisClock>,
    pub(super) rolling: RollingBudgets,
}

impl CommitJournal {
    /// The budgets of a day or a month that a commit's spending counts against.
    async fn rolling_budgets(&self, commit: &ThreadCommit) -> Result<Vec<RollingBudget>> {
        let settings = match (self.engine)() {
            Ok(engine) => self.rolling.current(&engine.workspace)?,
            Err(error) => self.rolling.last().ok_or(error)?,
        };
        if settings.caps.is_empty() {
            return Ok(Vec::new());
        }
        let directives = self.rolling.directives(&*self.store, &settings, &commit.thread).await?;
        settings.budgets(&directives, commit.at_ms, || self.clock.time_zone())
    }
}

impl ThreadJournal for CommitJournal {
    fn keeps_transcripts(&self) -> bool {
        self.store.keeps_transcripts()
    }

    fn commit(
        &self,
        mut commit: ThreadCommit,
    ) -> BoxFuture<'_, std::result::Result<CommitOutcome, ThreadStoreError>> {
        Box::pin(async move {
            for approval in &mut commit.approvals {
                approval.detail["chain"] = self.records.ancestry_value(&approval.thread).await;
            }
            if commit.reservation.is_some() || !commit.settlements.is_empty() {
                match self.rolling_budgets(&commit).await {
                    Ok(budgets) => commit.rolling = budgets,
                    // What was spent is recorded in any case.
                    Err(_) if commit.reservation.is_none() => {}
                    Err(error) => {
                        return Err(ThreadStoreError::Failed(rye_item::text::one_line(&error.to_string())));
                    }
                }
            }
            self.store.commit(commit).await
        })
    }
}

/// The children of a thread that is only ended: none is started.
pub(super) struct NoChildren;

const ENDED: &str = "the thread has ended";

impl Children for NoChildren {
    fn spawn(
        self: Arc<Self>,
        _parent: Arc<ThreadSpec>,
        _call: Action,
        _cancel_token: CancellationToken,
        _handle: ChildHandle,
    ) -> BoxFuture<'static, ToolResult> {
        Box::pin(std::future::ready(ToolResult::failure(ENDED)))
    }

    fn orchestrate(
        self: Arc<Self>,
        _caller: Arc<ThreadSpec>,
        _call: Action,
        _cancel_token: CancellationToken,
    ) -> BoxFuture<'static, ToolResult> {
        Box::pin(std::future::ready(ToolResult::failure(ENDED)))
    }

    fn run_for_hook(
        self: Arc<Self>,
        _parent: Arc<ThreadSpec>,
        _hook: String,
        _call: Action,
        _cancel_token: CancellationToken,
    ) -> BoxFuture<'static, Value> {
        Box::pin(std::future::ready(ResultEnvelope::failure(ENDED)))
    }
}
