//! Budgets of a day or a month, in the store's own transaction: they span the trees of one database.

use rye_store::{BudgetRefusal, ReserveRequest, RollingBudget, RollingUsage};
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};

/// For how long settled calls are remembered after their period, so that none is charged twice.
const CALL_RETENTION_MS: u64 = 40 * 24 * 3_600_000;
/// For how long sums are kept after their period.
const PERIOD_RETENTION_MS: u64 = 800 * 24 * 3_600_000;

/// The budgets as the database names them.
pub(crate) fn scopes(budgets: &[RollingBudget]) -> Vec<String> {
    budgets.iter().map(|budget| to_text(&budget.scope.key())).collect()
}

/// Reserves for a call in every budget, or in none.
pub(crate) async fn reserve(
    db: &Db,
    thread: &ThreadId,
    request: ReserveRequest,
    budgets: &[RollingBudget],
) -> Result<Option<BudgetRefusal>, DbError> {
    if budgets.is_empty() || request.spend == Nanos(0) {
        return Ok(None);
    }
    for budget in budgets {
        let usage = usage(db, budget).await?;
        if usage.used.plus(usage.reserved).plus(request.spend) > budget.limit {
            return Ok(Some(BudgetRefusal::by_rolling(thread, request.spend, budget, usage)));
        }
    }
    for budget in budgets {
        count(db, (thread, request.call), budget, request.spend.0).await?;
    }
    Ok(None)
}

/// Records what a call did cost where it was reserved; one that was reserved nowhere counts in `budgets`.
pub(crate) async fn settle(
    db: &Db,
    thread: &ThreadId,
    call: u64,
    spend: i64,
    budgets: &[RollingBudget],
) -> Result<(), DbError> {
    let (id, number) = (thread.as_str(), to_integer(call, "a call's number")?);
    let find = "SELECT EXISTS (SELECT 1 FROM rolling_calls WHERE thread_id = $1 AND call = $2)";
    let is_known: bool = db.query_value(find, &[&id, &number]).await?;
    if !is_known {
        for budget in budgets {
            count(db, (thread, call), budget, 0).await?;
        }
    }
    let spent = "UPDATE rolling_periods AS periods SET spent = spent + $3, reserved = periods.reserved - counted.reserved
         FROM rolling_calls AS counted
         WHERE counted.thread_id = $1 AND counted.call = $2 AND NOT counted.is_settled
             AND periods.scope = counted.scope AND periods.period = counted.period
             AND periods.starts_ms = counted.starts_ms AND periods.ends_ms = counted.ends_ms";
    db.execute(spent, &[&id, &number, &spend]).await?;
    let settled = "UPDATE rolling_calls SET is_settled = TRUE WHERE thread_id = $1 AND call = $2";
    db.execute(settled, &[&id, &number]).await?;
    Ok(())
}

/// What is spent and reserved of a budget. A period that ends after the budget's start counts with it: a clock was set
/// back, or the time zone is another.
pub(crate) async fn usage(db: &Db, budget: &RollingBudget) -> Result<RollingUsage, DbError> {
    let sql = "SELECT coalesce(sum(spent), 0)::bigint, coalesce(sum(reserved), 0)::bigint,
            coalesce(sum(CASE WHEN starts_ms >= $4 THEN spent + reserved ELSE 0 END), 0)::bigint
         FROM rolling_periods WHERE scope = $1 AND period = $2 AND ends_ms > $3";
    let (starts_ms, ends_ms) = bounds(budget)?;
    let (scope, period) = (to_text(&budget.scope.key()), budget.period.as_str());
    let row = db.query_opt(sql, &[&scope, &period, &starts_ms, &ends_ms]).await?;
    let row = row.ok_or_else(|| DbError::damaged("a sum has no row"))?;
    Ok(RollingUsage {
        used: Nanos(to_number(row.try_get(0)?)?),
        reserved: Nanos(to_number(row.try_get(1)?)?),
        ahead: Nanos(to_number(row.try_get(2)?)?),
    })
}

fn bounds(budget: &RollingBudget) -> Result<(i64, i64), DbError> {
    Ok((to_integer(budget.starts_ms, "a time")?, to_integer(budget.ends_ms, "a time")?))
}

/// Counts a call in a budget, with what is reserved for it.
async fn count(
    db: &Db,
    call: (&ThreadId, u64),
    budget: &RollingBudget,
    reserved: u64,
) -> Result<(), DbError> {
    let (starts_ms, ends_ms) = bounds(budget)?;
    let reserved = to_integer(reserved, "a reservation")?;
    let (scope, period) = (to_text(&budget.scope.key()), budget.period.as_str());
    let insert = "INSERT INTO rolling_periods (scope, period, starts_ms, ends_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT DO NOTHING";
    if db.execute(insert, &[&scope, &period, &starts_ms, &ends_ms]).await? > 0 {
        forget_old(db, budget.starts_ms).await?;
    }
    let update = "UPDATE rolling_periods SET reserved = reserved + $5
         WHERE scope = $1 AND period = $2 AND starts_ms = $3 AND ends_ms = $4";
    db.execute(update, &[&scope, &period, &starts_ms, &ends_ms, &reserved]).await?;
    let number = to_integer(call.1, "a call's number")?;
    let counted = "INSERT INTO rolling_calls (thread_id, call, scope, period, starts_ms, ends_ms, reserved)
         VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let id = call.0.as_str();
    db.execute(counted, &[&id, &number, &scope, &period, &starts_ms, &ends_ms, &reserved]).await?;
    Ok(())
}

/// Forgets what no budget counts any more.
async fn forget_old(db: &Db, now_ms: u64) -> Result<(), DbError> {
    let before = |retention: u64| to_integer(now_ms.saturating_sub(retention), "a time");
    db.execute("DELETE FROM rolling_calls WHERE ends_ms < $1", &[&before(CALL_RETENTION_MS)?]).await?;
    db.execute("DELETE FROM rolling_periods WHERE ends_ms < $1", &[&before(PERIOD_RETENTION_MS)?]).await?;
    Ok(())
}
