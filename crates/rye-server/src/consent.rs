//! Consent that only a person can give: what is asked, of whom, and what counts as a yes.
//!
//! A question is bound to what it is about by a digest. A yes covers that and nothing else: if
//! the thing changes meanwhile, the question is asked again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lillux::Digest;
use rmcp::RoleServer;
use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema, InputRequest,
    InputRequiredResult, InputResponses, ProtocolVersion,
};
use rmcp::service::RequestContext;
use rye_agent::limits::RaisedLimit;
use rye_agent::store::Approval;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::ApprovalText;
use rye_engine::agent_actions::{self, SignTarget};
use rye_engine::verbs::keys;
use rye_engine::{Code, Engine, Error};
use rye_item::ItemRef;
use rye_item::space::SpaceTier;
use serde_json::Value;

/// The name of the one question a request may carry.
const QUESTION_KEY: &str = "consent";
/// What begins the name of an agreement to what threads ask.
const APPROVE_PREFIX: &str = "approve ";
/// What begins the name of a no to it, which is an answer too.
const DENY_PREFIX: &str = "deny ";
/// The most characters of a question of threads: more would not be read.
const MAX_QUESTION_CHARS: usize = 8_000;
/// How long a person may think.
const CONSENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Why a tool gave no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// It failed.
    Failed(Error),
    /// It failed behind a callback channel: its answer.
    Forwarded(Value),
    /// A person must agree first.
    NeedsConsent(Box<ConsentRequest>),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Something to agree to.
#[derive(Clone, Debug)]
pub(crate) struct ConsentRequest {
    /// What is asked, for a person.
    pub(crate) message: String,
    /// What a yes is bound to.
    pub(crate) subject: String,
    /// The error if there is no one to ask.
    pub(crate) fallback: Error,
    /// The document whose key a yes would trust.
    pub(crate) trust_document: Option<PathBuf>,
    /// It shows the text of an item: a yes means all of it.
    pub(crate) shows_text: bool,
}

impl ConsentRequest {
    /// What to say instead of asking: the question cannot show what it is about.
    pub(crate) fn refused(&self, why: &str) -> Error {
        let mut error = self.fallback.clone();
        error.message = format!("{}, and cannot be agreed to here: {why}", error.message);
        error
    }
}

/// What a person said to questions of threads.
#[derive(Clone, Debug)]
pub(crate) struct ThreadAnswer {
    /// The thread they were asked below.
    pub(crate) root: ThreadId,
    /// The questions.
    pub(crate) questions: Vec<String>,
    /// Whether they were allowed.
    pub(crate) is_approved: bool,
}

/// What was agreed to in this request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Consents {
    granted: Vec<String>,
}

impl Consents {
    /// The same, and this too.
    pub(crate) fn with(mut self, subject: String) -> Self {
        self.granted.push(subject);
        self
    }

    /// What a person last said to questions of threads.
    pub(crate) fn thread_answer(&self) -> Option<ThreadAnswer> {
        let last = self.granted.iter().rev();
        let (is_approved, subject) = last
            .filter_map(|subject| match subject.strip_prefix(APPROVE_PREFIX) {
                Some(subject) => Some((true, subject)),
                None => subject.strip_prefix(DENY_PREFIX).map(|subject| (false, subject)),
            })
            .next()?;
        let mut words = subject.split(' ').map(str::to_owned);
        Some(ThreadAnswer {
            root: ThreadId::parse(&words.next()?).ok()?,
            questions: words.collect(),
            is_approved,
        })
    }

    /// Whether this was agreed to.
    pub(crate) fn contains(&self, subject: &str) -> bool {
        self.granted.iter().any(|granted| granted == subject)
    }

