//! `rye join`.

use lillux::Fingerprint;
use rye_engine::verbs::join::{
    self, HiddenItem, JoinResponse, JoinReview, ProjectBundle, ProjectProvider, ProjectSigner, SignerStatus,
};
use rye_engine::verbs::trust;
use rye_engine::{Code, Error};
use rye_item::text::{counted, join_first, one_line, quote_name};

use super::given_command::given_command_with;
use super::{CommandContext, CommandError, CommandResult, confirm, declined, programs};
use crate::arguments::JoinArguments;
use crate::output::{DIM, HEADING, NAME, Output, SUCCESS, WARNING, display_path, paint};

/// How many items are named of those that stay refused.
const MAX_NAMED_ITEMS: usize = 5;

/// Shows who signed what in the project, and trusts them there after one yes.
pub fn join(context: CommandContext, arguments: &JoinArguments) -> CommandResult {
    let mut review = join::review(&context.engine)?;
    if !arguments.only.is_empty() {
        let keys = arguments.only.iter().map(|word| word.trim().parse::<Fingerprint>());
        let keys = keys.collect::<Result<Vec<_>, _>>().map_err(|error| {
            Error::new(Code::InvalidArgument, error.to_string()).hint("rye join shows the fingerprints")
        })?;
        review.retain_keys(&keys)?;
    }
    let CommandContext { settings, engine, output } = context;
    if !output.is_json {
        show_review(&output, &review);
    }
    if review.is_joined() && review.has_key {
        if output.is_json {
            let data = serde_json::to_value(&review).map_err(std::io::Error::from)?;
            output.print_json(&rye_engine::success_response(None, None, data))?;
            return Ok(());
        }
        return show_already_joined(&output, &review);
    }
    if !arguments.yes && !has_consent(settings.is_interactive, &output, &review)? {
        if settings.is_interactive && !output.is_json {
            return Err(declined(&output, Code::ConsentNeeded));
        }
        let error = Error::new(Code::ConsentNeeded, "nothing was changed: joining needs a yes");
        let error = error.hint(format!("review what was shown, then: {}", given_command_with(&["--yes"])));
        let data = serde_json::to_value(&review).map_err(std::io::Error::from)?;
        return Err(CommandError::Engine(error, Some(Box::new(data))));
    }
    let answer = join::accept(review, engine, &settings.owner, &|| settings.engine())?;
    if output.is_json {
        let data = serde_json::to_value(&answer).map_err(std::io::Error::from)?;
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    show_answer(&output, &answer)
}

/// Asks at the terminal; without one the answer is no.
fn has_consent(is_interactive: bool, output: &Output, review: &JoinReview) -> std::io::Result<bool> {
    if !is_interactive || output.is_json {
        return Ok(false);
    }
    let keys = review.new_signers().count();
    let question = match keys {
        0 => "join this project?".to_owned(),
        _ => format!("trust {} in this project, and join it?", counted(keys, "key")),
    };
    output.ask(format_args!("{question} [y/N]"));
    confirm()
}

fn show_review(output: &Output, review: &JoinReview) {
    output.ask(paint(HEADING, display_path(&review.project)));
    for signer in &review.signers {
        show_signer(output, signer);
    }
    if review.signers.is_empty() {
        output.ask(paint(DIM, "  no signed items"));
    }
    for (items, what) in
        [(&review.unsigned, "not signed"), (&review.changed, "changed since they were signed")]
    {
        if let Some(names) = name_items(items) {
            output.ask(format_args!(
                "  {} {}: {names}; they stay refused",
                paint(WARNING, counted(items.len(), "item")),
                what
            ));
        }
    }
    for bundle in &review.bundles {
        show_bundle(output, bundle);
    }
    if review.lockfiles > 0 {
        output.ask(format_args!(
            "  {} that must match before a tool runs",
            counted(review.lockfiles, "lockfile")
        ));
    }
    if review.has_env_file && !review.approved {
        output.ask("  its `.env` may set variables for its own tools");
    }
    show_hidden(output, &review.hidden);
    review.providers.iter().for_each(|provider| show_provider(output, provider));
    review.new_programs.iter().for_each(|program| programs::show(output, program));
    if !review.approved {
        output.ask(paint(DIM, "  joining approves the folder too, which allows:"));
        for effect in trust::APPROVAL_EFFECTS {
            output.ask(paint(DIM, format_args!("    • {effect}")));
        }
    }
    if review.new_signers().next().is_some() {
        output.ask(paint(
            DIM,
            "  compare the fingerprints with their owners: the names are what they call themselves",
        ));
    }
}

/// The items that the project's come before: while they are accepted here, the others do not run in this project.
fn show_hidden(output: &Output, hidden: &[HiddenItem]) {
    let named = |hidden: &HiddenItem| match hidden.space.as_str() {
        "user" => format!("{} (yours)", hidden.item),
        space => format!("{} ({space})", hidden.item),
    };
    let names: Vec<String> = hidden.iter().map(named).collect();
    if let Some(names) = name_items(&names) {
        let count = counted(hidden.len(), "item");
        output.ask(format_args!("  {} hidden by the project's own: {names}", paint(WARNING, count)));
    }
}

/// Where prompts and the user's key would go.
fn show_provider(output: &Output, provider: &ProjectProvider) {
    let url = provider.url.as_deref().unwrap_or("an address it does not state");
    let key = provider.key_variable.as_deref();
    let key = key.map(|variable| format!(", with your key in `{variable}`")).unwrap_or_default();
    output.ask(format_args!("  {} {}: asks {url}{key}", paint(WARNING, "provider"), provider.item_id));
}

fn show_signer(output: &Output, signer: &ProjectSigner) {
    let owner = signer.owner.as_deref().map_or_else(|| "unknown".to_owned(), quote_name);
    let style = match signer.status {
        SignerStatus::Own | SignerStatus::Trusted => SUCCESS,
        SignerStatus::New
        | SignerStatus::NotNamed
        | SignerStatus::NoIdentity
        | SignerStatus::Retired
        | SignerStatus::Revoked => WARNING,
    };
    let types = signer.by_type.iter().map(|(name, count)| match *name {
        // It has no plural.
        "knowledge" => format!("{count} knowledge"),
        noun => counted(*count, noun),
    });
    let types = types.collect::<Vec<_>>().join(", ");
    let (since, latest) = (day(&signer.since), day(&signer.latest));
    let days = if since == latest { format!("on {since}") } else { format!("{since} to {latest}") };
    output.ask(format_args!(
        "  {}: {}; signed {} ({types}), {days}; owner {owner}",
        paint(NAME, signer.fingerprint),
        paint(style, signer.status.as_str()),
        counted(signer.items, "item"),
    ));
    match signer.status {
        SignerStatus::NoIdentity => output.ask(paint(
            DIM,
            "    its items stay refused: ask its owner to commit their identity (rye keys publish)",
        )),
        SignerStatus::Retired => output.ask(paint(
            DIM,
            "    its items stay refused: its owner replaced the key, and signs them again with the new one",
        )),
        SignerStatus::Revoked => output.ask(paint(DIM, "    its items stay refused: you revoked the key")),
        SignerStatus::NotNamed => {
            output.ask(paint(DIM, "    its items stay refused: --only does not name it"))
        }
        SignerStatus::Own | SignerStatus::Trusted | SignerStatus::New => {}
    }
}

fn show_bundle(output: &Output, bundle: &ProjectBundle) {
    let signer = match (&bundle.owner, bundle.signer) {
        (Some(owner), Some(signer)) => format!("signed by {signer}, owner {}", quote_name(owner)),
        (None, Some(signer)) => format!("signed by {signer}"),
        (_, None) => "not signed".to_owned(),
    };
    let version = bundle.version.as_deref().unwrap_or("?");
    let files = match bundle.installed {
        true => counted(bundle.files, "file"),
        false => "not installed yet".to_owned(),
    };
    let source = bundle.source.as_deref().map(|source| format!("; from {}", one_line(source)));
    output.ask(format_args!(
        "  bundle {} {version}, {files}: {}; {signer}{}",
        paint(NAME, &bundle.bundle_id),
        bundle.status.as_str(),
        source.unwrap_or_default()
    ));
}

fn day(time: &str) -> &str {
    time.get(..10).unwrap_or(time)
}

fn name_items(items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| join_first(items, MAX_NAMED_ITEMS))
}

