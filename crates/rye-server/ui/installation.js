// What is installed and how it is set: bundles, keys, settings with their origins, and what doctor finds.

import { fill, h, icon } from './dom.js';
import { bytes, count, plural } from './format.js';
import { call } from './session.js';
import { act, card, empty, fields, folded, itemLink, jsonText, longText, notice, table, verdictMark } from './parts.js';

const list = (values, none = 'none') => (values?.length ? h('ul.plain', null, values.map((one) => h('li', null, one))) : h('span.muted', none));
const STANDING = { installed: 'trusted', embedded: 'system', enabled: 'trusted', approved: 'trusted', available: 'unsigned' };
const standingMark = (word) => verdictMark(STANDING[word] ?? 'bad', word);

/** Anything as nested names and values. */
function nested(value) {
  if (Array.isArray(value)) return value.length ? h('ul.plain.mono.small', null, value.map((one) => h('li', null, nested(one)))) : h('span.muted', 'none');
  if (value && typeof value === 'object') return fields(Object.entries(value).map(([name, one]) => [name.replaceAll('_', ' '), nested(one)]));
  return typeof value === 'string' ? longText(value) : jsonText(value);
}

/** What items ask for, and which. */
function requests(capabilities) {
  const kinds = Object.entries(capabilities).filter(([, one]) => Object.keys(one ?? {}).length);
  if (!kinds.length) return h('p.muted', 'nothing');
  return kinds.map(([kind, one]) => [h('h3', kind), h('ul.plain', null, Object.entries(one).map(([request, items]) => h('li', null, h('code', request), h('span.meta', null, ' · ', Array.isArray(items) ? items.join(', ') : jsonText(items)))))]);
}

const lines = (title, values, kind) => (values.length ? [h('h3', title), h(`ul.plain.mono.small${kind ?? ''}`, null, values.map((one) => h('li', one)))] : null);

/** What one bundle's upgrade would change. */
function planView(plan) {
  const { signer, counts } = plan;
  return [h('p', `Files: ${Object.entries(counts).filter(([, number]) => number).map(([word, number]) => `${count(number)} ${word}`).join(', ') || 'none'}`),
    h('p', null, verdictMark(signer.needs_trust ? 'unsigned' : 'trusted', signer.needs_trust ? 'a key you have not agreed to' : 'signed by a key you trust'), ` ${signer.owner} `, h('code', signer.fingerprint)),
    plan.warnings.map((words) => notice('warning', words)),
    plan.capabilities_added.length ? notice('warning', h('strong', 'It asks for more: '), plan.capabilities_added.join(', ')) : h('p.muted', 'It asks for nothing new.'),
    lines('It no longer asks for', plan.capabilities_removed), lines('It would hide', plan.hides), lines('Hidden by', plan.hidden_by),
    folded(plural(plan.files.length, 'file'), () => table('Files', [['What happens'], ['File']], plan.files.map((file) => [file.action, h('code', file.path)])))];
}

function upgradeView(one) {
  const id = one.bundle_id;
  const plan = h('div.plan');
  const show = h('button', { type: 'button', 'data-action': 'plan', onclick: () => act(show, async () => {
    const data = await call(`/upgrades?ask=true&bundle=${encodeURIComponent(id)}`);
    fill(plan, data.plans.length ? [data.plans.map(planView), h('p.muted', null, 'Nothing was changed. To upgrade: ', h('code', `rye bundle upgrade ${id}`))] : h('p.muted', 'An upgrade would change nothing.'));
  }) }, 'What it would change');
  return h('div.upgrade', null, h('p', null, h('a', { href: `#/bundles/${encodeURIComponent(id)}` }, id), ` ${one.installed ?? 'not installed'}`,
    one.wanted && one.wanted !== one.installed ? [' → ', h('strong', one.wanted)] : ' is current', one.latest && one.latest !== one.wanted ? h('span.meta', ` · ${one.latest} is outside ${one.range ?? 'the range'}`) : null, ' ', show),
  one.problem && notice('warning', one.problem), plan);
}

/** Versions of the project's bundles; sources may be on other computers, and are asked when a person says so. */
function upgradesCard() {
  const body = h('div', null, h('p.muted', 'rye asks the sources of the project’s bundles, which may be on other computers, only when you say so.'));
  const ask = h('button', { type: 'button', 'data-action': 'outdated', onclick: () => act(ask, async () => {
    const { bundles } = await call('/bundles/outdated?ask=true');
    fill(body, bundles.length ? bundles.map(upgradeView) : h('p.muted', null, 'The project names no bundles of its own; ', h('code', 'rye add SOURCE'), ' adds one.'));
  }) }, 'Look for newer versions');
  return card('Upgrades', body, ask);
}

async function showBundles(context) {
  if (context.rest.length) return showBundle(context);
  const data = await call('/bundles');
  fill(context.element, h('div.page-head', null, h('h1', 'Bundles'), h('span.muted', plural(data.bundles.length, 'bundle'))),
    data.bundles.length ? h('ul.item-list', null, data.bundles.map((one) => h('li', null, h('a', { href: `#/bundles/${encodeURIComponent(one.bundle_id)}` },
      h('span.item-head', null, standingMark(one.standing), h('strong.mono', one.bundle_id), h('span.meta', one.version), h('span.tag', one.space), h('span.meta', plural(one.items, 'item'))),
      h('span.clip.muted', null, one.categories.join(', ')), one.note && h('span.meta', one.note))))) : empty('No bundles'),
    upgradesCard());
  context.setTitle('Bundles');
  return {};
}

