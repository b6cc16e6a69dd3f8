// The events of a transcript as a conversation. Events come in order, some in pieces; a repeated one is known by its line.

import { add, fill, h } from './dom.js';
import { clock, count, duration, money, plural, time } from './format.js';
import { diffView, fields, folded, jsonText, longText, notice, receiptView, threadLink } from './parts.js';

/** What a tool returned, parsed where it is JSON, with the diff it holds. */
function parseOutput(output) {
  try {
    const value = JSON.parse(output);
    const diff = value?.data?.diff ?? value?.diff;
    return { value, diff: typeof diff === 'string' ? diff : null };
  } catch {
    return { value: output, diff: null };
  }
}

/** The argument that says most, for the line of a folded call. */
function callSummary(input) {
  const entries = Object.entries(input ?? {});
  const parameters = input?.parameters && typeof input.parameters === 'object' ? Object.entries(input.parameters) : [];
  return [...entries.filter(([name]) => name !== 'parameters' && name !== 'item_type'), ...parameters]
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`).join('  ').slice(0, 160);
}

const stamp = (event) => h('time.stamp', { datetime: event.timestamp, title: clock(event.timestamp) }, time(event.timestamp));

const ENDINGS = {
  thread_completed: ['good', 'Completed'], thread_error: ['error', 'Failed'], thread_suspended: ['warning', 'Suspended'],
  thread_cancelled: ['plain', 'Cancelled'], thread_killed: ['plain', 'Killed'], thread_handoff: ['plain', 'Continued in another thread'],
};

/** A conversation that grows: `take(events)` adds to `element`. */
export function conversation() {
  const element = h('div.conversation', { role: 'log', 'aria-label': 'Conversation', 'aria-live': 'off' });
  const calls = new Map();
  let line = 0;
  let streaming = null;
  let turn = 0;

  const put = (node) => {
    element.append(node);
    return node;
  };
  const row = (event, kind, ...content) => put(h(`div.event.${kind}`, { 'data-line': event.line }, stamp(event), h('div.event-body', null, content)));

  function endStream() {
    streaming?.node.remove();
    streaming = null;
  }

  function showCall(event) {
    const { tool, call_id: id, input } = event.payload;
    const state = h('span.call-state.running', null, '…');
    const summary = h('span.clip.muted', callSummary(input));
    const argumentsView = h('div');
    const result = h('div', null, h('p.muted', 'No result yet.'));
    const notes = h('div');
    let args = input;
    const showArguments = (value, was) => {
      args = value;
      fill(argumentsView, fields(args, 'no arguments'), was ? folded('Arguments of the model', () => fields(was)) : null);
    };
    const node = folded([state, h('strong.mono', tool), summary], () => {
      showArguments(args);
      return [h('h3', 'Arguments'), argumentsView, notes, h('h3', 'Result'), result];
    }, { kind: 'call' });
    row(event, 'tool', node);
    calls.set(id, { node, state, result, notes, showArguments, diffs: null });
  }

  function finish(call, { duration_ms: took, output, error, sandbox }) {
    const failed = error !== undefined && error !== null;
    call.state.className = `call-state ${failed ? 'failed' : 'done'}`;
    fill(call.state, failed ? '✗' : '✓', h('span.visually-hidden', failed ? 'failed' : 'done'));
    if (took !== undefined) call.node.querySelector('summary').append(h('span.took', duration(took)));
    const { value, diff } = parseOutput(error ?? output ?? '');
    fill(call.result, diff ? diffView(diff) : null,
      diff ? folded('Whole result', () => longText(jsonText(value))) : longText(jsonText(value), failed ? 'pre.text.bad' : 'pre.text'));
    if (sandbox) {
      add(call.result, h('h3', 'Receipt'), receiptView(sandbox));
      if (sandbox.level !== 'full') call.node.after(receiptView(sandbox));
    }
    if (diff) call.node.after(diffView(diff));
    else if (failed) call.node.after(longText(jsonText(value?.error ?? value), 'p.call-error'));
  }

  const note = (event, level, ...content) => row(event, 'note', notice(level, ...content));

  const SHOW = {
    thread_started: (event, p) => row(event, 'mark', `Started · ${p.model} · ${p.provider}`),
    thread_continued: (event, p) => row(event, 'mark', 'Continues ', threadLink(p.previous_thread_id)),
    thread_forked: (event, p) => row(event, 'mark', 'Forked from ', threadLink(p.source_thread_id), ` after turn ${count(p.source_turn)}`),
    thread_resumed: (event, p) => row(event, 'mark', `Resumed${p.by ? ` by ${p.by}` : ''}${p.was ? ` · was ${p.was}` : ''}`),
    system_prompt: (event, p) => row(event, 'context', folded('System prompt', () => longText(p.text))),
    context_injected: (event, p) => row(event, 'context', folded(`Context ${p.position} the prompt`, () => p.blocks.map((block) => longText(block)))),
    cognition_in: (event, p) => row(event, 'user', h('div.speaker', p.role === 'user' ? 'Prompt' : p.role), longText(p.text),
      p.files?.length ? h('p.muted', null, 'Files: ', p.files.map((file) => `${file.name ?? file.path ?? ''} ${file.media_type ?? ''}`).join(', ')) : null),
    cognition_reasoning: (event, p) => row(event, 'context', folded('Reasoning', () => longText(p.text))),
    cognition_out_delta: (event, p) => {
      if (!streaming) {
        const body = h('pre.text', '');
        streaming = { body, node: row(event, 'model.streaming', h('div.speaker', 'Model'), body) };
      }
      add(streaming.body, p.text);
    },
    cognition_out: (event, p) => {
      endStream();
      turn += 1;
      const facts = [`turn ${turn}`, p.model, p.input_tokens !== undefined && `${count(p.input_tokens)} in, ${count(p.output_tokens)} out`,
        Number.isFinite(p.spend) && `${p.spend_is_unknown ? 'at most ' : ''}${money(p.spend)}`, !/^(stop|end_turn|tool_calls|tool_use)?$/.test(p.finish ?? '') && p.finish].filter(Boolean);
      row(event, 'model', h('div.speaker', 'Model'), p.text ? longText(p.text) : null, h('p.facts', facts.join(' · ')),
        p.is_partial || p.truncated ? notice('warning', p.error ?? 'The answer broke off.') : null);
    },
    directive_return: (event, p) => row(event, p.is_error ? 'return.bad' : 'return', h('div.speaker', p.is_error ? 'Returned a failure' : 'Returned'), fields(p.outputs, 'nothing')),
    tool_call_start: showCall,
    tool_call_result: (event, p) => {
      const call = calls.get(p.call_id);
      if (call) finish(call, p);
    },
    tool_call_changed: (event, p) => {
      calls.get(p.call_id)?.showArguments(p.arguments, p.original);
      note(event, 'hook', h('strong', 'Hook '), h('code', p.hook), ' changed the arguments of the call.');
    },
    tool_call_blocked: (event, p) => note(event, 'hook', h('strong', 'Hook '), h('code', p.hook), ` blocked ${p.tool ?? 'the call'}: ${p.reason}`),
    tool_result_changed: (event, p) => {
      note(event, 'hook', h('strong', 'Hook '), h('code', p.hook), ' changed the result that the model reads.', folded('What it reads', () => longText(p.output ?? p.error)));
    },
    model_call_blocked: (event, p) => note(event, 'hook', h('strong', 'Hook '), h('code', p.hook), ` blocked the model call (${p.event}): ${p.reason}`),
    hook_note: (event, p) => note(event, 'hook', h('strong', 'Hook '), h('code', p.hook), ` at ${p.event}: `, p.text),
    hook_failed: (event, p) => note(event, 'error', h('strong', 'Hook '), h('code', p.hook), ` failed at ${p.event}: ${p.error}`),
    tool_request: (event, p) => row(event, 'note', folded(['The tool asks for an action', p.original ? ', changed by a hook' : ''], () => fields(p.action))),
    tool_request_result: () => {},
    checkpoint_saved: () => {},
    permission_denied: (event, p) => note(event, 'error', h('strong', 'Permission denied: '), p.error ?? `${p.denied_action} ${p.denied_item_type}:${p.denied_item_id}`, p.required ? h('p', null, 'It would need ', h('code', p.required)) : null),
    tools_left_out: (event, p) => note(event, 'plain', `${plural(p.tools.length, 'tool')} not offered: `, p.tools.map((tool) => `${tool.name ?? tool.item_id ?? tool.tool} (${tool.reason})`).join(', ')),
    error_classified: (event, p) => note(event, 'warning', h('strong', 'Model call failed: '), p.error, h('p.facts', `${p.category} · ${p.error_code}${p.status_code ? ` · HTTP ${p.status_code}` : ''} · attempt ${p.attempt}`)),
    impossible_usage: (event, p) => note(event, 'warning', h('strong', 'Impossible usage: '), `${p.provider} says ${count(p.reported_input_tokens)} and ${count(p.reported_output_tokens)} tokens; ${count(p.input_tokens)} and ${count(p.output_tokens)} are counted`),
    retry_scheduled: (event, p) => note(event, 'warning', h('strong', `Retry ${p.attempt} of ${p.of}`), ` in ${duration(p.delay_ms)}`),
    provider_fallback: (event, p) => note(event, 'warning', h('strong', 'Fallback: '), `${p.failed_provider} ${p.failed_model} → ${p.provider} ${p.model}`, h('p.facts', p.error)),
    limit_escalation_requested: (event, p) => note(event, 'warning', h('strong', 'Limit reached: '), `${p.limit_code}, ${jsonText(p.current_value)} of ${jsonText(p.current_max)}`),
    budget_exhausted: (event, p) => note(event, 'warning', h('strong', 'Budget exhausted: '), `${p.what}${p.budget ? ` of ${p.budget}` : ''}: ${jsonText(p.used)} of ${jsonText(p.most)} used, ${jsonText(p.asked)} asked`),
    budget_waiting: (event, p) => note(event, 'plain', h('strong', 'Waits for budget: '), `${p.what}: ${jsonText(p.used)} of ${jsonText(p.most)} used, ${jsonText(p.reserved)} reserved by others`),
    context_limit_reached: (event, p) => note(event, 'warning', h('strong', 'Context full: '), `${count(p.tokens_used)} of ${count(p.tokens_limit)} tokens`),
    context_compacted: (event, p) => note(event, 'compaction', h('strong', 'Compacted: '), `${plural(p.messages_removed, 'message')} removed`, p.summary ? folded('Summary in their place', () => longText(p.summary)) : null),
    content_redacted: (event, p) => note(event, 'redaction', h('strong', `${plural(p.count, 'secret')} redacted: `), p.names.join(', ')),
    child_thread_started: (event, p) => row(event, 'mark', 'Child started: ', h('strong', p.child_directive), ' ', threadLink(p.child_thread_id)),
    child_thread_finished: (event, p) => row(event, 'mark', 'Child ', threadLink(p.child_thread_id), ` ${p.status}`),
    human_approval_requested: (event, p) => note(event, 'asked', h('strong', 'Asks: '), p.prompt, ' ', h('a', { href: `#/approvals/${encodeURIComponent(p.approval_id)}` }, 'Open the question'), folded('Details', () => fields(p.detail))),
    human_approval_response: (event, p) => note(event, p.approved ? 'good' : 'error', h('strong', p.approved ? 'Approved' : 'Denied'), ` by ${p.by}`, p.always ? `, always for these ${p.always === 'item' ? 'calls of the item' : 'arguments'}` : '', p.message ? `: ${p.message}` : ''),
    checkpoint: (event, p) => row(event, 'seal', `Signed up to here · turn ${p.turn} · `, h('code', String(p.fp).slice(0, 16))),
  };

  function ending(event) {
    const [level, words] = ENDINGS[event.event_type];
    const p = event.payload ?? {};
    const reason = p.error ?? p.reason ?? p.suspend_reason;
    note(event, level, h('strong', words), reason ? `: ${reason}` : '', p.cost ? h('p.facts', `${plural(p.cost.turns ?? 0, 'turn')} · ${money(p.cost.spend ?? 0)}${p.elapsed_ms ? ` · ${duration(p.elapsed_ms)}` : ''}`) : null);
  }

  return {
    element,
    line: () => line,
    /** Adds events that are not here yet; how many there were. */
    take(events) {
      let added = 0;
      for (const event of events) {
        if (event.line <= line) continue;
        line = event.line;
        added += 1;
        const payload = event.payload && typeof event.payload === 'object' ? event.payload : {};
        try {
          if (Object.hasOwn(ENDINGS, event.event_type)) {
            endStream();
            ending({ ...event, payload });
          } else if (Object.hasOwn(SHOW, event.event_type)) SHOW[event.event_type]({ ...event, payload }, payload);
          else row(event, 'mark', folded(event.event_type, () => fields(payload)));
        } catch {
          // A payload of another shape, of a hook or a damaged file, is shown as it is.
          row(event, 'mark', folded(event.event_type, () => longText(jsonText(event.payload))));
        }
      }
      return added;
    },
  };
}
