// The threads of the project as the page knows them: read once, then changed by the stream.

import { call, session } from './session.js';
import { on, startAt } from './stream.js';

const FIRST_PAGE = 1000;
const PAGE = 10_000;
const MAX_ROWS = 100_000;

/** Thread id to row. */
export const threads = new Map();
export const summary = { counts: {}, openApprovals: 0, isComplete: false, removed: 0 };

let columns = [];
const listeners = new Set();
let isAnnounced = false;

/** Calls `listener` after threads changed, at most once for each frame that is painted. */
export const onThreads = (listener) => {
  listeners.add(listener);
  return () => listeners.delete(listener);
};

let changed = new Set();
function announce() {
  if (isAnnounced) return;
  isAnnounced = true;
  const run = () => {
    isAnnounced = false;
    const ids = changed;
    changed = new Set();
    listeners.forEach((listener) => listener(ids));
  };
  // A hidden tab paints nothing.
  if (document.hidden) setTimeout(run, 250);
  else requestAnimationFrame(run);
}

/** A row of the API as an object. */
export function toObject(values, names = columns) {
  const row = {};
  for (let index = 0; index < names.length; index += 1) row[names[index]] = values[index];
  row.attention ??= [];
  return row;
}

function takeRows(rows, isNewer) {
  for (const values of rows) {
    const row = toObject(values);
    if (!isNewer && threads.has(row.thread_id)) continue;
    threads.set(row.thread_id, row);
    changed.add(row.thread_id);
  }
}

function takeSummary(data) {
  if (data.counts) summary.counts = data.counts;
  if (data.open_approvals !== undefined) summary.openApprovals = data.open_approvals;
}

let reading = 0;

/** Reads all rows: a first page to paint at once, then the others. */
export async function loadThreads(isProbe) {
  reading += 1;
  const mine = reading;
  let after = null;
  const seen = new Set();
  const before = [...threads.keys()];
  do {
    const query = new URLSearchParams({ limit: after ? PAGE : FIRST_PAGE });
    if (after) query.set('after', after);
    const data = await call(`/threads?${query}`, { isProbe });
    if (mine !== reading) return;
    columns = data.columns;
    if (!after) startAt(data.position);
    const isReread = summary.isComplete;
    data.rows.forEach((values) => seen.add(values[0]));
    takeRows(data.rows, isReread);
    takeSummary(data);
    after = data.next;
    announce();
  } while (after && seen.size < MAX_ROWS);
  // What was there before and is no more was pruned.
  if (!after) for (const id of before) if (!seen.has(id) && threads.delete(id)) summary.removed += 1;
  summary.isComplete = true;
  announce();
}

on('hello', (data) => {
  columns = data.columns ?? columns;
  takeSummary(data);
  if (session.info && data.read_only !== undefined) session.info.read_only = data.read_only;
  announce();
});
on('threads', (data) => {
  takeRows(data.rows, true);
  takeSummary(data);
  announce();
});
on('approvals', (data) => {
  if (Number.isInteger(data.open)) summary.openApprovals = data.open;
  else if (Array.isArray(data.open)) summary.openApprovals = data.open.length;
  announce();
});
on('reset', () => loadThreads().catch(() => {}));