    /// The digest of the bytes that a person agreed to have signed or copied.
    pub(crate) fn require_sign(&self, engine: &Engine, target: &SignTarget<'_>) -> Result<Digest, CallError> {
        let id = rye_item::text::one_line(target.id);
        let review = agent_actions::review(engine, target)?;
        let (project, item_type) = (project_name(engine), target.item_type);
        let tier = |tier: Option<SpaceTier>| tier.map(|tier| tier.to_string()).unwrap_or_default();
        let (source, destination) = (tier(target.source), tier(target.destination));
        let digest = review.digest.to_hex();
        let pieces = ["sign", &project, item_type.as_str(), target.id, &source, &destination, &digest];
        let subject = subject_digest(&pieces);
        if review.is_signed || self.contains(&subject) {
            return Ok(review.digest);
        }
        let what = match target.destination {
            Some(to) => format!("copy {item_type} `{id}` into {to} space and sign the copy"),
            None => format!("sign {item_type} `{id}` in {project}"),
        };
        let fallback =
            Error::new(Code::ConsentNeeded, format!("signing {item_type} `{id}` needs the user's consent"))
                .hint(format!("ask the user to run: {}", target.command()));
        let message = format!("An agent asks to {what} with your key.\n{}\nDo you agree?", review.to_text());
        let question = ConsentRequest { message, subject, fallback, trust_document: None, shows_text: true };
        if let Some(why) = &review.hidden {
            return Err(question.refused(why).into());
        }
        Err(CallError::NeedsConsent(Box::new(question)))
    }

    /// Whether a person agreed that a thread of `item` gets these looser limits.
    pub(crate) fn require_raise(
        &self,
        engine: &Engine,
        item: &ItemRef,
        raised: &[RaisedLimit],
    ) -> Result<(), CallError> {
        let lines: Vec<String> = raised
            .iter()
            .map(|limit| format!("{} from {} to {}", limit.name, limit.from, limit.to))
            .collect();
        let (project, name, lines) = (project_name(engine), item.to_string(), lines.join(", "));
        let subject = subject_digest(&["limits", &project, &name, &lines]);
        if self.contains(&subject) {
            return Ok(());
        }
        let fallback =
            Error::new(Code::ConsentNeeded, format!("raising limits needs the user's consent: {lines}"))
                .for_item(item)
                .hint("leave limit_overrides out, or only lower limits")
                .hint(format!("ask the user to run: rye run {} --limit NAME=VALUE", item.id));
        Err(CallError::NeedsConsent(Box::new(ConsentRequest {
            message: format!(
                "An agent asks to run `{name}` in {project} with looser limits: {lines}. Do you agree?"
            ),
            subject,
            fallback,
            trust_document: None,
            shows_text: false,
        })))
    }

    /// An item's refusal, or the question whether its signer is to be trusted in this project.
    pub(crate) fn or_trust_request(&self, engine: &Engine, error: Error) -> CallError {
        match trust_request(engine, &error) {
            Some(request) => CallError::NeedsConsent(Box::new(request)),
            None => error.into(),
        }
    }
}

/// What threads below `root` ask, as one question with every argument to its end.
///
/// # Errors
/// When it is too long to be read in a client: it waits for an answer at the command line.
pub(crate) fn thread_question(root: &ThreadId, approvals: &[Approval]) -> Result<Box<ConsentRequest>, Error> {
    let clean = rye_item::text::one_line;
    let lines: Vec<String> = approvals
        .iter()
        .map(|approval| {
            let text = ApprovalText::new(approval, true);
            let mut lines = vec![format!("asks: {}", text.prompt)];
            lines.extend(text.lines().into_iter().map(|line| format!("  {line}")));
            lines.join("\n")
        })
        .collect();
    let names: Vec<&str> = approvals.iter().map(|approval| approval.id.as_str()).collect();
    let what = approvals.first().map(|approval| clean(&approval.prompt)).unwrap_or_default();
    let requester =
        approvals.first().map_or_else(|| root.to_string(), |approval| approval.thread.to_string());
    let fallback = Error::new(Code::ThreadSuspended, format!("{requester} waits for a person: {what}"))
        .detail("thread_id", root.as_str())
        .detail("asked", names.clone())
        .hint(format!("allow it: rye thread approve {requester}"))
        .hint(format!("refuse it: rye thread deny {requester}"));
    let message = format!("A thread {}\nDo you allow it?", lines.join("\nand "));
    let subject = format!("{APPROVE_PREFIX}{root} {}", names.join(" "));
    let is_too_long = message.chars().count() > MAX_QUESTION_CHARS;
    let question = ConsentRequest { message, subject, fallback, trust_document: None, shows_text: false };
    if is_too_long {
        let error = question.refused("its arguments are too long for a client's question");
        return Err(error.hint(format!("read all of it first: rye thread approvals {requester} --full")));
    }
    Ok(Box::new(question))
}

