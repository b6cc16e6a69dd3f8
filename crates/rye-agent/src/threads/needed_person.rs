//! Threads that do not go on without a person: those that ask one, and those that ended with a no, or before the answer.
//!
//! A parent and a program that speaks for the user are no such person. Every operation that starts a thread from what
//! another has said asks here first.

use rye_engine::{Code, Error, Result};

use super::resume::approval_needed_error;
use crate::machine::{NeededPerson, ThreadState};

/// What becomes of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Succession {
    /// Another takes its place: what it asks is not asked any more.
    Replaced,
    /// Another begins with what was said so far.
    Copied,
}

/// Refuses what needs a person who is not there. `is_unattended` says that only a program asks for it.
///
/// # Errors
/// When the thread waits for a person, or ended because of one.
pub(super) fn check_succession(
    state: &ThreadState,
    succession: Succession,
    is_unattended: bool,
) -> Result<()> {
    let own = &state.spec.instance.thread_id;
    let directive = &state.spec.template.directive;
    let ended = |message: String| {
        Err(Error::new(Code::PermissionDenied, format!("{own} {message}"))
            .detail("thread_id", own.as_str())
            .hint(format!("only the user continues from it: rye run {directive} --continue {own}")))
    };
    match state.needed_person() {
        None => Ok(()),
        // The user who continues knows the limit; a copied question stays where it is, too.
        Some(NeededPerson::Asked { is_limit, .. })
            if !is_unattended && (is_limit || succession == Succession::Copied) =>
        {
            Ok(())
        }
        Some(NeededPerson::Asked { prompt, .. }) => Err(approval_needed_error(own, &prompt)),
        Some(_) if !is_unattended => Ok(()),
        Some(NeededPerson::Denied(denial)) => {
            ended(format!("was ended by a person: {}", rye_item::text::one_line(&denial)))
        }
        Some(NeededPerson::Unanswered { prompt, reason }) => {
            let why = rye_item::text::one_line(&format!("{prompt} ({reason})"));
            ended(format!("was ended while it asked a person: {why}"))
        }
    }
}

/// What the model of a thread reads that continues from one which ended because of a person.
pub(super) fn note_for_successor(state: &ThreadState) -> Option<String> {
    match state.needed_person()? {
        NeededPerson::Asked { .. } => None,
        NeededPerson::Denied(denial) => Some(format!(
            "A person ended the previous thread with a no: {denial}. That still holds, unless you are told otherwise here."
        )),
        NeededPerson::Unanswered { prompt, reason } => Some(format!(
            "The previous thread was ended while it asked a person: {prompt}. It ended with: {reason}. What it asked for is not allowed, unless you are told otherwise here."
        )),
    }
}
