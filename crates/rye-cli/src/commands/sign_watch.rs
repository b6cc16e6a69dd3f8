//! `sign --watch`: signs again after each change, until it is interrupted. What is edited is signed, and nothing else: an item
//! that the user never signed, or that asks for more than when they signed it, may have been written by a tool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rye_engine::verbs::sign::{ItemSignState, SignCandidate, SignGate, SignResponse, SignedItem};
use rye_engine::{Code, Error};
use rye_item::ItemType;
use rye_space::search::SpaceWatcher;

use super::signing::{print_signed, show_held, sign_first, sign_target};
use super::{CommandContext, CommandResult};
use crate::arguments::SignArguments;
use crate::output::{DIM, paint};

/// How long files must be left alone before they are signed: an editor writes a file in several steps.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(150);

/// What the user has signed, by file, and what it asked for then.
#[derive(Debug, Default)]
struct SignedRequests {
    files: BTreeMap<PathBuf, (ItemType, String, BTreeSet<String>)>,
    /// What was named already, with what it asks for: each is named once.
    named: BTreeMap<PathBuf, Vec<String>>,
    /// What the user signed elsewhere since the last round.
    joined: Vec<String>,
}

impl SignedRequests {
    fn remember(&mut self, path: &Path, (item_type, id): (ItemType, &str), requests: &[String]) {
        self.named.remove(path);
        let requests = requests.iter().cloned().collect();
        self.files.insert(path.to_owned(), (item_type, id.to_owned(), requests));
    }

    fn remember_all(&mut self, signed: &[SignedItem]) {
        for item in signed {
            self.remember(&item.path, (item.item_type, &item.item_id), &item.asks);
        }
    }

    /// Whether it is news that this item is not signed.
    fn is_news(&mut self, held: &SignCandidate) -> bool {
        let before = self.named.insert(held.path.clone(), held.requests.clone());
        before.as_ref() != Some(&held.requests)
    }
}

impl SignGate for SignedRequests {
    fn admits(&mut self, candidate: &SignCandidate) -> bool {
        let item = &candidate.item;
        if candidate.state == ItemSignState::Signed {
            if !self.files.contains_key(&candidate.path) {
                self.joined.push(item.to_string());
            }
            self.remember(&candidate.path, (item.item_type, item.id.as_str()), &candidate.requests);
            return true;
        }
        self.files.get(&candidate.path).is_some_and(|(item_type, id, known)| {
            (*item_type, id.as_str()) == (item.item_type, item.id.as_str())
                && candidate.requests.iter().all(|request| known.contains(request))
        })
    }

    fn confirms(&mut self, _held: &[SignCandidate]) -> bool {
        false
    }
}

/// Signs what the arguments name now, and the user's edits of it after each change.
pub fn watch(context: &CommandContext, arguments: &SignArguments) -> CommandResult {
    let (sender, changes) = mpsc::channel();
    let spaces = &context.engine.workspace.spaces;
    let watcher = SpaceWatcher::start_with_callback(spaces, &ItemType::ALL, move || {
        // The other end is there as long as this runs.
        let _ = sender.send(());
    });
    let Some(_watcher) = watcher else {
        return Err(Error::new(Code::Io, "the folders of items cannot be watched")
            .hint("raise fs.inotify.max_user_watches, or sign without --watch")
            .into());
    };
    let first = sign_first(context, arguments)?;
    let mut signed = SignedRequests::default();
    signed.remember_all(&first.signed);
    show(context, &first, &mut signed)?;
    context.output.note(paint(DIM, "watching your edits; press Ctrl-C to stop"));
    loop {
        match sign_target(context, arguments, &mut signed, &mut |_, _| {}) {
            Ok(report) => {
                signed.remember_all(&report.signed);
                for item in std::mem::take(&mut signed.joined) {
                    context.output.note(paint(DIM, format_args!("watching {item}: you signed it")));
                }
                show(context, &report, &mut signed)?;
            }
            // What was to be signed is gone for now: an editor may be replacing it.
            Err(error) if error.code == Code::NotFound => {}
            Err(error) => {
                context.output.print_error(&error, None)?;
            }
        }
        if changes.recv().is_err() {
            return Ok(());
        }
        // One round for all changes that come together, and for those that signing itself makes.
        while changes.recv_timeout(SETTLE_TIMEOUT).is_ok() {}
    }
}

/// Shows what was signed just now, what could not be, and what is not signed here, if it was not named before.
fn show(context: &CommandContext, report: &SignResponse, signed: &mut SignedRequests) -> CommandResult {
    for item in report.signed.iter().filter(|item| !item.unchanged) {
        if context.output.is_json {
            context.output.print_json_line(&serde_json::to_value(item).map_err(std::io::Error::from)?)?;
            continue;
        }
        print_signed(context, item)?;
        for warning in &item.warnings {
            context.output.warn_diagnostic(&item.path, warning);
        }
    }
    for failed in &report.failed {
        context.output.print_error(&failed.error, None)?;
    }
    report.held.iter().filter(|held| signed.is_news(held)).for_each(|held| show_held(context, held));
    Ok(())
}
