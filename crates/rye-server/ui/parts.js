// Pieces that several pages use: states, bars, verdicts, long texts, dialogs, messages.

import { add, fill, h, plain, text } from './dom.js';
import { ago, clock, shortId } from './format.js';

const MAX_TEXT_CHARS = 4000;
const TOAST_MS = 7000;

export const liveRegion = h('div.visually-hidden', { role: 'status', 'aria-live': 'polite' });
export const toasts = h('div.toasts', { role: 'region', 'aria-label': 'Messages' });

/** Says something to screen readers. */
export function announce(message) {
  liveRegion.textContent = '';
  setTimeout(() => (liveRegion.textContent = plain(message)), 50);
}

/** Shows a message for a while; one of an error until it is closed. */
export function toast(message, level = 'ok') {
  const node = h(`div.toast.${level}`, { role: level === 'error' ? 'alert' : 'status' }, h('span', message),
    h('button.icon-button', { type: 'button', 'aria-label': 'Close', onclick: () => node.remove() }, '×'));
  toasts.append(node);
  while (toasts.children.length > 4) toasts.firstChild.remove();
  if (level !== 'error') setTimeout(() => node.remove(), TOAST_MS);
}

/** An error with its code and hints. */
export const errorBox = (error) =>
  h('div.notice.error', { role: 'alert' }, h('strong', error.message), error.code && h('code', error.code),
    error.hints?.length ? h('ul', error.hints.map((hint) => h('li', hint))) : null);

export const notice = (level, ...children) => h(`div.notice.${level}`, null, children);

/** A page, section or list without anything in it. */
export const empty = (title, ...more) => h('div.empty', null, h('strong', title), more.length ? h('p', null, more) : null);

/** What a state looks like: its class, its sign and its words. The sign does not depend on colour. */
const STATES = {
  running: ['running', '▶', 'running'],
  created: ['running', '▷', 'starting'],
  waiting: ['waiting', '◷', 'waiting'],
  suspended: ['suspended', '❚❚', 'suspended'],
  approval: ['asked', '?', 'asks'],
  interrupted: ['failed', '↯', 'interrupted'],
  completed: ['completed', '✓', 'completed'],
  error: ['failed', '✗', 'failed'],
  cancelled: ['ended', '⊘', 'cancelled'],
  killed: ['ended', '⊘', 'killed'],
  continued: ['ended', '→', 'continued'],
  forged: ['failed', '!', 'forged'],
};

/** The state of a row, with what it asks before what it is. */
export const stateOf = (row) => (row.attention?.includes('approval') ? 'approval' : row.status);

export function stateMark(state, reason) {
  const [kind, sign, words] = Object.hasOwn(STATES, state) ? STATES[state] : ['ended', '·', state];
  return h(`span.state.${kind}`, null, h('span.sign', { 'aria-hidden': 'true' }, sign), h('span', words),
    reason && reason !== words && state !== 'approval' ? h('span.state-reason', ` ${reason}`) : null);
}

/** A bar of how much of a limit is used. */
export function bar(used, max, { label, reserved = 0, words } = {}) {
  const share = max > 0 ? used / max : 0;
  const level = share >= 0.95 ? 'full' : share >= 0.8 ? 'high' : 'normal';
  const percent = Math.round(share * 100);
  return h(`div.bar.${level}`, {
    role: 'meter', 'aria-label': label, 'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': Math.min(100, percent),
    'aria-valuetext': words ?? `${percent} %`,
    vars: { '--share': `${Math.min(100, share * 100)}%`, '--reserved': `${max > 0 ? Math.min(100, (reserved / max) * 100) : 0}%` },
  });
}

/** How old something is, with the moment itself as its title. */
export const age = (value, more = '') => h('time', { datetime: typeof value === 'number' ? new Date(value).toISOString() : value, title: clock(value) }, ago(value).replace(/\d.*/, `$&${more}`));

export const threadPath = (id, tab) => `#/threads/${encodeURIComponent(id)}${tab ? `/${tab}` : ''}`;
export const threadLink = (id, words) => h('a', { href: threadPath(id) }, words ?? h('span.mono', shortId(id)));
export const itemPath = (type, id) => `#/items/${encodeURIComponent(type)}/${String(id).split('/').map(encodeURIComponent).join('/')}`;

