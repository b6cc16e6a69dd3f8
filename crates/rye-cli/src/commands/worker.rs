//! `worker`: run what is submitted to a store that machines share.

use std::sync::Arc;
use std::time::Duration;

use lillux::file::TempDirPool;
use rye_agent::cluster::{Worker, WorkerSetup};
use rye_agent::store::{SharedStoreConfig, current_owner};
use rye_engine::{Code, Error};
use rye_server::serve_worker_status;
use rye_space::Roots;
use tokio_util::sync::CancellationToken;

use super::CommandResult;
use crate::arguments::WorkerArguments;
use crate::global::GlobalArguments;
use crate::output::{DIM, Output, paint};
use crate::settings::{self, Settings, ThreadClock};

/// `rye worker`
pub fn run(global: &GlobalArguments, arguments: &WorkerArguments) -> CommandResult {
    let settings = Settings::read(global)?;
    // What a worker trusts is its own user space: no project around it says anything.
    let roots = Roots { project: None, ..settings.roots.clone() };
    let settings = Settings { roots, launcher: settings.launcher.clone().with_pool(), ..settings };
    let engine = Arc::new(settings.engine()?);
    let config = SharedStoreConfig::named(&engine, &arguments.store)?;
    let output = Output::new(global, None, false);
    let name = arguments.name.clone().unwrap_or_else(|| current_owner().host);
    let worker = Worker::open(WorkerSetup {
        name: name.clone(),
        config,
        labels: arguments.labels.clone(),
        secrets: arguments.secrets.clone(),
        allowed_checkout_prefixes: arguments.allowed_checkout_prefixes.clone(),
        max_threads: usize::try_from(arguments.max_threads).unwrap_or(usize::MAX),
        drain_timeout: Duration::from_secs(arguments.drain_seconds),
        environment: settings.host().variables,
        home: settings.home.clone(),
        launcher: settings.launcher.clone(),
        temporary_folders: TempDirPool::with_capacity(4),
        clock: Arc::new(ThreadClock),
        engine_clock: settings::system_clock,
        log: Arc::new(move |line| output.note(line)),
        engine,
    })?;
    let labels: Vec<&str> = worker.labels().iter().map(String::as_str).collect();
    output.note(format_args!(
        "worker {name} on {}; it offers {}",
        rye_item::text::one_line(&arguments.store),
        paint(DIM, labels.join(", "))
    ));
    let drain = CancellationToken::new();
    settings::on_termination_signals({
        let drain = drain.clone();
        move || {
            // The second one ends it at once; leases end by themselves.
            if drain.is_cancelled() {
                std::process::exit(i32::from(Code::ThreadCancelled.kind().exit_code()));
            }
            drain.cancel();
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("rye-worker")
        .enable_all()
        .build()
        .map_err(|error| Error::new(Code::Io, format!("cannot run threads: {error}")))?;
    let stop = CancellationToken::new();
    let result = runtime.block_on(async {
        let Some(address) = arguments.status.clone() else { return worker.run(&drain).await };
        let source = {
            let worker = Arc::clone(&worker);
            Arc::new(move || worker.status())
        };
        let serving = serve_worker_status(&address, source, stop.clone(), |address| {
            output.note(format_args!("status on http://{address}/health"));
        });
        tokio::select! {
            result = worker.run(&drain) => result,
            served = serving => served,
        }
    });
    stop.cancel();
    runtime.shutdown_timeout(Duration::from_secs(2));
    Ok(result?)
}
