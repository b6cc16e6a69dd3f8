//! Consent that only a person can give: what is asked, of whom, and what counts as a yes.
//!
//! A question is bound to what it is about by a digest. Whoever answers yes has agreed to that and nothing else: if
//! the thing changes meanwhile, the question is asked anew.

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
use rye_engine::primaries::{self, SignTarget};
use rye_engine::verbs::keys;
use rye_engine::{Code, Engine, Error};
use rye_item::ItemRef;
use rye_item::space::Tier;
use serde_json::Value;

/// The name of the one question a request may carry.
const QUESTION: &str = "consent";
/// What begins the name of an agreement to what threads ask.
const APPROVE: &str = "approve ";
/// What begins the name of a no to it, which is an answer too.
const DENY: &str = "deny ";
/// How long a person may think.
const PATIENCE: Duration = Duration::from_secs(300);

/// Why a tool gave no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It failed.
    Failed(Error),
    /// It failed behind a door: the answer as it came.
    Told(Value),
    /// A person must agree first.
    Ask(Box<Question>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Something to agree to.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// What is asked, for a person.
    pub(crate) message: String,
    /// What a yes is bound to.
    pub(crate) about: String,
    /// What to say if nobody can be asked.
    pub(crate) otherwise: Error,
    /// The document whose key a yes would trust.
    pub(crate) trusts: Option<PathBuf>,
    /// It shows the text of an item: a yes means all of it.
    pub(crate) shows_text: bool,
}

impl Question {
    /// What to say instead of asking: the question cannot show what it is about.
    pub(crate) fn refused(&self, why: &str) -> Error {
        let mut error = self.otherwise.clone();
        error.message = format!("{}, and cannot be agreed to here: {why}", error.message);
        error
    }
}

/// What a person said to questions of threads.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// The thread they were asked below.
    pub(crate) root: ThreadId,
    /// The questions.
    pub(crate) questions: Vec<String>,
    /// Whether they were allowed.
    pub(crate) is_yes: bool,
}

/// What was agreed to in this request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Consents {
    agreed: Vec<String>,
}

impl Consents {
    /// The same, and this too.
    pub(crate) fn and(mut self, about: String) -> Self {
        self.agreed.push(about);
        self
    }

    /// What a person last said to questions of threads.
    pub(crate) fn answered(&self) -> Option<Answered> {
        let last = self.agreed.iter().rev();
        let (is_yes, about) = last
            .filter_map(|about| match about.strip_prefix(APPROVE) {
                Some(about) => Some((true, about)),
                None => about.strip_prefix(DENY).map(|about| (false, about)),
            })
            .next()?;
        let mut words = about.split(' ').map(str::to_owned);
        Some(Answered { root: ThreadId::parse(&words.next()?).ok()?, questions: words.collect(), is_yes })
    }

    /// Whether this was agreed to.
    pub(crate) fn has(&self, about: &str) -> bool {
        self.agreed.iter().any(|agreed| agreed == about)
    }

    /// The digest of the bytes that a person agreed to have signed or copied.
    pub(crate) fn to_sign(&self, engine: &Engine, target: &SignTarget<'_>) -> Result<Digest, Refusal> {
        let shown = rye_item::text::one_line(target.id);
        let review = primaries::review(engine, target)?;
        let (project, item_type) = (project(engine), target.item_type);
        let tier = |tier: Option<Tier>| tier.map(|tier| tier.to_string()).unwrap_or_default();
        let (source, destination) = (tier(target.source), tier(target.destination));
        let digest = review.digest.to_hex();
        let pieces = ["sign", &project, item_type.as_str(), target.id, &source, &destination, &digest];
        let about = bound(&pieces);
        if review.is_signed || self.has(&about) {
            return Ok(review.digest);
        }
        let what = match target.destination {
            Some(to) => format!("copy {item_type} `{shown}` into {to} space and sign the copy"),
            None => format!("sign {item_type} `{shown}` in {project}"),
        };
        let otherwise = Error::new(
            Code::ConsentNeeded,
            format!("signing {item_type} `{shown}` needs the user's consent"),
        )
        .hint(format!("tell the user, who may type: {}", target.command()));
        let message = format!("An agent asks to {what} with your key.\n{}\nDo you agree?", review.to_text());
        let question = Question { message, about, otherwise, trusts: None, shows_text: true };
        if let Some(why) = &review.hidden {
            return Err(question.refused(why).into());
        }
        Err(Refusal::Ask(Box::new(question)))
    }

