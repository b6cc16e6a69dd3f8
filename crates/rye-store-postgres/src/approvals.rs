//! Questions to people, and their answers. Both carry a signature: a row without one that counts does not exist.

use lillux::Digest;
use rye_store::{Approval, ApprovalDecision, ApprovalRecord, Forgery, OpenApprovals, ThreadStoreError};
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::record::{forged_error, parse_id};
use crate::seal::{Seal, Sealer};
use crate::writer::WriteTx;

fn approval_digest(sealer: &Sealer, approval: &Approval, detail: &str) -> Result<Digest, DbError> {
    let mut fields = sealer.fields("approval 1");
    fields.text(&approval.id);
    fields.text(approval.thread.as_str());
    fields.text(&approval.kind);
    fields.text(&approval.prompt);
    fields.text(&approval.reason);
    fields.number(to_integer(approval.at_ms, "a time")?);
    fields.text(detail);
    Ok(fields.finish())
}

/// An answer's signature covers the question's: it cannot be moved to another question.
fn answer_digest(sealer: &Sealer, question: &Seal, answer: &str) -> Digest {
    let mut fields = sealer.fields("answer 1");
    fields.text(&question.signer);
    fields.text(&question.signature);
    fields.text(answer);
    fields.finish()
}

pub(crate) async fn insert(tx: &WriteTx<'_>, approval: &Approval) -> Result<(), DbError> {
    let detail = approval.detail.to_string();
    let approval = Approval {
        id: to_text(&approval.id),
        kind: to_text(&approval.kind),
        prompt: to_text(&approval.prompt),
        reason: to_text(&approval.reason),
        ..approval.clone()
    };
    let seal = tx.seal.seal(&approval_digest(tx.seal, &approval, &detail)?);
    let (thread, at_ms) = (approval.thread.as_str(), to_integer(approval.at_ms, "a time")?);
    let sql = "INSERT INTO approvals (id, thread, kind, what, why, at_ms, detail, signer, seal)
         SELECT $1, thread, $3, $4, $5, $6, $7, $8, $9 FROM threads WHERE thread_id = $2";
    let values: [crate::db::SqlValue<'_>; 9] = [
        &approval.id,
        &thread,
        &approval.kind,
        &approval.prompt,
        &approval.reason,
        &at_ms,
        &detail,
        &seal.signer,
        &seal.signature,
    ];
    let added = tx.writing().execute(sql, &values).await;
    let added = added.map_err(|error| match error.is_duplicate("approvals_id") {
        true => {
            let what = format!("question `{}` was asked before", rye_item::text::one_line(&approval.id));
            error.with_error(ThreadStoreError::Conflict { thread: approval.thread.clone(), what })
        }
        false => error,
    })?;
    if added == 0 { Err(ThreadStoreError::NoThread(approval.thread).into()) } else { Ok(()) }
}

struct StoredApproval {
    id: String,
    thread: String,
    kind: String,
    what: String,
    why: String,
    at_ms: i64,
    detail: String,
    seal: Seal,
    answer: Option<String>,
    answer_seal: Option<Seal>,
}

impl StoredApproval {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let answer_signer: Option<String> = row.try_get(10)?;
        let answer_signature: Option<String> = row.try_get(11)?;
        Ok(Self {
            id: row.try_get(0)?,
            thread: row.try_get(1)?,
            kind: row.try_get(2)?,
            what: row.try_get(3)?,
            why: row.try_get(4)?,
            at_ms: row.try_get(5)?,
            detail: row.try_get(6)?,
            seal: Seal { signer: row.try_get(7)?, signature: row.try_get(8)? },
            answer: row.try_get(9)?,
            answer_seal: answer_signer
                .zip(answer_signature)
                .map(|(signer, signature)| Seal { signer, signature }),
        })
    }

    /// Why it is refused, if a key that was revoked signed the question or the answer.
    fn revocation(&self, sealer: &Sealer) -> Option<Forgery> {
        let answer = || sealer.revocation("the answer to its question", self.answer_seal.as_ref()?);
        sealer.revocation("its question", &self.seal).or_else(answer)
    }

    /// The same as if an answer that a revoked key signed had not been given: it can be answered by a key that counts.
    fn without_revoked_answer(self, sealer: &Sealer) -> Self {
        let is_revoked = |seal: &Seal| sealer.revocation("its answer", seal).is_some();
        match self.answer_seal.as_ref().is_some_and(is_revoked) {
            true => Self { answer: None, answer_seal: None, ..self },
            false => self,
        }
    }

    /// What was written, or `None` when no key that counts signed it.
    fn verify(self, sealer: &Sealer) -> Option<ApprovalRecord> {
        let approval = Approval {
            id: self.id,
            thread: parse_id(&self.thread).ok()?,
            kind: self.kind,
            prompt: self.what,
            reason: self.why,
            at_ms: to_number(self.at_ms).ok()?,
            detail: serde_json::from_str(&self.detail).ok()?,
        };
        let digest = approval_digest(sealer, &approval, &self.detail).ok()?;
        if !sealer.is_valid(&digest, &self.seal) {
            return None;
        }
        let answer = match (self.answer, self.answer_seal) {
            (None, None) => None,
            (Some(answer), Some(seal))
                if sealer.is_valid_answer(&answer_digest(sealer, &self.seal, &answer), &seal) =>
            {
                Some(serde_json::from_str(&answer).ok()?)
            }
            (Some(_) | None, _) => return None,
        };
        Some(ApprovalRecord { approval, answer })
    }
}

