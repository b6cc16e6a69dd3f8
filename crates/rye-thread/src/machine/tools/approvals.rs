//! Calls that a person must approve: the question, and what the answers lead to.

use super::*;
use crate::item_names::judged_capabilities;

impl ThreadState {
    /// What a person is asked before this is done: the model's own question, or that the rules of risk ask for it.
    pub(super) fn required_approval(&self, action: &Action) -> Result<Option<Box<ApprovalRequest>>, String> {
        let text = |key: &str| action.params.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let make_request = |kind, what, why, ends_on_no| ApprovalRequest {
            // It gets its name when it is asked.
            id: String::new(),
            kind,
            prompt: what,
            reason: why,
            ends_on_deny: ends_on_no,
            detail: json!({"action": action.to_value(), "cost": self.cost.to_value()}),
        };
        if action.is_for_item(ItemType::Tool, HUMAN_APPROVAL) {
            let prompt = text("prompt");
            if prompt.trim().is_empty() {
                return Err("`prompt` is missing: what is the person asked?".to_owned());
            }
            let ends_on_no = match text("on_deny").as_str() {
                "" | "tell" => false,
                "end" => true,
                _ => return Err("`on_deny` is `tell` or `end`".to_owned()),
            };
            let request = make_request(ApprovalKind::Approval, prompt, text("reason"), ends_on_no);
            return Ok(Some(Box::new(request)));
        }
        let is_granted = |grant: &ApprovalGrant| grant.scope.covers(&grant.action, action);
        if self.approval_grants.iter().any(is_granted) {
            return Ok(None);
        }
        let judged = match self.spec.template.revision {
            0..3 => required_capabilities(action),
            _ => judged_capabilities(action),
        };
        let Some(why) = self.spec.template.config.risk.approval_reason(&judged) else {
            return Ok(None);
        };
        Ok(Some(Box::new(make_request(ApprovalKind::Tool, action.summary(), why, false))))
    }

    /// Nothing is left to do but what people are asked about.
    pub(super) fn suspend_for_approvals(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
            return Vec::new();
        };
        let waiting = run.slots.iter().filter(|slot| slot.progress == CallProgress::AwaitingApproval);
        let requests: Vec<ApprovalRequest> =
            waiting.filter_map(|slot| slot.work.as_ref()?.approval.as_deref().cloned()).collect();
        let prompts: Vec<&str> = requests.iter().map(|question| question.prompt.as_str()).collect();
        let outcome = ThreadOutcome::suspended(SuspendReason::Approval, prompts.join("; "), Value::Null);
        self.suspend_with(outcome, ResumeAt::Tools(run), requests)
    }

    /// People have said what may be done.
    pub(in crate::machine) fn apply_answers(
        &mut self,
        mut run: ToolRun,
        answers: &[ApprovalAnswer],
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for slot in run.slots.iter_mut().filter(|slot| slot.progress == CallProgress::AwaitingApproval) {
            let Some(work) = &slot.work else { continue };
            let Some(question) = &work.approval else { continue };
            let Some(answer) = answers.iter().find(|answer| answer.request_id == question.id) else {
                continue;
            };
            let result = match (&work.work, answer.approved) {
                (ToolWork::AwaitAnswer, _) => {
                    let response = json!({"status": "success", "approved": answer.approved, "message": answer.message, "by": answer.by});
                    ToolResult { is_error: false, ..ToolResult::failure(response.to_string()) }
                }
                (
                    ToolWork::Dispatch(action) | ToolWork::Spawn(action, _) | ToolWork::Orchestrate(action),
                    true,
                ) => {
                    let action = action.action().clone();
                    self.approval_grants.extend(answer.always.map(|scope| ApprovalGrant { scope, action }));
                    slot.progress = CallProgress::Waiting;
                    continue;
                }
                (ToolWork::ReadArtifact(_), true) => {
                    slot.progress = CallProgress::Waiting;
                    continue;
                }
                (_, false) => ToolResult::failure(error_text(&answer.denial_message(&question.prompt))),
            };
            effects.push(emit_tool_result(&slot.call_id, &result));
            slot.progress = CallProgress::Done(result);
        }
        effects.extend(run.start_ready());
        self.phase = Phase::Tools(run);
        effects.extend(self.finish_if_done());
        effects
    }
}
