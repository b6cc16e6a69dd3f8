//! The list of core events, with the fields of each.

use serde_json::{Map, Value};

use super::fields::{Always, MergedFields, Nullable, PayloadField};
use super::{CoreEventSchema, EventField};
use crate::config::Criticality;
use crate::cost::Cost;
use crate::definitions::SkippedTool;
use crate::limits::ThreadLimits;
use crate::machine::{ApprovalKind, ApprovalScope, BudgetResource};
use crate::model::FilePart;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

core_events! {
    /// The thread begins.
    ThreadStarted = "thread_started", "lifecycle", Critical {
        /// The directive.
        directive: String,
        /// The model it asks.
        model: String,
        /// The model's provider.
        provider: String,
        /// What it may use.
        limits: ThreadLimits,
        /// The thread that started it.
        parent_thread_id: Nullable<ThreadId>,
        /// The digest of the directive's file.
        directive_hash: String,
        /// The providers that could serve the tier, if there were several: the first one is asked.
        candidates: Option<Vec<String>>,
        /// How the model is asked to answer, if the directive says so.
        settings: Option<Map<String, Value>>,
    }

    /// The thread begins where another ended.
    ThreadContinued = "thread_continued", "lifecycle", Critical {
        /// The directive.
        directive: String,
        /// The model it asks.
        model: String,
        /// The other thread.
        previous_thread_id: ThreadId,
    }

    /// The thread begins at a turn of another.
    ThreadForked = "thread_forked", "lifecycle", Critical {
        /// The directive.
        directive: String,
        /// The model it asks.
        model: String,
        /// The other thread.
        source_thread_id: ThreadId,
        /// The turn of the other thread.
        source_turn: u64,
        /// The digest of the other thread's journal up to that turn.
        source_journal: String,
    }

    /// The thread runs again after it was suspended or its process died.
    ThreadResumed = "thread_resumed", "lifecycle", Critical {
        /// The directive.
        directive: String,
        /// What it may use from now on.
        limits: ThreadLimits,
        /// Who resumed it; absent after a crash.
        by: Option<String>,
        /// Why it was suspended, or `interrupted`.
        was: Nullable<String>,
        /// Its turns so far; after a crash.
        turn: Option<u64>,
        /// What the model call is charged that a crash interrupted: its prompt, and what had arrived.
        spend: Option<f64>,
        /// The most that call can have cost.
        spend_at_most: Option<f64>,
    }

    /// The thread is done.
    ThreadCompleted = "thread_completed", "lifecycle", Critical {
        /// What it used.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
        /// What went wrong on the way.
        error: Option<String>,
        /// What the directive returned.
        outputs: Option<Map<String, Value>>,
    }

    /// The thread failed.
    ThreadError = "thread_error", "lifecycle", Critical {
        /// What it used.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
        /// Why.
        error: Always<String>,
        /// What the directive returned all the same.
        outputs: Option<Map<String, Value>>,
    }

    /// The thread waits, with its state kept.
    ThreadSuspended = "thread_suspended", "lifecycle", Critical {
        /// `limit`, `error`, `budget`, `approval` or `provider`.
        suspend_reason: Always<SuspendReason>,
        /// Why, in a sentence.
        error: Nullable<String>,
        /// The limit that was reached, or the open questions.
        detail: Value,
        /// What it used so far.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
    }

    /// The thread was asked to end.
    ThreadCancelled = "thread_cancelled", "lifecycle", Critical {
        /// What it used.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
        /// Why, or by whom.
        reason: Option<String>,
        /// What the directive returned before.
        outputs: Option<Map<String, Value>>,
    }

    /// The thread was ended by force.
    ThreadKilled = "thread_killed", "lifecycle", Critical {
        /// What it used.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
        /// Why, or by whom.
        reason: Option<String>,
        /// What the directive returned before.
        outputs: Option<Map<String, Value>>,
    }

    /// Another thread continues this one.
    ThreadHandoff = "thread_handoff", "lifecycle", Critical {
        /// What it used.
        cost: Cost,
        /// How long it worked, in milliseconds.
        elapsed_ms: Option<u64>,
        /// What went wrong.
        error: Option<String>,
        /// The other thread.
        new_thread_id: Always<Value>,
        /// What the directive returned before.
        outputs: Option<Map<String, Value>>,
    }

    /// The transcript up to here, signed.
    Checkpoint = "checkpoint", "lifecycle", Critical {
        /// The turn that is over.
        turn: u64,
        /// Where the line begins.
        byte_offset: u64,
        /// The last event of the chain.
        hash: String,
        /// The signature.
        sig: String,
        /// The fingerprint of the key.
        fp: String,
        /// When it was signed.
        ts: String,
        /// The digest of the droppable lines since the last checkpoint.
        loose: Option<String>,
    }

    /// What the model reads before everything else.
    SystemPrompt = "system_prompt", "cognition", Critical {
        /// The prompt.
        text: String,
    }

    /// Texts that hooks or the directive put around the prompt.
    ContextInjected = "context_injected", "cognition", Critical {
        /// `before` or `after` the prompt.
        position: String,
        /// The texts.
        blocks: Vec<String>,
    }

    /// A message to the model.
    CognitionIn = "cognition_in", "cognition", Critical {
        /// The message.
        text: String,
        /// `user`.
        role: String,
        /// The directive.
        directive: String,
        /// The files that are shown with it.
        files: Option<Vec<FilePart>>,
    }

    /// What the model answered, or what had arrived when the answer broke off.
    CognitionOut = "cognition_out", "cognition", Critical {
        /// The words.
        text: String,
        /// The model that answered.
        model: String,
        /// Whether the answer broke off.
        is_partial: bool,
        /// Whether words are missing at its end.
        truncated: bool,
        /// Why it broke off.
        error: Option<String>,
        /// Why the model stopped.
        finish: Option<String>,
        /// Tokens of the request.
        input_tokens: Option<u64>,
        /// Tokens of the answer.
        output_tokens: Option<u64>,
        /// What it cost, in dollars.
        spend: f64,
        /// Whether that is an upper bound.
        spend_is_unknown: Option<bool>,
        /// Whether the provider did not say what was used: the tokens are estimated.
        tokens_are_estimated: Option<bool>,
        /// Tokens of the request as they were estimated, if they were.
        estimated: Option<u64>,
        /// Tokens of the request as the provider counted them, beside an estimate.
        actual: Option<u64>,
        /// The most it can have cost, in dollars, if it broke off.
        spend_at_most: Option<f64>,
    }

    /// A piece of an answer as it arrives.
    CognitionOutDelta = "cognition_out_delta", "cognition", Droppable {
        /// The words.
        text: String,
        /// The number of its first piece.
        chunk_index: u64,
        /// Whether it is the last one.
        is_final: bool,
    }

    /// What the model thought before it answered.
    CognitionReasoning = "cognition_reasoning", "cognition", Droppable {
        /// The words.
        text: String,
        /// Whether they broke off.
        is_partial: bool,
        /// Whether the answer broke off.
        was_interrupted: Option<bool>,
    }

    /// The outputs the model returned.
    DirectiveReturn = "directive_return", "cognition", Critical {
        /// The outputs.
        outputs: Map<String, Value>,
        /// Whether the model returned them as a failure.
        is_error: bool,
    }

    /// The model calls a tool.
    ToolCallStart = "tool_call_start", "tool", Critical {
        /// The tool's name, as the model knows it.
        tool: String,
        /// The call.
        call_id: String,
        /// The arguments.
        input: Map<String, Value>,
    }

    /// What a tool call returned.
    ToolCallResult = "tool_call_result", "tool", Critical {
        /// The call.
        call_id: String,
        /// How long it took.
        duration_ms: u64,
        /// The result.
        output: Option<String>,
        /// The failure, instead of a result.
        error: Option<String>,
        /// How the sandbox confined the program that ran: `level`, what enforced each of the `rules`, `unenforced` ones.
        sandbox: Option<Map<String, Value>>,
    }

    /// A hook changed the arguments of a call before it was made.
    ToolCallChanged = "tool_call_changed", "tool", Critical {
        /// The call.
        call_id: String,
        /// The hook.
        hook: String,
        /// The arguments that the model gave.
        original: Map<String, Value>,
        /// The arguments that count.
        arguments: Map<String, Value>,
    }

    /// A hook kept a call from being made.
    ToolCallBlocked = "tool_call_blocked", "tool", Critical {
        /// The call.
        call_id: String,
        /// The tool's name, as the model knows it.
        tool: Option<String>,
        /// The hook.
        hook: String,
        /// Why.
        reason: String,
    }

    /// A hook replaced or withheld a result; what the tool answered is in `tool_call_result`.
    ToolResultChanged = "tool_result_changed", "tool", Critical {
        /// The call.
        call_id: String,
        /// The hook.
        hook: String,
        /// The result that counts.
        output: Option<String>,
        /// The failure that counts.
        error: Option<String>,
    }

    /// A hook kept the model from being asked, or its answer from being used.
    ModelCallBlocked = "model_call_blocked", "cognition", Critical {
        /// `before_model` or `after_model`.
        event: String,
        /// The hook.
        hook: String,
        /// Why.
        reason: String,
    }

    /// What a hook around a call told the model.
    HookNote = "hook_note", "cognition", Critical {
        /// The hook.
        hook: String,
        /// The event that it ran at.
        event: String,
        /// What it said.
        text: String,
        /// The call, if it ran around one.
        call_id: Option<String>,
    }

    /// A running tool asks for an action itself.
    ToolRequest = "tool_request", "tool", Critical {
        /// The call that runs the tool.
        call_id: String,
        /// The number of the request.
        request: u64,
        /// The action.
        action: Value,
        /// The action as the tool asked for it, if a hook changed it.
        original: Option<Value>,
    }

    /// The action that a running tool asked for is done.
    ToolRequestResult = "tool_request_result", "tool", Critical {
        /// The call that runs the tool.
        call_id: String,
        /// The number of the request.
        request: u64,
        /// Whether it failed.
        is_error: bool,
        /// How long it took.
        duration_ms: u64,
    }

    /// An action that no capability covers.
    PermissionDenied = "permission_denied", "tool", Critical {
        /// `status`, `error`, `code`, `denied_action`, `denied_item_type`, `denied_item_id`: what the caller gets.
        denial: MergedFields,
        /// The call.
        call_id: String,
        /// The number of the request of a running tool.
        request: Option<u64>,
        /// `tool` if a running tool asked.
        asker: Option<String>,
        /// The capabilities that would permit it.
        required: Always<String>,
    }

    /// Granted tools that are not offered to the model.
    ToolsLeftOut = "tools_left_out", "tool", Critical {
        /// The tools, each with the reason.
        tools: Vec<SkippedTool>,
    }

    /// A model call failed, and how it is classified.
    ErrorClassified = "error_classified", "error", Critical {
        /// The rule that matched.
        error_code: String,
        /// `transient`, `rate_limited`, `permanent`, ….
        category: String,
        /// Whether a retry may help.
        retryable: bool,
        /// The failure.
        error: String,
        /// The HTTP status.
        status_code: Nullable<u16>,
        /// Failures in a row.
        attempt: u32,
    }

    /// The provider says that an answer used more than it can have. The most that is possible is counted.
    ImpossibleUsage = "impossible_usage", "error", Critical {
        /// The provider.
        provider: String,
        /// Its model.
        model: String,
        /// Tokens of the request, as the provider says.
        reported_input_tokens: u64,
        /// Tokens of the answer, as the provider says.
        reported_output_tokens: u64,
        /// What that would cost, in dollars.
        reported_spend: Option<f64>,
        /// Tokens of the request that are counted.
        input_tokens: u64,
        /// Tokens of the answer that are counted.
        output_tokens: u64,
        /// What is charged, in dollars.
        spend: f64,
    }

    /// The model call is made again after a delay.
    RetryScheduled = "retry_scheduled", "error", Critical {
        /// The retry.
        attempt: u32,
        /// How many there may be.
        of: u32,
        /// The delay.
        delay_ms: u64,
        /// The failure.
        error: String,
    }

    /// A model failed for good, and the next one of the tier's list is asked.
    ProviderFallback = "provider_fallback", "error", Critical {
        /// The provider that failed.
        failed_provider: String,
        /// Its model.
        failed_model: String,
        /// The provider that is asked from now on.
        provider: String,
        /// Its model.
        model: String,
        /// The failure.
        error: String,
    }

    /// A hook that could not run.
    HookFailed = "hook_failed", "error", Critical {
        /// The hook.
        hook: String,
        /// What it was run for.
        event: String,
        /// Why.
        error: String,
    }

    /// A limit is reached, and more is asked for.
    LimitEscalationRequested = "limit_escalation_requested", "error", Critical {
        /// `turns_exceeded`, `spend_exceeded`, ….
        limit_code: String,
        /// What is used.
        current_value: Value,
        /// What is allowed.
        current_max: Value,
        /// What the next call may need.
        needed: Option<Value>,
    }

    /// The next model call could cost more than is left.
    BudgetExhausted = "budget_exhausted", "error", Critical {
        /// Whose budget it is: its own or an ancestor's.
        thread_id: ThreadId,
        /// `spend` or `tokens`.
        what: BudgetResource,
        /// The cap.
        most: Value,
        /// What is spent of it.
        used: Value,
        /// What is reserved for calls in flight.
        reserved: Value,
        /// What the call may need.
        asked: Value,
        /// The budget of a day or a month, if it is one.
        budget: Option<String>,
        /// When that budget's period ends.
        frees_at: Option<String>,
    }

    /// The next model call waits for money that is reserved for others.
    BudgetWaiting = "budget_waiting", "error", Critical {
        /// Whose budget it is: its own or an ancestor's.
        thread_id: ThreadId,
        /// `spend` or `tokens`.
        what: BudgetResource,
        /// The cap.
        most: Value,
        /// What is spent of it.
        used: Value,
        /// What is reserved for calls in flight.
        reserved: Value,
        /// What the call may need.
        asked: Value,
        /// The budget of a day or a month, if it is one.
        budget: Option<String>,
        /// When that budget's period ends.
        frees_at: Option<String>,
    }

    /// The conversation is too long for the model.
    ContextLimitReached = "context_limit_reached", "error", Critical {
        /// How full the context window is.
        usage_ratio: f64,
        /// Tokens of the conversation.
        tokens_used: u64,
        /// The context window.
        tokens_limit: u64,
    }

    /// Old turns were removed to make room.
    ContextCompacted = "context_compacted", "error", Critical {
        /// Tokens before.
        tokens_used: u64,
        /// The context window.
        tokens_limit: u64,
        /// How many messages went.
        messages_removed: usize,
        /// What stands in for them.
        summary: Nullable<String>,
    }

    /// Secrets were removed from what came next, before anything was written.
    ContentRedacted = "content_redacted", "error", Critical {
        /// How many.
        count: u64,
        /// The variables or kinds of secrets.
        names: Vec<String>,
    }

    /// A child thread begins.
    ChildThreadStarted = "child_thread_started", "orchestration", Critical {
        /// The child.
        child_thread_id: ThreadId,
        /// Its directive.
        child_directive: String,
        /// This thread.
        parent_thread_id: ThreadId,
    }

    /// A child thread has ended or stopped.
    ChildThreadFinished = "child_thread_finished", "orchestration", Critical {
        /// The child.
        child_thread_id: ThreadId,
        /// The call that started it.
        call_id: String,
        /// How it ended.
        status: Always<ThreadStatus>,
    }

    /// A person is asked.
    HumanApprovalRequested = "human_approval_requested", "orchestration", Critical {
        /// The question.
        approval_id: String,
        /// `limit`, `tool` or `approval`.
        kind: ApprovalKind,
        /// What is asked.
        prompt: String,
        /// The action with its arguments, or the limit.
        detail: Value,
    }

    /// What the person answered.
    HumanApprovalResponse = "human_approval_response", "orchestration", Critical {
        /// The question.
        approval_id: String,
        /// Whether it is allowed.
        approved: bool,
        /// What else they said.
        message: Nullable<String>,
        /// Who answered.
        by: String,
        /// What the answer covers beyond this call.
        always: Option<ApprovalScope>,
    }
}