fn show_already_joined(output: &Output, review: &JoinReview) -> CommandResult {
    output.print(format_args!("{} already joined", paint(SUCCESS, "✓")))?;
    let own = review.signers.iter().find(|signer| signer.status == SignerStatus::Own);
    if own.is_some_and(|own| !own.is_published()) {
        output.note("clones refuse what you signed until your identity is in the project: rye keys publish");
    }
    let refused = review.signers.iter().filter(|signer| !signer.is_accepted()).count();
    if refused > 0 {
        let keys = counted(refused, "key");
        output.note(format_args!("joining changes nothing for the items of {keys}: see above what would"));
    }
    Ok(())
}

fn show_answer(output: &Output, answer: &JoinResponse) -> CommandResult {
    if answer.key_created {
        output.print(format_args!(
            "{} made your key {} (you had none)",
            paint(SUCCESS, "✓"),
            paint(NAME, answer.fingerprint)
        ))?;
    }
    for key in &answer.trusted {
        output.print(format_args!("{} {key} is trusted in this project", paint(SUCCESS, "✓")))?;
    }
    for bundle in &answer.bundles {
        output.print(format_args!(
            "{} the signer of the bundle {bundle} is trusted for it",
            paint(SUCCESS, "✓")
        ))?;
    }
    programs::show_recorded(output, &answer.recorded);
    output.print(format_args!("{} joined {}", paint(SUCCESS, "✓"), display_path(&answer.project)))?;
    if answer.needs_sync {
        output.note("install the bundles that the project asks for: rye sync");
    }
    if !answer.is_published {
        output.note("to sign items here yourself, add your identity first: rye keys publish");
    }
    Ok(())
}
