// The threads of the project: what needs attention, then a list or a tree of all, with filters.

import { add, fill, h, icon } from './dom.js';
import { ago, count, duration, instant, money, plural, shortId } from './format.js';
import { onThreads, summary, threads } from './data.js';
import { call } from './session.js';
import { bar, empty, stateMark, stateOf, threadPath } from './parts.js';
import { virtualList } from './list.js';

const MAX_ATTENTION = 6;
const GROUPS = {
  attention: ['Needs attention', (row) => row.attention.length > 0],
  active: ['Active', (row) => /^(running|created|waiting)$/.test(row.status)],
  asked: ['Asks', (row) => row.attention.includes('approval')],
  suspended: ['Suspended', (row) => row.status === 'suspended'],
  failed: ['Failed', (row) => /^(error|interrupted|forged)$/.test(row.status)],
  completed: ['Completed', (row) => row.status === 'completed'],
  ended: ['Ended', (row) => /^(cancelled|killed|continued)$/.test(row.status)],
};
const ATTENTION_ORDER = ['approval', 'interrupted', 'suspended', 'failed', 'budget'];
const WHY = { approval: 'waits for your answer', interrupted: 'its process is gone', suspended: 'suspended', failed: 'failed', budget: 'budget nearly used' };

const rank = (row) => Math.min(...row.attention.map((word) => (ATTENTION_ORDER.indexOf(word) + 1 || 9)));

/** What a thread does now, or why it does nothing. */
function nowText(row) {
  if (row.attention.includes('approval')) return 'waits for your answer';
  if (row.error && /^(error|suspended|interrupted|forged|cancelled|killed)$/.test(row.status)) return row.error;
  if (row.status === 'waiting') {
    const child = [...threads.values()].find((one) => one.parent_thread_id === row.thread_id && /^(running|created|waiting|suspended)$/.test(one.status));
    return `waits for ${child && !/budget/.test(row.reason) ? `${child.directive} ${shortId(child.thread_id)}` : row.reason ?? 'others'}`;
  }
  const on = row.worker ? ` · on ${row.worker}` : '';
  if (row.current_tool) return row.current_tool + on;
  if (row.status === 'running') return `asks the model${on}`;
  return row.reason ?? '';
}

/** The cost of a thread with all below it, against its cap. */
function treeCost(row) {
  const tree = row.subtree_spend > row.spend || row.max_spend ? money(row.subtree_spend) : '';
  return row.max_spend ? `${tree} / ${money(row.max_spend)}` : tree && `tree ${tree}`;
}

function attentionCard(row) {
  const why = row.attention.map((word) => WHY[word] ?? word).join(', ');
  const to = row.attention.includes('approval') ? `#/approvals?thread=${encodeURIComponent(row.thread_id)}` : threadPath(row.thread_id);
  return h('li', null, h('a.attention-card', { href: to }, stateMark(stateOf(row)),
    h('strong', row.directive), h('span.muted.clip', row.error || row.title || why),
    h('span.meta', null, `${shortId(row.thread_id)} · ${money(row.subtree_spend)} · ${ago(row.updated_at ?? row.started_at)}`)));
}

/** Rows of a tree, parents before children, without those below a closed one. */
function treeOrder(rows, closed, isOpenAll) {
  const known = new Map(rows.map((row) => [row.thread_id, row]));
  const children = new Map();
  const roots = [];
  for (const row of rows) {
    if (row.parent_thread_id && known.has(row.parent_thread_id)) {
      if (!children.has(row.parent_thread_id)) children.set(row.parent_thread_id, []);
      children.get(row.parent_thread_id).push(row);
    } else roots.push(row);
  }
  const order = [];
  const seen = new Set();
  const stack = roots.reverse().map((row) => [row, 0]);
  while (stack.length) {
    const [row, level] = stack.pop();
    // A forged tree may go in a circle.
    if (seen.has(row.thread_id)) continue;
    seen.add(row.thread_id);
    const below = children.get(row.thread_id) ?? [];
    const isOpen = below.length > 0 && (isOpenAll || !closed.has(row.thread_id));
    order.push({ row, level, children: below.length, isOpen });
    if (isOpen) for (const child of below) stack.push([child, level + 1]);
  }
  return order;
}

/** Where a cluster's threads run; nothing where one machine keeps them. */
async function showWorkers(into) {
  const { is_shared: isShared, workers } = await call('/workers');
  into.hidden = !isShared;
  fill(into, workers.length ? 'Workers: ' : 'No workers running', workers.map((one, index) => [index ? ' · ' : '', h('strong', one.name),
    one.is_listed ? ` on ${one.host}, ${count(one.running)}/${count(one.max_threads)}${one.is_draining ? ', draining' : ''}` : ' (untrusted key)']));
}

