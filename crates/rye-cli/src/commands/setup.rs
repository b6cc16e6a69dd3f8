//! `init`, `trust`, `config`, `doctor`.

use rye_engine::programs::{NewProgram, ProgramRecordReport, ProgramReview, review_project};
use rye_engine::verbs::doctor::{self, DoctorFinding, Severity};
use rye_engine::verbs::{config, config_set, init as init_verb, keys as keys_verb, trust as trust_verb};
use rye_engine::{Code, Engine, EngineOptions, Error};
use rye_item::ItemId;
use rye_item::text::{counted, shell_word};
use rye_space::Roots;

use super::{CommandContext, CommandError, CommandResult, declined, error_with_data, programs};
use crate::arguments::{InitArguments, TrustArguments};
use crate::global::GlobalArguments;
use crate::output::{DIM, ERROR, HEADING, NAME, Output, SUCCESS, WARNING, display_path, paint};
use crate::settings::{Settings, system_clock};

/// How many findings of one cause are shown.
const MAX_ALIKE: usize = 3;

/// `rye init`
pub fn init(global: &GlobalArguments, arguments: &InitArguments) -> CommandResult {
    let settings = Settings::read(global)?;
    let output = Output::new(global, None, true);
    let folder = match &global.project {
        Some(path) => settings.working_dir.join(path),
        None => settings.working_dir.clone(),
    };
    if let Some(owner) = &arguments.owner {
        keys_verb::require_valid_owner(owner)?;
    }
    let answer = init_verb::init_with_host(
        &settings.roots,
        &folder,
        arguments.owner.as_deref().unwrap_or(&settings.owner),
        system_clock,
        &settings.host_with_prompt(),
    )?;
    let recorded = record_after_init(&settings, &output, &answer)?;
    if output.is_json {
        let data = InitAnswer { answer: &answer, recorded: &recorded };
        let data = serde_json::to_value(&data).map_err(std::io::Error::from)?;
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    if global.quiet {
        return Ok(());
    }
    let label = if answer.key_created { "made your key" } else { "your key is" };
    output.print(format_args!("{} {label} {}", paint(SUCCESS, "✓"), paint(NAME, answer.fingerprint)))?;
    for path in &answer.created {
        output.print(format_args!("{} {}", paint(SUCCESS, "+"), display_path(path)))?;
    }
    if let Some(owner) = arguments.owner.as_ref().filter(|_| !answer.key_created) {
        let owner = shell_word(owner);
        output.note(format_args!(
            "your key has a name already; to change it: rye keys publish --owner {owner}"
        ));
    }
    if answer.made_by_others {
        output.note("others made this project; nothing was approved or changed in it");
        output.note("see who signed what, and join it: rye join");
        return Ok(());
    }
    if answer.created.is_empty() {
        output.print(paint(DIM, "everything is already set up"))?;
    }
    if let Some(project) = &answer.project {
        output.print(format_args!("{} {} is approved", paint(SUCCESS, "✓"), display_path(project)))?;
        programs::show_recorded(&output, &recorded);
        if answer.has_other_identities {
            output
                .note("others work here too; see who signed what, and trust them in this project: rye join");
        }
        output.note("to share it, commit .ai, and lockfiles/ once tools are pinned; after a clone, a colleague runs: rye join");
        output.note("next: rye search hello · rye load tool examples/hello · rye why tool examples/hello");
    }
    Ok(())
}

/// What `rye init` answers as JSON.
#[derive(serde::Serialize)]
struct InitAnswer<'a> {
    #[serde(flatten)]
    answer: &'a init_verb::InitResponse,
    recorded: &'a ProgramRecordReport,
}

/// Records the programs of a project that was just made, if the user agrees. If not, the project is made all the same.
fn record_after_init(
    settings: &Settings,
    output: &Output,
    answer: &init_verb::InitResponse,
) -> Result<ProgramRecordReport, CommandError> {
    let Some(project) = answer.project.as_ref().filter(|_| answer.approved) else {
        return Ok(ProgramRecordReport::default());
    };
    let roots = Roots { project: Some(project.clone()), ..settings.roots.clone() };
    let options = EngineOptions { host: settings.host_with_prompt(), ..EngineOptions::default() };
    let engine = Engine::open(roots, options, system_clock())?;
    let review = review_project(&engine, project)?;
    if programs::has_consent(settings, output, &review, false)? {
        return Ok(review.record(&engine)?);
    }
    let folder = shell_word(&project.display().to_string());
    output.note(format_args!("review what was shown; to allow tools to run it: rye trust {folder} --yes"));
    Ok(review.without_consent())
}

