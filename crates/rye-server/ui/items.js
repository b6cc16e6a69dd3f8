// Items: search, and one item with why it is trusted, its source, and a form that runs it.

import { add, fill, h, icon, plain, s } from './dom.js';
import { count, plural } from './format.js';
import { call, isReadOnly } from './session.js';
import { act, card, copy, empty, errorBox, field, fields, folded, itemLink, itemPath, jsonText, longText, notice, threadLink, toast, verdictMark } from './parts.js';

const TYPES = ['tool', 'directive', 'knowledge'];
const SPACES = ['project', 'user', 'system'];

async function showSearch(context) {
  const { element, query } = context;
  const words = h('input', { type: 'search', 'aria-label': 'Search items', placeholder: 'Search items', value: query.get('q') ?? '', spellcheck: 'false', autocomplete: 'off' });
  const choose = (label, all, values, name) => {
    const node = h('select', { 'aria-label': label }, h('option', { value: '' }, all), values.map((value) => h('option', { value }, value)));
    node.value = values.includes(query.get(name)) ? query.get(name) : '';
    node.addEventListener('change', read);
    return node;
  };
  const type = choose('Type', 'All types', TYPES, 'type');
  const space = choose('Space', 'All spaces', SPACES, 'space');
  const all = h('input', { type: 'checkbox', checked: query.get('all') === 'true', onchange: () => read() });
  const total = h('span.muted', { role: 'status' });
  const list = h('div');
  let request = null;

  async function read() {
    const next = new URLSearchParams();
    if (words.value.trim()) next.set('q', words.value.trim());
    if (type.value) next.set('type', type.value);
    if (space.value) next.set('space', space.value);
    if (all.checked) next.set('all', 'true');
    history.replaceState(null, '', `#/items${next.size ? `?${next}` : ''}`);
    request?.abort();
    request = new AbortController();
    next.set('limit', '500');
    let data;
    try {
      data = await call(`/items?${next}`, { signal: request.signal });
    } catch (error) {
      if (error.name !== 'AbortError') fill(list, errorBox(error));
      return;
    }
    total.textContent = data.results.length < data.total ? `${count(data.results.length)} of ${plural(data.total, 'item')}` : plural(data.total, 'item');
    fill(list, data.results.length ? h('ul.item-list', null, data.results.map((one) => h('li', null, h('a', { href: `${itemPath(one.type, one.item_id)}${one.shadowed_by ? `?space=${encodeURIComponent(one.space)}` : ''}` },
      h('span.item-head', null, verdictMark(one.verdict), h('strong.mono', one.item_id), h('span.tag', one.type), h('span.tag', one.space), one.version && h('span.meta', one.version)),
      h('span.clip.muted', one.description || one.title || ''),
      one.shadowed_by ? h('span.meta', `hidden by ${one.shadowed_by}`) : one.shadows?.length ? h('span.meta', `hides ${one.shadows.join(', ')}`) : null))))
      : empty('No item matches', data.suggestions?.length ? ['Did you mean ', data.suggestions.map((one, index) => [index ? ', ' : '', itemLink(typeof one === 'string' ? one : `${one.type}:${one.item_id}`)]), '?'] : 'Search looks at ids, titles, descriptions and texts.'));
  }

  let timer = null;
  words.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(read, 120);
  });
  fill(element, h('div.page-head', null, h('h1', 'Items'), total),
    h('div.filters', null, h('div.search', null, icon('search'), words), type, space, h('label.check', null, all, ' hidden ones too')), list);
  await read();
  context.setTitle('Items');
  return { dispose: () => clearTimeout(timer) };
}

const arrow = (label) => h('div.why-arrow', null, s('svg', { viewBox: '0 0 16 24', width: 16, height: 24, 'aria-hidden': 'true' }, s('path', { d: 'M8 0v20M3 15l5 6 5-6' })), label && h('span', label));

const signerText = (signer) => (signer ? h('span.signer', { title: signer.fingerprint }, h('span', signer.owner ?? 'unknown owner'), ' ', h('code', String(signer.fingerprint).slice(0, 12)), signer.trusted_by ? h('span.meta', ` · ${signer.trusted_by}`) : null) : h('span.meta', 'no signer'));

const SIGNED_LOCK = /^(held|valid|pinned|match)/;

