//! Money and tokens: what is put aside for calls in flight, what was used, on each thread and on every ancestor.
//!
//! The rows of a thread and its ancestors are read once, worked on here, and the differences written back: the tree's lock
//! is held meanwhile.

use std::collections::BTreeMap;

use rye_store::{
    BudgetCaps, BudgetRefusal, BudgetResource, LedgerRules, ReserveRequest, Settlement, ThreadStoreError,
    WAIT_LEASE_MS,
};
use rye_thread::thread_id::ThreadId;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::record::parse_id;

/// No tree is so deep; a forged one may go in a circle.
const MAX_DEPTH: usize = 10_000;

/// The rows of the ledger from a thread up to its root, with what threads before it wait for at each.
const FIND_LEVELS: &str = "WITH RECURSIVE up (thread, level) AS (
        SELECT thread, 0 FROM threads WHERE thread_id = $1
        UNION ALL SELECT ledger.parent, level + 1 FROM up JOIN budget_ledger AS ledger ON ledger.thread = up.thread
            WHERE ledger.parent IS NOT NULL AND level < 10001),
     own (thread, ticket) AS (
        SELECT thread, coalesce((SELECT ticket FROM waits WHERE waits.thread = up.thread AND kind = 'budget'),
            9223372036854775807) FROM up WHERE level = 0)
     SELECT ledger.thread, ledger.thread_id, max_spend, max_tokens, subtree_spend, subtree_reserved, subtree_tokens,
            subtree_reserved_tokens, actual_spend, actual_tokens, unknown_spend,
            coalesce((SELECT sum(spend) FROM waits WHERE kind = 'budget' AND blocked_by = ledger.thread
                AND waits.thread <> own.thread AND waits.ticket < own.ticket AND seen_ms >= $2), 0)::bigint,
            coalesce((SELECT sum(tokens) FROM waits WHERE kind = 'budget' AND blocked_by = ledger.thread
                AND waits.thread <> own.thread AND waits.ticket < own.ticket AND seen_ms >= $2), 0)::bigint
     FROM up JOIN budget_ledger AS ledger ON ledger.thread = up.thread CROSS JOIN own ORDER BY level";

const FIND_CALLS: &str = "SELECT call, reserved_spend, reserved_tokens, is_settled FROM calls JOIN threads USING (thread)
     WHERE thread_id = $1 AND call = ANY($2)";

/// Makes a thread's row.
pub(crate) const INSERT_ROW: &str = "INSERT INTO budget_ledger (thread, parent, thread_id, parent_thread_id, max_spend, max_tokens,
        created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $7)";

pub(crate) fn spend_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.spend.map(|spend| to_integer(spend.0, "the most a thread may spend")).transpose()
}

pub(crate) fn tokens_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.tokens.map(|tokens| to_integer(tokens, "the most tokens a thread may use")).transpose()
}

/// A row of the ledger.
struct LedgerLevel {
    thread: i64,
    id: ThreadId,
    max_spend: Option<i64>,
    max_tokens: Option<i64>,
    subtree_spend: i64,
    subtree_reserved: i64,
    subtree_tokens: i64,
    subtree_reserved_tokens: i64,
    ahead_spend: i64,
    ahead_tokens: i64,
}

/// A call that was made, as far as it is known.
#[derive(Clone, Copy)]
struct KnownCall {
    reserved: i64,
    reserved_tokens: i64,
    is_settled: bool,
}

/// What is added to a row.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct LedgerDelta {
    spend: i64,
    reserved: i64,
    tokens: i64,
    reserved_tokens: i64,
    unknown: i64,
}

/// A call's row, as it is to be written.
#[derive(Default)]
struct CallRows {
    call: Vec<i64>,
    reserved_spend: Vec<i64>,
    reserved_tokens: Vec<i64>,
    is_settled: Vec<bool>,
    is_unknown: Vec<bool>,
    spend: Vec<i64>,
    passed_on: Vec<i64>,
    input_tokens: Vec<i64>,
    output_tokens: Vec<i64>,
    item: Vec<String>,
    model: Vec<String>,
    tool: Vec<Option<String>>,
    hook: Vec<Option<String>>,
}

/// The rows of a thread and its ancestors, changed apart from the database until they are written.
pub(crate) struct LedgerDraft {
    /// The thread's own row first, the root's last.
    levels: Vec<LedgerLevel>,
    own_sums: [i64; 3],
    calls: BTreeMap<i64, KnownCall>,
    own: LedgerDelta,
    above: LedgerDelta,
    rows: CallRows,
}

