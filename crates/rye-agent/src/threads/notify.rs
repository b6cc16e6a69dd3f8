//! Telling the user's own commands and webhooks when a thread asks, completes, fails or is suspended.
//!
//! While a thread runs that they are to be told of, a file says so; it goes when they were told. A process that is killed
//! in between leaves the file, and the next that opens this place tells them, from what the store holds: each is reported at
//! least once, under an id that is the same each time. A notification that fails is logged and changes no thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::{self, FileMode};
use rye_engine::verbs::notify::{NotificationEvent, NotificationTargets};
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use rye_item::timestamp::iso_timestamp;
use serde_json::{Value, json};

use super::{ThreadRuntime, Threads};
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{Approval, Owner, ThreadRow, is_owner_gone};
use crate::thread_id::ThreadId;

/// The folder of what is owed and what was sent, in the folder of threads.
const NOTIFICATIONS_DIR: &str = ".notifications";

/// The file that lists what was sent.
const LOG_FILE: &str = "sent.jsonl";

/// The log is begun again when it is larger than this.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// The longest file that says what is owed.
const MAX_OWED_BYTES: u64 = 4096;

/// The longest text of a notification.
const MAX_MESSAGE_CHARS: usize = 2000;

/// What came of one notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentNotification {
    /// The notification's id: the same if it was sent again.
    pub id: String,
    /// The name that the user gave it.
    pub target: String,
    /// What it was about.
    pub event: String,
    /// Why it was not delivered.
    pub error: Option<String>,
}

impl SentNotification {
    fn to_value(&self, thread: &ThreadId, at_ms: u64) -> Value {
        json!({
            "at": iso_timestamp(at_ms), "id": self.id, "thread_id": thread, "target": self.target,
            "event": self.event, "error": self.error,
        })
    }

    fn from_value(value: &Value) -> Option<Self> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(one_line);
        Some(Self { id: text("id")?, target: text("target")?, event: text("event")?, error: text("error") })
    }
}

/// What was sent of a thread, the oldest first, as far as the log goes back.
#[must_use]
pub fn sent_notifications(threads: &Path, thread: &ThreadId) -> Vec<SentNotification> {
    let log = threads.join(NOTIFICATIONS_DIR).join(LOG_FILE);
    let Ok((bytes, _)) = file::read_bounded(&log, MAX_LOG_BYTES * 2) else { return Vec::new() };
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let own = lines.filter(|line| line["thread_id"] == thread.as_str());
    own.filter_map(|line| SentNotification::from_value(&line)).collect()
}

impl Threads {
    /// Sends the notifications that a thread's state calls for, whether they were sent before or not.
    ///
    /// # Errors
    /// When there is no such thread, or nothing is sent of threads that stand where it does.
    pub fn notify(&self, id: &ThreadId) -> Result<Vec<SentNotification>> {
        let targets = self.runtime.notification_targets();
        if let (true, Some(notice)) = (targets.targets.is_empty(), targets.notices.first()) {
            return Err(Error::new(Code::ThreadConfig, notice.clone()));
        }
        let sent = self.runtime.send_notifications(id, &targets)?;
        if sent.is_empty() {
            let message = format!("no notification is configured for what {id} does");
            return Err(Error::new(Code::ThreadConfig, message).hint("rye config show agent/notifications"));
        }
        Ok(sent)
    }
}

impl ThreadRuntime {
    /// What the user wants to be told.
    pub(super) fn notification_targets(&self) -> Arc<NotificationTargets> {
        let load = || {
            let engine = (self.setup.engine)()?;
            self.notifications.current(&engine.workspace, NotificationTargets::load)
        };
        // Nothing of a thread depends on it.
        load().unwrap_or_else(|_| self.notifications.last().unwrap_or_default())
    }