/** Why an item is trusted: the places that were looked at, the file that counts, and the chain that runs it. */
function whyPicture(why) {
  const chosen = why.tiers.findIndex((tier) => tier.found && tier.path === why.item.path);
  const tiers = why.tiers.map((tier, index) => {
    const kind = index === chosen ? 'chosen' : tier.found ? 'hidden-item' : 'absent';
    const words = { chosen: 'this one is used', 'hidden-item': chosen >= 0 && index > chosen ? 'hidden by the one above' : 'found, not used', absent: 'not there' }[kind];
    return h(`li.why-tier.${kind}`, null, h('span.why-space', tier.space), h('span.why-words', words), tier.found && tier.verdict ? verdictMark(tier.verdict) : null, h('span.why-path', tier.path));
  });
  const chain = why.chain.map((one, index) => [index ? arrow(why.chain[index - 1].executor_id ? 'runs in' : '') : null,
    h(`div.why-element${one.problem ? '.bad' : ''}`, null,
      h('div.item-head', null, one.verdict ? verdictMark(one.verdict) : null, h('strong', itemLink(one.item_id, 'tool')), one.space && h('span.tag', one.space), one.lock ? h(`span.tag.${SIGNED_LOCK.test(one.lock) ? 'good' : 'plain'}`, `lock: ${one.lock}`) : null),
      h('div.why-line', null, signerText(one.signer)), one.hash && h('code.hash', { title: one.hash }, String(one.hash).slice(0, 20), '…'), one.problem && notice('error', one.problem))]);
  const lock = why.lock;
  return h('div.why', null,
    h('section.why-part', { 'aria-label': 'Where it was looked for' }, h('h3', 'Spaces, highest first'), h('ol.why-tiers', tiers)),
    h('section.why-part', { 'aria-label': 'Signature' }, h('h3', 'Signature'), h('div.why-element', null, h('div.item-head', null, verdictMark(why.item.verdict), why.coverage && h('span.tag', `coverage: ${why.coverage}`)), h('div.why-line', null, signerText(why.signer)), why.signer && h('span.meta', `signed ${why.signer.signed_at}`), why.item.reason && notice('error', why.item.reason)),
      h('h3', 'Lock'), h('div.why-element', null, lock ? [h('div.item-head', null, verdictMark(SIGNED_LOCK.test(lock.state) ? 'valid' : 'unsigned', lock.state)), lock.reason && h('p', lock.reason), (lock.paths ?? []).map((path) => h('span.why-path', path))] : h('span.meta', 'no lockfile: the first run makes one'))),
    h('section.why-part', { 'aria-label': 'Chain' }, h('h3', 'Chain that runs it'), chain.length ? chain : h('p.muted', 'It does not run.'), why.chain_problem && notice('error', why.chain_problem)));
}

const RANGES = { signed: 'signed', signature: 'signature line', unsigned: 'not covered by the signature' };

/** The file with what its signature covers marked at its side. */
function sourceView(source) {
  const lines = source.text.split('\n');
  if (lines.at(-1) === '') lines.pop();
  const covered = source.ranges.length ? source.ranges : [{ kind: 'unsigned', first: 1, last: lines.length }];
  return h('div.source-scroll', { tabindex: '0', role: 'group', 'aria-label': 'Lines' }, h('div.source', null, covered.map(({ kind, first, last }) => {
    const end = Math.min(last, lines.length);
    if (end < first) return null;
    const numbers = Array.from({ length: end - first + 1 }, (_, index) => first + index).join('\n');
    return h(`div.source-range.${kind in RANGES ? kind : 'unsigned'}`, null, h('span.range-label', RANGES[kind] ?? kind), h('pre.gutter', { 'aria-hidden': 'true' }, numbers), h('pre.code', lines.slice(first - 1, end).join('\n')));
  })), source.is_truncated ? notice('plain', 'The file is longer than what is shown.') : null);
}

function control(name, schema, isRequired) {
  const kind = Array.isArray(schema.type) ? schema.type.find((one) => one !== 'null') : schema.type;
  const common = { name, required: isRequired && kind !== 'boolean' };
  const value = schema.default;
  if (Array.isArray(schema.enum)) {
    const node = h('select', common, !isRequired || value === undefined ? h('option', { value: '' }, '–') : null, schema.enum.map((one) => h('option', { value: JSON.stringify(one) }, jsonText(one))));
    if (value !== undefined) node.value = JSON.stringify(value);
    return [node, (text) => (text === '' ? undefined : JSON.parse(text))];
  }
  if (kind === 'boolean') {
    const node = h('select', { name }, h('option', { value: '' }, value === undefined ? '–' : `default: ${value}`), h('option', { value: 'true' }, 'true'), h('option', { value: 'false' }, 'false'));
    return [node, (text) => (text === '' ? undefined : text === 'true')];
  }
  if (kind === 'integer' || kind === 'number') {
    return [h('input', { ...common, type: 'number', step: kind === 'integer' ? '1' : 'any', min: schema.minimum, max: schema.maximum, placeholder: value === undefined ? '' : `default: ${value}` }), (text) => (text === '' ? undefined : Number(text))];
  }
  if (kind === 'string') {
    const isLong = /content|text|body|prompt|script|command|message/.test(name);
    const placeholder = value === undefined ? '' : `default: ${value}`;
    return [isLong ? h('textarea', { ...common, rows: 3, placeholder, spellcheck: 'false' }) : h('input', { ...common, placeholder, autocomplete: 'off', spellcheck: 'false' }), (text) => (text === '' && !isRequired ? undefined : text)];
  }
  return [h('textarea', { ...common, rows: 2, spellcheck: 'false', placeholder: kind === 'array' ? '[]' : kind === 'object' ? '{}' : 'JSON' }), (text) => {
    if (text.trim() === '') return undefined;
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`${name} must be JSON: a text is in quotes`);
    }
  }];
}