const TOO_LARGE: ThreadStoreError = ThreadStoreError::TooLarge("a sum in the ledger");

fn add(sum: &mut i64, more: i64) -> Result<(), DbError> {
    *sum = sum.checked_add(more).filter(|sum| *sum >= 0).ok_or(TOO_LARGE)?;
    Ok(())
}

impl LedgerDraft {
    /// Reads the rows, and those of these calls.
    pub(crate) async fn load(
        db: &Db,
        id: &ThreadId,
        calls: &[i64],
        now_ms: i64,
    ) -> Result<Self, DbError> {
        let since = now_ms.saturating_sub(to_integer(WAIT_LEASE_MS, "a time")?);
        let name = id.as_str();
        let (found, known) = futures_util::future::try_join(
            db.query(FIND_LEVELS, &[&name, &since]),
            db.query(FIND_CALLS, &[&name, &calls]),
        )
        .await?;
        if found.len() > MAX_DEPTH {
            return Err(DbError::damaged("the ledger's threads have no end of ancestors"));
        }
        let mut levels = Vec::with_capacity(found.len());
        let mut own_sums = [0; 3];
        for (index, row) in found.iter().enumerate() {
            if index == 0 {
                own_sums = [row.try_get(8)?, row.try_get(9)?, row.try_get(10)?];
            }
            levels.push(LedgerLevel {
                thread: row.try_get(0)?,
                id: parse_id(row.try_get(1)?)?,
                max_spend: row.try_get(2)?,
                max_tokens: row.try_get(3)?,
                subtree_spend: row.try_get(4)?,
                subtree_reserved: row.try_get(5)?,
                subtree_tokens: row.try_get(6)?,
                subtree_reserved_tokens: row.try_get(7)?,
                ahead_spend: row.try_get(11)?,
                ahead_tokens: row.try_get(12)?,
            });
        }
        let mut calls = BTreeMap::new();
        for row in known {
            let call = KnownCall {
                reserved: row.try_get(1)?,
                reserved_tokens: row.try_get(2)?,
                is_settled: row.try_get(3)?,
            };
            calls.insert(row.try_get(0)?, call);
        }
        let (own, above) = (LedgerDelta::default(), LedgerDelta::default());
        Ok(Self { levels, own_sums, calls, own, above, rows: CallRows::default() })
    }

    /// Sets other maxima for the thread.
    pub(crate) fn set_caps(&mut self, caps: BudgetCaps) -> Result<(), DbError> {
        if let Some(own) = self.levels.first_mut() {
            (own.max_spend, own.max_tokens) = (spend_column(caps)?, tokens_column(caps)?);
        }
        Ok(())
    }