    /// Whether a person agreed that a thread of `item` gets these looser limits.
    pub(crate) fn to_raise(
        &self,
        engine: &Engine,
        item: &ItemRef,
        raised: &[RaisedLimit],
    ) -> Result<(), Refusal> {
        let lines: Vec<String> = raised
            .iter()
            .map(|limit| format!("{} from {} to {}", limit.name, limit.from, limit.to))
            .collect();
        let (project, name, lines) = (project(engine), item.to_string(), lines.join(", "));
        let about = bound(&["limits", &project, &name, &lines]);
        if self.has(&about) {
            return Ok(());
        }
        let otherwise =
            Error::new(Code::ConsentNeeded, format!("raising limits needs the user's consent: {lines}"))
                .of(item)
                .hint("leave limit_overrides out, or only lower limits")
                .hint(format!("the user may type: rye run {} --limit NAME=VALUE", item.id));
        Err(Refusal::Ask(Box::new(Question {
            message: format!(
                "An agent asks to run `{name}` in {project} with looser limits: {lines}. Do you agree?"
            ),
            about,
            otherwise,
            trusts: None,
            shows_text: false,
        })))
    }

    /// An item's refusal, or the question whether its signer is to be trusted in this project.
    pub(crate) fn or_trust(&self, engine: &Engine, error: Error) -> Refusal {
        match trust_question(engine, &error) {
            Some(question) => Refusal::Ask(Box::new(question)),
            None => error.into(),
        }
    }
}

/// What threads below `root` ask, as one question.
pub(crate) fn of_threads(root: &ThreadId, asked: &[Approval]) -> Question {
    let clean = rye_item::text::one_line;
    let lines: Vec<String> = asked
        .iter()
        .map(|question| {
            let why =
                if question.why.is_empty() { String::new() } else { format!(" ({})", clean(&question.why)) };
            let chain = question.detail.get("chain").and_then(Value::as_array);
            let who = chain.and_then(|chain| chain.first()?.get("directive")?.as_str()).unwrap_or_default();
            format!("`{}`, {}, asks: {}{why}", clean(who), question.thread, clean(&question.what))
        })
        .collect();
    let names: Vec<&str> = asked.iter().map(|question| question.id.as_str()).collect();
    let what = asked.first().map(|question| clean(&question.what)).unwrap_or_default();
    let asker = asked.first().map_or_else(|| root.to_string(), |question| question.thread.to_string());
    let otherwise = Error::new(Code::ThreadSuspended, format!("{asker} waits for a person: {what}"))
        .detail("thread_id", root.as_str())
        .detail("asked", names.clone())
        .hint(format!("allow it: rye thread approve {asker}"))
        .hint(format!("refuse it: rye thread deny {asker}"));
    Question {
        message: format!("{}. Do you allow it?", lines.join("; ")),
        about: format!("{APPROVE}{root} {}", names.join(" ")),
        otherwise,
        trusts: None,
        shows_text: false,
    }
}

fn trust_question(engine: &Engine, error: &Error) -> Option<Question> {
    let is_asked = engine.workspace.settings.get("mcp.trust").and_then(Value::as_str) == Some("ask");
    if error.code != Code::Untrusted || !is_asked {
        return None;
    }
    let fingerprint = error.details.get("fingerprint").and_then(Value::as_str)?;
    let documents = engine.workspace.project_documents();
    let (path, identity) = documents
        .iter()
        .filter_map(|found| Some((&found.path, found.identity.as_ref().ok()?)))
        .find(|(_, identity)| identity.fingerprint.as_str() == fingerprint)
        .filter(|(_, identity)| keys::is_vouched(engine, identity))?;
    let owner = rye_item::text::one_line(&identity.owner);
    let item = error.item.as_deref().unwrap_or_default();
    let project = project(engine);
    Some(Question {
        message: format!(
            "`{item}` is signed by the key {fingerprint}, whose document calls its owner \"{owner}\". You do not \
             trust it. Trust this key in {project}, and let what it signed run there?"
        ),
        about: bound(&["trust", &project, &identity.key.to_pem()]),
        otherwise: primaries::for_agent(error.clone()),
        trusts: Some(path.clone()),
        shows_text: false,
    })
}

/// Trusts the key in a document of the project, there alone.
///
/// # Errors
/// When it is revoked, or there is no own key to say so with.
pub(crate) fn trust(engine: &Engine, document: &Path) -> Result<(), Error> {
    let options = keys::TrustOptions { tier: Some(Tier::Project), ..keys::TrustOptions::default() };
    keys::trust(engine, document, &options).map(|_| ())
}

fn project(engine: &Engine) -> String {
    let project = engine.workspace.roots.project_key().unwrap_or_else(|| "your user space".to_owned());
    rye_item::text::one_line(&project)
}

fn bound(pieces: &[&str]) -> String {
    let pieces = pieces.iter().flat_map(|piece| [piece.as_bytes(), b"\0".as_slice()]);
    Digest::of_pieces(pieces).to_hex()
}

/// How the person behind a client can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By a request while the call waits.
    Request,
    /// By an answer that asks for input and is followed by the call again.
    Again,
    /// Not at all.
    None,
}