const FIND: &str =
    "SELECT id, thread_id, kind, what, why, at_ms, detail, approvals.signer, approvals.seal, answer,
        answer_signer, answer_seal FROM approvals JOIN threads USING (thread) WHERE id = $1";

// What a thread asked that has ended since is not open. Answers are read too: a forged one must not close a question silently.
const FIND_OPEN: &str =
    "SELECT id, thread_id, kind, what, why, at_ms, detail, approvals.signer, approvals.seal, answer,
        answer_signer, answer_seal FROM approvals JOIN threads USING (thread)
     WHERE status IN ('created', 'running', 'suspended') ORDER BY at_ms, id";

async fn find_stored(db: &Db, id: &str) -> Result<Option<StoredApproval>, DbError> {
    let id = to_text(id);
    db.query_opt(FIND, &[&id]).await?.as_ref().map(StoredApproval::from_row).transpose()
}

/// A question with its answer; `None` when there is none that verifies. One that a revoked key signed is refused.
pub(crate) async fn find(db: &Db, sealer: &Sealer, id: &str) -> Result<Option<ApprovalRecord>, DbError> {
    let Some(stored) = find_stored(db, id).await? else { return Ok(None) };
    check_revocations(&stored, sealer)?;
    Ok(stored.verify(sealer))
}

fn check_revocations(stored: &StoredApproval, sealer: &Sealer) -> Result<(), DbError> {
    match stored.revocation(sealer) {
        Some(what) => Err(forged_error(&parse_id(&stored.thread)?, what)),
        None => Ok(()),
    }
}

/// Answers a question, once.
pub(crate) async fn answer(
    tx: &WriteTx<'_>,
    id: &str,
    answer: &ApprovalDecision,
) -> Result<Approval, DbError> {
    // Others would refuse it, and the question could not be answered again.
    if let Some(fingerprint) = tx.seal.key_that_may_not_answer() {
        return Err(ThreadStoreError::AnswerRefused(fingerprint.to_string()).into());
    }
    let not_found = || DbError::from(ThreadStoreError::NoApproval(rye_item::text::one_line(id)));
    let stored = find_stored(tx.reading(), id).await?.ok_or_else(not_found)?;
    let replaced = stored.answer_seal.clone().map(|seal| seal.signature);
    let stored = stored.without_revoked_answer(tx.seal);
    check_revocations(&stored, tx.seal)?;
    let question = stored.seal.clone();
    let record = stored.verify(tx.seal).ok_or_else(not_found)?;
    if record.answer.is_some() {
        return Err(not_found());
    }
    let text = serde_json::to_string(answer).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
    let seal = tx.seal.seal(&answer_digest(tx.seal, &question, &text));
    let sql = "UPDATE approvals SET answer = $2, answer_signer = $3, answer_seal = $4
         WHERE id = $1 AND (answer IS NULL OR answer_seal = $5)";
    let id = to_text(id);
    let written = tx.writing().execute(sql, &[&id, &text, &seal.signer, &seal.signature, &replaced]).await?;
    if written == 1 { Ok(record.approval) } else { Err(not_found()) }
}

/// Suspended threads that no process runs and whose questions are all answered.
pub(crate) async fn answered_threads(db: &Db) -> Result<Vec<ThreadId>, DbError> {
    let sql = "SELECT thread_id FROM threads JOIN approvals USING (thread) WHERE status = 'suspended' AND pid IS NULL
            AND kind <> 'resume'
         GROUP BY thread_id HAVING count(*) FILTER (WHERE answer IS NULL) = 0 ORDER BY thread_id";
    let rows = db.query(sql, &[]).await?;
    rows.iter().map(|row| parse_id(row.try_get(0)?)).collect()
}

/// The open questions of all threads, or of these.
pub(crate) async fn open(
    db: &Db,
    sealer: &Sealer,
    of: Option<&[ThreadId]>,
) -> Result<OpenApprovals, DbError> {
    let mut open = OpenApprovals::default();
    for row in db.query(FIND_OPEN, &[]).await? {
        let stored = StoredApproval::from_row(&row)?;
        if of.is_some_and(|of| !of.iter().any(|id| id.as_str() == stored.thread)) {
            continue;
        }
        let id = stored.id.clone();
        match stored.without_revoked_answer(sealer).verify(sealer) {
            None => open.forged.push(id),
            Some(ApprovalRecord { approval: question, answer: None }) => open.approvals.push(question),
            Some(ApprovalRecord { answer: Some(_), .. }) => {}
        }
    }
    Ok(open)
}
