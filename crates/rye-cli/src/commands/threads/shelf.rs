//! The threads of this place, to look at: nothing is made by looking. And which thread a person means.

use std::path::PathBuf;

use rye_agent::limits::Reached;
use rye_agent::status::Status;
use rye_agent::store::{Filter, LedgerRow, LedgerSpec, Owner, Secret, Store, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_engine::{Code, Error, Result};
use rye_space::AI_FOLDER;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::live::words;
use crate::settings::{self, Settings};

/// The folder of threads below `.ai`.
const FOLDER: &str = "threads";
/// Digits of a thread's name.
const DIGITS: usize = 12;
/// The fewest digits that name a thread.
const FEWEST_DIGITS: usize = 4;

/// What a thread is called whose row in the registry is not as it was written.
pub const FORGED: &str = "forged";

/// The share of its money, in hundredths, from which on a thread is short of it.
const SHORT_AT: u128 = 80;

/// Where threads live: with the project if there is one, else with the user.
pub fn folder(settings: &Settings) -> PathBuf {
    let project = settings.roots.project.as_ref().filter(|project| project.join(AI_FOLDER).is_dir());
    project.unwrap_or(&settings.roots.user).join(AI_FOLDER).join(FOLDER)
}

/// Threads to look at.
pub struct Shelf {
    /// The store.
    pub store: Store,
    /// The folder of threads.
    pub folder: PathBuf,
    /// The secret behind it.
    pub secret: Secret,
    /// This process, to judge others by.
    pub observer: Owner,
}

impl Shelf {
    /// Opens what is there; `None` when there has never been a thread.
    pub fn open(settings: &Settings) -> Result<Option<Self>> {
        let folder = folder(settings);
        let Some(secret) = Secret::load(&settings.roots.signing_keys)? else {
            return Ok(None);
        };
        let store = Store::open_existing(&folder, &secret, &LedgerSpec::default())?;
        Ok(store.map(|store| Self { store, folder, secret, observer: Owner::current() }))
    }

    /// Opens what is there, to find the thread that `word` names.
    pub fn with(settings: &Settings, word: &str) -> Result<(Self, ThreadRow)> {
        digits(word)?;
        let shelf = Self::open(settings)?.ok_or_else(|| unknown(word))?;
        let row = shelf.find(word)?;
        Ok((shelf, row))
    }

    /// The thread that a person names: whole, or by at least four digits that no other begins with.
    pub fn find(&self, word: &str) -> Result<ThreadRow> {
        let digits = digits(word)?;
        if digits.len() == DIGITS {
            let id = ThreadId::parse(&format!("thread-{digits}")).map_err(|_| unknown(word))?;
            return self.store.thread(&id)?.ok_or_else(|| unknown(word));
        }
        let start = format!("thread-{digits}");
        let mut found = self.store.threads(&Filter::default())?;
        found.retain(|row| row.id.as_str().starts_with(&start));
        if found.len() > 1 {
            let names: Vec<&str> = found.iter().take(5).map(|row| row.id.as_str()).collect();
            let message = format!("`{digits}` begins the names of {} threads", found.len());
            return Err(Error::new(Code::Ambiguous, message).hint(format!("one of: {}", names.join(", "))));
        }
        found.pop().ok_or_else(|| unknown(word))
    }

    /// Where a thread stands, in a word; `interrupted` is one whose process is gone.
    pub fn standing(&self, row: &ThreadRow) -> &'static str {
        if row.is_forged {
            return FORGED;
        }
        if self.is_interrupted(row) { "interrupted" } else { row.status.as_str() }
    }

    /// Whether a thread is said to be at work, and nobody works on it.
    pub fn is_interrupted(&self, row: &ThreadRow) -> bool {
        !row.is_forged
            && matches!(row.status, Status::Created | Status::Running)
            && row.owner.as_ref().is_none_or(|owner| owner.is_gone(&self.observer))
    }

    /// A thread as JSON, one of several.
    pub fn value(&self, row: &ThreadRow) -> Result<Value> {
        let is_interrupted = self.is_interrupted(row);
        let reason = match row.reason.filter(|_| !row.is_forged) {
            Some(reason) => Some(reason.as_str()),
            None => is_interrupted.then_some("interrupted"),
        };
        Ok(json!({
            "thread_id": row.id,
            "directive": row.directive,
            "status": if row.is_forged { FORGED } else { row.status.as_str() },
            "is_forged": row.is_forged,
            "parent_thread_id": row.parent,
            "turns": row.cost.turns,
            "tokens": row.cost.tokens(),
            "spend": row.cost.spend.dollars(),
            "subtree_spend": self.store.ledger(&row.id)?.subtree_spend.dollars(),
            "reason": reason,
            "error": row.error,
            "is_interrupted": is_interrupted,
            "is_detached": row.is_detached,
            "note": row.note,
            "started_at": row.created_at,
            "elapsed_ms": row.cost.elapsed_ms,
        }))
    }

    /// Why somebody should look at a thread: it asks, nobody works on it, it stopped at a limit, or its money runs out.
    pub fn attention(&self, row: &ThreadRow, ledger: &LedgerRow, asks: bool) -> Vec<&'static str> {
        let is_short = || {
            let used = u128::from(ledger.subtree_spend.0) + u128::from(ledger.subtree_reserved.0);
            let most = ledger.maxima.spend.map(|most| u128::from(most.0));
            !row.status.is_terminal() && most.is_some_and(|most| used * 100 >= most * SHORT_AT && used > 0)
        };
        let marks = [
            (asks, "approval"),
            (self.is_interrupted(row), "interrupted"),
            (row.status == Status::Suspended && !asks, "suspended"),
            (is_short(), "budget"),
        ];
        marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark).collect()
    }

    /// How long ago a thread was made.
    pub fn age(row: &ThreadRow) -> String {
        let made = words::unix_ms(&row.created_at);
        let now = settings::now_ms();
        made.map(|made| words::ago(now.saturating_sub(made))).unwrap_or_default()
    }

    /// The command that lets a thread go on, if there is one.
    pub fn way_on(&self, row: &ThreadRow) -> Option<String> {
        if row.is_forged {
            return Some(format!("rye thread verify {}", row.id));
        }
        match row.status {
            Status::Suspended => {
                let detail = row.result.as_ref().and_then(|result| result.get("detail"));
                Some(resuming(&row.id, row.reason.map(|reason| reason.as_str()), detail))
            }
            Status::Created | Status::Running if self.is_interrupted(row) => {
                Some(format!("rye thread resume {}", row.id))
            }
            Status::Created | Status::Running => Some(format!("rye thread tail {}", row.id)),
            Status::Completed | Status::Error | Status::Cancelled | Status::Killed => {
                Some(format!("rye run {} --continue {}", row.directive, row.id))
            }
            Status::Continued => {
                row.continuation_thread_id.as_ref().map(|next| format!("rye thread show {next}"))
            }
        }
    }
}

