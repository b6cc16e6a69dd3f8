//! Whether a worker is well, for the machine it runs on: `/health` and `/metrics`, on loopback alone. What is in there names
//! no thread, no person and no secret.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rye_agent::cluster::WorkerStatus;
use rye_engine::{Code, Error, Result};
use tokio_util::sync::CancellationToken;

use crate::http::{BoundedListener, HttpOptions, parse_address};

/// Says how a worker stands.
pub type StatusSource = Arc<dyn Fn() -> WorkerStatus + Send + Sync>;

/// Serves the status of a worker until `stop` is cancelled; `on_listen` gets the address.
///
/// # Errors
/// When the address is not one of this machine alone, or cannot be listened on.
pub async fn serve_worker_status(
    address: &str,
    status: StatusSource,
    stop: CancellationToken,
    on_listen: impl FnOnce(SocketAddr),
) -> Result<()> {
    let options = HttpOptions { address: address.to_owned(), behind_tls: false, hosts: Vec::new() };
    let address = parse_address(&options)?;
    let failed = |error: std::io::Error| {
        Error::new(Code::Serving, format!("cannot listen on {address}: {error}"))
            .hint("choose another port: rye worker --status 127.0.0.1:0 takes any free one")
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    on_listen(listener.local_addr().map_err(failed)?);
    let router =
        Router::new().route("/health", get(health)).route("/metrics", get(metrics)).with_state(status);
    let served = axum::serve(BoundedListener::new(listener), router.into_make_service());
    served.with_graceful_shutdown(stop.cancelled_owned()).await.map_err(failed)
}

async fn health(State(status): State<StatusSource>) -> Response {
    let status = status();
    let code = if status.is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_string(&status).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics(State(status): State<StatusSource>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], render_metrics(&status())).into_response()
}

/// The numbers, as Prometheus reads them.
fn render_metrics(status: &WorkerStatus) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("rye_worker_healthy", "gauge", "Whether the store can be reached", u64::from(status.is_healthy)),
        ("rye_worker_draining", "gauge", "Whether no more threads are taken", u64::from(status.is_draining)),
        ("rye_worker_threads_running", "gauge", "Threads at work", status.running as u64),
        ("rye_worker_trees_open", "gauge", "Trees that are open", status.trees as u64),
        ("rye_worker_threads_taken_total", "counter", "Threads that were taken", status.taken),
        ("rye_worker_threads_refused_total", "counter", "Threads that were refused", status.refused),
        ("rye_worker_threads_lost_total", "counter", "Threads that another process took", status.lost),
    ] {
        // Writing to a text does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_lines_of_numbers() {
        let text = render_metrics(&WorkerStatus { running: 3, taken: 7, ..WorkerStatus::default() });
        assert!(text.contains("\nrye_worker_threads_running 3\n"), "{text}");
        assert!(text.contains("\nrye_worker_threads_taken_total 7\n"), "{text}");
    }
}
