//! The children of threads: started once, waited for, found again after a crash.

use std::sync::Arc;
use std::time::Duration;

use rye_agent::driver::{BoxFuture, ChildHandle, Children};
use rye_thread::action::Action;
use rye_thread::machine::ToolResult;
use rye_thread::spec::ThreadSpec;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::host::Process;
use super::world::{World, lock};

/// How often a parent looks at the child it waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(700);

/// The children of the threads of one host.
pub(super) struct SimChildren {
    world: Arc<World>,
    process: Arc<Process>,
}

impl SimChildren {
    pub(super) fn new(world: &Arc<World>, process: &Arc<Process>) -> Self {
        Self { world: Arc::clone(world), process: Arc::clone(process) }
    }

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
        handle.notify_started(super::templates::CHILD_DIRECTIVE);
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
                    let result = ToolResult { is_error, ..ToolResult::failure(content) };
                    return ToolResult { child, child_status, ..result };
                }
                None => return ToolResult::failure("the child was lost"),
                Some(_) => {}
            }
            if cancel.is_cancelled()
                && let Some((_, signal)) = lock(&self.process.running).get(id)
            {
                signal.cancel("its parent was cancelled");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
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