    /// Whether the call fits into what the thread and every ancestor may use.
    pub(crate) fn refusal(&self, request: ReserveRequest) -> Result<Option<BudgetRefusal>, DbError> {
        for level in &self.levels {
            // What those who came first wait for counts as theirs.
            let spend_aside = level.subtree_reserved.saturating_add(level.ahead_spend);
            let tokens_aside = level.subtree_reserved_tokens.saturating_add(level.ahead_tokens);
            let checks = [
                (BudgetResource::Spend, level.max_spend, level.subtree_spend, spend_aside, request.spend.0),
                (
                    BudgetResource::Tokens,
                    level.max_tokens,
                    level.subtree_tokens,
                    tokens_aside,
                    request.tokens,
                ),
            ];
            for (resource, max, used, reserved, requested) in checks {
                let Some(limit) = max.map(to_number).transpose()? else { continue };
                let (used, reserved) = (to_number(used)?, to_number(reserved)?);
                if u128::from(used) + u128::from(reserved) + u128::from(requested) > u128::from(limit) {
                    let refused_by = level.id.clone();
                    return Ok(Some(BudgetRefusal {
                        refused_by,
                        resource,
                        limit,
                        used,
                        reserved,
                        requested,
                        rolling: None,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Puts aside what a call may cost, on the thread and every ancestor.
    pub(crate) fn reserve(&mut self, id: &ThreadId, request: ReserveRequest) -> Result<(), DbError> {
        let spend = to_integer(request.spend.0, "a reservation")?;
        let tokens = to_integer(request.tokens, "a reservation")?;
        let call = to_integer(request.call, "a call's number")?;
        if self.calls.contains_key(&call) {
            let what = format!("call {call} was made before");
            return Err(ThreadStoreError::Conflict { thread: id.clone(), what }.into());
        }
        let known = KnownCall { reserved: spend, reserved_tokens: tokens, is_settled: false };
        self.calls.insert(call, known);
        self.rows.push(call, known, None, spend);
        let delta = LedgerDelta { reserved: spend, reserved_tokens: tokens, ..LedgerDelta::default() };
        self.apply(delta, delta)
    }

    /// Whether a call was put aside for or made before.
    pub(crate) fn check_new_call(&self, id: &ThreadId, request: ReserveRequest) -> Result<(), DbError> {
        let call = to_integer(request.call, "a call's number")?;
        to_integer(request.spend.0, "a reservation")?;
        to_integer(request.tokens, "a reservation")?;
        if self.calls.contains_key(&call) {
            let what = format!("call {call} was made before");
            return Err(ThreadStoreError::Conflict { thread: id.clone(), what }.into());
        }
        Ok(())
    }

    /// Records what a call did cost, exactly once, and gives back what was put aside. Gives what the thread spent.
    pub(crate) fn settle(
        &mut self,
        id: &ThreadId,
        settlement: &Settlement,
        rules: &LedgerRules,
    ) -> Result<i64, DbError> {
        let conflict =
            |what: String| DbError::from(ThreadStoreError::Conflict { thread: id.clone(), what });
        let call = to_integer(settlement.call, "a call's number")?;
        let found = self.calls.get(&call).copied();
        let known = match found {
            Some(known) if known.is_settled => {
                return Err(conflict(format!("call {call} is settled already")));
            }
            Some(known) => known,
            None if settlement.is_unknown => {
                return Err(conflict(format!("nothing was reserved for call {call}")));
            }
            None => KnownCall { reserved: 0, reserved_tokens: 0, is_settled: false },
        };
        let spend = to_integer(settlement.spend.0, "what a call cost")?;
        // What was put aside is the most that an estimate can come to.
        let spend = if settlement.is_unknown { spend.min(known.reserved) } else { spend };
        let input = to_integer(settlement.input_tokens, "the tokens of a call")?;
        let output = to_integer(settlement.output_tokens, "the tokens of a call")?;
        let tokens =
            input.checked_add(output).ok_or(ThreadStoreError::TooLarge("the tokens of a call"))?;
        let is_clamped = rules.clamp_to_reserved && found.is_some();
        let passed_on = if is_clamped { spend.min(known.reserved) } else { spend };
        self.calls.insert(call, KnownCall { is_settled: true, ..known });
        self.rows.push(call, KnownCall { is_settled: true, ..known }, Some(settlement), spend);
        if let Some(last) = self.rows.passed_on.last_mut() {
            *last = passed_on;
        }
        let own = LedgerDelta {
            spend,
            reserved: -known.reserved,
            tokens,
            reserved_tokens: -known.reserved_tokens,
            unknown: if settlement.is_unknown { spend } else { 0 },
        };
        self.apply(own, LedgerDelta { spend: passed_on, unknown: 0, ..own })?;
        Ok(spend)
    }

    fn apply(&mut self, own: LedgerDelta, above: LedgerDelta) -> Result<(), DbError> {
        for (index, level) in self.levels.iter_mut().enumerate() {
            let delta = if index == 0 { own } else { above };
            add(&mut level.subtree_spend, delta.spend)?;
            add(&mut level.subtree_reserved, delta.reserved)?;
            add(&mut level.subtree_tokens, delta.tokens)?;
            add(&mut level.subtree_reserved_tokens, delta.reserved_tokens)?;
        }
        let [spend, tokens, unknown] = &mut self.own_sums;
        add(spend, own.spend)?;
        add(tokens, own.tokens)?;
        add(unknown, own.unknown)?;
        for (sum, delta) in [(&mut self.own, own), (&mut self.above, above)] {
            let pairs = [
                (&mut sum.spend, delta.spend),
                (&mut sum.reserved, delta.reserved),
                (&mut sum.tokens, delta.tokens),
                (&mut sum.reserved_tokens, delta.reserved_tokens),
                (&mut sum.unknown, delta.unknown),
            ];
            for (total, more) in pairs {
                *total = total.checked_add(more).ok_or(TOO_LARGE)?;
            }
        }
        Ok(())
    }

    /// Writes the differences.
    pub(crate) async fn save(&self, db: &Db, at: &str) -> Result<(), DbError> {
        let Some(own) = self.levels.first() else { return Ok(()) };
        futures_util::future::try_join3(
            self.rows.save(db, own.thread),
            self.save_own(db, own.thread, at),
            self.save_above(db),
        )
        .await?;
        Ok(())
    }

    async fn save_own(&self, db: &Db, thread: i64, at: &str) -> Result<(), DbError> {
        if self.own == LedgerDelta::default() && self.rows.call.is_empty() {
            return Ok(());
        }
        let LedgerDelta { spend, reserved, tokens, reserved_tokens, unknown } = self.own;
        let sql = "UPDATE budget_ledger SET actual_spend = actual_spend + $2, reserved_spend = reserved_spend + $3,
                actual_tokens = actual_tokens + $4, reserved_tokens = reserved_tokens + $5,
                subtree_spend = subtree_spend + $2, subtree_reserved = subtree_reserved + $3,
                subtree_tokens = subtree_tokens + $4, subtree_reserved_tokens = subtree_reserved_tokens + $5,
                unknown_spend = unknown_spend + $6, updated_at = $7 WHERE thread = $1";
        db.execute(sql, &[&thread, &spend, &reserved, &tokens, &reserved_tokens, &unknown, &at]).await?;
        Ok(())
    }

    async fn save_above(&self, db: &Db) -> Result<(), DbError> {
        let above: Vec<i64> = self.levels.iter().skip(1).map(|level| level.thread).collect();
        let LedgerDelta { spend, reserved, tokens, reserved_tokens, unknown: _ } = self.above;
        if above.is_empty() || self.above == LedgerDelta::default() {
            return Ok(());
        }
        let sql = "UPDATE budget_ledger SET subtree_spend = subtree_spend + $2, subtree_reserved = subtree_reserved + $3,
                subtree_tokens = subtree_tokens + $4, subtree_reserved_tokens = subtree_reserved_tokens + $5
             WHERE thread = ANY($1)";
        db.execute(sql, &[&above, &spend, &reserved, &tokens, &reserved_tokens]).await?;
        Ok(())
    }
}

impl CallRows {
    fn push(&mut self, call: i64, known: KnownCall, settlement: Option<&Settlement>, spend: i64) {
        // A call that is reserved and settled in one commit has one row.
        if let Some(index) = self.call.iter().position(|one| *one == call) {
            self.remove(index);
        }
        self.call.push(call);
        self.reserved_spend.push(known.reserved);
        self.reserved_tokens.push(known.reserved_tokens);
        self.is_settled.push(known.is_settled);
        self.is_unknown.push(settlement.is_some_and(|one| one.is_unknown));
        self.spend.push(if settlement.is_some() { spend } else { 0 });
        self.passed_on.push(0);
        let tokens = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok()).unwrap_or(0);
        self.input_tokens.push(tokens(settlement.map(|one| one.input_tokens)));
        self.output_tokens.push(tokens(settlement.map(|one| one.output_tokens)));
        let attribution = settlement.map(|one| &one.attribution);
        self.item.push(attribution.map(|one| to_text(&one.item)).unwrap_or_default());
        self.model.push(attribution.map(|one| to_text(&one.model)).unwrap_or_default());
        self.tool.push(attribution.and_then(|one| one.tool.as_deref()).map(to_text));
        self.hook.push(attribution.and_then(|one| one.hook.as_deref()).map(to_text));
    }

    fn remove(&mut self, index: usize) {
        self.call.remove(index);
        self.reserved_spend.remove(index);
        self.reserved_tokens.remove(index);
        self.is_settled.remove(index);
        self.is_unknown.remove(index);
        self.spend.remove(index);
        self.passed_on.remove(index);
        self.input_tokens.remove(index);
        self.output_tokens.remove(index);
        self.item.remove(index);
        self.model.remove(index);
        self.tool.remove(index);
        self.hook.remove(index);
    }

    async fn save(&self, db: &Db, thread: i64) -> Result<(), DbError> {
        if self.call.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO calls (thread, call, reserved_spend, reserved_tokens, is_settled, is_unknown, spend, passed_on,
                input_tokens, output_tokens, item, model, tool, hook)
             SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bool[], $6::bool[], $7::bigint[],
                $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[])
             ON CONFLICT (thread, call) DO UPDATE SET is_settled = excluded.is_settled, is_unknown = excluded.is_unknown,
                spend = excluded.spend, passed_on = excluded.passed_on, input_tokens = excluded.input_tokens,
                output_tokens = excluded.output_tokens, item = excluded.item, model = excluded.model,
                tool = excluded.tool, hook = excluded.hook";
        db.execute(
            sql,
            &[
                &thread,
                &self.call,
                &self.reserved_spend,
                &self.reserved_tokens,
                &self.is_settled,
                &self.is_unknown,
                &self.spend,
                &self.passed_on,
                &self.input_tokens,
                &self.output_tokens,
                &self.item,
                &self.model,
                &self.tool,
                &self.hook,
            ],
        )
        .await?;
        Ok(())
    }
}
