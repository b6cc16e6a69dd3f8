//! Money and tokens: what is reserved for calls in flight, what was used, on each thread and on every ancestor.
//!
//! The rows that the commits of a transaction work on are read once, worked on here, and the differences written back
//! together: the locks of their trees are held meanwhile.

use std::collections::{BTreeMap, HashMap};

use rye_store::{
    BudgetCaps, BudgetRefusal, BudgetResource, Forgery, LedgerRules, ReserveRequest, Settlement,
    ThreadStoreError, WAIT_LEASE_MS,
};
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::record::{RECORD_COLUMN_COUNT, ThreadRecord, parse_id, record_columns};
use crate::seal::Sealer;

/// No tree is so deep; a forged one may go in a circle.
const MAX_DEPTH: usize = 10_000;

/// The rows of the registry and the ledger of these threads and of all above them, as the registry has it. `UNION`: a forged
/// circle ends.
const FIND_LEVELS: &str = concat!(
    "WITH RECURSIVE up (thread) AS (
        SELECT thread FROM threads WHERE thread_id = ANY($1)
        UNION SELECT threads.parent FROM up JOIN threads ON threads.thread = up.thread WHERE threads.parent IS NOT NULL)
     SELECT record.*, ledger.parent, ledger.thread_id, ledger.parent_thread_id, ledger.max_spend, ledger.max_tokens,
            subtree_spend, subtree_reserved, subtree_tokens, subtree_reserved_tokens, actual_spend, actual_tokens,
            unknown_spend
     FROM up JOIN (SELECT ",
    record_columns!(),
    " FROM threads) AS record ON record.thread = up.thread
     JOIN budget_ledger AS ledger ON ledger.thread = up.thread"
);

const FIND_CALLS: &str = "SELECT calls.thread, calls.call, reserved_spend, reserved_tokens, is_settled
     FROM unnest($1::text[], $2::bigint[]) AS wanted (thread_id, call)
     JOIN threads ON threads.thread_id = wanted.thread_id
     JOIN calls ON calls.thread = threads.thread AND calls.call = wanted.call";

/// What threads before this one wait for at each row of the ledger.
const FIND_AHEAD: &str = "SELECT blocked_by, least(sum(spend), 9223372036854775807)::bigint,
        least(sum(tokens), 9223372036854775807)::bigint
     FROM waits WHERE kind = 'budget' AND blocked_by = ANY($2) AND seen_ms >= $3
        AND thread <> (SELECT thread FROM threads WHERE thread_id = $1)
        AND ticket < coalesce((SELECT own.ticket FROM waits AS own JOIN threads USING (thread)
            WHERE threads.thread_id = $1 AND own.kind = 'budget'), 9223372036854775807)
     GROUP BY blocked_by";

fn forged_error(id: &ThreadId, what: Forgery) -> DbError {
    ThreadStoreError::Forged { thread: id.clone(), what }.into()
}

/// Makes a thread's row.
pub(crate) const INSERT_ROW: &str =
    "INSERT INTO budget_ledger (thread, parent, thread_id, parent_thread_id, max_spend, max_tokens,
        created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $7)";

pub(crate) fn spend_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.spend.map(|spend| to_integer(spend.0, "the most a thread may spend")).transpose()
}

pub(crate) fn tokens_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.tokens.map(|tokens| to_integer(tokens, "the most tokens a thread may use")).transpose()
}

/// A row of the ledger.
#[derive(Clone)]
struct LedgerLevel {
    thread: i64,
    parent: Option<i64>,
    id: ThreadId,
    max_spend: Option<i64>,
    max_tokens: Option<i64>,
    subtree_spend: i64,
    subtree_reserved: i64,
    subtree_tokens: i64,
    subtree_reserved_tokens: i64,
    actual_spend: i64,
    actual_tokens: i64,
    unknown_spend: i64,
    ahead_spend: i64,
    ahead_tokens: i64,
    /// What of it is not as it was written: parents and maxima are those of the registry, under its seal.
    forgery: Option<Forgery>,
}