fn trust_request(engine: &Engine, error: &Error) -> Option<ConsentRequest> {
    let can_ask = engine.workspace.settings.get("mcp.trust").and_then(Value::as_str) == Some("ask");
    if error.code != Code::Untrusted || !can_ask {
        return None;
    }
    let fingerprint = error.details.get("fingerprint").and_then(Value::as_str)?;
    let documents = engine.workspace.project_documents();
    let (path, identity) = documents
        .iter()
        .filter_map(|found| Some((&found.path, found.identity.as_ref().ok()?)))
        .find(|(_, identity)| identity.fingerprint.as_str() == fingerprint)
        .filter(|(_, identity)| keys::is_signed_by_trusted(engine, identity))?;
    let owner = rye_item::text::quote_name(&identity.owner);
    let item = error.item.as_deref().unwrap_or_default();
    let project = project_name(engine);
    Some(ConsentRequest {
        message: format!(
            "`{item}` is signed by the key {fingerprint}, whose document calls its owner {owner}. You do not \
             trust it. Trust this key in {project}, and let what it signed run there?"
        ),
        subject: subject_digest(&["trust", &project, &identity.key.to_pem()]),
        fallback: agent_actions::with_agent_hints(error.clone()),
        trust_document: Some(path.clone()),
        shows_text: false,
    })
}

/// Trusts the key in a document of the project, there alone.
///
/// # Errors
/// When it is revoked, or you have no key to say so with.
pub(crate) fn trust_document_key(engine: &Engine, document: &Path) -> Result<(), Error> {
    let options = keys::TrustOptions { tier: Some(SpaceTier::Project), ..keys::TrustOptions::default() };
    keys::trust(engine, document, &options).map(|_| ())
}

fn project_name(engine: &Engine) -> String {
    let project = engine.workspace.roots.project_key().unwrap_or_else(|| "your user space".to_owned());
    rye_item::text::one_line(&project)
}

fn subject_digest(pieces: &[&str]) -> String {
    let pieces = pieces.iter().flat_map(|piece| [piece.as_bytes(), b"\0".as_slice()]);
    Digest::of_pieces(pieces).to_hex()
}

/// How the person behind a client can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElicitationMode {
    /// By a request while the call waits.
    Request,
    /// By an answer that asks for input and is followed by the call again.
    Retry,
    /// Not at all.
    None,
}

/// The letters and digits of a client's name, in lower case: `Codex MCP client ` is `codex-mcp-client`.
fn comparable_name(name: &str) -> String {
    name.chars().filter(|character| character.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// How the client of this request can ask. A client that answers questions by itself cannot.
pub(crate) fn elicitation_mode(
    context: &RequestContext<RoleServer>,
    accepting_clients: &[String],
) -> ElicitationMode {
    let name = context.client_info().map(|client| comparable_name(&client.name)).unwrap_or_default();
    if accepting_clients.iter().any(|known| comparable_name(known) == name) {
        return ElicitationMode::None;
    }
    let elicitation = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    let has_form = elicitation.is_some_and(|known| known.form.is_some() || known.url.is_none());
    let is_modern =
        context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
    match (has_form, is_modern) {
        (false, _) => ElicitationMode::None,
        (true, false) => ElicitationMode::Request,
        (true, true) => ElicitationMode::Retry,
    }
}

fn elicitation_form(request: &ConsentRequest) -> Result<ElicitRequestParams, Error> {
    // Nothing to fill in: accepting is the consent, declining is the refusal.
    let schema: ElicitationSchema =
        serde_json::from_value(serde_json::json!({"type": "object", "properties": {}}))
            .map_err(|error| Error::new(Code::Serving, error.to_string()))?;
    let message = rye_item::text::reveal_hidden(&request.message).into_owned();
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema: schema })
}

/// Asks while the call waits.
///
/// # Errors
/// When the answer is none that counts.
pub(crate) async fn elicit(
    context: &RequestContext<RoleServer>,
    request: &ConsentRequest,
) -> Result<String, Error> {
    let elicitation =
        context.peer.create_elicitation_with_timeout(elicitation_form(request)?, Some(CONSENT_TIMEOUT));
    let answer = tokio::select! {
        answer = elicitation => answer.ok(),
        () = context.ct.cancelled() => None,
    };
    let granted = answer.as_ref().and_then(|answer| granted_subject(answer, &request.subject));
    granted.ok_or_else(|| {
        let mut error = declined_error(answer.as_ref(), request.shows_text);
        error.item.clone_from(&request.fallback.item);
        error
    })
}

