// One thread: its conversation, its tree's timeline, its cost and its record, with what can be done to it.

import { add, fill, h, plain } from './dom.js';
import { clock, count, duration, money, plural, shortId } from './format.js';
import { call, isReadOnly } from './session.js';
import { on, watch } from './stream.js';
import { onThreads, threads, toObject } from './data.js';
import {
  act, age, askForm, bar, card, copy, download, empty, errorBox, field, fields, folded, itemLink, jsonText, limitChanges, limitFields, longText,
  notice, receiptView, stateMark, table, tabs, threadLink, threadPath, toast, verdictMark,
} from './parts.js';
import { conversation } from './transcript.js';
import { barChart, timelineChart } from './chart.js';

const PAGE = 1000;
const NAMES = { turns: 'Turns', tokens: 'Tokens', spend: 'Spend', spawns: 'Children', duration_seconds: 'Time' };
const VERIFY = {
  valid: ['valid', 'verified'], rebuilt: ['valid', 'verified, rebuilt'], unsigned_tail: ['older', 'signed up to the last turn'], unsigned: ['unsigned', 'not signed yet'],
  older: ['older', 'older format'],
};
const amount = (limit, value) => (limit === 'spend' ? money(value) : limit === 'duration_seconds' ? duration(value * 1000) : count(value));

const limitBars = (usage) =>
  usage?.length ? h('div.limit-bars', null, usage.map(({ limit, used, reserved, max }) => {
    const words = `${amount(limit, used)} of ${amount(limit, max)}`;
    return h('div.limit-bar', null, h('span', NAMES[limit] ?? limit), h('span.number', words), bar(used, max, { label: NAMES[limit] ?? limit, reserved, words }));
  })) : h('p.muted', 'no limits');

function signerNames(verify) {
  const names = verify.signers.map((signer) => (signer.is_own ? 'you' : signer.owner ?? 'unknown'));
  return [...new Set(names)].join(', ');
}

function verifyBadge(verify) {
  const [verdict, words] = VERIFY[verify.state] ?? ['bad', verify.state.replace('_', ' ')];
  const by = signerNames(verify);
  const mark = verdictMark(verify.is_bad ? 'bad' : verdict, by && !verify.is_bad ? `${words} · signed by ${by}` : words);
  mark.id = 'verify-badge';
  mark.title = plain([verify.problem, ...verify.signers.map((signer) => signer.fingerprint)].filter(Boolean).join('\n'));
  return mark;
}