impl LedgerLevel {
    /// Reads a row of [`FIND_LEVELS`].
    fn from_row(row: &Row, sealer: &Sealer) -> Result<Self, DbError> {
        let record = ThreadRecord::from_row(row, 0)?;
        let next = RECORD_COLUMN_COUNT;
        let (parent, id): (Option<i64>, String) = (row.try_get(next)?, row.try_get(next + 1)?);
        let parent_id: Option<String> = row.try_get(next + 2)?;
        let (max_spend, max_tokens) = (row.try_get(next + 3)?, row.try_get(next + 4)?);
        let is_same = (parent, &id, &parent_id) == (record.parent, &record.thread_id, &record.parent_id)
            && (max_spend, max_tokens) == (record.max_spend, record.max_tokens);
        let forgery = record.forgery(sealer).or((!is_same).then_some(Forgery::Ledger));
        Ok(Self {
            thread: record.thread,
            parent: record.parent,
            id: parse_id(&record.thread_id)?,
            max_spend,
            max_tokens,
            subtree_spend: row.try_get(next + 5)?,
            subtree_reserved: row.try_get(next + 6)?,
            subtree_tokens: row.try_get(next + 7)?,
            subtree_reserved_tokens: row.try_get(next + 8)?,
            actual_spend: row.try_get(next + 9)?,
            actual_tokens: row.try_get(next + 10)?,
            unknown_spend: row.try_get(next + 11)?,
            ahead_spend: 0,
            ahead_tokens: 0,
            forgery,
        })
    }
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

impl LedgerDelta {
    fn add(&mut self, more: Self) -> Result<(), DbError> {
        let pairs = [
            (&mut self.spend, more.spend),
            (&mut self.reserved, more.reserved),
            (&mut self.tokens, more.tokens),
            (&mut self.reserved_tokens, more.reserved_tokens),
            (&mut self.unknown, more.unknown),
        ];
        for (total, more) in pairs {
            *total = total.checked_add(more).ok_or(TOO_LARGE)?;
        }
        Ok(())
    }
}

/// What is to be written to a row: to the sums of the thread itself, and to those of its subtree.
#[derive(Clone, Default)]
struct PendingRow {
    own: LedgerDelta,
    subtree: LedgerDelta,
    updated_at: Option<String>,
}

/// A call's row, as it is to be written.
#[derive(Clone, Default)]
struct CallRow {
    reserved_spend: i64,
    reserved_tokens: i64,
    is_settled: bool,
    is_unknown: bool,
    spend: i64,
    passed_on: i64,
    input_tokens: i64,
    output_tokens: i64,
    item: String,
    model: String,
    tool: Option<String>,
    hook: Option<String>,
}

/// The rows that the commits of one transaction work on, and what they add to them.
#[derive(Default)]
pub(crate) struct LedgerCache {
    levels: HashMap<i64, LedgerLevel>,
    calls: HashMap<(i64, i64), KnownCall>,
    pending: BTreeMap<i64, PendingRow>,
    rows: BTreeMap<(i64, i64), CallRow>,
}

/// The rows of a thread and its ancestors, changed apart from the others until a commit is known to hold.
pub(crate) struct LedgerDraft {
    /// The thread's own row first, the root's last.
    levels: Vec<LedgerLevel>,
    calls: BTreeMap<i64, Option<KnownCall>>,
    own: LedgerDelta,
    above: LedgerDelta,
    rows: BTreeMap<i64, CallRow>,
}

const TOO_LARGE: ThreadStoreError = ThreadStoreError::TooLarge("a sum in the ledger");

fn add(sum: &mut i64, more: i64) -> Result<(), DbError> {
    *sum = sum.checked_add(more).filter(|sum| *sum >= 0).ok_or(TOO_LARGE)?;
    Ok(())
}

impl LedgerCache {
    /// Reads the rows of these threads and those above them, and those of these calls.
    pub(crate) async fn load(db: &Db, sealer: &Sealer, wanted: &[(&ThreadId, i64)]) -> Result<Self, DbError> {
        if wanted.is_empty() {
            return Ok(Self::default());
        }
        let names: Vec<&str> = wanted.iter().map(|(id, _)| id.as_str()).collect();
        let calls: Vec<i64> = wanted.iter().map(|(_, call)| *call).collect();
        let (found, known) = futures_util::future::try_join(
            db.query(FIND_LEVELS, &[&names]),
            db.query(FIND_CALLS, &[&names, &calls]),
        )
        .await?;
        let mut cache = Self::default();
        for row in found {
            let level = LedgerLevel::from_row(&row, sealer)?;
            cache.levels.insert(level.thread, level);
        }
        for row in known {
            let call = KnownCall {
                reserved: row.try_get(2)?,
                reserved_tokens: row.try_get(3)?,
                is_settled: row.try_get(4)?,
            };
            cache.calls.insert((row.try_get(0)?, row.try_get(1)?), call);
        }
        Ok(cache)
    }

