//! Restate as what calls workers: `rye-restate` between the settings of a store and a worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use rye_restate::{DriveHandler, DriveReply, EndpointSetup, RestateClient, RestateSettings};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::dispatch::ThreadDispatch;
use super::worker::{DriveOutcome, Worker};
use crate::driver::BoxFuture;
use crate::thread_id::ThreadId;

/// How long the same thread is not sent again with the same epoch: those that wait for it ask often.
const SENT_TTL: Duration = Duration::from_secs(10);
/// Threads that are remembered as sent.
const MAX_SENT: usize = 4096;
/// How long to wait before the endpoint is registered again where that failed.
const REGISTER_RETRY_INTERVAL: Duration = Duration::from_secs(3);
/// How often it is looked whether Restate still knows the endpoint: it may have lost its data.
const REGISTER_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The Restate server that the settings of a store describe.
#[derive(Debug)]
pub(super) struct RestateDispatch {
    client: Arc<RestateClient>,
    sent: Mutex<HashMap<(ThreadId, u64), Instant>>,
}

impl RestateDispatch {
    /// Reads `threads.stores.NAME.restate`.
    pub(super) fn from_settings(
        store: &str,
        settings: Option<&Value>,
    ) -> Result<Option<Arc<dyn ThreadDispatch>>> {
        let Some(settings) = settings.filter(|settings| !settings.is_null()) else { return Ok(None) };
        let invalid = |message: String| {
            Error::new(Code::StoreUnusable, format!("threads.stores.{store}.restate: {message}"))
                .hint("see docs/cluster.md for the settings of Restate")
        };
        let settings = RestateSettings::from_value(settings).map_err(invalid)?;
        let client = RestateClient::new(settings).map_err(|error| invalid(error.to_string()))?;
        Ok(Some(Arc::new(Self { client: Arc::new(client), sent: Mutex::default() })))
    }

    fn is_sent(&self, thread: &ThreadId, epoch: u64) -> bool {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get(&(thread.clone(), epoch)).is_some_and(|at| at.elapsed() < SENT_TTL)
    }

    fn remember_sent(&self, thread: &ThreadId, epoch: u64) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.retain(|_, at| at.elapsed() < SENT_TTL);
        if sent.len() < MAX_SENT {
            sent.insert((thread.clone(), epoch), Instant::now());
        }
    }
}

impl ThreadDispatch for RestateDispatch {
    fn hand_over(&self, thread: &ThreadId, epoch: u64) -> Result<()> {
        if self.is_sent(thread, epoch) {
            return Ok(());
        }
        self.client.send(thread, epoch).map_err(|error| {
            let error = Error::new(Code::NotHandedOver, format!("{thread} was not handed over: {error}"));
            match self.poll_interval() {
                Some(interval) => error
                    .hint(format!("it is not lost: a worker looks for it every {} s", interval.as_secs())),
                None => error.hint(
                    "it is not lost, but workers do not look for it: poll_seconds is 0 in the settings",
                ),
            }
        })?;
        self.remember_sent(thread, epoch);
        Ok(())
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.client.settings().poll_interval
    }

    fn inspect(&self) -> Result<String> {
        let ingress = &self.client.settings().ingress;
        match self.client.check_ingress() {
            Ok(()) => Ok(format!("Restate at {ingress} answers")),
            Err(error) => Err(Error::new(Code::NotHandedOver, error.to_string())),
        }
    }

    fn serve(&self, worker: Arc<Worker>, drain: CancellationToken) -> BoxFuture<'static, Result<()>> {
        let client = Arc::clone(&self.client);
        Box::pin(async move {
            let settings = client.settings();
            let clock = worker.clock();
            let setup = EndpointSetup {
                identity_keys: settings.identity_keys.clone(),
                handler: Arc::new(WorkerHandler(Arc::clone(&worker))),
                now_seconds: Arc::new(move || clock.now_ms() / 1000),
                log: {
                    let worker = Arc::clone(&worker);
                    Arc::new(move |line: &str| worker.log(line))
                },
            };
            let listen = settings.listen;
            let listener = rye_restate::listen(listen).map_err(|error| {
                let message = format!("cannot listen at {listen} for Restate: {error}");
                Error::new(Code::StoreUnusable, message)
                    .hint("name another address: threads.stores.NAME.restate.listen")
            })?;
            worker.log(&format!("Restate calls it at {listen}"));
            let registering = keep_registered(Arc::clone(&client), Arc::clone(&worker), drain.clone());
            tokio::join!(registering, rye_restate::serve(setup, listener, drain));
            Ok(())
        })
    }
}

/// Registers the endpoint as soon as Restate can be reached, and again should it have forgotten.
async fn keep_registered(client: Arc<RestateClient>, worker: Arc<Worker>, drain: CancellationToken) {
    let endpoint = client.settings().endpoint.clone();
    if client.settings().admin.is_none() {
        worker.log(&format!(
            "no `admin` in the settings of Restate; register it: restate deployments register {endpoint}"
        ));
        worker.hand_over_waiting().await;
        return;
    }
    let (mut is_registered, mut last_error) = (false, String::new());
    while !drain.is_cancelled() {
        let asking = Arc::clone(&client);
        let asked = tokio::task::spawn_blocking(move || match is_registered {
            true => asking.knows_service(),
            false => asking.register().map(|()| true),
        });
        let Ok(answer) = asked.await else { return };
        let was_registered = is_registered;
        match answer {
            Ok(known) => is_registered = known,
            Err(error) if error.to_string() != last_error => {
                last_error = error.to_string();
                worker.log(&last_error);
            }
            Err(_) => {}
        }
        if is_registered && !was_registered {
            last_error.clear();
            worker.log(&format!("registered {endpoint} with Restate"));
            worker.hand_over_waiting().await;
        }
        let pause = if is_registered { REGISTER_CHECK_INTERVAL } else { REGISTER_RETRY_INTERVAL };
        tokio::select! {
            () = drain.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// A worker as what Restate calls.
struct WorkerHandler(Arc<Worker>);

impl DriveHandler for WorkerHandler {
    fn drive(&self, thread: ThreadId) -> futures_util::future::BoxFuture<'static, DriveReply> {
        let worker = Arc::clone(&self.0);
        async move {
            let driving = Arc::clone(&worker);
            // The call may break off; the thread continues all the same.
            let driven = tokio::spawn(async move { driving.drive(&thread).await }).await;
            let later = |reason: String| {
                DriveReply::Later(format!("worker {}: {}", worker.name(), one_line(&reason)))
            };
            match driven {
                Ok(DriveOutcome::Done) => DriveReply::Done,
                Ok(DriveOutcome::Later(reason)) => later(reason),
                Ok(DriveOutcome::Refused(reason)) => DriveReply::Refused(reason),
                Err(error) => later(error.to_string()),
            }
        }
        .boxed()
    }
}
