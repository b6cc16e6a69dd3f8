//! What the tools come to, and how consent comes into it.

use rye_engine::Engine;
use rye_engine::primaries::{self, Fetch, Load, Sign, Signing};
use rye_item::ItemType;
use serde_json::Value;

use crate::consent::{Consents, Refusal};

/// What a tool comes to: an answer, a failure, or a question first.
pub(crate) type Outcome = Result<Value, Refusal>;

pub(crate) fn load(engine: &Engine, given: &Load, consents: &Consents) -> Outcome {
    primaries::load(engine, given, may_sign(engine, consents)).map_err(or_trust(engine, consents))
}

pub(crate) fn fetch(engine: &Engine, given: Fetch, consents: &Consents) -> Outcome {
    primaries::fetch(engine, given, may_sign(engine, consents)).map_err(or_trust(engine, consents))
}

pub(crate) fn sign(engine: &Engine, given: &Sign, consents: &Consents) -> Outcome {
    primaries::sign(engine, given, may_sign(engine, consents))
}

/// Whether an agent may have this signed, or a person agreed that it is.
fn may_sign<'a>(
    engine: &'a Engine,
    consents: &'a Consents,
) -> impl Fn(ItemType, &str) -> Result<(), Refusal> + 'a {
    move |item_type, id| match primaries::signing(engine, item_type, id)? {
        Signing::Allowed => Ok(()),
        Signing::Ask => consents.to_sign(engine, item_type, id),
    }
}

/// A refusal of an item becomes the question whether its signer is to be trusted, where that may be asked.
fn or_trust<'a>(engine: &'a Engine, consents: &'a Consents) -> impl Fn(Refusal) -> Refusal + 'a {
    move |refusal| match refusal {
        Refusal::Failed(error) => consents.or_trust(engine, error),
        Refusal::Ask(_) | Refusal::Told(_) => refusal,
    }
}
