//! `rye bundle`.

use std::sync::Mutex;

use lillux::file::{self, FileMode};
use rye_engine::Error;
use rye_engine::verbs::bundles::{
    self, BundleCapabilities, BundleVerification, CreateRequest, LocatedBundle,
};
use serde_json::Value;

use super::{CommandContext, CommandError, CommandResult, execute, registry};
use crate::arguments::{BundleCommand, CreateArguments, ExecuteArguments, RunBundleArguments};
use crate::output::{DIM, ERROR, HEADING, NAME, SUCCESS, WARNING, display_path, paint, shell_path};

/// Runs a command of `rye bundle`.
pub fn run(context: &CommandContext, command: &BundleCommand) -> CommandResult {
    match command {
        BundleCommand::List => list(context),
        BundleCommand::Create(arguments) => create(context, arguments),
        BundleCommand::Verify { bundle, plain_http } => {
            verify(context, &find_bundle(context, bundle, *plain_http)?)
        }
        BundleCommand::Inspect { bundle, plain_http } if registry::is_reference(bundle) => {
            registry::inspect(context, bundle, *plain_http)
        }
        BundleCommand::Inspect { bundle, .. } => inspect(context, bundle),
        BundleCommand::Run(arguments) => run_entrypoint(context, arguments),
        BundleCommand::Sbom { bundle, out, plain_http } => {
            sbom(context, &find_bundle(context, bundle, *plain_http)?, out.as_deref())
        }
        BundleCommand::Push { bundle, reference, plain_http } => {
            registry::push(context, bundle, reference, *plain_http)
        }
        BundleCommand::Pull { reference, out, plain_http } => {
            registry::pull(context, reference, out.as_deref(), *plain_http)
        }
        BundleCommand::Outdated(arguments) => super::project_bundles::outdated(context, arguments),
        BundleCommand::Upgrade(arguments) => super::project_bundles::upgrade(context, arguments),
        BundleCommand::Rollback(arguments) => super::install::rollback(context, arguments),
        BundleCommand::Trust { id, signer, revoke: true } => revoke(context, id, signer.as_deref()),
        BundleCommand::Trust { id, signer, revoke: false } => trust(context, id, signer.as_deref()),
        BundleCommand::Enable { id } => set_enabled(context, id, true),
        BundleCommand::Disable { id } => set_enabled(context, id, false),
    }
}

fn create(context: &CommandContext, arguments: &CreateArguments) -> CommandResult {
    let name = format!("{}-{}", arguments.id, arguments.version);
    let out = arguments.out.clone().unwrap_or_else(|| name.into());
    let request = CreateRequest {
        id: arguments.id.clone(),
        version: arguments.version.clone(),
        description: arguments.description.clone(),
        entrypoint: arguments.entrypoint.clone(),
        categories: arguments.categories.clone(),
        out: context.settings.working_dir.join(out),
        sign: arguments.sign,
        with_lockfiles: arguments.with_lockfiles,
    };
    let created =
        bundles::create(&context.engine, &request).map_err(|error| report_invalid(context, error))?;
    if context.print_if_json(Some("bundle"), Some(created.bundle_id.as_str()), &created)? {
        return Ok(());
    }
    for signed in &created.signed {
        context.output.note(format_args!("{} {signed}", paint(SUCCESS, "signed")));
    }
    for left_out in &created.excluded {
        context.output.note(format_args!(
            "{} {}: {}",
            paint(DIM, "left out"),
            left_out.path,
            left_out.reason
        ));
    }
    let counts: Vec<String> =
        created.files_by_type.iter().map(|(kind, count)| bundles::pluralize(kind, *count)).collect();
    context.output.print(format_args!(
        "{} {} {} in {}: {}",
        paint(SUCCESS, "made"),
        paint(NAME, &created.bundle_id),
        created.version,
        display_path(&created.path),
        counts.join(", ")
    ))?;
    for signer in &created.other_signers {
        context.output.warn(format_args!(
            "some items are signed by {signer}; the bundle installs only where that key is trusted, \
             unless you read them, sign them yourself (rye sign TYPE ID), and make the bundle again",
        ));
    }
    context.output.note(format_args!(
        "signed by {}; check it: rye bundle verify {}",
        created.signer,
        shell_path(&created.path)
    ));
    Ok(())
}

/// A person sees every file that cannot be packed, and why.
fn report_invalid(context: &CommandContext, error: Error) -> CommandError {
    if !context.output.is_json {
        for invalid in error.details.get("unfit").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| invalid.get(key).and_then(Value::as_str).unwrap_or_default();
            context.output.note(format_args!("{} {}: {}", paint(ERROR, "•"), text("path"), text("reason")));
        }
        for problem in error.details.get("problems").and_then(Value::as_array).into_iter().flatten() {
            let problem = rye_item::text::one_line(problem.as_str().unwrap_or_default());
            context.output.note(format_args!("{} {problem}", paint(ERROR, "•")));
        }
    }
    error.into()
}