/** A link to an item that is named `tool:team/deploy`, or the text itself. */
export function itemLink(name, type) {
  const match = /^(tool|directive|knowledge|config):(.+)$/.exec(name);
  const [kind, id] = match ? [match[1], match[2]] : [type, name];
  return kind ? h('a', { href: itemPath(kind, id) }, name) : text(name);
}

const VERDICTS = {
  full: ['good', '✓', 'signed'], trusted: ['good', '✓', 'trusted'], valid: ['good', '✓', 'valid'], own: ['good', '✓', 'own'],
  system: ['good', '✓', 'system'], partial: ['warn', '◐', 'partly signed'], unsigned: ['warn', '○', 'unsigned'], older: ['warn', '○', 'older format'],
};

/** Whether something is signed and trusted, in a sign and a word. */
export function verdictMark(verdict, words) {
  const [level, sign, name] = Object.hasOwn(VERDICTS, verdict) ? VERDICTS[verdict] : ['bad', '✗', verdict];
  return h(`span.verdict.${level}`, null, h('span.sign', { 'aria-hidden': 'true' }, sign), words ?? name);
}

/** A text to its end, of which a long one shows only the beginning until it is asked for. */
export function longText(value, tag = 'pre.text') {
  const string = String(value ?? '');
  if (string.length <= MAX_TEXT_CHARS) return h(tag, null, string);
  const node = h(tag, null, `${string.slice(0, MAX_TEXT_CHARS)}…`);
  const more = h('button.link', {
    type: 'button',
    onclick: () => {
      fill(node, string);
      more.remove();
    },
  }, `Show all ${string.length.toLocaleString('en-US')} characters`);
  return h('div', null, node, more);
}

/** JSON as text: a text as it is, anything else in lines. */
export const jsonText = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2));

/** Names and values of an object, each value to its end. */
export function fields(object, empties = 'none') {
  const entries = Array.isArray(object) ? object : Object.entries(object ?? {});
  if (!entries.length) return h('p.muted', empties);
  return h('dl.fields', null, entries.map(([name, value]) => [h('dt', name), h('dd', null, value instanceof Node ? value : longText(jsonText(value)))]));
}

/** A unified diff with its lines marked. */
export function diffView(diff) {
  const lines = String(diff).split('\n');
  if (lines.at(-1) === '') lines.pop();
  const kind = (line) => (/^(\+\+\+|---|diff |index )/.test(line) ? 'file' : line.startsWith('@@') ? 'hunk' : line[0] === '+' ? 'added' : line[0] === '-' ? 'removed' : 'same');
  const shown = lines.slice(0, 400);
  return h('div.diff', { role: 'group', 'aria-label': 'Changes' }, shown.map((line) => h(`div.${kind(line)}`, null, line || ' ')),
    lines.length > shown.length ? h('div.hunk', `… ${lines.length - shown.length} more lines`) : null);
}

/** Details that are folded until asked for; what is in them is made then. */
export function folded(summary, make, { open = false, kind = '' } = {}) {
  const body = h('div.folded-body');
  const node = h(`details.folded${kind ? `.${kind}` : ''}`, { open }, h('summary', null, summary), body);
  let isMade = false;
  const build = () => {
    if (isMade || !node.open) return;
    isMade = true;
    add(body, make());
  };
  node.addEventListener('toggle', build);
  build();
  return node;
}

/** A table with a caption for screen readers. `columns`: `[name, {numeric}]`. */
export function table(caption, columns, rows) {
  return h('div.table-scroll', { tabindex: '0', role: 'group', 'aria-label': caption },
    h('table', null, h('caption.visually-hidden', caption),
      h('thead', null, h('tr', null, columns.map(([name, kind]) => h(`th${kind ? `.${kind}` : ''}`, { scope: 'col' }, name)))),
      h('tbody', null, rows.map((cells) => h('tr', null, cells.map((cell, index) => h(`td${columns[index]?.[1] ? `.${columns[index][1]}` : ''}`, null, cell)))))));
}