/// How the client of this request can ask. A client that answers questions by itself cannot.
pub(crate) fn way(context: &RequestContext<RoleServer>, accepting_clients: &[String]) -> Way {
    let name = context.client_info().map(|client| client.name.to_lowercase()).unwrap_or_default();
    if accepting_clients.iter().any(|known| known.to_lowercase() == name) {
        return Way::None;
    }
    let elicitation = context.client_capabilities().and_then(|capabilities| capabilities.elicitation);
    let has_form = elicitation.is_some_and(|known| known.form.is_some() || known.url.is_none());
    let is_modern =
        context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
    match (has_form, is_modern) {
        (false, _) => Way::None,
        (true, false) => Way::Request,
        (true, true) => Way::Again,
    }
}

fn form(question: &Question) -> Result<ElicitRequestParams, Error> {
    let schema: ElicitationSchema = serde_json::from_value(serde_json::json!({
        "type": "object",
        "properties": {"agree": {"type": "boolean", "title": "I agree", "default": false}},
        "required": ["agree"],
    }))
    .map_err(|error| Error::new(Code::Serving, error.to_string()))?;
    let message = question.message.clone();
    Ok(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema: schema })
}

/// Asks while the call waits.
///
/// # Errors
/// When the answer is none that counts.
pub(crate) async fn ask(context: &RequestContext<RoleServer>, question: &Question) -> Result<String, Error> {
    let asked = context.peer.create_elicitation_with_timeout(form(question)?, Some(PATIENCE));
    let answer = tokio::select! {
        answer = asked => answer.ok(),
        () = context.ct.cancelled() => None,
    };
    answer.and_then(|answer| said(&answer, &question.about)).ok_or_else(|| declined(question))
}

/// The answer that asks for input.
///
/// # Errors
/// When the form cannot be made.
pub(crate) fn ask_again(question: &Question) -> Result<InputRequiredResult, Error> {
    let request = InputRequest::Elicitation(ElicitRequest::new(form(question)?));
    let requests = BTreeMap::from([(QUESTION.to_owned(), request)]);
    Ok(InputRequiredResult::new(Some(requests), Some(question.about.clone())))
}

/// What a call that comes again brings: nothing yet, a yes to what its state names, or something else.
///
/// # Errors
/// When the answer is not a yes.
pub(crate) fn brought(responses: Option<&InputResponses>, state: Option<&str>) -> Result<Consents, Error> {
    let (Some(answer), Some(about)) = (responses.and_then(|given| given.get(QUESTION)), state) else {
        return Ok(Consents::default());
    };
    let answer: Option<ElicitResult> = serde_json::from_value(answer.clone()).ok();
    if let Some(about) = answer.and_then(|answer| said(&answer, about)) {
        return Ok(Consents::default().and(about));
    }
    Err(Error::new(Code::Declined, "you were asked, and did not agree")
        .hint("ask again, or do it at a terminal"))
}

/// What an answer says about this: yes to it; no, where a no is an answer; else nothing.
fn said(answer: &ElicitResult, about: &str) -> Option<String> {
    let agreed = answer.content.as_ref().and_then(|content| content.get("agree"));
    let is_no = answer.action == ElicitationAction::Accept && agreed == Some(&Value::Bool(false));
    match about.strip_prefix(APPROVE) {
        _ if is_yes(answer) => Some(about.to_owned()),
        Some(threads) if is_no => Some(format!("{DENY}{threads}")),
        Some(_) | None => None,
    }
}

fn is_yes(answer: &ElicitResult) -> bool {
    let agreed = answer.content.as_ref().and_then(|content| content.get("agree"));
    answer.action == ElicitationAction::Accept && agreed == Some(&Value::Bool(true))
}

fn declined(question: &Question) -> Error {
    let mut error = Error::new(Code::Declined, "you were asked, and did not agree");
    error.item.clone_from(&question.otherwise.item);
    question.otherwise.hints.iter().fold(error, |error, hint| error.hint(hint.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_an_explicit_yes_counts() {
        let state = Some("about");
        let given = |answer: Value| {
            let responses = InputResponses::from([(QUESTION.to_owned(), answer)]);
            brought(Some(&responses), state).map(|consents| consents.has("about"))
        };
        assert!(matches!(given(json!({"action": "accept", "content": {"agree": true}})), Ok(true)));
        for no in [
            json!({"action": "accept", "content": {"agree": false}}),
            json!({"action": "accept", "content": {}}),
            json!({"action": "accept"}),
            json!({"action": "accept", "content": {"agree": "true"}}),
            json!({"action": "decline", "content": {"agree": true}}),
            json!({"action": "cancel"}),
            json!("yes"),
            json!(null),
        ] {
            assert_eq!(given(no.clone()).expect_err("no").code, Code::Declined, "{no}");
        }
        assert!(matches!(brought(None, state), Ok(consents) if !consents.has("about")));
    }

    #[test]
    fn a_yes_is_bound_to_what_was_asked() {
        assert_ne!(bound(&["sign", "a", "bc"]), bound(&["sign", "ab", "c"]));
        assert_ne!(bound(&["sign", "a"]), bound(&["trust", "a"]));
    }
}
