//! `thread_directive` and `orchestrator` for the person who runs `rye execute`.

use std::sync::Arc;
use std::time::Duration;

use lillux::CancelToken;
use rye_agent::threads::{Threads, UserPolicy, UserThreadHost, UserThreads};
use rye_engine::{Error, Result};
use serde_json::{Map, Value, json};

use super::runner::{build_runtime, open_threads};
use crate::settings::Settings;

/// How often it is looked whether threads that run in this process have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The threads of this place, opened when a tool needs them.
struct LocalThreads {
    settings: Settings,
}

/// What a native tool needs to reach the threads of this place for the user.
pub fn user_threads(settings: &Settings) -> Arc<UserThreads> {
    Arc::new(UserThreads(Arc::new(LocalThreads { settings: settings.clone() })))
}

impl LocalThreads {
    fn run(&self, work: impl AsyncFnOnce(&Threads, &UserPolicy) -> Result<Value>) -> Result<Value> {
        let policy = UserPolicy { by: self.settings.owner.clone(), can_raise_limits: true };
        let threads = open_threads(&self.settings, self.settings.engine()?, None)?;
        build_runtime()?.block_on(async {
            let _watching = threads.watch();
            let response = work(&threads, &policy).await?;
            // What no other process runs ends with this one.
            while threads.running_count() > 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok::<_, Error>(response)
        })
    }
}

impl UserThreadHost for LocalThreads {
    fn start(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value> {
        self.run(async |threads, policy| {
            let mut response = threads.start_for_user(params, policy, cancel).await?;
            if let (Some(id), true) = (response["thread_id"].as_str(), response.get("control").is_some()) {
                response["follow"] = json!(format!("rye thread wait {id}"));
            }
            Ok(response)
        })
    }

    fn operate(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value> {
        self.run(async |threads, policy| threads.operate_for_user(params, policy, cancel).await)
    }
}
