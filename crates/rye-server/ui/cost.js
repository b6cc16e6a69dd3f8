// What threads have cost, by day, directive, model, project and child, and what is used of the budgets.

import { fill, h } from './dom.js';
import { clock, count, money, plural, shortId } from './format.js';
import { call } from './session.js';
import { on } from './stream.js';
import { bar, card, empty, itemPath, notice, table, threadLink } from './parts.js';
import { barChart } from './chart.js';

const SINCE = [['today', 'Today'], ['7d', '7 days'], ['30d', '30 days'], ['month', 'This month'], ['365d', 'A year']];
const BY = [['directives', 'Directive'], ['models', 'Model'], ['projects', 'Project'], ['children', 'Tree']];

function nameCell(by, name) {
  if (by === 'directives') return h('a', { href: itemPath('directive', name) }, name);
  const match = by === 'children' && /^(thread-[0-9a-f]{12}) ?(.*)$/.exec(name);
  if (match) return [threadLink(match[1], match[2] || match[1]), ' ', h('span.mono.muted', shortId(match[1]))];
  return name;
}

const budgetView = (budget) => {
  const words = `${money(budget.used)} of ${money(budget.limit)}${budget.reserved > 0 ? `, ${money(budget.reserved)} reserved` : ''}`;
  return h('div.budget', null, h('strong', budget.budget), h('span.number', words),
    bar(budget.used, budget.limit, { label: budget.budget, reserved: budget.reserved, words }), h('span.meta', `until ${clock(budget.ends_at)}${budget.ahead > 0 ? ` · ${money(budget.ahead)} ahead` : ''}`));
};

export async function show(context) {
  const { element, query } = context;
  let since = SINCE.some(([word]) => word === query.get('since')) ? query.get('since') : '30d';
  let by = BY.some(([word]) => word === query.get('by')) ? query.get('by') : 'directives';
  let data = null;
  const body = h('div.stack');
  const segments = (label, entries, current, choose) => h('div.segments', { role: 'group', 'aria-label': label }, entries.map(([word, words]) => h('button', { type: 'button', 'aria-pressed': String(word === current), onclick: () => choose(word) }, words)));
  const sinceView = h('div');

  function showSums(into) {
    const rows = data[by];
    const most = Math.max(...rows.map((row) => row.spend), 0);
    fill(into, segments('Sum by', BY, by, (word) => {
      by = word;
      address();
      showSums(into);
    }), rows.length ? table('Sums', [[BY.find(([word]) => word === by)[1]], ['Threads', 'numeric'], ['Tokens in', 'numeric'], ['Tokens out', 'numeric'], ['Spend', 'numeric'], ['Share', 'share']],
      rows.map((row) => [nameCell(by, row.name), count(row.threads), count(row.input_tokens), count(row.output_tokens), money(row.spend),
        bar(row.spend, most, { label: `Share of ${row.name}`, words: data.total.spend ? `${Math.round((row.spend / data.total.spend) * 100)} % of all` : '0 %' })])) : empty('Nothing here'));
    into.classList.add('shares');
  }

  function address() {
    history.replaceState(null, '', `#/cost?${new URLSearchParams({ since, by })}`);
    fill(sinceView, segments('Since', SINCE, since, (word) => {
      since = word;
      address();
      read();
    }));
  }

  async function read() {
    data = await call(`/cost?since=${since}`);
    if (!context.isCurrent()) return;
    const total = data.total;
    const sums = h('div');
    fill(body, data.notices.map((words) => notice('warning', words)),
      h('dl.figures', null, [['Spend', money(total.spend)], ['Threads', count(total.threads)], ['Tokens in', count(total.input_tokens)], ['Tokens out', count(total.output_tokens)]].map(([name, value]) => h('div', null, h('dt', name), h('dd', value)))),
      card('Budgets', data.budgets.length ? data.budgets.map(budgetView) : h('p.muted', null, 'No budget of a day or a month is set. ', h('code', 'agent/budgets.yaml'), ' sets one.')),
      card('By day', barChart({ label: 'Cost by day', rows: data.days.map((row) => ({ name: row.name, value: row.spend, detail: plural(row.threads, 'thread') })), format: money, shorten: (name) => name.slice(5) }),
        h('details.folded', null, h('summary', 'Days as a table'), table('Days', [['Day'], ['Threads', 'numeric'], ['Tokens in', 'numeric'], ['Tokens out', 'numeric'], ['Spend', 'numeric']],
          data.days.filter((row) => row.threads).map((row) => [row.name, count(row.threads), count(row.input_tokens), count(row.output_tokens), money(row.spend)])))),
      card('Sums', sums));
    showSums(sums);
  }

  fill(element, h('div.page-head', null, h('h1', 'Cost'), h('span.spread'), sinceView), body);
  address();
  await read();
  context.setTitle('Cost');
  let timer = null;
  const stops = [on('threads', () => {
    timer ??= setTimeout(() => {
      timer = null;
      // What has the focus stays.
      if (!body.contains(document.activeElement)) read().catch(() => {});
    }, 5000);
  }), () => clearTimeout(timer)];
  return { dispose: () => stops.forEach((stop) => stop()) };
}
