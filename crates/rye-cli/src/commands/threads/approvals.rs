//! `thread approvals`, `approve`, `deny`: what threads ask people, and the answers.

use std::time::{Duration, Instant};

use rye_agent::machine::ApprovalScope;
use rye_agent::status::ThreadStatus;
use rye_agent::store::{Approval, ApprovalDecision, ThreadRow};
use rye_agent::threads::{ApprovalText, END_THREAD, ResumeOptions, denial_reason};
use rye_agent::views::approval_value;
use rye_engine::{Code, Error};
use serde_json::{Map, Value, json};

use super::control::{parse_limits, resume_view};
use super::runner;
use super::thread_index::ThreadIndex;
use crate::arguments::{AlwaysScope, AnswerArguments, ApproveArguments};
use crate::commands::{CommandContext, CommandError, CommandResult};
use crate::live::format::{format_age, truncate, truncate_question};
use crate::output::{DIM, NAME, SUCCESS, WARNING, paint};
use crate::settings;

/// How long a process that holds on to a thread may take to hear of the answer.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is looked whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// `rye thread approvals`
pub fn approvals(context: &CommandContext, id: Option<&str>, is_full: bool) -> CommandResult {
    let scope = match id {
        Some(word) => Some(
            ThreadIndex::open_thread(&context.settings, word).map(|(index, row)| (index, Some(row.id)))?,
        ),
        None => ThreadIndex::open(&context.settings)?.map(|index| (index, None)),
    };
    let open = match &scope {
        Some((index, below)) => index.store.open_approvals(below.as_ref())?,
        None => rye_agent::store::OpenApprovals::default(),
    };
    warn_forged(context, &open.forged);
    let values: Vec<Value> = open.approvals.iter().map(approval_value).collect();
    if context.print_if_json(Some("thread"), None, &json!({"approvals": values, "forged": open.forged}))? {
        return Ok(());
    }
    if open.approvals.is_empty() {
        context.output.note("no pending approvals");
        return Ok(());
    }
    for question in &open.approvals {
        let age = format_age(settings::now_ms().saturating_sub(question.at_ms));
        let text = ApprovalText::new(question, is_full);
        context.output.print(format_args!(
            "{} {} {}",
            paint(WARNING, "?"),
            paint(NAME, &text.prompt),
            paint(DIM, format_args!("· {} · {age}", truncate(&question.kind, 20)))
        ))?;
        for line in text.lines() {
            context.output.print(format_args!("  {line}"))?;
        }
        let name = truncate(&question.id, 60);
        if text.is_truncated {
            let command = format!("rye thread approvals {} --full", question.thread);
            context.output.print(paint(DIM, format_args!("  all of it: {command}")))?;
        }
        context
            .output
            .print(paint(DIM, format_args!("  rye thread approve {name}  or  rye thread deny {name}")))?;
    }
    Ok(())
}

/// A question, every argument, who asks, and the command that allows it.
pub fn question_lines(question: &Approval) -> Vec<String> {
    let text = ApprovalText::new(question, false);
    let command = paint(DIM, format_args!("· rye thread approve {}", truncate(&question.id, 60)));
    let mut lines = vec![format!("{} {} {command}", paint(WARNING, "?"), text.prompt)];
    lines.extend(text.lines().into_iter().map(|line| format!("  {line}")));
    if text.is_truncated {
        let command = format!("rye thread approvals {} --full", question.thread);
        lines.push(paint(DIM, format_args!("  all of it: {command}")));
    }
    lines
}

fn warn_forged(context: &CommandContext, forged: &[String]) {
    for name in forged {
        let name = truncate(name, 60);
        context.output.warn(format_args!("ignoring approval {name}: it was not written by you"));
    }
}

/// `rye thread approve`
pub fn approve(context: CommandContext, arguments: &ApproveArguments) -> CommandResult {
    let always = arguments.always.map(|scope| match scope {
        AlwaysScope::Item => ApprovalScope::Item,
        AlwaysScope::Arguments => ApprovalScope::Arguments,
    });
    answer_approval(context, &arguments.answer, true, always, false)
}

/// `rye thread deny`
pub fn deny(context: CommandContext, arguments: &AnswerArguments, end_thread: bool) -> CommandResult {
    answer_approval(context, arguments, false, None, end_thread)
}