/// The bundle that a word names: a reference to a registry, a path, or an id.
fn find_bundle(
    context: &CommandContext,
    word: &str,
    allows_plain_http: bool,
) -> Result<LocatedBundle, CommandError> {
    if registry::is_reference(word) {
        return registry::find(context, word, allows_plain_http);
    }
    Ok(bundles::find(&context.engine, word, &context.settings.working_dir)?)
}

fn verify(context: &CommandContext, source: &LocatedBundle) -> CommandResult {
    let bar = Mutex::new(context.output.progress("verifying"));
    let progress = |done, total| {
        if let Ok(mut bar) = bar.lock() {
            bar.update(done, total);
        }
    };
    let verification = bundles::verify(&context.engine, source, &progress);
    drop(bar);
    if !context.output.is_json {
        print_verification(context, &verification)?;
    }
    let id = verification.report.bundle_id.to_string();
    match verification.failure() {
        None => {
            context.print_if_json(Some("bundle"), Some(&id), &verification)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&verification).map_err(std::io::Error::from)?;
            Err(CommandError::Engine(error, Some(Box::new(data))))
        }
    }
}

fn print_verification(context: &CommandContext, verification: &BundleVerification) -> std::io::Result<()> {
    let (output, report) = (&context.output, &verification.report);
    if let Some(error) = &report.manifest_error {
        output.print(format_args!("{} {error}", paint(ERROR, "manifest ")))?;
    }
    for path in &report.files_tampered {
        let reason = report.reasons.get(path.as_str()).map(String::as_str).unwrap_or_default();
        output.print(format_args!("{} {path}: {reason}", paint(ERROR, "tampered ")))?;
    }
    for path in &report.files_missing {
        output.print(format_args!("{} {path}", paint(ERROR, "missing  ")))?;
    }
    for path in &report.files_unlisted {
        output.print(format_args!("{} {path}", paint(ERROR, "unlisted ")))?;
    }
    let version = report.version.as_deref().unwrap_or_default();
    let word = if report.is_verified() { paint(SUCCESS, "verified") } else { paint(ERROR, "failed") };
    output.print(format_args!(
        "{word} {} {version}: {} of {} ok",
        paint(NAME, &report.bundle_id),
        report.files_ok,
        rye_item::text::counted(report.files_checked, "file")
    ))?;
    print_signer(context, verification)
}

fn print_signer(context: &CommandContext, verification: &BundleVerification) -> std::io::Result<()> {
    let Some(signer) = &verification.report.signer else {
        return Ok(());
    };
    let style = if verification.approved { SUCCESS } else { WARNING };
    let trust = paint(style, verification.trust.as_str());
    let owner = rye_item::text::quote_name(&signer.owner);
    context.output.print(format_args!("signer {}: {trust}, owner {owner}", signer.fingerprint))
}

fn inspect(context: &CommandContext, word: &str) -> CommandResult {
    let source = bundles::find(&context.engine, word, &context.settings.working_dir)?;
    let inspected =
        bundles::inspect(&context.engine, &source).map_err(|error| report_invalid(context, error))?;
    let about = &inspected.bundle;
    if context.print_if_json(Some("bundle"), Some(&about.id), &inspected)? {
        return Ok(());
    }
    let output = &context.output;
    output.print(format_args!("{} {}", paint(NAME, &about.id), about.version))?;
    if !about.description.is_empty() {
        output.print(format_args!("  {}", about.description))?;
    }
    let counts: Vec<String> =
        inspected.files_by_type.iter().map(|(kind, count)| bundles::pluralize(kind, *count)).collect();
    output.print(format_args!("  {}; {} bytes", counts.join(", "), inspected.size))?;
    if let Some(entrypoint) = &about.entrypoint {
        output.print(format_args!("  entrypoint: {entrypoint}"))?;
    }
    if !about.categories.is_empty() {
        output.print(format_args!("  categories: {}", about.categories.join(", ")))?;
    }
    print_signer(context, &inspected.verification)?;
    let mut kind = "";
    for file in &inspected.files {
        if file.kind != kind {
            kind = file.kind;
            output.print(paint(HEADING, kind))?;
        }
        let name = file.item_id.as_deref().unwrap_or(&file.path);
        output.print(format_args!("  {name} {}", paint(DIM, format_args!("{} bytes", file.size))))?;
    }
    if !inspected.capabilities.is_empty() {
        output.print(paint(HEADING, "asks for"))?;
    }
    for (word, capabilities) in inspected.capabilities.groups() {
        for (capability, items) in capabilities {
            let items = items.iter().cloned().collect::<Vec<_>>().join(", ");
            output.print(format_args!("  {word} {capability} {}", paint(DIM, items)))?;
        }
    }
    if let Some(error) = inspected.verification.failure() {
        output.warn(rye_item::text::one_line(&error.message));
    }
    Ok(())
}