    /// Reads what threads before this one wait for.
    pub(crate) async fn load_ahead(&mut self, db: &Db, id: &ThreadId, now_ms: i64) -> Result<(), DbError> {
        let since = now_ms.saturating_sub(to_integer(WAIT_LEASE_MS, "a time")?);
        let levels: Vec<i64> = self.levels.keys().copied().collect();
        let name = id.as_str();
        for row in db.query(FIND_AHEAD, &[&name, &levels, &since]).await? {
            if let Some(level) = self.levels.get_mut(&row.try_get(0)?) {
                (level.ahead_spend, level.ahead_tokens) = (row.try_get(1)?, row.try_get(2)?);
            }
        }
        Ok(())
    }

    /// The rows of a thread, for a commit with these calls.
    pub(crate) fn draft(&self, thread: i64, calls: &[i64]) -> Result<LedgerDraft, DbError> {
        let mut levels = Vec::new();
        let mut next = Some(thread);
        while let Some(number) = next {
            if levels.len() > MAX_DEPTH {
                return Err(DbError::damaged("the ledger's threads have no end of ancestors"));
            }
            let level = self.levels.get(&number).cloned();
            let level = level.ok_or_else(|| match levels.last() {
                Some(LedgerLevel { id, .. }) => forged_error(id, Forgery::Ledger),
                None => DbError::damaged("a thread has no row in the ledger"),
            })?;
            next = level.parent;
            levels.push(level);
        }
        let calls = calls.iter().map(|call| (*call, self.calls.get(&(thread, *call)).copied())).collect();
        let (own, above) = (LedgerDelta::default(), LedgerDelta::default());
        Ok(LedgerDraft { levels, calls, own, above, rows: BTreeMap::new() })
    }

    /// Sets other maxima for a thread whose row was read.
    pub(crate) fn set_caps(&mut self, thread: i64, caps: BudgetCaps) -> Result<(), DbError> {
        if let Some(level) = self.levels.get_mut(&thread) {
            (level.max_spend, level.max_tokens) = (spend_column(caps)?, tokens_column(caps)?);
        }
        Ok(())
    }

    /// Takes over what a commit did.
    pub(crate) fn merge(&mut self, draft: LedgerDraft, at: &str) -> Result<(), DbError> {
        let Some(thread) = draft.levels.first().map(|own| own.thread) else { return Ok(()) };
        for (index, level) in draft.levels.into_iter().enumerate() {
            let delta = if index == 0 { draft.own } else { draft.above };
            if delta != LedgerDelta::default() || (index == 0 && !draft.rows.is_empty()) {
                let pending = self.pending.entry(level.thread).or_default();
                pending.subtree.add(delta)?;
                if index == 0 {
                    pending.own.add(delta)?;
                    pending.updated_at = Some(at.to_owned());
                }
            }
            self.levels.insert(level.thread, level);
        }
        for (call, known) in draft.calls {
            if let Some(known) = known {
                self.calls.insert((thread, call), known);
            }
        }
        self.rows.extend(draft.rows.into_iter().map(|(call, row)| ((thread, call), row)));
        Ok(())
    }

    /// Writes what was added.
    pub(crate) async fn save(&self, db: &Db) -> Result<(), DbError> {
        futures_util::future::try_join(self.save_rows(db), self.save_calls(db)).await?;
        Ok(())
    }