/// The command that lets a suspended thread go on: with as much again of what ran out.
pub fn resuming(id: &ThreadId, reason: Option<&str>, detail: Option<&Value>) -> String {
    if reason == Some("approval") {
        return format!("rye thread approve {id}");
    }
    let reached = detail.and_then(|detail| Reached::deserialize(detail).ok());
    let more = match reached.as_ref().map(|reached| (reached, reached.name())) {
        Some((reached, "turns")) => {
            let over = reached.current_value.as_u64().unwrap_or(0);
            let over = over.saturating_sub(reached.current_max.as_u64().unwrap_or(0));
            format!(" --limit turns=+{}", over + 10)
        }
        Some((reached, name @ ("spend" | "tokens" | "duration_seconds" | "spawns" | "depth"))) => {
            format!(" --limit {name}={}", reached.more())
        }
        _ => String::new(),
    };
    format!("rye thread resume {id}{more}")
}

/// The digits of the name that a person gave.
fn digits(word: &str) -> Result<&str> {
    let digits = word.strip_prefix("thread-").unwrap_or(word);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if (FEWEST_DIGITS..=DIGITS).contains(&digits.len()) && digits.bytes().all(is_digit) {
        return Ok(digits);
    }
    let word = rye_item::text::one_line(word);
    let message =
        format!("`{word}` names no thread; names look like thread-0a1b2c3d4e5f, and 0a1b is enough");
    Err(Error::new(Code::InvalidArgument, message).hint("rye thread list shows them"))
}

fn unknown(word: &str) -> Error {
    let message = format!("there is no thread `{}` here", rye_item::text::one_line(word));
    Error::new(Code::NoThread, message).hint("rye thread list --all shows every thread of this place")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_go_on_raises_what_ran_out() {
        let id = ThreadId::parse("thread-0a1b2c3d4e5f").expect("a name");
        let of = |code: &str, most: Value| {
            let detail = json!({"limit_code": format!("{code}_exceeded"), "current_max": most});
            resuming(&id, Some("limit"), Some(&detail))
        };
        assert_eq!(of("turns", json!(5)), "rye thread resume thread-0a1b2c3d4e5f --limit turns=+10");
        assert_eq!(of("spend", json!(0.25)), "rye thread resume thread-0a1b2c3d4e5f --limit spend=+0.25");
        assert_eq!(of("spend", json!(0.0)), "rye thread resume thread-0a1b2c3d4e5f --limit spend=+1");
        assert_eq!(of("tokens", json!(500)), "rye thread resume thread-0a1b2c3d4e5f --limit tokens=+500");
        assert_eq!(resuming(&id, Some("error"), None), "rye thread resume thread-0a1b2c3d4e5f");
        assert_eq!(resuming(&id, Some("approval"), None), "rye thread approve thread-0a1b2c3d4e5f");
    }

    #[test]
    fn a_name_may_be_short_but_not_anything() {
        for word in ["0a1b", "thread-0a1b", "thread-0a1b2c3d4e5f"] {
            assert!(digits(word).is_ok(), "{word}");
        }
        for word in ["", "0a1", "thread-", "0A1B", "../a", "0a1b2c3d4e5f0", "hello"] {
            assert_eq!(digits(word).map_err(|error| error.code), Err(Code::InvalidArgument), "{word}");
        }
    }
}
