//! Questions to people, and their answers. Both carry a code made with the user's secret: a row without it does not exist.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::DbError;
use super::db_error::to_sqlite_integer;
use super::secret::{Mac, macs_equal};
use super::writer::WriteTx;
use rye_store::ThreadStoreError;
use rye_store::{Approval, ApprovalDecision, ApprovalRecord, OpenApprovals};
use rye_thread::thread_id::ThreadId;

fn approval_mac(mac: &Mac, approval: &Approval, detail: &str) -> lillux::Digest {
    let at = approval.at_ms.to_be_bytes();
    mac.compute_fields(
        "approval 1",
        [
            Some(approval.id.as_bytes()),
            Some(approval.thread.as_str().as_bytes()),
            Some(approval.kind.as_bytes()),
            Some(approval.prompt.as_bytes()),
            Some(approval.reason.as_bytes()),
            Some(&at),
            Some(detail.as_bytes()),
        ],
    )
}

/// An answer's code covers the question's: it cannot be moved to another question.
fn answer_mac(mac: &Mac, question: &[u8], answer: &str) -> lillux::Digest {
    mac.compute_fields("answer 1", [Some(question), Some(answer.as_bytes())])
}

pub(super) fn insert(tx: &WriteTx<'_, '_>, approval: &Approval) -> Result<(), DbError> {
    let detail = approval.detail.to_string();
    let added = tx
        .execute(
            "INSERT INTO approvals (id, thread, kind, what, why, at_ms, detail, mac)
             SELECT ?1, thread, ?3, ?4, ?5, ?6, ?7, ?8 FROM threads WHERE thread_id = ?2",
            params![
                approval.id,
                approval.thread.as_str(),
                approval.kind,
                approval.prompt,
                approval.reason,
                to_sqlite_integer(approval.at_ms, "a time")?,
                detail,
                approval_mac(&tx.seal.mac, approval, &detail).as_bytes().as_slice()
            ],
        )
        .map_err(|error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::ConstraintViolation) => {
                let what = format!("question `{}` was asked before", rye_item::text::one_line(&approval.id));
                DbError::from(ThreadStoreError::Conflict { thread: approval.thread.clone(), what })
            }
            _ => error.into(),
        })?;
    if added == 0 { Err(DbError::from(ThreadStoreError::NoThread(approval.thread.clone()))) } else { Ok(()) }
}

const APPROVAL_COLUMNS: &str = "id, thread_id, kind, what, why, at_ms, detail, mac, answer, answer_mac";

struct StoredApproval {
    id: String,
    thread: String,
    kind: String,
    what: String,
    why: String,
    at_ms: u64,
    detail: String,
    mac: Vec<u8>,
    answer: Option<String>,
    answer_mac: Option<Vec<u8>>,
}

impl StoredApproval {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            thread: row.get(1)?,
            kind: row.get(2)?,
            what: row.get(3)?,
            why: row.get(4)?,
            at_ms: row.get(5)?,
            detail: row.get(6)?,
            mac: row.get(7)?,
            answer: row.get(8)?,
            answer_mac: row.get(9)?,
        })
    }

    /// What was written, or `None` when it was not written with the secret.
    fn verify(self, mac: &Mac) -> Option<ApprovalRecord> {
        let approval = Approval {
            id: self.id,
            thread: ThreadId::parse(&self.thread).ok()?,
            kind: self.kind,
            prompt: self.what,
            reason: self.why,
            at_ms: self.at_ms,
            detail: serde_json::from_str(&self.detail).ok()?,
        };
        if !macs_equal(&approval_mac(mac, &approval, &self.detail), &self.mac) {
            return None;
        }
        let answer = match (self.answer, self.answer_mac) {
            (None, None) => None,
            (Some(answer), Some(code)) if macs_equal(&answer_mac(mac, &self.mac, &answer), &code) => {
                Some(serde_json::from_str(&answer).ok()?)
            }
            (Some(_) | None, _) => return None,
        };
        Some(ApprovalRecord { approval, answer })
    }
}

/// Answers a question, once.
pub(super) fn answer(tx: &WriteTx<'_, '_>, id: &str, answer: &ApprovalDecision) -> Result<Approval, DbError> {
    let not_found = || DbError::from(ThreadStoreError::NoApproval(rye_item::text::one_line(id)));
    let (mac, record) = find_stored(tx.connection, id)?
        .map(|stored| (stored.mac.clone(), stored))
        .and_then(|(mac, stored)| Some((mac, stored.verify(&tx.seal.mac)?)))
        .ok_or_else(not_found)?;
    if record.answer.is_some() {
        return Err(not_found());
    }
    let text = serde_json::to_string(answer)
        .map_err(|error| DbError::from(ThreadStoreError::Failed(error.to_string())))?;
    tx.execute(
        "UPDATE approvals SET answer = ?2, answer_mac = ?3 WHERE id = ?1 AND answer IS NULL",
        params![id, text, answer_mac(&tx.seal.mac, &mac, &text).as_bytes().as_slice()],
    )?;
    Ok(record.approval)
}

fn find_stored(connection: &Connection, id: &str) -> Result<Option<StoredApproval>, DbError> {
    let sql = format!("SELECT {APPROVAL_COLUMNS} FROM approvals JOIN threads USING (thread) WHERE id = ?1");
    Ok(connection.prepare_cached(&sql)?.query_row([id], StoredApproval::from_row).optional()?)
}

/// A question with its answer; `None` when there is none that verifies.
pub(super) fn find(connection: &Connection, mac: &Mac, id: &str) -> Result<Option<ApprovalRecord>, DbError> {
    Ok(find_stored(connection, id)?.and_then(|stored| stored.verify(mac)))
}

/// Suspended threads that no process runs and whose questions are all answered.
pub(super) fn answered_threads(connection: &Connection) -> Result<Vec<ThreadId>, DbError> {
    let mut find = connection.prepare_cached(
        "SELECT thread_id FROM threads JOIN approvals USING (thread)
         WHERE status = 'suspended' AND pid IS NULL GROUP BY thread HAVING sum(answer IS NULL) = 0",
    )?;
    let ids = find.query_map([], |row| row.get::<_, String>(0))?;
    let mut found = Vec::new();
    for id in ids {
        found.extend(ThreadId::parse(&id?).ok());
    }
    Ok(found)
}

/// The open questions of all threads, or of these.
pub(super) fn open(
    connection: &Connection,
    mac: &Mac,
    of: Option<&[ThreadId]>,
) -> Result<OpenApprovals, DbError> {
    // Answers are read too: a forged one must not close a question silently.
    // What a thread asked that has ended since is not open.
    let sql = format!(
        "SELECT {APPROVAL_COLUMNS} FROM approvals JOIN threads USING (thread)
         WHERE status IN ('created', 'running', 'suspended') ORDER BY at_ms, id"
    );
    let mut find = connection.prepare_cached(&sql)?;
    let mut open = OpenApprovals::default();
    for stored in find.query_map([], StoredApproval::from_row)? {
        let stored = stored?;
        if of.is_some_and(|of| !of.iter().any(|id| id.as_str() == stored.thread)) {
            continue;
        }
        let id = stored.id.clone();
        match stored.verify(mac) {
            None => open.forged.push(id),
            Some(ApprovalRecord { approval: question, answer: None }) => open.approvals.push(question),
            Some(ApprovalRecord { answer: Some(_), .. }) => {}
        }
    }
    Ok(open)
}