    async fn save_rows(&self, db: &Db) -> Result<(), DbError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let threads: Vec<i64> = self.pending.keys().copied().collect();
        let rows = || self.pending.values();
        let own = |get: fn(&LedgerDelta) -> i64| rows().map(|row| get(&row.own)).collect::<Vec<i64>>();
        let subtree =
            |get: fn(&LedgerDelta) -> i64| rows().map(|row| get(&row.subtree)).collect::<Vec<i64>>();
        let updated_at: Vec<Option<&str>> = rows().map(|row| row.updated_at.as_deref()).collect();
        let sql = "UPDATE budget_ledger AS ledger SET actual_spend = actual_spend + own_spend,
                reserved_spend = reserved_spend + own_reserved, actual_tokens = actual_tokens + own_tokens,
                reserved_tokens = reserved_tokens + own_reserved_tokens, unknown_spend = unknown_spend + own_unknown,
                subtree_spend = subtree_spend + spend, subtree_reserved = subtree_reserved + reserved,
                subtree_tokens = subtree_tokens + tokens,
                subtree_reserved_tokens = subtree_reserved_tokens + all_reserved_tokens,
                updated_at = coalesce(at, updated_at)
             FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
                $8::bigint[], $9::bigint[], $10::bigint[], $11::text[])
                AS added (number, own_spend, own_reserved, own_tokens, own_reserved_tokens, own_unknown, spend, reserved,
                    tokens, all_reserved_tokens, at)
             WHERE ledger.thread = added.number";
        db.execute(
            sql,
            &[
                &threads,
                &own(|delta| delta.spend),
                &own(|delta| delta.reserved),
                &own(|delta| delta.tokens),
                &own(|delta| delta.reserved_tokens),
                &own(|delta| delta.unknown),
                &subtree(|delta| delta.spend),
                &subtree(|delta| delta.reserved),
                &subtree(|delta| delta.tokens),
                &subtree(|delta| delta.reserved_tokens),
                &updated_at,
            ],
        )
        .await?;
        Ok(())
    }

    async fn save_calls(&self, db: &Db) -> Result<(), DbError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let keys = |get: fn(&(i64, i64)) -> i64| self.rows.keys().map(get).collect::<Vec<i64>>();
        let numbers = |get: fn(&CallRow) -> i64| self.rows.values().map(get).collect::<Vec<i64>>();
        let flags = |get: fn(&CallRow) -> bool| self.rows.values().map(get).collect::<Vec<bool>>();
        let item: Vec<&str> = self.rows.values().map(|row| row.item.as_str()).collect();
        let model: Vec<&str> = self.rows.values().map(|row| row.model.as_str()).collect();
        let tool: Vec<Option<&str>> = self.rows.values().map(|row| row.tool.as_deref()).collect();
        let hook: Vec<Option<&str>> = self.rows.values().map(|row| row.hook.as_deref()).collect();
        let sql = "INSERT INTO calls (thread, call, reserved_spend, reserved_tokens, is_settled, is_unknown, spend, passed_on,
                input_tokens, output_tokens, item, model, tool, hook)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bool[], $6::bool[],
                $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[])
             ON CONFLICT (thread, call) DO UPDATE SET is_settled = excluded.is_settled, is_unknown = excluded.is_unknown,
                spend = excluded.spend, passed_on = excluded.passed_on, input_tokens = excluded.input_tokens,
                output_tokens = excluded.output_tokens, item = excluded.item, model = excluded.model,
                tool = excluded.tool, hook = excluded.hook";
        db.execute(
            sql,
            &[
                &keys(|key| key.0),
                &keys(|key| key.1),
                &numbers(|row| row.reserved_spend),
                &numbers(|row| row.reserved_tokens),
                &flags(|row| row.is_settled),
                &flags(|row| row.is_unknown),
                &numbers(|row| row.spend),
                &numbers(|row| row.passed_on),
                &numbers(|row| row.input_tokens),
                &numbers(|row| row.output_tokens),
                &item,
                &model,
                &tool,
                &hook,
            ],
        )
        .await?;
        Ok(())
    }
}

