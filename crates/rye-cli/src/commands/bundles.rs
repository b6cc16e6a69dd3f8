//! `rye bundle`.

use std::sync::Mutex;

use lillux::file::{self, Mode};
use rye_engine::Error;
use rye_engine::verbs::bundles::{self, Capabilities, CreateRequest, Found, Judged};
use serde_json::Value;

use super::{Context, Failure, Outcome, execute, registry};
use crate::arguments::{BundleCommand, CreateArguments, ExecuteArguments, RunBundleArguments};
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, STRONG, paint, shell_path, shown_path};

/// Runs a command of `rye bundle`.
pub fn run(context: &Context, command: &BundleCommand) -> Outcome {
    match command {
        BundleCommand::List => list(context),
        BundleCommand::Create(arguments) => create(context, arguments),
        BundleCommand::Verify { bundle, plain_http } => verify(context, &find(context, bundle, *plain_http)?),
        BundleCommand::Inspect { bundle, plain_http } if registry::is_reference(bundle) => {
            registry::inspect(context, bundle, *plain_http)
        }
        BundleCommand::Inspect { bundle, .. } => inspect(context, bundle),
        BundleCommand::Run(arguments) => run_entrypoint(context, arguments),
        BundleCommand::Sbom { bundle, out, plain_http } => {
            sbom(context, &find(context, bundle, *plain_http)?, out.as_deref())
        }
        BundleCommand::Push { bundle, reference, plain_http } => {
            registry::push(context, bundle, reference, *plain_http)
        }
        BundleCommand::Pull { reference, out, plain_http } => {
            registry::pull(context, reference, out.as_deref(), *plain_http)
        }
        BundleCommand::Rollback(arguments) => super::install::rollback(context, arguments),
        BundleCommand::Trust { id, signer, revoke: true } => revoke(context, id, signer.as_deref()),
        BundleCommand::Trust { id, signer, revoke: false } => trust(context, id, signer.as_deref()),
        BundleCommand::Enable { id } => switch(context, id, true),
        BundleCommand::Disable { id } => switch(context, id, false),
    }
}

fn create(context: &Context, arguments: &CreateArguments) -> Outcome {
    let name = format!("{}-{}", arguments.id, arguments.version);
    let out = arguments.out.clone().unwrap_or_else(|| name.into());
    let request = CreateRequest {
        id: arguments.id.clone(),
        version: arguments.version.clone(),
        description: arguments.description.clone(),
        entrypoint: arguments.entrypoint.clone(),
        categories: arguments.categories.clone(),
        out: context.settings.folder.join(out),
        sign: arguments.sign,
        with_lockfiles: arguments.with_lockfiles,
    };
    let created = bundles::create(&context.engine, &request).map_err(|error| told_unfit(context, error))?;
    if context.answered(Some("bundle"), Some(created.bundle_id.as_str()), &created)? {
        return Ok(());
    }
    for signed in &created.signed {
        context.output.note(format_args!("{} {signed}", paint(GOOD, "signed")));
    }
    for left_out in &created.left_out {
        context.output.note(format_args!(
            "{} {}: {}",
            paint(DIM, "left out"),
            left_out.path,
            left_out.reason
        ));
    }
    let counts: Vec<String> =
        created.files_by_type.iter().map(|(kind, count)| bundles::plural(kind, *count)).collect();
    context.output.result(format_args!(
        "{} {} {} in {}: {}",
        paint(GOOD, "made"),
        paint(NAME, &created.bundle_id),
        created.version,
        shown_path(&created.path),
        counts.join(", ")
    ))?;
    context.output.note(format_args!(
        "signed by {}; check it: rye bundle verify {}",
        created.signer,
        shell_path(&created.path)
    ));
    Ok(())
}

/// A person sees every file that cannot be packed, and why.
fn told_unfit(context: &Context, error: Error) -> Failure {
    if !context.output.is_json {
        for unfit in error.details.get("unfit").and_then(Value::as_array).into_iter().flatten() {
            let text = |key: &str| unfit.get(key).and_then(Value::as_str).unwrap_or_default();
            context.output.note(format_args!("{} {}: {}", paint(BAD, "•"), text("path"), text("reason")));
        }
        for problem in error.details.get("problems").and_then(Value::as_array).into_iter().flatten() {
            let problem = rye_item::text::one_line(problem.as_str().unwrap_or_default());
            context.output.note(format_args!("{} {problem}", paint(BAD, "•")));
        }
    }
    error.into()
}

