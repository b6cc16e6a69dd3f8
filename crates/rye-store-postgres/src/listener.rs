//! Learning that other processes changed the store: from the database's notifications, with a look now and then behind
//! them in case one was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::Shared;
use crate::db::Db;
use crate::db_error::DbError;
use crate::writer::{RECONNECT_DELAY, next_delay};

/// How often the store is looked at without having been notified.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A number that changes with the store.
#[derive(Debug, Default)]
pub(crate) struct StoreVersion(AtomicI64);

impl StoreVersion {
    pub(crate) fn bump(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn current(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Listens for as long as the store is open.
pub(crate) async fn listen(shared: Arc<Shared>) {
    let mut delay = RECONNECT_DELAY;
    loop {
        // A connection that broke is made again; what was missed meanwhile counts as a change.
        let (before, _) = (shared.version.current(), listen_once(&shared).await);
        let was_listening = shared.version.current() != before;
        shared.version.bump();
        tokio::time::sleep(delay).await;
        delay = if was_listening { RECONNECT_DELAY } else { next_delay(delay) };
    }
}

async fn listen_once(shared: &Shared) -> Result<(), DbError> {
    let (db, mut notifications) = Db::connect(&shared.address).await?;
    db.batch(&format!("LISTEN \"{}\"", shared.address.channel())).await?;
    shared.version.bump();
    let mut last = String::new();
    loop {
        match tokio::time::timeout(POLL_INTERVAL, notifications.recv()).await {
            Ok(Some(())) => {
                // Several at once are one change.
                while notifications.try_recv().is_ok() {}
                shared.version.bump();
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                // Which transactions have ended: another text says that something may have been written.
                let found: String = db.query_value("SELECT pg_current_snapshot()::text", &[]).await?;
                if found != last {
                    last = found;
                    shared.version.bump();
                }
            }
        }
    }
}