impl LedgerDraft {
    /// Sets other maxima for the thread.
    pub(crate) fn set_caps(&mut self, caps: BudgetCaps) -> Result<(), DbError> {
        if let Some(own) = self.levels.first_mut() {
            (own.max_spend, own.max_tokens) = (spend_column(caps)?, tokens_column(caps)?);
        }
        Ok(())
    }

    /// Whether the call fits into what the thread and every ancestor may use. A ledger with another parent or other maxima
    /// than the registry has under its seal is refused.
    pub(crate) fn refusal(&self, request: ReserveRequest) -> Result<Option<BudgetRefusal>, DbError> {
        for level in &self.levels {
            if let Some(what) = &level.forgery {
                return Err(forged_error(&level.id, what.clone()));
            }
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

    /// Whether a call was reserved for or made before.
    pub(crate) fn check_new_call(&self, id: &ThreadId, request: ReserveRequest) -> Result<(), DbError> {
        let call = to_integer(request.call, "a call's number")?;
        to_integer(request.spend.0, "a reservation")?;
        to_integer(request.tokens, "a reservation")?;
        if self.calls.get(&call).is_some_and(Option::is_some) {
            let what = format!("call {call} was made before");
            return Err(ThreadStoreError::Conflict { thread: id.clone(), what }.into());
        }
        Ok(())
    }

    /// Reserves what a call may cost, on the thread and every ancestor.
    pub(crate) fn reserve(&mut self, id: &ThreadId, request: ReserveRequest) -> Result<(), DbError> {
        self.check_new_call(id, request)?;
        let spend = to_integer(request.spend.0, "a reservation")?;
        let tokens = to_integer(request.tokens, "a reservation")?;
        let call = to_integer(request.call, "a call's number")?;
        let known = KnownCall { reserved: spend, reserved_tokens: tokens, is_settled: false };
        self.calls.insert(call, Some(known));
        let row = CallRow { reserved_spend: spend, reserved_tokens: tokens, ..CallRow::default() };
        self.rows.insert(call, row);
        let delta = LedgerDelta { reserved: spend, reserved_tokens: tokens, ..LedgerDelta::default() };
        self.apply(delta, delta)
    }

    /// Records what a call did cost, exactly once, and releases what was reserved. Gives what the thread spent.
    pub(crate) fn settle(
        &mut self,
        id: &ThreadId,
        settlement: &Settlement,
        rules: &LedgerRules,
    ) -> Result<i64, DbError> {
        let conflict = |what: String| DbError::from(ThreadStoreError::Conflict { thread: id.clone(), what });
        let call = to_integer(settlement.call, "a call's number")?;
        let found = self.calls.get(&call).copied().flatten();
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
        // What was reserved is the most that an estimate can come to.
        let spend = if settlement.is_unknown { spend.min(known.reserved) } else { spend };
        let input_tokens = to_integer(settlement.input_tokens, "the tokens of a call")?;
        let output_tokens = to_integer(settlement.output_tokens, "the tokens of a call")?;
        let tokens = input_tokens
            .checked_add(output_tokens)
            .ok_or(ThreadStoreError::TooLarge("the tokens of a call"))?;
        let is_clamped = rules.clamp_to_reserved && found.is_some();
        let passed_on = if is_clamped { spend.min(known.reserved) } else { spend };
        self.calls.insert(call, Some(KnownCall { is_settled: true, ..known }));
        let attribution = &settlement.attribution;
        let row = CallRow {
            reserved_spend: known.reserved,
            reserved_tokens: known.reserved_tokens,
            is_settled: true,
            is_unknown: settlement.is_unknown,
            spend,
            passed_on,
            input_tokens,
            output_tokens,
            item: to_text(&attribution.item),
            model: to_text(&attribution.model),
            tool: attribution.tool.as_deref().map(to_text),
            hook: attribution.hook.as_deref().map(to_text),
        };
        self.rows.insert(call, row);
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
            if index == 0 {
                add(&mut level.actual_spend, delta.spend)?;
                add(&mut level.actual_tokens, delta.tokens)?;
                add(&mut level.unknown_spend, delta.unknown)?;
            }
        }
        self.own.add(own)?;
        self.above.add(above)
    }
}
