//! What the tools come to, and how consent comes into it.

use lillux::Digest;
use rye_engine::primaries::{self, Fetch, Load, Sign, SignTarget, Signing};
use rye_engine::{Engine, Error};
use serde_json::Value;

use crate::consent::{Consents, Refusal};

/// What a tool comes to: an answer, a failure, or a question first.
pub(crate) type Outcome = Result<Value, Refusal>;

pub(crate) fn load(engine: &Engine, given: &Load, consents: &Consents) -> Outcome {
    primaries::load(engine, given).map_err(or_trust(engine, consents))
}

pub(crate) fn fetch(engine: &Engine, given: Fetch, consents: &Consents) -> Outcome {
    primaries::fetch(engine, given).map_err(or_trust(engine, consents))
}

pub(crate) fn sign(engine: &Engine, given: &Sign, consents: &Consents) -> Outcome {
    primaries::sign(engine, given, may_sign(engine, consents))
}

/// Whether an agent may have this signed, or a person agreed that it is.
fn may_sign<'a>(
    engine: &'a Engine,
    consents: &'a Consents,
) -> impl Fn(&SignTarget<'_>) -> Result<Option<Digest>, Refusal> + 'a {
    move |target| match primaries::signing(engine, target)? {
        Signing::Allowed => Ok(None),
        Signing::Ask => consents.to_sign(engine, target).map(Some),
    }
}

/// A refusal of an item becomes the question whether its signer is to be trusted, where that may be asked.
fn or_trust<'a>(engine: &'a Engine, consents: &'a Consents) -> impl Fn(Error) -> Refusal + 'a {
    move |error| consents.or_trust(engine, error)
}
