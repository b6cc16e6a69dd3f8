//! The workers of a store that machines share, and which of them a thread is at work on.

use rye_engine::Result;
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::cluster::{WORKER_HOST, WorkerOffer};
use crate::store::{ThreadRow, WorkerRecord};

fn worker_value(worker: &WorkerRecord) -> Value {
    // What a key that is not listed signed is not shown.
    let offer = worker.signer.as_ref().and_then(|_| serde_json::from_str::<WorkerOffer>(&worker.body).ok());
    let (is_listed, offer) = (offer.is_some(), offer.unwrap_or_default());
    json!({
        "name": worker.name,
        "is_listed": is_listed,
        "host": offer.host,
        "labels": offer.labels,
        "running": offer.running,
        "max_threads": offer.max_threads,
        "is_draining": offer.is_draining,
        "seen_ms": worker.seen_ms,
        "signer": worker.signer,
    })
}

/// The workers that have not ended, as JSON; none where one machine keeps the threads.
///
/// # Errors
/// When the store cannot be read.
pub fn workers_value(index: &ThreadIndex) -> Result<Value> {
    let workers: Vec<Value> = index.store.workers()?.iter().map(worker_value).collect();
    Ok(json!({"is_shared": index.is_shared(), "workers": workers}))
}

impl ThreadIndex {
    /// The worker that a thread is at work on, by name.
    #[must_use]
    pub fn worker<'a>(&self, row: &'a ThreadRow) -> Option<&'a str> {
        let owner = row.owner.as_ref().filter(|_| self.is_active(row) && !row.is_forged)?;
        owner.host.strip_prefix(WORKER_HOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_workers_say_nothing() {
        let body = serde_json::to_string(&WorkerOffer {
            host: "build-3".to_owned(),
            max_threads: 4,
            ..WorkerOffer::default()
        })
        .expect("an offer");
        let signed = WorkerRecord { name: "a".to_owned(), body, seen_ms: 7, signer: Some("f00d".to_owned()) };
        let unsigned = WorkerRecord { signer: None, ..signed.clone() };
        let shown = [worker_value(&signed), worker_value(&unsigned)];
        assert_eq!(shown.each_ref().map(|value| value["host"].clone()), [json!("build-3"), json!("")]);
        assert_eq!(shown.each_ref().map(|value| value["is_listed"].clone()), [json!(true), json!(false)]);
        assert_eq!(shown.each_ref().map(|value| value["max_threads"].clone()), [json!(4), json!(0)]);
    }
}