/** A form of an item's parameters that runs it. */
function runForm(item) {
  const schema = item.parameters ?? {};
  const required = new Set(schema.required ?? []);
  const readers = new Map();
  const form = h('form.run-form');
  const result = h('div.run-result', { 'aria-live': 'polite' });
  const parts = Object.entries(schema.properties ?? {}).map(([name, one]) => {
    const [node, read] = control(name, one ?? {}, required.has(name));
    readers.set(name, read);
    return field(`${name}${required.has(name) ? ' *' : ''}`, node, one?.description);
  });
  const isOpen = !parts.length && item.parameters === null;
  const extra = isOpen || (schema.additionalProperties !== false && !parts.length) ? h('textarea', { name: '__json', rows: 2, placeholder: '{}', spellcheck: 'false' }) : null;

  async function run(button, dryRun) {
    if (!form.reportValidity()) return;
    const parameters = {};
    const values = new FormData(form);
    await act(button, async () => {
      for (const [name, read] of readers) {
        const value = read(String(values.get(name) ?? ''));
        if (value !== undefined) parameters[name] = value;
      }
      if (extra?.value.trim()) Object.assign(parameters, JSON.parse(extra.value));
      fill(result, h('p.muted', 'Running…'));
      try {
        const data = await call('/run', { method: 'POST', body: { type: item.type, item_id: item.item_id, parameters, dry_run: dryRun || undefined } });
        if (data?.thread_id) toast('Started: it runs in the background.');
        fill(result, data?.thread_id ? notice('good', 'Started ', threadLink(data.thread_id)) : [h('h3', dryRun ? 'Dry run: nothing was executed' : 'Result'), longText(jsonText(data)), h('button', { type: 'button', onclick: () => copy(jsonText(data)) }, 'Copy')]);
      } catch (error) {
        fill(result, errorBox(error));
      }
    });
  }

  const start = h('button.primary', { type: 'submit' }, item.type === 'directive' ? 'Start a thread' : 'Run');
  const dry = h('button', { type: 'button', onclick: () => run(dry, true) }, 'Dry run');
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    run(start, false);
  });
  add(form, parts, extra && field('Parameters, as JSON', extra), !parts.length && !extra ? h('p.muted', 'It takes no parameters.') : null, h('div.buttons', null, start, dry));
  return [form, result];
}

async function showItem(context) {
  const { element, query } = context;
  const [type, ...rest] = context.rest;
  const id = rest.join('/');
  const space = SPACES.includes(query.get('space')) ? query.get('space') : null;
  const item = await call(`/items/${encodeURIComponent(type)}/${rest.map(encodeURIComponent).join('/')}${space ? `?space=${space}` : ''}`);
  const { why } = item;
  const metadata = Object.entries(item.metadata ?? {}).filter(([name, value]) => value !== null && !['description', 'config_schema', 'inputs', 'parameters', 'name', 'version', 'category'].includes(name) && !(Array.isArray(value) && !value.length));
  const runs = item.parameters !== null || item.can_run;
  fill(element, h('nav.crumbs', { 'aria-label': 'Above' }, h('a', { href: '#/items' }, 'Items'), ' / ', type),
    h('div.page-head', null, h('h1.mono', id), verdictMark(why.item.verdict), h('span.tag', type), h('span.tag', why.item.space), why.item.version && h('span.meta', why.item.version)),
    item.metadata?.description ? h('p.lead', item.metadata.description) : null,
    card('Why this one', whyPicture(why)),
    runs ? card(type === 'directive' ? 'Start' : 'Run', item.can_run ? runForm(item) : notice('plain', isReadOnly() ? 'This session only reads.' : 'It does not run: it is not trusted.')) : null,
    card('Source', h('p.why-path', item.source.path), sourceView(item.source)),
    metadata.length ? card('Metadata', folded('Show', () => fields(metadata))) : null,
    type === 'tool' && item.parameters ? card('Parameters', folded('JSON Schema', () => longText(jsonText(item.parameters)))) : null);
  context.setTitle(plain(id));
  return {};
}

/** The page of `#/items` and `#/items/TYPE/ID`. */
export const show = (context) => (context.rest.length >= 2 ? showItem(context) : showSearch(context));
