//! What threads ask, put to the person at the terminal: what will happen is shown whole before it is answered.

use std::io::{self, BufRead};

use rye_agent::action::Action;
use rye_agent::machine::ApprovalScope;
use rye_agent::store::{Approval, ApprovalDecision};
use rye_agent::threads::ApprovalText;
use rye_engine::Error;
use serde_json::Value;

use crate::output::{DIM, NAME, Output, SUCCESS, WARNING, paint};
use crate::settings::{self, Settings};

/// Asks at a terminal.
#[derive(Clone, Debug)]
pub struct ApprovalPrompt {
    /// Where it is shown.
    pub output: Output,
    /// Who answers.
    pub by: String,
}

/// What the person typed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Yes(Option<ApprovalScope>),
    No(Option<String>),
    ShowFull,
    Later,
    Unknown,
}

impl Reply {
    /// Reads a line: a letter or a word, for a no with its reason behind it.
    fn parse(line: &str, can_repeat: bool) -> Self {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
        match (word.to_ascii_lowercase().as_str(), reason) {
            ("n" | "no", reason) => Self::No(reason),
            (_, Some(_)) => Self::Unknown,
            ("y" | "yes", None) => Self::Yes(None),
            ("a" | "always", None) if can_repeat => Self::Yes(Some(ApprovalScope::Item)),
            ("s" | "same", None) if can_repeat => Self::Yes(Some(ApprovalScope::Arguments)),
            ("f" | "full", None) => Self::ShowFull,
            ("l" | "later", None) => Self::Later,
            _ => Self::Unknown,
        }
    }
}

impl ApprovalPrompt {
    /// The prompt of a terminal; nothing where there is none to ask at.
    pub fn for_terminal(settings: &Settings, output: Output) -> Option<Self> {
        let can_ask = settings.is_interactive && !output.is_json;
        can_ask.then(|| Self { output, by: settings.owner.clone() })
    }

    /// Asks all of these, and has each answer recorded at once; whether each was answered.
    pub fn ask_all(
        &self,
        approvals: &[Approval],
        record: impl Fn(&str, &ApprovalDecision) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut granted: Vec<(&Approval, ApprovalScope)> = Vec::new();
        for approval in approvals {
            let is_covered =
                |(earlier, scope): &(&Approval, ApprovalScope)| covers(earlier, *scope, approval);
            let answer = match granted.iter().find(|grant| is_covered(grant)) {
                Some((_, scope)) => Some((true, None, Some(*scope))),
                None => self.ask(approval),
            };
            let Some((approved, message, always)) = answer else { return Ok(false) };
            if let Some(scope) = always {
                granted.push((approval, scope));
            }
            let proposed = approval.detail.get("proposed").filter(|_| approved);
            let decision = ApprovalDecision {
                approved,
                message,
                changes: proposed.cloned().unwrap_or_default(),
                at_ms: settings::now_ms(),
                by: self.by.clone(),
                always,
            };
            record(&approval.id, &decision)?;
            let word = if approved { paint(SUCCESS, "approved") } else { paint(WARNING, "denied") };
            self.output.note(format_args!("{word} {}", ApprovalText::new(approval, false).prompt));
        }
        Ok(true)
    }

    /// Asks one until it is answered or left.
    fn ask(&self, approval: &Approval) -> Option<(bool, Option<String>, Option<ApprovalScope>)> {
        let can_repeat = approval.kind == "tool";
        let mut is_full = false;
        loop {
            let text = ApprovalText::new(approval, is_full);
            self.output.alert(format_args!("{} {}", paint(WARNING, "?"), paint(NAME, &text.prompt)));
            for line in text.lines() {
                self.output.alert(format_args!("  {line}"));
            }
            self.output.alert(paint(DIM, format_args!("  {}", choices(can_repeat, text.is_truncated))));
            let reply = loop {
                match read_line() {
                    None => break Reply::Later,
                    Some(line) => match Reply::parse(&line, can_repeat) {
                        Reply::Unknown => self
                            .output
                            .alert(paint(DIM, format_args!("  {}", choices(can_repeat, text.is_truncated)))),
                        reply => break reply,
                    },
                }
            };
            match reply {
                Reply::Yes(scope) => return Some((true, None, scope)),
                Reply::No(Some(reason)) => return Some((false, Some(reason), None)),
                Reply::No(None) => {
                    self.output.alert(paint(DIM, "  why not? (Enter for no reason)"));
                    let reason = read_line().map(|line| line.trim().to_owned());
                    return Some((false, reason.filter(|reason| !reason.is_empty()), None));
                }
                Reply::ShowFull => is_full = true,
                Reply::Later | Reply::Unknown => return None,
            }
        }
    }
}

fn choices(can_repeat: bool, is_truncated: bool) -> String {
    let mut choices = vec!["[y] yes", "[n] no, with a reason"];
    if can_repeat {
        choices.push("[a] always for this item in this thread");
        choices.push("[s] always for these same arguments");
    }
    if is_truncated {
        choices.push("[f] show in full");
    }
    choices.push("[l] later");
    choices.join("  ")
}

/// Whether a yes to one question answers another: of the same thread, for what its scope covers.
fn covers(earlier: &Approval, scope: ApprovalScope, approval: &Approval) -> bool {
    let action =
        |approval: &Approval| Action::from_value(approval.detail.get("action").unwrap_or(&Value::Null)).ok();
    let (Some(granted), Some(action)) = (action(earlier), action(approval)) else { return false };
    earlier.thread == approval.thread && approval.kind == "tool" && scope.covers(&granted, &action)
}

/// A line that was typed; nothing at the end of input.
fn read_line() -> Option<String> {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_letters_or_words() {
        for (line, expected) in [
            ("y\n", Reply::Yes(None)),
            ("Yes", Reply::Yes(None)),
            ("n", Reply::No(None)),
            ("no not on Friday\n", Reply::No(Some("not on Friday".to_owned()))),
            ("a", Reply::Yes(Some(ApprovalScope::Item))),
            ("s", Reply::Yes(Some(ApprovalScope::Arguments))),
            ("f", Reply::ShowFull),
            ("l", Reply::Later),
            ("", Reply::Unknown),
            ("y and more", Reply::Unknown),
            ("ja", Reply::Unknown),
        ] {
            assert_eq!(Reply::parse(line, true), expected, "{line}");
        }
        assert_eq!(Reply::parse("a", false), Reply::Unknown);
    }
}
