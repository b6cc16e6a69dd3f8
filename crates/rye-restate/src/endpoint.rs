//! What Restate calls: the object `Thread` with its one handler, `drive`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use restate_sdk::endpoint::{Endpoint, ServiceOptions};
use restate_sdk::errors::{HandlerError, TerminalError};
use restate_sdk::prelude::ObjectContext;
use restate_sdk::service::IntoServiceDefinition as _;
use rye_thread::thread_id::ThreadId;

/// The name of the object, with a thread's id as its key.
pub const SERVICE: &str = "Thread";

/// A thread may be at work, or wait for its model, for as long as its limits say: Restate ends no call for being quiet.
const MAX_DRIVE_TIME: Duration = Duration::from_secs(365 * 86_400);
/// When a call that failed is made again for the first time.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// How much longer each pause is than the one before.
const RETRY_FACTOR: f64 = 1.5;
/// The longest pause.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How often a call is made: until the thread has ended. The server's own default would stop after some.
const MAX_ATTEMPTS: u64 = 1_000_000_000;
/// For how long Restate remembers which keys were sent.
const KEY_RETENTION: Duration = Duration::from_secs(86_400);

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveReply {
    /// The thread has ended, or waits for a person: it is sent again when it waits for a worker.
    Done,
    /// Not here, or not now; and why.
    Later(String),
    /// There is no such thread that workers run, and why.
    Refused(String),
}

/// Runs threads: a worker.
pub trait DriveHandler: Send + Sync + 'static {
    /// Claims a thread and runs it until it ends or stops. Dropping the future does not stop the thread.
    fn drive(&self, thread: ThreadId) -> BoxFuture<'static, DriveReply>;
}

struct ThreadObject {
    handler: Arc<dyn DriveHandler>,
}

#[restate_sdk::object(name = "Thread")]
impl ThreadObject {
    #[handler]
    async fn drive(&self, ctx: ObjectContext<'_>) -> Result<(), HandlerError> {
        let key = ctx.key();
        let Ok(thread) = ThreadId::parse(key) else {
            return Err(TerminalError::new_with_code(400, "invalid thread id").into());
        };
        match self.handler.drive(thread).await {
            DriveReply::Done => Ok(()),
            DriveReply::Later(reason) => Err(HandlerError::from(reason)),
            DriveReply::Refused(reason) => Err(TerminalError::new_with_code(404, reason).into()),
        }
    }
}

/// The endpoint with its object.
pub(crate) fn endpoint(handler: Arc<dyn DriveHandler>) -> Endpoint {
    let options = ServiceOptions::new()
        .inactivity_timeout(MAX_DRIVE_TIME)
        .abort_timeout(MAX_DRIVE_TIME)
        .idempotency_retention(KEY_RETENTION)
        .journal_retention(Duration::ZERO)
        .enable_lazy_state(true)
        .retry_policy_initial_interval(FIRST_RETRY)
        .retry_policy_exponentiation_factor(RETRY_FACTOR)
        .retry_policy_max_interval(MAX_RETRY_INTERVAL)
        .retry_policy_max_attempts(MAX_ATTEMPTS)
        .retry_policy_pause_on_max_attempts();
    let definition = ThreadObject { handler }.into_service_definition().options(options);
    Endpoint::builder().bind(definition).build()
}
