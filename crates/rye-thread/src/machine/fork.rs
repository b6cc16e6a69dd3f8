//! Where a thread can be forked: between two turns, when every call of the model has its result.

use std::sync::Arc;

use super::{Effect, ThreadEvent, ThreadState, step};
use crate::model::ChatMessage;
use crate::spec::ThreadSpec;

/// The end of a turn, with all that was said up to it.
#[derive(Clone, Debug, PartialEq)]
pub struct ForkPoint {
    /// How many times the model had answered.
    pub turn: u64,
    /// What was said.
    pub messages: Vec<Arc<ChatMessage>>,
    /// How many events lead there.
    pub events: usize,
}

impl ForkPoint {
    /// Whether the model spoke last: it has to be told something before it can be asked again.
    #[must_use]
    pub fn needs_message(&self) -> bool {
        matches!(self.messages.last().map(Arc::as_ref), Some(ChatMessage::Assistant { .. }))
    }
}

/// Why a thread cannot be forked at a turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    /// It never got so far.
    #[error("it has {turns} turns, not {turn}")]
    NoTurn {
        /// The turn that was asked for.
        turn: u64,
        /// How many there are.
        turns: u64,
    },
    /// Calls of the turn have no result yet, or the turn is not over.
    #[error("turn {turn} is not over")]
    Unfinished {
        /// The turn.
        turn: u64,
    },
}

/// The end of a turn of a thread to which these events happened; of the last one that is over, if none is named. Turn 0 is
/// before the model was first asked.
///
/// # Errors
/// When there is no such turn, or it is not over.
pub fn fork_point(
    spec: Arc<ThreadSpec>,
    events: impl IntoIterator<Item = (u64, ThreadEvent)>,
    turn: Option<u64>,
) -> Result<ForkPoint, ForkError> {
    let mut state = ThreadState::new(spec);
    let mut found: Option<ForkPoint> = None;
    for (index, (at_ms, event)) in events.into_iter().enumerate() {
        let effects = step(&mut state, at_ms, event);
        let turns = state.cost.turns;
        let is_asked = effects
            .iter()
            .any(|effect| matches!(effect, Effect::CallModel { .. } | Effect::AwaitBudget { .. }));
        let is_between = is_asked || state.outcome().is_some();
        let is_new = found.as_ref().is_none_or(|point| point.turn < turns);
        let is_wanted = turn.is_none_or(|turn| turn == turns);
        if is_between && is_new && is_wanted && !state.messages.is_empty() && !has_open_calls(&state.messages)
        {
            found = Some(ForkPoint { turn: turns, messages: state.messages.clone(), events: index + 1 });
        }
    }
    let turns = state.cost.turns;
    found.ok_or(match turn {
        Some(turn) if turn > turns => ForkError::NoTurn { turn, turns },
        _ => ForkError::Unfinished { turn: turn.unwrap_or(turns) },
    })
}

/// Whether a call of the model's newest answer has no result.
fn has_open_calls(messages: &[Arc<ChatMessage>]) -> bool {
    let mut answered: Vec<&str> = Vec::new();
    for message in messages.iter().rev() {
        match message.as_ref() {
            ChatMessage::Tool { call_id, .. } => answered.push(call_id),
            ChatMessage::Assistant { calls, .. } => {
                return calls.iter().any(|call| !answered.contains(&call.id.as_str()));
            }
            ChatMessage::User { .. } => {}
        }
    }
    false
}
