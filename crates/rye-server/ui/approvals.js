// What threads ask: the exact call with all its arguments, who asks, and the answer.

import { fill, h } from './dom.js';
import { count, money, plural, shortId } from './format.js';
import { call, isReadOnly } from './session.js';
import { on } from './stream.js';
import { act, age, announce, diffView, empty, field, itemLink, limitChanges, limitFields, notice, threadLink, toast } from './parts.js';

/** A question cannot be answered in the moment it appears: a key or click was meant for what was there before. */
const MIN_SHOWN_MS = 600;

function costText(cost) {
  if (!cost || typeof cost !== 'object') return null;
  return [Number.isFinite(cost.spend) && money(cost.spend), Number.isFinite(cost.turns) && plural(cost.turns, 'turn'),
    Number.isFinite(cost.tokens ?? cost.input_tokens) && `${count(cost.tokens ?? (cost.input_tokens + (cost.output_tokens ?? 0)))} tokens`].filter(Boolean).join(' · ');
}

/** The arguments of a question: its rows without those on why, who and cost at the end, which are shown below them. */
function argumentRows({ kind, detail, text }) {
  const wanted = kind === 'tool' ? Object.keys(detail?.action?.params ?? {}).length : 0;
  const ends = text.rows.slice(-3).map(([name]) => name).join();
  return ends === 'why,who,cost' && text.rows.length === wanted + 3 ? text.rows.slice(0, -3) : text.rows;
}

function questionCard(question, onAnswer) {
  const shownAt = performance.now();
  const detail = question.detail ?? {};
  const action = detail.action;
  const name = action?.item_id ? `${action.item_type ?? 'tool'}:${action.item_id}` : null;
  const chain = Array.isArray(question.chain) ? question.chain : [];
  const reason = h('input', { name: 'message', autocomplete: 'off', placeholder: 'The model reads it' });
  const form = h('form', { onsubmit: (event) => event.preventDefault() });
  const limits = question.kind === 'limit' ? limitFields(null, 'as asked') : null;
  const end = h('input', { type: 'checkbox', name: 'end' });

  async function answer(button, approved, always) {
    if (performance.now() - shownAt < MIN_SHOWN_MS) {
      announce('The question has only just appeared: read it first.');
      return;
    }
    const values = Object.fromEntries(new FormData(form));
    const body = { digest: question.digest, approved, message: values.message?.trim() || undefined };
    if (approved && always) body.always = always;
    if (approved && limits) body.limits = limitChanges(values);
    if (!approved && end.checked) body.end = true;
    await act(button, async () => {
      try {
        const done = await call(`/approvals/${encodeURIComponent(question.id)}`, { method: 'POST', body });
        toast(`${approved ? 'Approved' : 'Denied'}${done.resumed ? ': the thread runs again.' : done.note ? `: ${done.note}` : '.'}`);
      } catch (error) {
        if (error.status !== 409 && error.status !== 404) throw error;
        toast(`Not answered: ${error.message}`, 'warning');
      }
      onAnswer(question.id);
    });
  }

  const button = (words, key, kind, approved, always) => {
    const node = h(`button${kind}`, { type: 'button', 'data-key': key, onclick: () => answer(node, approved, always) }, words, ' ', h('kbd', { 'aria-hidden': 'true' }, key));
    return node;
  };
  const isTool = question.kind === 'tool';
  const rows = argumentRows(question);
  const diff = detail.diff ?? action?.diff;
  const cost = costText(detail.cost);
  const titleId = `question-${question.id}`;
  const node = h('article.question', { tabindex: '0', 'aria-labelledby': titleId, 'data-id': question.id },
    h('header', null, h('span.state.asked', null, h('span.sign', { 'aria-hidden': 'true' }, '?'), h('span', { tool: 'tool call', limit: 'limit', approval: 'question' }[question.kind] ?? question.kind)),
      h('h2', { id: titleId }, isTool ? h('span.mono', question.what) : question.text.prompt || question.what), h('span.spread'), h('span.muted', null, 'asked ', age(question.asked_at_ms, ' ago'))),
    isTool && question.text.prompt !== question.what ? h('p.prompt', question.text.prompt) : null,
    rows.length ? h('dl.fields.call-arguments', null, rows.map(([key, value]) => [h('dt', key), h('dd', null, h('pre.text', value))])) : isTool ? h('p.muted', 'No arguments') : null,
    typeof diff === 'string' ? diffView(diff) : null,
    h('dl.facts-list', null,
      question.why && [h('dt', 'Why'), h('dd', question.why)],
      h('dt', 'Who asks'), h('dd', null, chain.length ? chain.map((one, index) => [index ? ' ← ' : null, threadLink(one.thread_id, one.directive), ' ', h('span.mono.muted', shortId(one.thread_id))]) : threadLink(question.thread_id, question.directive)),
      cost && [h('dt', 'Cost so far'), h('dd', cost)],
      name && [h('dt', 'Item'), h('dd', null, itemLink(name), ' — who signed it, and its source')]),
    isReadOnly() ? notice('plain', 'This session only reads. Answer with ', h('code', `rye thread approve ${question.id}`), '.')
      : [form, h('p.digest', { title: question.digest }, `You answer what is shown here: digest ${String(question.digest).slice(0, 16)}…`)]);
  fill(form, limits, field('Message or reason', reason),
    h('div.buttons', null, button('Approve', 'y', '.primary', true), button('Deny', 'n', '.danger', false),
      isTool ? [button('Always this item here', 'i', '', true, 'item'), button('Always these arguments', 's', '', true, 'arguments')] : null,
      h('label.check', null, end, ' with a no, end the thread')),
    isTool ? h('p.facts', '“Always” holds for later calls in this thread only, and allows no more than its permissions.') : null);
  return node;
}

