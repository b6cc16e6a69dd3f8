//! Running a directive again with the answers a thread was given before: no model is asked, nothing is spent. Tools run
//! as they do in any thread. Where what the model would see is not what was recorded, the run ends and says so.

use std::sync::Arc;

use rye_engine::Result;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::replay::{RecordedResponse, ReplayProvider, request_digest};
use rye_model::{TokenPrice, Usage};

use super::resume::EventHistory;
use super::{StartedThread, Threads};
use crate::driver::CancelSignal;
use crate::machine::{Effect, ThreadEvent, ThreadState, step};
use crate::models::OFFLINE_PROVIDER;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::spec::{ThreadSpec, ThreadTemplate};
use crate::thread_id::ThreadId;

impl Threads {
    /// Starts a thread that is answered from another one's record.
    ///
    /// # Errors
    /// When that record does not verify, or the new thread may not start.
    pub async fn replay(&self, id: &ThreadId, signal: CancelSignal) -> Result<StartedThread> {
        let (old, events) = self.runtime.load_history(id)?;
        let recorded = recorded_responses(&old, events);
        let directive = ItemRef::new(ItemType::Directive, ItemId::new(&old.template.directive)?);
        let mut request = ThreadRequest::new(directive, old.instance.inputs.clone());
        request.provider = Some(OFFLINE_PROVIDER.to_owned());
        request.bounds = Some((old.instance.capabilities.clone(), old.instance.limits));
        let prepared = self.runtime.prepare(request).await?;
        let template = ThreadTemplate {
            model: old.template.model.clone(),
            provider: "replay".to_owned(),
            context_window: old.template.context_window,
            max_output_tokens: old.template.max_output_tokens,
            ..(*prepared.spec.template).clone()
        };
        let spec = ThreadSpec { instance: prepared.spec.instance.clone(), template: Arc::new(template) };
        let prepared = PreparedThread { spec: Arc::new(spec), ..prepared };
        self.runtime.start_with(prepared, Arc::new(ReplayProvider::new(recorded)), signal).await
    }
}

/// Each answer with what it answered, as a thread that costs nothing would have asked it.
fn recorded_responses(old: &ThreadSpec, events: EventHistory) -> Vec<RecordedResponse> {
    let template = ThreadTemplate { price: Some(TokenPrice::default()), ..(*old.template).clone() };
    let spec = Arc::new(ThreadSpec { instance: old.instance.clone(), template: Arc::new(template) });
    let mut state = ThreadState::new(spec);
    let mut pending_digest = None;
    let mut recorded = Vec::new();
    for (at_ms, event) in events {
        if let (ThreadEvent::ModelResponded { response, .. }, Some(request_digest)) =
            (&event, pending_digest.take())
        {
            let mut response = response.clone();
            response.usage = Usage::default();
            recorded.push(RecordedResponse { request_digest, response });
        }
        for effect in step(&mut state, at_ms, event) {
            if let Effect::CallModel { request, .. } = effect {
                pending_digest = Some(request_digest(&request));
            }
        }
    }
    recorded
}