    /// A thread begins to run here: its notifications are owed from now on.
    pub(super) fn owe_notifications(&self, id: &ThreadId) {
        if self.notification_targets().targets.is_empty() {
            return;
        }
        let Owner { pid, pid_start, boot_id, host } = &self.owner;
        let owner = json!({"pid": pid, "pid_start": pid_start, "boot_id": boot_id, "host": host});
        let write = || {
            self.make_notifications_dir()?;
            file::write_atomic(&self.owed_path(id), owner.to_string().as_bytes(), FileMode::Private)
        };
        // Without the file they are told as well, unless this process is killed.
        let _ = write();
    }

    /// A thread has ended or stopped here: those who are to be told are.
    pub(super) async fn notify_stopped(self: &Arc<Self>, id: &ThreadId) {
        if self.notification_targets().targets.is_empty() {
            return;
        }
        let (runtime, id) = (Arc::clone(self), id.clone());
        let work = move || runtime.deliver(&id);
        let _ = tokio::task::spawn_blocking(work).await;
    }

    /// Tells what processes that were killed did not.
    pub(super) fn deliver_owed(self: &Arc<Self>) {
        let entries = fs_err::read_dir(self.notifications_dir()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let owed: Vec<ThreadId> =
            names.filter_map(|name| ThreadId::parse(name.strip_suffix(".json")?).ok()).collect();
        if owed.is_empty() {
            return;
        }
        let runtime = Arc::clone(self);
        let work = move || {
            for id in owed.into_iter().filter(|id| runtime.is_undelivered(id)) {
                runtime.deliver(&id);
            }
        };
        let _ = std::thread::Builder::new().name("notifications".to_owned()).spawn(work);
    }

    /// Whether a thread has stopped and the process that owes its notifications is gone.
    fn is_undelivered(&self, id: &ThreadId) -> bool {
        let read = || -> Option<Owner> {
            let (bytes, _) = file::read_bounded(&self.owed_path(id), MAX_OWED_BYTES).ok()?;
            let owner: Value = serde_json::from_slice(&bytes).ok()?;
            Some(Owner {
                pid: owner["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())?,
                pid_start: owner["pid_start"].as_u64()?,
                boot_id: owner["boot_id"].as_str()?.to_owned(),
                host: owner["host"].as_str()?.to_owned(),
            })
        };
        if read().is_some_and(|owner| !is_owner_gone(&owner, &self.owner)) {
            return false;
        }
        match self.records.reader().store.thread(id) {
            Ok(Some(row)) => row.status.is_terminal() || row.status == ThreadStatus::Suspended,
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Sends what a thread's state calls for; nothing is owed of it afterwards.
    fn deliver(self: &Arc<Self>, id: &ThreadId) {
        let targets = self.notification_targets();
        // What failed is in the log, and is not tried again.
        let _ = self.send_notifications(id, &targets);
        let name = Path::new(NOTIFICATIONS_DIR).join(format!("{id}.json"));
        let _ = file::remove_beneath(&self.setup.folder, &name);
    }

    fn send_notifications(
        &self,
        id: &ThreadId,
        targets: &NotificationTargets,
    ) -> Result<Vec<SentNotification>> {
        let row = self.records.reader().store.verified_thread(id)?;
        let row = row.ok_or_else(|| Error::from(crate::store::ThreadStoreError::NoThread(id.clone())))?;
        let mut approvals = self.records.reader().store.open_approvals(Some(id))?.approvals;
        approvals.retain(|approval| approval.thread == *id);
        let Some(event) = notification_event(&row, &approvals) else { return Ok(Vec::new()) };
        let is_wanted = |includes_children: bool| {
            row.parent.is_none() || includes_children || event == NotificationEvent::Approval
        };
        let wanted = targets.targets.iter().filter(|target| target.events.contains(&event));
        let wanted: Vec<_> = wanted.filter(|target| is_wanted(target.includes_children)).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let engine = (self.setup.engine)()?;
        let notification_id = format!("{id}-{}", row.records);
        let mut body = notification(&notification_id, event, &row, &approvals);
        let project = engine.workspace.roots.project.as_ref();
        body["project"] = json!(project.map(|project| project.display().to_string()));
        self.preparer.redactor().redact_value(&mut body);
        let mut sent = Vec::new();
        for target in wanted {
            let error = target.send(&engine, &notification_id, &body).err();
            let error = error.map(|error| self.preparer.redactor().redact(error));
            let (id, event) = (notification_id.clone(), event.as_str().to_owned());
            sent.push(SentNotification { id, target: target.id.clone(), event, error });
        }
        self.log_notifications(id, &sent);
        Ok(sent)
    }

    /// Where it cannot be written, nothing is lost but the list.
    fn log_notifications(&self, id: &ThreadId, sent: &[SentNotification]) {
        let path = self.notifications_dir().join(LOG_FILE);
        if self.make_notifications_dir().is_err() {
            return;
        }
        if path.metadata().is_ok_and(|found| found.len() > MAX_LOG_BYTES) {
            let _ = file::remove_unsynced(&path);
        }
        let at_ms = self.setup.clock.now_ms();
        let lines: String = sent.iter().map(|one| format!("{}\n", one.to_value(id, at_ms))).collect();
        let _ = file::append(&path, lines.as_bytes());
    }

    /// Makes the folder of notifications; a link in its place is refused.
    fn make_notifications_dir(&self) -> std::io::Result<()> {
        file::create_folders_beneath(&self.setup.folder, Path::new(NOTIFICATIONS_DIR), true).map(drop)
    }

    fn notifications_dir(&self) -> PathBuf {
        self.setup.folder.join(NOTIFICATIONS_DIR)
    }

    fn owed_path(&self, id: &ThreadId) -> PathBuf {
        self.notifications_dir().join(format!("{id}.json"))
    }
}

/// What a thread's state is to the user.
fn notification_event(row: &ThreadRow, approvals: &[Approval]) -> Option<NotificationEvent> {
    match row.status {
        ThreadStatus::Completed => Some(NotificationEvent::Completed),
        ThreadStatus::Error => Some(NotificationEvent::Failed),
        ThreadStatus::Suspended if !approvals.is_empty() => Some(NotificationEvent::Approval),
        ThreadStatus::Suspended => Some(NotificationEvent::Suspended),
        ThreadStatus::Created
        | ThreadStatus::Running
        | ThreadStatus::Cancelled
        | ThreadStatus::Killed
        | ThreadStatus::Continued => None,
    }
}

/// A notification as commands and webhooks get it.
fn notification(id: &str, event: NotificationEvent, row: &ThreadRow, approvals: &[Approval]) -> Value {
    let cut = |text: &str| text.chars().take(MAX_MESSAGE_CHARS).collect::<String>();
    let result = row.result.as_ref().and_then(|result| result.get("result")).and_then(Value::as_str);
    let questions = approvals.iter().map(|approval| {
        json!({
            "id": approval.id, "kind": approval.kind,
            "prompt": cut(&approval.prompt), "reason": cut(&approval.reason),
        })
    });
    let next_command = match event {
        NotificationEvent::Approval => format!("rye thread approvals {}", row.id),
        NotificationEvent::Completed | NotificationEvent::Failed | NotificationEvent::Suspended => {
            format!("rye thread show {}", row.id)
        }
    };
    json!({
        "id": id,
        "event": event.as_str(),
        "thread_id": row.id,
        "directive": row.directive,
        "title": row.title,
        "parent_thread_id": row.parent,
        "status": row.status.as_str(),
        "reason": row.reason.map(SuspendReason::as_str),
        "result": result.map(cut),
        "error": row.error.as_deref().map(cut),
        "approvals": questions.collect::<Vec<_>>(),
        "turns": row.cost.turns,
        "spend": row.cost.spend.dollars(),
        "at": row.updated_at,
        "next_command": next_command,
    })
}