async function showBundle(context) {
  const id = context.rest.join('/');
  const data = await call(`/bundles/${encodeURIComponent(id)}`);
  const groups = Object.entries(data.files_by_type);
  const name = (file) => file.item_id ?? file.path ?? jsonText(file);
  fill(context.element, h('nav.crumbs', { 'aria-label': 'Above' }, h('a', { href: '#/bundles' }, 'Bundles')),
    h('div.page-head', null, h('h1.mono', id), data.bundle.version && h('span.meta', data.bundle.version), h('span.muted', `${plural(data.file_count, 'file')} · ${bytes(data.size)}`)),
    data.bundle.description ? h('p.lead', data.bundle.description) : null,
    h('div.two-columns', null, card('What it asks for', requests(data.capabilities)), card('Verification', nested(data.verification))),
    card('About', fields(Object.entries(data.bundle).filter(([, value]) => value !== null && typeof value !== 'object').map(([key, value]) => [key.replaceAll('_', ' '), jsonText(value)]))),
    card('Files', h('p.muted', groups.map(([type, number]) => `${type}: ${typeof number === 'number' ? count(number) : jsonText(number)}`).join(' · ')),
      folded(plural(data.files.length, 'file'), () => h('ul.plain.mono.small.columns', null, data.files.map((file) => h('li', null, file.type && file.item_id ? itemLink(file.item_id, file.type) : name(file)))))));
  context.setTitle(id);
  return {};
}

async function showKeys(context) {
  const data = await call('/keys');
  fill(context.element, h('div.page-head', null, h('h1', 'Keys'), h('span.muted', plural(data.keys.length, 'key'))),
    data.broken?.length ? notice('error', 'Cannot be read: ', data.broken.join(', ')) : null,
    data.keys.length ? h('ul.item-list', null, data.keys.map((key) => h('li', null, h('div.key', null, h('span.item-head', null, verdictMark(key.own ? 'own' : key.trust, key.own ? 'yours' : key.trust), h('strong', key.owner), key.may_introduce ? h('span.tag', 'may introduce keys') : null),
      h('code.fingerprint', key.fingerprint), key.reason && h('span.meta', key.reason), h('span.why-path', key.path))))) : empty('No keys', h('code', 'rye init'), ' makes one.'));
  context.setTitle('Keys');
  return {};
}

async function showConfig(context) {
  const data = await call('/config');
  const words = h('input', { type: 'search', 'aria-label': 'Search settings', placeholder: 'Search name, value, origin', spellcheck: 'false' });
  const changed = h('input', { type: 'checkbox' });
  const body = h('div');
  const total = h('span.muted', { role: 'status' });
  function refresh() {
    const wanted = words.value.trim().toLowerCase();
    const rows = data.settings.filter((one) => (!changed.checked || !/^(system|bundle|built)/.test(one.origin)) && `${one.config}.${one.key} ${jsonText(one.value)} ${one.origin}`.toLowerCase().includes(wanted));
    const groups = Map.groupBy(rows, (one) => one.config);
    total.textContent = plural(rows.length, 'setting');
    fill(body, [...groups].map(([name, settings]) => h('details.config-group', { open: Boolean(wanted) || changed.checked || groups.size < 4 }, h('summary', null, name, h('span.chip-count', count(settings.length))),
      h('p.meta', null, itemLink(`config:${name}`)), table(name, [['Setting'], ['Value'], ['Origin']], settings.map((one) => [h('code', one.key), longText(jsonText(one.value)), h('span.why-path', one.origin)])))), rows.length ? null : empty('No setting matches'));
  }
  words.addEventListener('input', refresh);
  changed.addEventListener('change', refresh);
  const problems = (title, rows) => (rows?.length ? card(title, rows.map((one) => fields(Object.entries(one).map(([key, value]) => [key.replaceAll('_', ' '), jsonText(value)])))) : null);
  fill(context.element, h('div.page-head', null, h('h1', 'Config'), total), h('div.filters', null, h('div.search', null, icon('search'), words), h('label.check', null, changed, ' only what differs from the defaults')),
    problems('Ignored', data.ignored), problems('Not signed', data.unsigned), body);
  refresh();
  context.setTitle('Config');
  return {};
}

const LEVELS = [['error', 'Errors'], ['warning', 'Warnings'], ['info', 'Notes'], ['ok', 'Fine']];

async function showDoctor(context) {
  const body = h('div.stack');
  fill(context.element, h('div.page-head', null, h('h1', 'Doctor')), body);
  fill(body, empty('Checking the setup…'));
  const data = await call('/doctor');
  fill(body, notice(data.errors ? 'error' : data.warnings ? 'warning' : 'good', data.errors || data.warnings ? `${plural(data.errors, 'error')}, ${plural(data.warnings, 'warning')}` : 'Everything that was checked is fine.'),
    LEVELS.map(([level, title]) => {
      const found = data.findings.filter((one) => one.level === level);
      if (!found.length) return null;
      return card(`${title} (${found.length})`, h('ul.findings', null, found.map((one) => h(`li.${level}`, null, h('strong', one.check), h('span', one.message), one.remedy && h('code', one.remedy), one.path && h('span.why-path', one.path)))));
    }));
  context.setTitle('Doctor');
  return {};
}

/** The pages of `#/bundles`, `#/keys`, `#/config` and `#/doctor`. */
export const show = (context) => ({ bundles: showBundles, keys: showKeys, config: showConfig, doctor: showDoctor })[context.page](context);