/// The bundle that a word names: a reference to a registry, a path, or an id.
fn find(context: &Context, word: &str, allows_plain_http: bool) -> Result<Found, Failure> {
    if registry::is_reference(word) {
        return registry::find(context, word, allows_plain_http);
    }
    Ok(bundles::find(&context.engine, word, &context.settings.folder)?)
}

fn verify(context: &Context, found: &Found) -> Outcome {
    let bar = Mutex::new(context.output.progress("verifying"));
    let progress = |done, total| {
        if let Ok(mut bar) = bar.lock() {
            bar.update(done, total);
        }
    };
    let judged = bundles::verify(&context.engine, found, &progress);
    drop(bar);
    if !context.output.is_json {
        draw(context, &judged)?;
    }
    let id = judged.report.bundle_id.to_string();
    match judged.failure() {
        None => {
            context.answered(Some("bundle"), Some(&id), &judged)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&judged).map_err(std::io::Error::from)?;
            Err(Failure::Verb(error, Some(Box::new(data))))
        }
    }
}

fn draw(context: &Context, judged: &Judged) -> std::io::Result<()> {
    let (output, report) = (&context.output, &judged.report);
    if let Some(error) = &report.manifest_error {
        output.result(format_args!("{} {error}", paint(BAD, "manifest ")))?;
    }
    for path in &report.files_tampered {
        let reason = report.reasons.get(path.as_str()).map(String::as_str).unwrap_or_default();
        output.result(format_args!("{} {path}: {reason}", paint(BAD, "tampered ")))?;
    }
    for path in &report.files_missing {
        output.result(format_args!("{} {path}", paint(BAD, "missing  ")))?;
    }
    for path in &report.files_unlisted {
        output.result(format_args!("{} {path}", paint(BAD, "unlisted ")))?;
    }
    let version = report.version.as_deref().unwrap_or_default();
    let word = if report.is_verified() { paint(GOOD, "verified") } else { paint(BAD, "failed") };
    output.result(format_args!(
        "{word} {} {version}: {} of {} ok",
        paint(NAME, &report.bundle_id),
        report.files_ok,
        rye_item::text::counted(report.files_checked, "file")
    ))?;
    draw_signer(context, judged)
}

fn draw_signer(context: &Context, judged: &Judged) -> std::io::Result<()> {
    let Some(signer) = &judged.report.signer else {
        return Ok(());
    };
    let style = if judged.approved { GOOD } else { CAUTION };
    let standing = paint(style, judged.trust.as_str());
    context.output.result(format_args!("signer {} ({}): {standing}", signer.fingerprint, signer.owner))
}

fn inspect(context: &Context, word: &str) -> Outcome {
    let found = bundles::find(&context.engine, word, &context.settings.folder)?;
    let inspected = bundles::inspect(&context.engine, &found).map_err(|error| told_unfit(context, error))?;
    let about = &inspected.bundle;
    if context.answered(Some("bundle"), Some(&about.id), &inspected)? {
        return Ok(());
    }
    let output = &context.output;
    output.result(format_args!("{} {}", paint(NAME, &about.id), about.version))?;
    if !about.description.is_empty() {
        output.result(format_args!("  {}", about.description))?;
    }
    let counts: Vec<String> =
        inspected.files_by_type.iter().map(|(kind, count)| bundles::plural(kind, *count)).collect();
    output.result(format_args!("  {}; {} bytes", counts.join(", "), inspected.size))?;
    if let Some(entrypoint) = &about.entrypoint {
        output.result(format_args!("  entrypoint: {entrypoint}"))?;
    }
    if !about.categories.is_empty() {
        output.result(format_args!("  categories: {}", about.categories.join(", ")))?;
    }
    draw_signer(context, &inspected.verification)?;
    let mut kind = "";
    for file in &inspected.files {
        if file.kind != kind {
            kind = file.kind;
            output.result(paint(STRONG, kind))?;
        }
        let name = file.item_id.as_deref().unwrap_or(&file.path);
        output.result(format_args!("  {name} {}", paint(DIM, format_args!("{} bytes", file.size))))?;
    }
    if !inspected.capabilities.is_empty() {
        output.result(paint(STRONG, "asks for"))?;
    }
    for (word, asked) in inspected.capabilities.groups() {
        for (what, items) in asked {
            let items = items.iter().cloned().collect::<Vec<_>>().join(", ");
            output.result(format_args!("  {word} {what} {}", paint(DIM, items)))?;
        }
    }
    if let Some(error) = inspected.verification.failure() {
        output.warn(rye_item::text::one_line(&error.message));
    }
    Ok(())
}

