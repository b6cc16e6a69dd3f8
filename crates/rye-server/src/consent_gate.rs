//! What the tools come to, and how consent comes into it.

use lillux::Digest;
use rye_engine::agent_actions::{self, AgentFetch, AgentLoad, AgentSign, SignTarget, SigningPolicy};
use rye_engine::{Engine, Error};
use serde_json::Value;

use crate::consent::{CallError, Consents};

/// What a tool comes to: an answer, a failure, or a question first.
pub(crate) type CallResult = Result<Value, CallError>;

pub(crate) fn load(engine: &Engine, request: &AgentLoad, consents: &Consents) -> CallResult {
    agent_actions::load(engine, request).map_err(or_trust_request(engine, consents))
}

pub(crate) fn fetch(engine: &Engine, request: AgentFetch, consents: &Consents) -> CallResult {
    agent_actions::fetch(engine, request).map_err(or_trust_request(engine, consents))
}

pub(crate) fn sign(engine: &Engine, request: &AgentSign, consents: &Consents) -> CallResult {
    agent_actions::sign(engine, request, sign_gate(engine, consents))
}

/// Whether an agent may have this signed, or a person agreed that it is.
fn sign_gate<'a>(
    engine: &'a Engine,
    consents: &'a Consents,
) -> impl Fn(&SignTarget<'_>) -> Result<Option<Digest>, CallError> + 'a {
    move |target| match agent_actions::signing_policy(engine, target)? {
        SigningPolicy::Allowed => Ok(None),
        SigningPolicy::NeedsApproval => consents.require_sign(engine, target).map(Some),
    }
}

/// A refusal of an item becomes the question whether its signer is to be trusted, where that may be asked.
fn or_trust_request<'a>(engine: &'a Engine, consents: &'a Consents) -> impl Fn(Error) -> CallError + 'a {
    move |error| consents.or_trust_request(engine, error)
}
