//! The command that a person types next to let a thread continue.

use serde::Deserialize as _;
use serde_json::Value;

use crate::limits::{LIMIT_NAMES, LimitReached};
use crate::models::OFFLINE_PROVIDER;
use crate::store::StoreHandle;
use crate::thread_id::ThreadId;

/// The command with which a person answers a thread.
#[must_use]
pub fn approve_command(id: &ThreadId) -> String {
    format!("rye thread approve {id}")
}

/// The command that continues in a new thread from the end of one with this provider; none without a model, which would have
/// to say what comes next.
#[must_use]
pub fn successor_command(id: &ThreadId, directive: &str, provider: &str) -> Option<String> {
    (provider != OFFLINE_PROVIDER).then(|| format!("rye run {directive} --continue {id}"))
}

/// The command that lets a suspended thread continue: with as much again of what ran out.
#[must_use]
pub fn resume_command(id: &ThreadId, reason: Option<&str>, detail: Option<&Value>) -> String {
    if reason == Some("approval") {
        return approve_command(id);
    }
    if reason == Some("provider") {
        return format!("rye thread resume {id} --when-available");
    }
    let reached = detail.and_then(|detail| LimitReached::deserialize(detail).ok());
    let reached = reached.filter(|reached| LIMIT_NAMES.contains(&reached.name()));
    let more = reached.map(|reached| format!(" --limit {}={}", reached.name(), reached.suggested_raise()));
    let more = more.unwrap_or_default();
    format!("rye thread resume {id}{more}")
}

/// The same where the store tells more: a thread that its parents' budget stopped does not continue below parents that have
/// ended; another thread takes its place, with a budget of its own.
#[must_use]
pub fn continue_command(
    store: &StoreHandle,
    id: &ThreadId,
    directive: &str,
    reason: Option<&str>,
    detail: Option<&Value>,
) -> String {
    let is_parents_budget = reason == Some("budget")
        && detail.and_then(|detail| detail.get("limit_code")).and_then(Value::as_str)
            == Some("hierarchical_budget_exceeded");
    let have_ended = || {
        let above = store.ancestors(id).unwrap_or_default();
        !above.is_empty() && above.iter().all(|row| row.status.is_terminal())
    };
    match is_parents_budget && have_ended() {
        true => format!("rye run {directive} --continue {id}"),
        false => resume_command(id, reason, detail),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resume_command_raises_reached_limit() {
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("a name");
        let of = |code: &str, max: Value| {
            let detail = json!({"limit_code": format!("{code}_exceeded"), "current_max": max});
            resume_command(&id, Some("limit"), Some(&detail))
        };
        assert_eq!(of("turns", json!(5)), "rye thread resume thread-0a1b2c3d4e5f --limit turns=+5");
        assert_eq!(of("spend", json!(0.25)), "rye thread resume thread-0a1b2c3d4e5f --limit spend=+0.25");
        assert_eq!(of("spend", json!(0.0)), "rye thread resume thread-0a1b2c3d4e5f --limit spend=+1");
        assert_eq!(of("tokens", json!(500)), "rye thread resume thread-0a1b2c3d4e5f --limit tokens=+500");
        assert_eq!(resume_command(&id, Some("error"), None), "rye thread resume thread-0a1b2c3d4e5f");
        assert_eq!(resume_command(&id, Some("approval"), None), "rye thread approve thread-0a1b2c3d4e5f");
        let stopped = LimitReached::new("duration_seconds", json!(2), json!(2));
        let stopped = stopped.with_stopped(vec!["team/slow".to_owned()]);
        let detail = serde_json::to_value(stopped).expect("JSON");
        assert_eq!(
            resume_command(&id, Some("limit"), Some(&detail)),
            "rye thread resume thread-0a1b2c3d4e5f --limit duration_seconds=+60"
        );
        assert_eq!(
            of("duration_seconds", json!(300)),
            "rye thread resume thread-0a1b2c3d4e5f --limit duration_seconds=+300"
        );
        let waiting = resume_command(&id, Some("provider"), None);
        assert_eq!(waiting, "rye thread resume thread-0a1b2c3d4e5f --when-available");
    }

    #[test]
    fn only_threads_with_models_have_successors() {
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("a name");
        let command = successor_command(&id, "team/ask", "openai");
        assert_eq!(command.as_deref(), Some("rye run team/ask --continue thread-0a1b2c3d4e5f"));
        assert_eq!(successor_command(&id, "team/ask", OFFLINE_PROVIDER), None);
    }
}