/** The page of `#/approvals`, `#/approvals/ID` and `#/approvals?thread=ID`. */
export async function show(context) {
  const { element, query } = context;
  const thread = query.get('thread');
  const wanted = context.rest[0];
  const list = h('div.questions');
  const cards = new Map();
  const total = h('span.muted', { role: 'status' });
  let focusNext = Boolean(wanted);

  async function read() {
    const data = await call(`/approvals${thread ? `?thread=${encodeURIComponent(thread)}` : ''}`);
    if (!context.isCurrent()) return;
    const open = new Map(data.approvals.map((question) => [question.id, question]));
    let lost = null;
    for (const [id, { node, digest }] of [...cards]) {
      if (open.get(id)?.digest === digest) continue;
      if (node.contains(document.activeElement)) lost = node.nextElementSibling ?? node.previousElementSibling ?? list;
      node.remove();
      cards.delete(id);
    }
    for (const question of data.approvals) {
      if (cards.has(question.id)) continue;
      const node = questionCard(question, () => read().catch(() => {}));
      cards.set(question.id, { node, digest: question.digest });
      list.append(node);
    }
    total.textContent = data.approvals.length ? plural(data.approvals.length, 'open question') : '';
    list.querySelector(':scope > .empty')?.remove();
    list.querySelector(':scope > .notice')?.remove();
    if (data.forged.length) list.prepend(notice('error', h('strong', 'Not shown: '), `${plural(data.forged.length, 'row')} in the store that your rye did not write: ${data.forged.join(', ')}`));
    if (!data.approvals.length) list.append(empty('Nothing is asked', 'When a thread needs your word, for a call, a limit or a question of its own, it waits here. Nothing of it runs until you answer.'));
    if (lost) (lost.isConnected && lost.classList.contains('question') ? lost : list.querySelector('.question') ?? element.querySelector('h1')).focus();
    if (focusNext) {
      focusNext = false;
      const node = cards.get(wanted)?.node;
      if (node) {
        node.scrollIntoView({ block: 'start' });
        node.focus();
      } else list.prepend(notice('plain', `The question ${wanted} is answered, or was never asked.`));
    }
  }

  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    const all = [...list.querySelectorAll('.question')];
    const at = all.findIndex((node) => node.contains(document.activeElement));
    if (event.key === 'j' || event.key === 'k') {
      const next = all[Math.max(0, Math.min(all.length - 1, at + (event.key === 'j' ? 1 : -1)))];
      next?.focus();
      next?.scrollIntoView({ block: 'nearest' });
      event.preventDefault();
    } else if (at >= 0 && /^[ynis]$/.test(event.key) && !event.repeat) {
      all[at].querySelector(`button[data-key="${event.key}"]`)?.click();
      event.preventDefault();
    }
  };
  addEventListener('keydown', keys);
  fill(element, h('div.page-head', null, h('h1', 'Approvals'), total, h('span.spread'), thread && h('a', { href: '#/approvals' }, 'All questions')),
    h('p.muted.keys', null, h('kbd', 'j'), ' ', h('kbd', 'k'), ' next, previous · on a question: ', h('kbd', 'y'), ' approve · ', h('kbd', 'n'), ' deny · ', h('kbd', 'i'), ' always this item · ', h('kbd', 's'), ' always these arguments'), list);
  const stops = [on('approvals', () => read().catch(() => {})), on('reset', () => read().catch(() => {})), on('hello', () => read().catch(() => {}))];
  await read();
  context.setTitle('Approvals');
  return {
    dispose() {
      stops.forEach((stop) => stop());
      removeEventListener('keydown', keys);
    },
  };
}