fn run_entrypoint(context: &CommandContext, arguments: &RunBundleArguments) -> CommandResult {
    let item = bundles::entrypoint(&context.engine, &arguments.id)?;
    let mut words = vec![item.to_string()];
    words.extend(arguments.words.iter().cloned());
    let execution = ExecuteArguments {
        words,
        params: arguments.params.clone(),
        dry_run: arguments.dry_run,
        trace: arguments.trace,
        locked: arguments.locked,
        frozen: arguments.frozen,
    };
    execute::execute(context, &execution)
}

fn sbom(context: &CommandContext, source: &LocatedBundle, out: Option<&std::path::Path>) -> CommandResult {
    let document = bundles::sbom(&context.engine, source)?;
    let mut text = serde_json::to_string_pretty(&document).map_err(std::io::Error::from)?;
    text.push('\n');
    if let Some(path) = out {
        file::write_atomic(&context.settings.working_dir.join(path), text.as_bytes(), FileMode::Preserve)
            .map_err(Error::from)?;
    }
    let id = source.manifest.id().to_string();
    if context.print_if_json(Some("bundle"), Some(&id), &document)? {
        return Ok(());
    }
    match out {
        Some(path) => {
            context.output.print(format_args!("{} {}", paint(SUCCESS, "wrote"), display_path(path)))?
        }
        None => context.output.print_raw(&text)?,
    }
    Ok(())
}

/// `rye bundle list`
fn list(context: &CommandContext) -> CommandResult {
    let rows = bundles::list(&context.engine);
    if context.print_if_json(None, None, &serde_json::json!({ "bundles": rows }))? {
        return Ok(());
    }
    let mut table =
        context.output.table(&["bundle", "space", "version", "standing", "items", "categories", "path"]);
    for row in &rows {
        let path = row.path.as_ref().map_or_else(|| "inside rye".to_owned(), |path| display_path(path));
        let categories = if row.categories.is_empty() { "all".to_owned() } else { row.categories.join(", ") };
        table.add_row([
            row.bundle_id.clone(),
            row.space.tier().as_str().to_owned(),
            rye_item::text::one_line(&row.version),
            row.status.to_owned(),
            row.items.to_string(),
            rye_item::text::one_line(&categories),
            path,
        ]);
    }
    context.output.print(table.trim_fmt())?;
    for row in &rows {
        if let Some(package) = &row.package {
            context
                .output
                .note(format_args!("{} ({}): from the Python package {package}", row.bundle_id, row.space));
        }
        if let Some(note) = &row.note {
            context.output.note(format_args!(
                "{} ({}): {}",
                row.bundle_id,
                row.space,
                rye_item::text::one_line(note)
            ));
        }
    }
    Ok(())
}

/// `rye bundle trust`
fn trust(context: &CommandContext, id: &str, signer: Option<&str>) -> CommandResult {
    let approved = bundles::trust(&context.engine, id, signer)?;
    if !context.print_if_json(Some("bundle"), Some(&approved.bundle_id), &approved)? {
        for capability in approved.capabilities.added_since(&BundleCapabilities::default()) {
            context.output.note(format_args!("{} asks for {capability}", paint(WARNING, "+")));
        }
        context.output.print(format_args!(
            "{} {} for the bundle {}, and for nothing else; owner {}",
            paint(SUCCESS, "approved"),
            paint(NAME, approved.fingerprint),
            approved.bundle_id,
            rye_item::text::quote_name(&approved.owner)
        ))?;
    }
    Ok(())
}

/// `rye bundle trust --revoke`
fn revoke(context: &CommandContext, id: &str, signer: Option<&str>) -> CommandResult {
    let revoked = bundles::revoke(&context.engine, id, signer)?;
    if context.print_if_json(Some("bundle"), Some(&revoked.bundle_id), &revoked)? {
        return Ok(());
    }
    for fingerprint in &revoked.fingerprints {
        context.output.print(format_args!(
            "{} the approval of {} for the bundle {}",
            paint(WARNING, "revoked"),
            paint(NAME, fingerprint),
            revoked.bundle_id
        ))?;
    }
    for fingerprint in &revoked.still_trusted {
        context.output.warn(format_args!(
            "you trust {fingerprint} everywhere: items it signed in project or user space still run; rye keys revoke {fingerprint} ends that"
        ));
    }
    Ok(())
}

/// `rye bundle enable` and `rye bundle disable`
fn set_enabled(context: &CommandContext, id: &str, enable: bool) -> CommandResult {
    let response = bundles::set_enabled(&context.engine, id, enable)?;
    if context.print_if_json(Some("bundle"), Some(&response.bundle_id), &response)? {
        return Ok(());
    }
    let word = match (response.enabled, response.changed) {
        (true, true) => paint(SUCCESS, "enabled"),
        (true, false) => paint(SUCCESS, "already enabled"),
        (false, true) => paint(WARNING, "disabled"),
        (false, false) => paint(DIM, "was not enabled"),
    };
    context.output.print(format_args!("{word} {}", response.bundle_id))?;
    Ok(())
}