/// `rye trust`
pub fn trust(context: &CommandContext, arguments: &TrustArguments) -> CommandResult {
    let folder = match (&arguments.folder, &context.settings.roots.project) {
        // Without a dot at its end, so that it can be shown.
        (Some(folder), _) => context.settings.working_dir.join(folder).components().collect(),
        (None, Some(project)) => project.clone(),
        (None, None) => return Err(Error::new(Code::PathNotFound, "not inside a project").into()),
    };
    if !arguments.revoke {
        trust_verb::check(&context.engine, &folder)?;
    }
    let is_consent = arguments.folder.is_some() || arguments.yes || arguments.revoke;
    if !is_consent && !confirm_trust(context, &folder)? {
        if context.settings.is_interactive {
            return Err(declined(&context.output, Code::ConsentNeeded));
        }
        return Err(Error::new(Code::ConsentNeeded, format!("`{}` was not approved", display_path(&folder)))
            .hint("name the folder, rye trust DIR, or add --yes")
            .into());
    }
    let review = match arguments.revoke {
        true => ProgramReview::default(),
        false => review_project(&context.engine, &folder)?,
    };
    if !programs::has_consent(&context.settings, &context.output, &review, arguments.yes)? {
        let folder = shell_word(&folder.display().to_string());
        return Err(programs::refusal(&review, &format!("rye trust {folder} --yes")));
    }
    let answer = trust_verb::trust(&context.engine, &folder, !arguments.revoke)?;
    let new_programs = review.new.clone();
    let recorded = review.record(&context.engine)?;
    if context.print_if_json(
        None,
        None,
        &TrustOutput { answer: &answer, recorded: &recorded, new_programs },
    )? {
        return Ok(());
    }
    let word = match (answer.approved, answer.changed) {
        (true, true) => paint(SUCCESS, "approved"),
        (true, false) => paint(SUCCESS, "already approved"),
        (false, true) => paint(WARNING, "no longer approved"),
        (false, false) => paint(DIM, "was not approved"),
    };
    context.output.print(format_args!("{word} {}", rye_item::text::one_line(&answer.project)))?;
    for owner in &answer.owners {
        context.output.note(format_args!("it belongs to another user (uid {owner}), who can change it"));
    }
    if answer.approved && answer.changed {
        context.output.note("this allows:");
        for what in trust_verb::APPROVAL_EFFECTS {
            context.output.note(format_args!("  • {what}"));
        }
    }
    programs::show_recorded(&context.output, &recorded);
    Ok(())
}

/// What `rye trust` answers as JSON.
#[derive(serde::Serialize)]
struct TrustOutput<'a> {
    #[serde(flatten)]
    answer: &'a trust_verb::TrustResponse,
    recorded: &'a ProgramRecordReport,
    new_programs: Vec<NewProgram>,
}