fn answer_approval(
    context: CommandContext,
    arguments: &AnswerArguments,
    is_approved: bool,
    always: Option<ApprovalScope>,
    end_thread: bool,
) -> CommandResult {
    let limit_changes = parse_limits(&arguments.limits, true)?;
    let word = &arguments.target;
    let not_found = || {
        let message = format!("no pending approval `{}`", rye_item::text::one_line(word));
        Error::new(Code::NoQuestion, message).hint("rye thread approvals lists pending ones")
    };
    let index = ThreadIndex::open(&context.settings)?.ok_or_else(not_found)?;
    let open = index.store.open_approvals(None)?;
    warn_forged(&context, &open.forged);
    let mut questions: Vec<Approval> =
        open.approvals.iter().filter(|question| question.id == *word).cloned().collect();
    if questions.is_empty() {
        let row = index.find(word).map_err(|_| not_found())?;
        questions.extend(open.approvals.iter().filter(|question| question.thread == row.id).cloned());
        // Suspended for a person's word without a question: continuing is the answer.
        if questions.is_empty() && row.status == ThreadStatus::Suspended && is_approved {
            return resume_here(context, &index, &row, limit_changes, arguments.message.clone());
        }
        if questions.is_empty() && row.status == ThreadStatus::Suspended && end_thread {
            let reason = denial_reason(&context.settings.owner, arguments.message.as_deref());
            return super::control::cancel(context, &[row.id.to_string()], &reason);
        }
        if questions.is_empty() {
            let error = not_found();
            return Err(match index.next_command(&row) {
                Some(command) => error.hint(format!("to continue: {command}")).into(),
                None => error.into(),
            });
        }
    }
    if !end_thread {
        questions.iter().try_for_each(|question| index.refuse_unresumable(&question.thread))?;
    }
    for question in &questions {
        let proposed = question.detail.get("proposed").and_then(Value::as_object);
        let changes = match (is_approved, limit_changes.is_empty()) {
            (true, true) => proposed.cloned().unwrap_or_default(),
            (true, false) => limit_changes.clone(),
            // Kept with the answer, in case this command does not come to ending it.
            (false, _) if end_thread => Map::from_iter([(END_THREAD.to_owned(), Value::Bool(true))]),
            (false, _) => Map::new(),
        };
        let answer = ApprovalDecision {
            approved: is_approved,
            message: arguments.message.clone(),
            changes: Value::Object(changes),
            at_ms: settings::now_ms(),
            by: context.settings.owner.clone(),
            always: always.filter(|_| question.kind == "tool"),
        };
        let approval = index.store.answer_approval(&question.id, &answer)?;
        let word = if is_approved { paint(SUCCESS, "approved") } else { paint(WARNING, "denied") };
        context.output.note(format_args!("{word} {}", truncate_question(&approval.prompt, 120)));
    }
    let Some(row) = questions.first().map(|question| index.store.thread(&question.thread)).transpose()?
    else {
        return Err(not_found().into());
    };
    let answered: Vec<&str> = questions.iter().map(|question| question.id.as_str()).collect();
    let data = json!({"approved": is_approved, "answered": answered});
    let Some(row) = row.filter(|row| row.status == ThreadStatus::Suspended) else {
        context.print_if_json(Some("thread"), None, &data)?;
        return Ok(());
    };
    if end_thread {
        let reason = denial_reason(&context.settings.owner, arguments.message.as_deref());
        return super::control::cancel(context, &[row.id.to_string()], &reason);
    }
    let is_open =
        |question: &Approval| question.thread == row.id && !answered.contains(&question.id.as_str());
    let others: Vec<&Approval> = open.approvals.iter().filter(|question| is_open(question)).collect();
    if let Some(next) = others.first() {
        context.output.note(format_args!(
            "{} needs another approval before it resumes: {}",
            row.id,
            paint(DIM, format_args!("rye thread approve {}", truncate(&next.id, 60)))
        ));
        context.print_if_json(Some("thread"), None, &data)?;
        return Ok(());
    }
    if wait_for_takeover(&index, &row)? {
        print_resumed_elsewhere(&context, &row);
        context.print_if_json(Some("thread"), None, &data)?;
        return Ok(());
    }
    resume_here(context, &index, &row, Map::new(), None)
}

/// Whether a process that runs a thread above this one takes it up: its tree continues there.
fn wait_for_takeover(index: &ThreadIndex, row: &ThreadRow) -> Result<bool, Error> {
    let above = index.store.ancestors(&row.id)?;
    if !above.iter().any(|above| above.status == ThreadStatus::Running && !index.is_interrupted(above)) {
        return Ok(false);
    }
    let end = Instant::now() + TAKEOVER_TIMEOUT;
    while Instant::now() < end {
        if index
            .store
            .thread(&row.id)?
            .is_none_or(|row| row.status != ThreadStatus::Suspended || row.owner.is_some())
        {
            return Ok(true);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(false)
}

fn print_resumed_elsewhere(context: &CommandContext, row: &ThreadRow) {
    context.output.note(paint(
        DIM,
        format_args!("resumed where it was running; follow it: rye thread tail {}", row.id),
    ));
}

/// Continues with it here.
fn resume_here(
    context: CommandContext,
    index: &ThreadIndex,
    row: &ThreadRow,
    limits: Map<String, Value>,
    message: Option<String>,
) -> CommandResult {
    let changes =
        ResumeOptions { limits, message, by: context.settings.owner.clone(), ..ResumeOptions::default() };
    let id = row.id.clone();
    let output = context.output;
    let result = runner::drive(context, resume_view(index, row), async move |threads, signal| {
        threads.resume(&id, &changes, signal).await
    });
    match result {
        // Its owner was faster.
        Err(CommandError::Engine(error, _)) if error.code == Code::ThreadHeld => {
            let id = &row.id;
            output.note(paint(
                DIM,
                format_args!("resumed in another process; follow it: rye thread tail {id}"),
            ));
            Ok(())
        }
        result => result,
    }
}