async function showList(context) {
  const { element, main, query } = context;
  const filter = {
    q: query.get('q') ?? '',
    group: GROUPS[query.get('show')] ? query.get('show') : '',
    directive: query.get('directive') ?? '',
    view: query.get('view') === 'tree' ? 'tree' : 'list',
  };
  const closed = new Set();
  const attention = h('section.attention', { 'aria-label': 'Needs attention' });
  const total = h('span.muted', { role: 'status' });
  const search = h('input', { type: 'search', placeholder: 'Search id, directive, title, error', 'aria-label': 'Search threads', value: filter.q, spellcheck: 'false', autocomplete: 'off' });
  const chips = h('div.chips', { role: 'group', 'aria-label': 'Show' });
  const directives = h('select', { 'aria-label': 'Directive' });
  const views = h('div.segments', { role: 'group', 'aria-label': 'Arrangement' });
  const none = h('div');
  const workers = h('p.muted.workers', { hidden: true });

  const columns = ['State', 'Directive', 'Turn', 'Cost · tree / cap', 'Now', 'Age'];
  const list = virtualList({
    label: 'Threads', columns, isTree: filter.view === 'tree',
    key: (entry) => entry.row.thread_id,
    version: (entry) => `${entry.row.version ?? 0}${entry.level}${entry.isOpen}${entry.children}${entry.row.updated_at}${entry.row.status}${entry.row.turns}${entry.row.spend}${entry.row.subtree_spend}${entry.row.current_tool}${entry.row.attention.join()}`,
    open: (entry) => (location.hash = threadPath(entry.row.thread_id)),
    expand: (entry, isOpen) => {
      if (isOpen) closed.delete(entry.row.thread_id);
      else closed.add(entry.row.thread_id);
      refresh();
    },
    render(node, { row, level, children, isOpen }) {
      const isTree = filter.view === 'tree';
      if (isTree) {
        node.setAttribute('aria-level', level + 1);
        if (children) node.setAttribute('aria-expanded', String(isOpen));
      }
      const toggle = isTree && children > 0 && h('button.toggle', {
        type: 'button', tabindex: '-1', 'aria-label': isOpen ? 'Close' : 'Open',
        onclick: () => {
          if (isOpen) closed.add(row.thread_id);
          else closed.delete(row.thread_id);
          refresh();
        },
      }, icon('open'));
      const cell = (name, ...content) => h(`div.cell.${name}`, { role: 'gridcell' }, content);
      add(node,
        cell('state-cell', stateMark(stateOf(row))),
        cell(`name-cell${isTree ? '.tree-cell' : ''}`, toggle, h('div.two-lines', null,
          h('a', { href: threadPath(row.thread_id), tabindex: '-1' }, row.directive),
          h('span.meta', null, h('span.mono', shortId(row.thread_id)), row.title && row.title !== row.directive ? ` · ${row.title}` : row.model ? ` · ${row.model}` : ''))),
        cell('turn-cell', h('span.number', null, count(row.turns), row.max_turns ? h('span.muted', `/${count(row.max_turns)}`) : null),
          row.max_turns ? bar(row.turns, row.max_turns, { label: 'Turns' }) : null),
        cell('cost-cell', h('span.cost-line.number', { title: 'own cost · cost of the tree / its cap' }, h('span', money(row.spend)), h('span.meta', treeCost(row))),
          row.max_spend ? bar(row.subtree_spend, row.max_spend, { label: 'Cost of the tree' }) : null),
        cell('now-cell', h('span.clip', nowText(row))),
        cell('age-cell', h('time', { title: row.started_at, datetime: row.started_at }, ago(row.started_at)), h('span.meta', duration(row.elapsed_ms))));
      if (isTree) node.style.setProperty('--level', Math.min(level, 12));
    },
  });

  function writeAddress() {
    const next = new URLSearchParams();
    if (filter.q) next.set('q', filter.q);
    if (filter.group) next.set('show', filter.group);
    if (filter.directive) next.set('directive', filter.directive);
    if (filter.view === 'tree') next.set('view', 'tree');
    history.replaceState(null, '', `#/threads${next.size ? `?${next}` : ''}`);
  }

  function matches(row) {
    if (filter.group && !GROUPS[filter.group][1](row)) return false;
    if (filter.directive && row.directive !== filter.directive) return false;
    if (!filter.q) return true;
    const words = filter.q.toLowerCase();
    return row.thread_id.includes(words) || row.directive.toLowerCase().includes(words)
      || (row.title ?? '').toLowerCase().includes(words) || (row.error ?? '').toLowerCase().includes(words);
  }

  let directiveKey = '';
  function showFilters(all) {
    const counts = {};
    for (const name of Object.keys(GROUPS)) counts[name] = 0;
    for (const row of all) for (const name of Object.keys(GROUPS)) if (GROUPS[name][1](row)) counts[name] += 1;
    const chip = (name, words, number) => h('button.chip', {
      type: 'button', 'aria-pressed': String(filter.group === name), 'data-show': name,
      onclick: () => {
        filter.group = filter.group === name ? '' : name;
        writeAddress();
        refresh();
      },
    }, words, ' ', h('span.chip-count', count(number)));
    const focused = chips.contains(document.activeElement) ? document.activeElement.dataset.show : null;
    fill(chips, chip('', 'All', all.length), Object.entries(GROUPS).map(([name, [words]]) => counts[name] || filter.group === name ? chip(name, words, counts[name]) : null));
    if (focused !== null) chips.querySelector(`[data-show="${focused}"]`)?.focus();
    const names = [...new Set(all.map((row) => row.directive))].sort();
    if (names.join('\n') !== directiveKey) {
      directiveKey = names.join('\n');
      fill(directives, h('option', { value: '' }, 'All directives'), names.slice(0, 500).map((name) => h('option', { value: name }, name)));
      directives.value = filter.directive;
    }
  }

  function showAttention(all) {
    const rows = all.filter((row) => row.attention.length);
    rows.sort((one, other) => rank(one) - rank(other) || instant(other.updated_at ?? other.started_at) - instant(one.updated_at ?? one.started_at));
    attention.hidden = !rows.length || Boolean(filter.q || filter.group || filter.directive);
    if (attention.hidden) return;
    const key = rows.slice(0, MAX_ATTENTION).map((row) => row.thread_id + row.attention + row.error).join() + rows.length;
    if (attention.dataset.key === key) return;
    attention.dataset.key = key;
    const rest = rows.length - MAX_ATTENTION;
    fill(attention, h('h2', null, 'Needs attention ', h('span.chip-count', count(rows.length))), h('ul', null, rows.slice(0, MAX_ATTENTION).map(attentionCard)),
      rest > 0 ? h('button.link', { type: 'button', onclick: () => { filter.group = 'attention'; writeAddress(); refresh(); } }, `${count(rest)} more`) : null);
  }

  let sorted = [];
  let sortedKey = '';
  function refresh() {
    const key = `${threads.size} ${summary.removed}`;
    if (sortedKey !== key) {
      sorted = [...threads.values()];
      sorted.sort((one, other) => (one.started_at < other.started_at ? 1 : one.started_at > other.started_at ? -1 : one.thread_id < other.thread_id ? 1 : -1));
      sortedKey = key;
    } else sorted = sorted.map((row) => threads.get(row.thread_id));
    showAttention(sorted);
    showFilters(sorted);
    const rows = filter.q || filter.group || filter.directive ? sorted.filter(matches) : sorted;
    const entries = filter.view === 'tree' ? treeOrder(rows, closed, Boolean(filter.q)) : rows.map((row) => ({ row, level: 0, children: 0, isOpen: false }));
    list.element.classList.toggle('tree', filter.view === 'tree');
    list.element.setAttribute('role', filter.view === 'tree' ? 'treegrid' : 'grid');
    list.update(entries);
    const words = rows.length === sorted.length ? plural(sorted.length, 'thread') : `${count(rows.length)} of ${plural(sorted.length, 'thread')}`;
    const reading = summary.isComplete ? '' : ', reading more…';
    if (total.textContent !== words + reading) total.textContent = words + reading;
    list.element.hidden = !entries.length;
    fill(none, entries.length ? null
      : !summary.isComplete ? empty('Reading threads…')
        : threads.size ? empty('No thread matches', h('button.link', { type: 'button', onclick: clear }, 'Show all threads'))
          : empty('No threads yet', 'A thread is one run of a directive. Start one with ', h('code', 'rye run examples/greet name=Ada'), ' and it appears here.'));
    fill(views, ['list', 'tree'].map((name) => h('button', {
      type: 'button', 'aria-pressed': String(filter.view === name),
      onclick: () => {
        filter.view = name;
        writeAddress();
        refresh();
      },
    }, name === 'list' ? 'List' : 'Tree')));
  }

  function clear() {
    Object.assign(filter, { q: '', group: '', directive: '' });
    search.value = '';
    directives.value = '';
    writeAddress();
    refresh();
  }

  search.addEventListener('input', () => {
    filter.q = search.value.trim();
    writeAddress();
    refresh();
  });
  directives.addEventListener('change', () => {
    filter.directive = directives.value;
    writeAddress();
    refresh();
  });
  const slash = (event) => {
    if (event.key !== '/' || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    search.focus();
  };
  addEventListener('keydown', slash);

  fill(element, h('div.page-head', null, h('h1', 'Threads'), total, h('span.spread'), views), workers, attention,
    h('div.filters', null, h('div.search', null, icon('search'), search), directives, chips), list.element, none);
  element.classList.add('wide');
  list.attach(main);
  refresh();
  const stop = onThreads(refresh);
  const lookAtWorkers = () => showWorkers(workers).catch(() => {});
  lookAtWorkers();
  const clockTick = setInterval(() => {
    if (!workers.hidden) lookAtWorkers();
    element.querySelectorAll('.age-cell time').forEach((node) => (node.textContent = ago(node.getAttribute('datetime'))));
  }, 15_000);
  context.setTitle('Threads');
  return {
    dispose() {
      stop();
      list.detach();
      clearInterval(clockTick);
      removeEventListener('keydown', slash);
    },
  };
}

/** The page of `#/threads`, and of one thread below it. */
export async function show(context) {
  if (!context.rest.length) return showList(context);
  const { showThread } = await import('./thread.js');
  return showThread(context);
}