/// The answer that asks for input.
///
/// # Errors
/// When the form cannot be made.
pub(crate) fn input_required(consent: &ConsentRequest) -> Result<InputRequiredResult, Error> {
    let request = InputRequest::Elicitation(ElicitRequest::new(elicitation_form(consent)?));
    let requests = BTreeMap::from([(QUESTION_KEY.to_owned(), request)]);
    Ok(InputRequiredResult::new(Some(requests), Some(consent.subject.clone())))
}

/// What a call that comes again brings: nothing yet, a yes to what its state names, or something else.
///
/// # Errors
/// When the answer is not a yes.
pub(crate) fn consents_from_responses(
    responses: Option<&InputResponses>,
    state: Option<&str>,
) -> Result<Consents, Error> {
    let (Some(answer), Some(subject)) = (responses.and_then(|answers| answers.get(QUESTION_KEY)), state)
    else {
        return Ok(Consents::default());
    };
    let answer: Option<ElicitResult> = serde_json::from_value(answer.clone()).ok();
    match answer.as_ref().and_then(|answer| granted_subject(answer, subject)) {
        Some(subject) => Ok(Consents::default().with(subject)),
        None => Err(declined_error(answer.as_ref(), false)),
    }
}

/// What an answer says about this: yes to it; no, where a no is an answer; else nothing.
fn granted_subject(answer: &ElicitResult, subject: &str) -> Option<String> {
    match (is_accepted(answer), subject.strip_prefix(APPROVE_PREFIX)) {
        (true, _) => Some(subject.to_owned()),
        // Closing the question is not an answer.
        (false, Some(threads)) if answer.action != ElicitationAction::Cancel => {
            Some(format!("{DENY_PREFIX}{threads}"))
        }
        (false, _) => None,
    }
}

/// Whether the person accepted. A client that fills in more than was asked may say no there.
fn is_accepted(answer: &ElicitResult) -> bool {
    let agreed = answer.content.as_ref().and_then(|content| content.get("agree"));
    answer.action == ElicitationAction::Accept && agreed.is_none_or(|agreed| *agreed == Value::Bool(true))
}

/// The answer to an agent after a no: to leave it at that.
fn declined_error(answer: Option<&ElicitResult>, is_signing: bool) -> Error {
    let has_answered = answer.is_some_and(|answer| answer.action != ElicitationAction::Cancel);
    let message = match has_answered {
        true => "the user was asked and declined",
        false => "the user was asked and gave no answer",
    };
    let hint = match is_signing {
        true => "leave it unsigned; do not ask again unless the user brings it up",
        false => "leave it as it is; do not ask again unless the user brings it up",
    };
    Error::new(Code::Declined, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn accepting_is_the_consent() {
        let state = Some("about");
        let parse = |answer: Value| {
            let responses = InputResponses::from([(QUESTION_KEY.to_owned(), answer)]);
            consents_from_responses(Some(&responses), state).map(|consents| consents.contains("about"))
        };
        for yes in [
            json!({"action": "accept"}),
            json!({"action": "accept", "content": {}}),
            json!({"action": "accept", "content": {"agree": true}}),
        ] {
            assert!(matches!(parse(yes.clone()), Ok(true)), "{yes}");
        }
        for no in [
            json!({"action": "accept", "content": {"agree": false}}),
            json!({"action": "accept", "content": {"agree": "true"}}),
            json!({"action": "decline", "content": {"agree": true}}),
            json!({"action": "cancel"}),
            json!("yes"),
            json!(null),
        ] {
            let refused = parse(no.clone()).expect_err("no");
            assert_eq!(refused.code, Code::Declined, "{no}");
            assert!(refused.message.starts_with("the user was asked and "), "{refused:?}");
            assert!(refused.hints.iter().all(|hint| !hint.contains("rye sign")), "{refused:?}");
        }
        assert!(matches!(consents_from_responses(None, state), Ok(consents) if !consents.contains("about")));
    }

    #[test]
    fn consent_is_bound_to_its_subject() {
        assert_ne!(subject_digest(&["sign", "a", "bc"]), subject_digest(&["sign", "ab", "c"]));
        assert_ne!(subject_digest(&["sign", "a"]), subject_digest(&["trust", "a"]));
    }
}