fn run_entrypoint(context: &Context, arguments: &RunBundleArguments) -> Outcome {
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

fn sbom(context: &Context, found: &Found, out: Option<&std::path::Path>) -> Outcome {
    let bill = bundles::sbom(&context.engine, found)?;
    let mut text = serde_json::to_string_pretty(&bill).map_err(std::io::Error::from)?;
    text.push('\n');
    if let Some(path) = out {
        file::write_atomic(&context.settings.folder.join(path), text.as_bytes(), Mode::Kept)
            .map_err(Error::from)?;
    }
    let id = found.manifest.id().to_string();
    if context.answered(Some("bundle"), Some(&id), &bill)? {
        return Ok(());
    }
    match out {
        Some(path) => context.output.result(format_args!("{} {}", paint(GOOD, "wrote"), shown_path(path)))?,
        None => context.output.raw(&text)?,
    }
    Ok(())
}

/// `rye bundle list`
fn list(context: &Context) -> Outcome {
    let rows = bundles::list(&context.engine);
    if context.answered(None, None, &serde_json::json!({ "bundles": rows }))? {
        return Ok(());
    }
    let mut table =
        context.output.table(&["bundle", "space", "version", "standing", "items", "categories", "path"]);
    for row in &rows {
        let path = row.path.as_ref().map_or_else(|| "inside rye".to_owned(), |path| shown_path(path));
        let categories = if row.categories.is_empty() { "all".to_owned() } else { row.categories.join(", ") };
        table.add_row([
            row.bundle_id.clone(),
            row.space.tier().as_str().to_owned(),
            rye_item::text::one_line(&row.version),
            row.standing.to_owned(),
            row.items.to_string(),
            rye_item::text::one_line(&categories),
            path,
        ]);
    }
    context.output.result(table.trim_fmt())?;
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
fn trust(context: &Context, id: &str, signer: Option<&str>) -> Outcome {
    let approved = bundles::trust(&context.engine, id, signer)?;
    if !context.answered(Some("bundle"), Some(&approved.bundle_id), &approved)? {
        for asked in approved.capabilities.beyond(&Capabilities::default()) {
            context.output.note(format_args!("{} asks for {asked}", paint(CAUTION, "+")));
        }
        context.output.result(format_args!(
            "{} {} ({}) for the bundle {}, and for nothing else",
            paint(GOOD, "approved"),
            paint(NAME, approved.fingerprint),
            approved.owner,
            approved.bundle_id
        ))?;
    }
    Ok(())
}

/// `rye bundle trust --revoke`
fn revoke(context: &Context, id: &str, signer: Option<&str>) -> Outcome {
    let revoked = bundles::revoke(&context.engine, id, signer)?;
    if context.answered(Some("bundle"), Some(&revoked.bundle_id), &revoked)? {
        return Ok(());
    }
    for fingerprint in &revoked.fingerprints {
        context.output.result(format_args!(
            "{} the approval of {} for the bundle {}",
            paint(CAUTION, "revoked"),
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
fn switch(context: &Context, id: &str, enable: bool) -> Outcome {
    let answer = bundles::switch(&context.engine, id, enable)?;
    if context.answered(Some("bundle"), Some(&answer.bundle_id), &answer)? {
        return Ok(());
    }
    let word = match (answer.enabled, answer.changed) {
        (true, true) => paint(GOOD, "enabled"),
        (true, false) => paint(GOOD, "already enabled"),
        (false, true) => paint(CAUTION, "disabled"),
        (false, false) => paint(DIM, "was not enabled"),
    };
    context.output.result(format_args!("{word} {}", answer.bundle_id))?;
    Ok(())
}
