//! Shows programs of a project that are new or changed, and asks before they are recorded.

use rye_engine::programs::{NewProgram, ProgramRecordReport, ProgramReview};
use rye_engine::{Code, Error};
use rye_item::text::{counted, one_line};

use super::{CommandError, confirm};
use crate::output::{DIM, NAME, Output, WARNING, paint};
use crate::settings::Settings;

/// Lets the user see what would be recorded. Gives whether they agree.
///
/// # Errors
/// When the answer cannot be read.
pub(super) fn has_consent(
    settings: &Settings,
    output: &Output,
    review: &ProgramReview,
    is_agreed: bool,
) -> std::io::Result<bool> {
    if review.is_known() {
        return Ok(true);
    }
    review.new.iter().for_each(|program| show(output, program));
    if is_agreed || !settings.is_interactive || output.is_json {
        return Ok(is_agreed);
    }
    let programs = if review.new.len() == 1 { "this program" } else { "these programs" };
    output.ask(format_args!("allow tools of the project to run {programs}? [y/N]"));
    confirm()
}

/// The refusal of a command that records what the user did not agree to; `command` is what agrees.
pub(super) fn refusal(review: &ProgramReview, command: &str) -> CommandError {
    let names: Vec<String> = review.new.iter().map(|new| format!("`{}`", one_line(&new.path))).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let message = format!("{} {verb} not recorded; nothing was changed", names.join(", "));
    let data = serde_json::json!({ "new_programs": review.new });
    let hint = format!("review what was shown; to allow tools of the project to run it: {command}");
    CommandError::Engine(Error::new(Code::ConsentNeeded, message).hint(hint), Some(Box::new(data)))
}

/// Says which programs of a project were recorded.
pub(super) fn show_recorded(output: &Output, recorded: &ProgramRecordReport) {
    for program in &recorded.programs {
        output.note(format_args!("recorded {}: used until it changes", one_line(program)));
    }
    for skipped in &recorded.skipped {
        output.warn(format_args!("not recorded, and not used: {skipped}"));
    }
}

/// Shows a program as it is before it is recorded.
pub(super) fn show(output: &Output, program: &NewProgram) {
    let word = if program.is_change { "changed program" } else { "new program" };
    output.ask(format_args!(
        "{} {}: {}",
        paint(WARNING, word),
        paint(NAME, one_line(&program.path)),
        program.kind()
    ));
    let modified = program.modified.as_deref().map(|moment| format!(", last changed {moment}"));
    output.ask(paint(
        DIM,
        format_args!("  sha256 {}…, owner {}{}", program.digest, program.owner, modified.unwrap_or_default()),
    ));
    if program.startup_files > 0 && !program.is_folder {
        let loads = counted(program.startup_files, "file");
        output.ask(paint(DIM, format_args!("  loads {loads} when it starts")));
    }
    if program.replaced_programs > 0 {
        let replaced = counted(program.replaced_programs, "program");
        output.ask(paint(WARNING, format_args!("  {replaced} would run in place of the system's")));
    }
    if program.changed_count > 0 {
        let more = program.changed_count - program.changed_files.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = program.changed_files.join(", ");
        output.ask(paint(DIM, format_args!("  new or changed: {named}{more}")));
    }
}