export const card = (title, ...children) => h('section.card', { 'aria-label': title }, h('h2', title), children);

const RECEIPTS = { full: ['full', 'sandbox: every rule enforced'], partial: ['partial', 'sandbox: rules not enforced'], off: ['unsigned', 'no sandbox'] };
const spaced = (word) => String(word).replaceAll('_', ' ');

/** How the sandbox confined a tool's program, and what enforced each rule. */
export function receiptView(receipt) {
  const [verdict, words] = RECEIPTS[receipt.level] ?? ['bad', receipt.level];
  return folded(verdictMark(verdict, receipt.unenforced ? `${words}: ${receipt.unenforced.map(spaced).join(', ')}` : words), () => fields(
    [...Object.entries(receipt.rules ?? {}).map(([rule, by]) => [spaced(rule), [...new Set(by)].map(spaced).join(', ')]),
      ...['replaced', 'moved_aside', 'left_in_place'].filter((name) => receipt[name]).map((name) => [spaced(name), receipt[name].join('\n')])]));
}

/** Runs an action of a button: once at a time, with errors shown. */
export async function act(button, action) {
  if (button.disabled) return;
  button.disabled = true;
  button.setAttribute('aria-busy', 'true');
  try {
    await action();
  } catch (error) {
    toast([error.message, ...(error.hints ?? [])].join(' · '), 'error');
  } finally {
    button.disabled = false;
    button.removeAttribute('aria-busy');
  }
}

/** A dialog with a form; resolves to the form's values, or `null`. */
export function askForm({ title, intro, parts, submit, danger }) {
  return new Promise((resolve) => {
    let answer = null;
    const form = h('form', { method: 'dialog' }, h('h2', { id: 'dialog-title' }, title), intro && h('p', intro), parts,
      h('div.buttons', null, h(`button.primary${danger ? '.danger' : ''}`, { type: 'submit', value: 'ok' }, submit),
        h('button', { type: 'button', onclick: () => dialog.close() }, 'Back')));
    const dialog = h('dialog', { 'aria-labelledby': 'dialog-title' }, form);
    form.addEventListener('submit', () => (answer = Object.fromEntries(new FormData(form))));
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const LIMITS = [
  ['turns', 'Turns'], ['tokens', 'Tokens'], ['spend', 'Spend, $'], ['spawns', 'Children'], ['depth', 'Levels'], ['duration_seconds', 'Seconds'],
];

let fieldNumber = 0;

/** A labelled control. */
export function field(label, control, hint) {
  fieldNumber += 1;
  control.id ||= `field-${fieldNumber}`;
  if (hint) control.setAttribute('aria-describedby', `${control.id}-hint`);
  return h('div.field', null, h('label', { for: control.id }, label), control, hint && h('small', { id: `${control.id}-hint` }, hint));
}

/** Controls for new limits, with the present ones as placeholders. */
export const limitFields = (limits, otherwise = 'no limit') =>
  h('fieldset.limits', null, h('legend', 'New limits, where they are to change'), LIMITS.map(([name, label]) =>
    field(label, h('input', { name: `limit-${name}`, inputmode: 'decimal', autocomplete: 'off', pattern: '\\+?[0-9]+(\\.[0-9]+)?|none', placeholder: String(limits?.[name] ?? otherwise), title: '30 sets, +5 raises, none lifts the limit' }))));

/** The changes of limits in a form's values; nothing if there are none. */
export function limitChanges(values) {
  const changes = {};
  for (const [name] of LIMITS) {
    const value = (values[`limit-${name}`] ?? '').trim();
    if (value) changes[name] = value === 'none' ? null : value;
  }
  return Object.keys(changes).length ? changes : undefined;
}

/** Copies a text. */
export async function copy(value) {
  await navigator.clipboard.writeText(value);
  toast('Copied');
}

/** Offers a text or blob as a file. */
export function download(name, content, type = 'text/plain') {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const tabs = (label, entries, current) =>
  h('nav.tabs', { 'aria-label': label }, entries.map(([name, words, href]) => h('a', { href, 'aria-current': name === current ? 'page' : undefined }, words)));