/// Asks at the terminal; without one the answer is no.
fn confirm_trust(context: &CommandContext, folder: &std::path::Path) -> std::io::Result<bool> {
    if !context.settings.is_interactive {
        return Ok(false);
    }
    context.output.note(format_args!("approving {} allows:", display_path(folder)));
    for what in trust_verb::APPROVAL_EFFECTS {
        context.output.note(format_args!("  • {what}"));
    }
    context.output.note("approve it? [y/N]");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// `rye config show`
pub fn show_config(context: &CommandContext, id: Option<&str>, with_origin: bool) -> CommandResult {
    let shown = id.map(ItemId::new).transpose().map_err(Error::from);
    let shown = shown.and_then(|item| config::show(&context.engine, item.as_ref()));
    let answer = shown.map_err(|mut error| {
        if let Some(key) = id.filter(|key| config_set::get(&context.engine, key).is_ok()) {
            error.hints.insert(0, format!("it is a setting: rye config get {}", shell_word(key)));
        }
        error
    })?;
    if context.print_if_json(None, None, &answer)? {
        return Ok(());
    }
    let mut table =
        context.output.table(if with_origin { &["setting", "value", "from"] } else { &["setting", "value"] });
    for setting in &answer.settings {
        let name = if setting.config == "config" {
            setting.key.clone()
        } else {
            format!("{}:{}", setting.config, setting.key)
        };
        let value = rye_item::text::one_line(&setting.value.to_string());
        let row = [name, value, setting.origin.clone()];
        table.add_row(if with_origin { row.to_vec() } else { row[..2].to_vec() });
    }
    context.output.print(table.trim_fmt())?;
    for ignored in
        answer.ignored.iter().filter(|ignored| !context.engine.workspace.settings.ignored.contains(ignored))
    {
        context.output.warn(format_args!(
            "`{}` in {} is ignored: {}",
            rye_item::text::one_line(&ignored.key),
            display_path(&ignored.path),
            rye_item::text::one_line(&ignored.reason)
        ));
    }
    for flat in &answer.misplaced {
        context.output.warn(format_args!(
            "{}: {}",
            display_path(&flat.path),
            rye_item::text::one_line(&flat.reason)
        ));
    }
    Ok(())
}

/// `rye doctor`
pub fn doctor(context: &CommandContext, is_store_only: bool) -> CommandResult {
    let mut report = doctor::DoctorReport::default();
    if !is_store_only {
        let mut bar = context.output.progress("looking");
        report = doctor::doctor(&context.engine, &mut |done, total| bar.update(done, total));
        report.extend(super::threads::check_models(context));
        report.extend(super::threads::check_store(context));
        report.extend(super::threads::check_budgets(context));
    }
    report.extend(super::threads::check_shared_store(context, is_store_only));
    if !context.output.is_json {
        print_findings(&context.output, &report.findings)?;
        context.output.print(format_args!(
            "{}, {}",
            counted(report.errors, "error"),
            counted(report.warnings, "warning")
        ))?;
    }
    if report.errors == 0 {
        context.print_if_json(None, None, &report)?;
        return Ok(());
    }
    if !context.output.is_json {
        return Err(unhealthy_error(&report));
    }
    let data = serde_json::to_value(&report).map_err(std::io::Error::from)?;
    Err(error_with_data(
        Code::Unhealthy,
        format!("{} found", counted(report.errors, "problem")),
        "see the fix for each finding",
        data,
    ))
}

/// The findings, a line each. Many of one cause, told by what helps against them, are shown by their first few.
fn print_findings(output: &Output, findings: &[DoctorFinding]) -> std::io::Result<()> {
    // Up to the command, which names what it is about.
    let cause =
        |finding: &DoctorFinding| finding.remedy.as_ref()?.split([':', ';']).next().map(str::to_owned);
    let causes: Vec<_> =
        findings.iter().map(|finding| (finding.check, finding.level, cause(finding))).collect();
    let is_alike = |left: usize, right: usize| causes[left].2.is_some() && causes[left] == causes[right];
    for (index, finding) in findings.iter().enumerate() {
        let before = (0..index).filter(|other| is_alike(*other, index)).count();
        let after = (index + 1..findings.len()).filter(|other| is_alike(*other, index)).count();
        if before >= MAX_ALIKE {
            continue;
        }
        let mark = match finding.level {
            Severity::Ok => paint(SUCCESS, "✓"),
            Severity::Info => paint(DIM, "·"),
            Severity::Warning => paint(WARNING, "!"),
            Severity::Error => paint(ERROR, "✗"),
        };
        let message = rye_item::text::one_line(&finding.message);
        output.print(format_args!(
            "{mark} {} {message}",
            paint(HEADING, format_args!("{:10}", finding.check))
        ))?;
        if let Some(path) = &finding.path {
            output.print(format_args!("             {}", paint(DIM, display_path(path))))?;
        }
        let is_last_shown = after == 0 || before + 1 == MAX_ALIKE;
        if after > 0 && is_last_shown {
            output.print(format_args!("             and {after} more like these; --json lists all"))?;
        }
        if let Some(remedy) = finding.remedy.as_ref().filter(|_| is_last_shown) {
            let remedy = rye_item::text::one_line(remedy);
            output.print(format_args!("             {} {remedy}", paint(DIM, "→")))?;
        }
    }
    Ok(())
}

fn unhealthy_error(report: &doctor::DoctorReport) -> CommandError {
    let message = format!("{} found", counted(report.errors, "problem"));
    CommandError::Engine(
        Error::new(Code::Unhealthy, message).hint("see the fix for each finding above"),
        None,
    )
}