export async function showThread(context) {
  const { element } = context;
  const id = context.rest[0];
  const tab = ['timeline', 'cost', 'record'].includes(context.rest[1]) ? context.rest[1] : 'conversation';
  const path = `/threads/${encodeURIComponent(id)}`;
  let thread = await call(path);
  const stops = [];
  const cards = h('div.thread-aside');
  const aside = h('details.thread-side', { open: matchMedia('(min-width: 901px)').matches }, h('summary', 'Limits, inputs, children'), cards);
  const head = h('div.thread-head');
  const body = h('div.thread-body');
  element.classList.add('wide');

  async function showVerify() {
    fill(verifySlot, h('a.verify-link', { href: threadPath(id, 'record') }, verifyBadge(await call(`${path}/verify`))));
  }

  async function reread() {
    const before = thread;
    thread = await call(path);
    showHead();
    showAside();
    if (before.turns !== thread.turns || before.status !== thread.status) await showVerify();
  }

  async function resume(button) {
    const values = await askForm({
      title: 'Resume this thread', submit: 'Resume',
      parts: [limitFields(thread.limits), field('Message to the model', h('textarea', { name: 'message', rows: 2 }), 'Optional')],
    });
    if (!values) return;
    await act(button, async () => {
      const { pid } = await call(`${path}/resume`, { method: 'POST', body: { limits: limitChanges(values), message: values.message.trim() || undefined } });
      toast(pid ? 'Resumed: it runs in the background.' : 'Resume requested: a worker will pick it up.');
      await reread();
    });
  }

  async function cancel(button) {
    const values = await askForm({ title: 'Cancel this thread?', intro: 'It ends, with the threads below it. What it did so far is kept.', submit: 'Cancel the thread', danger: true, parts: [field('Reason', h('input', { name: 'reason' }), 'Optional')] });
    if (!values) return;
    await act(button, async () => {
      const done = await call(`${path}/cancel`, { method: 'POST', body: { reason: values.reason.trim() || undefined } });
      toast(done.ended ? 'Cancelled.' : 'Cancelling: it ends after its current step.');
      await reread();
    });
  }

  async function fork(button) {
    const values = await askForm({
      title: 'Fork this thread', intro: 'A new thread begins after a turn of this one. This one stays as it is.', submit: 'Fork',
      parts: [
        h('div.field-row', null, field('After turn', h('input', { name: 'turn', type: 'number', min: 0, max: thread.turns, placeholder: `last (${thread.turns})` })),
          field('Model', h('input', { name: 'model', placeholder: thread.model }))),
        field('Message to the model', h('textarea', { name: 'message', rows: 2 }), 'Optional'), folded('Limits', () => limitFields(thread.limits)),
      ],
    });
    if (!values) return;
    await act(button, async () => {
      const started = await call(`${path}/fork`, { method: 'POST', body: { turn: values.turn === '' ? undefined : Number(values.turn), model: values.model.trim() || undefined, message: values.message.trim() || undefined, limits: limitChanges(values) } });
      toast('Forked: the new thread runs in the background.');
      location.hash = threadPath(started.thread_id);
    });
  }

  const markdown = async () => (await call(`${path}/transcript.md`, { raw: true })).text();

  function actions() {
    const buttons = [];
    const button = (words, name, run, kind = '') => {
      const node = h(`button${kind}`, { type: 'button', 'data-action': name, onclick: () => run(node) }, words);
      buttons.push(node);
    };
    if (!isReadOnly()) {
      if (thread.actions.includes('resume')) button('Resume…', 'resume', resume, '.primary');
      if (thread.actions.includes('fork')) button('Fork…', 'fork', fork);
      if (thread.actions.includes('cancel')) button('Cancel…', 'cancel', cancel);
    }
    button('Copy as Markdown', 'copy', (node) => act(node, async () => copy(await markdown())));
    button('Download', 'download', (node) => act(node, async () => {
      const response = await call(`${path}/transcript.jsonl`, { raw: true });
      download(`${thread.thread_id}.jsonl`, await response.blob());
    }));
    return h('div.buttons.actions', null, buttons);
  }

  const verifySlot = h('span');
  function showHead() {
    const live = threads.get(id);
    const state = thread.approvals.length ? 'approval' : thread.is_interrupted ? 'interrupted' : thread.waiting ? 'waiting' : live?.status ?? thread.status;
    const up = [];
    for (let row = threads.get(thread.parent_thread_id); row && up.length < 8; row = threads.get(row.parent_thread_id)) up.unshift(row);
    fill(head,
      h('nav.crumbs', { 'aria-label': 'Above' }, h('a', { href: '#/threads' }, 'Threads'), up.map((row) => [' / ', threadLink(row.thread_id, row.directive)]), ' / ', h('span.mono', shortId(id))),
      h('div.page-head', null, h('h1', thread.directive), stateMark(state, thread.waiting ?? thread.reason), verifySlot, h('span.spread'), actions()),
      h('p.thread-facts', null, thread.title && thread.title !== thread.directive ? [h('span', thread.title), ' · '] : null, `${thread.model} · ${thread.provider} · started `, age(thread.started_at, ' ago'),
        ` · ${plural(thread.turns, 'turn')} · ${count(thread.tokens)} tokens · ${money(thread.spend)}`,
        thread.subtree_spend > thread.spend ? ` (tree ${money(thread.subtree_spend)})` : '', ` · ran ${duration(thread.elapsed_ms)}`, live?.worker ? ` · on ${live.worker}` : ''),
      thread.approvals.length ? notice('asked', h('strong', plural(thread.approvals.length, 'open question')), ' ', h('a', { href: `#/approvals?thread=${encodeURIComponent(id)}` }, 'Answer')) : null,
      thread.waits_for_worker ? notice('warning', thread.waits_for_worker) : null,
      thread.error && state !== 'approval' ? notice(thread.status === 'suspended' ? 'warning' : 'error', thread.error) : null,
      tabs('Parts of the thread', [['conversation', 'Conversation', threadPath(id)], ['timeline', 'Timeline', threadPath(id, 'timeline')], ['cost', 'Cost', threadPath(id, 'cost')], ['record', 'Record', threadPath(id, 'record')]], tab));
  }

  function childCard() {
    const rows = (thread.child_rows ?? []).map((values) => toObject(values));
    const shown = rows.length ? rows : thread.children.map((child) => threads.get(child) ?? { thread_id: child, directive: child, status: 'created', attention: [], spend: 0, subtree_spend: 0 });
    if (!shown.length) return null;
    return card('Children', h('ul.plain', null, shown.map((row) => h('li.child', null, stateMark(row.attention.includes('approval') ? 'approval' : row.status), threadLink(row.thread_id, row.directive), h('span.number', money(row.subtree_spend))))));
  }

  function showAside() {
    fill(cards, card('Limits', limitBars(thread.usage)),
      thread.start && Object.keys(thread.start.inputs ?? {}).length ? card('Inputs', fields(thread.start.inputs)) : null,
      childCard(),
      thread.outputs && Object.keys(thread.outputs).length ? card('Outputs', fields(thread.outputs)) : null,
      thread.start ? card('May do', thread.start.capabilities.length ? h('ul.plain.mono.small', null, thread.start.capabilities.map((one) => h('li', one))) : h('p.muted', 'nothing')) : null,
      thread.forked_from || thread.continuation_of || thread.continuation_thread_id ? card('Related', h('ul.plain', null,
        thread.forked_from && h('li', null, 'forked from ', threadLink(thread.forked_from.thread_id ?? thread.forked_from.thread), ` after turn ${thread.forked_from.turn}`),
        thread.continuation_of && h('li', null, 'continues ', threadLink(thread.continuation_of)),
        thread.continuation_thread_id && h('li', null, 'continued by ', threadLink(thread.continuation_thread_id)))) : null);
  }

  async function showConversation() {
    const talk = conversation();
    const more = h('p.muted', { role: 'status' }, 'Reading the transcript…');
    const jump = h('button.jump', { type: 'button', hidden: true, onclick: () => (context.main.scrollTop = context.main.scrollHeight) }, 'New events ↓');
    fill(body, talk.element, more, jump);
    const isAtEnd = () => context.main.scrollHeight - context.main.scrollTop - context.main.clientHeight < 120;
    let position = '';
    async function readOn() {
      for (;;) {
        const query = new URLSearchParams({ limit: PAGE });
        if (position) query.set('position', position);
        const data = await call(`${path}/transcript?${query}`);
        if (!context.isCurrent()) return;
        talk.take(data.events);
        if (data.bad_lines.length) add(talk.element, notice('error', `Damaged lines in the transcript: ${data.bad_lines.slice(0, 20).join(', ')}`));
        const isSame = position === data.position;
        position = data.position;
        if (data.is_end || isSame) return;
      }
    }
    await readOn();
    if (!context.isCurrent()) return;
    more.hidden = talk.element.childElementCount > 0;
    more.textContent = 'Nothing is recorded yet.';
    stops.push(on('reset', () => readOn().catch(() => {})), on('transcript', (data) => {
      if (data.thread_id !== id) return;
      const wasAtEnd = isAtEnd();
      if (!talk.take(data.events)) return;
      more.hidden = true;
      if (wasAtEnd) context.main.scrollTop = context.main.scrollHeight;
      else jump.hidden = false;
    }));
    const scrolled = () => isAtEnd() && (jump.hidden = true);
    context.main.addEventListener('scroll', scrolled, { passive: true });
    stops.push(() => context.main.removeEventListener('scroll', scrolled), watch(id, position, talk.line()));
  }

  async function showTimeline() {
    const data = await call(`${path}/timeline`);
    fill(body, timelineChart(data.threads, (one) => threadPath(one)), data.is_truncated ? notice('plain', 'There are more threads or events than are shown.') : null);
  }

  async function showCost() {
    let by = 'item';
    const sums = h('div');
    const bars = h('div');
    const choose = h('select', { 'aria-label': 'Sum by', onchange: () => read(choose.value) }, [['item', 'By item'], ['tool', 'By tool'], ['hook', 'By hook'], ['model', 'By model'], ['child', 'By child']].map(([value, words]) => h('option', { value }, words)));
    async function read(next) {
      by = next;
      const data = await call(`${path}/cost?by=${by}`);
      const cells = (one, name) => [name, count(one.calls), count(one.input_tokens), count(one.output_tokens), money(one.spend)];
      fill(sums, data.rows.length ? table('Cost', [['Name'], ['Calls', 'numeric'], ['Tokens in', 'numeric'], ['Tokens out', 'numeric'], ['Spend', 'numeric']],
        [...data.rows.map((one) => cells(one, one.name)), cells(data.total, h('strong', 'Total'))]) : empty('No model calls'));
      fill(bars, data.turns.length ? [barChart({ label: 'Cost of each turn', rows: data.turns.map((one) => ({ name: String(one.turn), value: one.spend ?? 0, detail: `${one.model}: ${count(one.input_tokens)} in, ${count(one.output_tokens)} out` })), format: money }),
        folded('Turns as a table', () => table('Turns', [['Turn', 'numeric'], ['Model'], ['Tokens in', 'numeric'], ['Tokens out', 'numeric'], ['Spend', 'numeric'], ['At']], data.turns.map((one) => [count(one.turn), one.model, count(one.input_tokens), count(one.output_tokens), money(one.spend), clock(one.at)])))] : empty('No turns yet'));
    }
    await read(by);
    fill(body, card('Cost of each turn', bars), card('What it was spent on', choose, sums));
  }

  /** The receipts of tool runs, from the transcript. */
  async function receipts() {
    const names = new Map();
    const runs = [];
    for (let position = ''; ;) {
      const data = await call(`${path}/transcript?limit=5000&deltas=false${position && `&position=${position}`}`);
      for (const { event_type: type, payload: p } of data.events) {
        if (type === 'tool_call_start') names.set(p?.call_id, p.tool);
        else if (type === 'tool_call_result' && p?.sandbox) runs.push([names.get(p.call_id) ?? p.call_id, receiptView(p.sandbox), duration(p.duration_ms)]);
      }
      if (data.is_end || data.position === position) return runs;
      position = data.position;
    }
  }

  async function showRecord() {
    const [verify, runs] = await Promise.all([call(`${path}/verify`).catch((error) => error), receipts().catch(() => [])]);
    const record = thread.record;
    const start = thread.start;
    fill(body,
      card('Signatures', verify instanceof Error ? errorBox(verify) : [h('p', verifyBadge(verify)), verify.problem && notice(verify.is_bad ? 'error' : 'plain', verify.problem),
        verify.signers.length ? table('Signers', [['Signer'], ['Fingerprint']], verify.signers.map((signer) => [signer.is_own ? 'you' : signer.owner ?? 'unknown', h('code', signer.fingerprint)])) : h('p.muted', 'No checkpoint is signed yet: the first one follows the first turn.'),
        verify.transcript ? fields(Object.entries(verify.transcript).map(([name, value]) => [name.replace('_', ' '), Array.isArray(value) && !value.length ? 'none' : jsonText(value)])) : null]),
      card('Receipts', fields([['journal records', count(record.journal_records)], ['last event', count(record.transcript_sequence)], ['its hash', record.transcript_hash ?? '–'], ['digest of permissions', record.capabilities_digest], ['directive', start?.directive_hash ?? '–'], ['check it yourself', `rye thread verify ${id}`]]),
        h('h3', 'Programs of tools'), runs.length ? table('Programs of tools', [['Tool'], ['Sandbox'], ['Took', 'numeric']], runs) : h('p.muted', 'No tool of this thread ran a program: built-in ones run inside rye, within the same rules.')),
      start ? [card('Prompt', longText(start.prompt), start.system ? folded('System prompt', () => longText(start.system)) : null), card('Inputs', fields(start.inputs)),
        card('Permissions', start.capabilities.length ? h('ul.plain.mono.small', null, start.capabilities.map((one) => h('li', one))) : h('p.muted', 'none')),
        card('Tools offered', start.tools.length ? h('ul.plain.mono.small.columns', null, start.tools.map((one) => h('li', null, itemLink(one)))) : h('p.muted', 'none')),
        card('Hooks', start.hooks.length ? h('ul.plain.mono.small', null, start.hooks.map((one) => h('li', one))) : h('p.muted', 'none')),
        start.files.length ? card('Files', fields(start.files.map((file, index) => [String(index + 1), jsonText(file)]))) : null] : notice('error', 'The journal cannot be read.'));
  }

  showHead();
  showAside();
  fill(element, head, h(`div.thread${tab === 'conversation' ? '' : '.single'}`, null, tab === 'conversation' ? aside : null, body));
  context.setTitle(`${thread.directive} ${shortId(id)}`);

  let timer = null;
  const later = () => {
    timer ??= setTimeout(() => {
      timer = null;
      reread().catch(() => {});
    }, 400);
  };
  stops.push(onThreads((ids) => (ids.has(id) || thread.children.some((child) => ids.has(child))) && later()),
    on('approvals', later), () => clearTimeout(timer));
  showVerify().catch(() => {});
  await { conversation: showConversation, timeline: showTimeline, cost: showCost, record: showRecord }[tab]();
  return { dispose: () => stops.forEach((stop) => stop()) };
}
