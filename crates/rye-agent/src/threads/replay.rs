//! Running a directive again with the answers a thread was given before: no model is asked, nothing is spent. Tools run
//! as they do in any thread. Where what the model would see is not what was recorded, the run ends and says so.

use std::sync::Arc;

use rye_engine::Result;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::replay::{Recorded, Replay, digest};
use rye_model::{Price, Usage};

use super::resume::History;
use super::{Started, Threads};
use crate::driver::Signal;
use crate::machine::{Effect, Event, State, step};
use crate::models::OFFLINE;
use crate::prepare::{Order, Prepared};
use crate::spec::{Shared, Spec};
use crate::thread_id::ThreadId;

impl Threads {
    /// Starts a thread that is answered from another one's record.
    ///
    /// # Errors
    /// When that record does not verify, or the new thread may not start.
    pub async fn replay(&self, id: &ThreadId, signal: Signal) -> Result<Started> {
        let (old, events) = self.inner.history(id)?;
        let recorded = recorded(&old, events);
        let directive = ItemRef::new(ItemType::Directive, ItemId::new(&old.shared.directive)?);
        let mut order = Order::new(directive, old.own.inputs.clone());
        order.provider = Some(OFFLINE.to_owned());
        order.within = Some((old.own.capabilities.clone(), old.own.limits));
        let prepared = self.inner.prepared(order).await?;
        let shared = Shared {
            model: old.shared.model.clone(),
            provider: "replay".to_owned(),
            context_window: old.shared.context_window,
            max_output_tokens: old.shared.max_output_tokens,
            ..(*prepared.spec.shared).clone()
        };
        let spec = Spec { own: prepared.spec.own.clone(), shared: Arc::new(shared) };
        let prepared = Prepared { spec: Arc::new(spec), ..prepared };
        self.inner.begin_with(prepared, Arc::new(Replay::new(recorded)), signal).await
    }
}

/// Each answer with what it answered, as a thread that costs nothing would have asked it.
fn recorded(old: &Spec, events: History) -> Vec<Recorded> {
    let shared = Shared { price: Some(Price::default()), ..(*old.shared).clone() };
    let spec = Arc::new(Spec { own: old.own.clone(), shared: Arc::new(shared) });
    let mut state = State::new(spec);
    let mut asked = None;
    let mut recorded = Vec::new();
    for (at_ms, event) in events {
        if let (Event::Answered { answer, .. }, Some(request_digest)) = (&event, asked.take()) {
            let mut answer = answer.clone();
            answer.usage = Usage::default();
            recorded.push(Recorded { request_digest, answer });
        }
        for effect in step(&mut state, at_ms, event) {
            if let Effect::CallModel { request, .. } = effect {
                asked = Some(digest(&request));
            }
        }
    }
    recorded
}
