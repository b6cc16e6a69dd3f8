// One event stream for all tabs of this browser. The tab that holds a lock reads it and passes frames on; when that tab is
// closed, another one gets the lock and reads from where it stands. A browser allows six connections to a host.

import { call, channel, session } from './session.js';

const MIN_DELAY_MS = 250;
const MAX_DELAY_MS = 8000;
const SILENCE_TIMEOUT_MS = 40_000;
const MAX_WATCHED = 16;
const WATCH_TTL_MS = 45_000;
const WATCH_INTERVAL_MS = 15_000;
const tab = crypto.randomUUID();

/** Listeners by the kind of frame; `state` gets `live`, `waiting` or `ended`. */
const listeners = new Map();
/** What this tab watches: thread to the position behind the last event it has. */
const watched = new Map();
/** What other tabs watch: tab to `{at, threads}`. */
const otherTabs = new Map();

let position = null;
let isLeader = false;
let request = null;
let lastFrame = null;
let isEnded = false;
let frameNumber = 0;

export const on = (kind, listener) => {
  if (!listeners.has(kind)) listeners.set(kind, new Set());
  listeners.get(kind).add(listener);
  return () => listeners.get(kind).delete(listener);
};

const emit = (kind, data) => listeners.get(kind)?.forEach((listener) => listener(data));

let state = 'waiting';
function setState(next) {
  if (isLeader) channel.postMessage({ kind: 'state', state: next });
  if (state === next) return;
  state = next;
  emit('state', next);
}

/** Handles a frame in this tab. */
function deliver(kind, data, id) {
  // The rows that changed meanwhile come after `hello`: only they say how far this tab is.
  if (id && (kind !== 'hello' || position === null)) position = id;
  if (kind === 'transcript') {
    const line = data.events.at(-1)?.line ?? 0;
    for (const threads of [watched, ...[...otherTabs.values()].map((entry) => entry.threads)]) {
      const was = threads.get(data.thread_id);
      if (was && line >= was.line) threads.set(data.thread_id, { position: data.position, line });
    }
  }
  emit(kind, data);
}

/** What all tabs watch. Where they stand at different places the earlier one counts; the others know what they have by the lines. */
function watchList() {
  const all = new Map();
  const limit = Date.now() - WATCH_TTL_MS;
  for (const [name, entry] of otherTabs) if (entry.at < limit) otherTabs.delete(name);
  for (const threads of [watched, ...[...otherTabs.values()].map((entry) => entry.threads)]) {
    for (const [thread, from] of threads) if (!all.has(thread) || from.line < all.get(thread).line) all.set(thread, from);
  }
  return [...all].slice(-MAX_WATCHED);
}

/** Reads one connection until it ends. */
async function read(signal) {
  const watch = watchList().map(([thread, from]) => (from.position ? `${thread}@${from.position}` : thread)).join(',');
  const query = new URLSearchParams();
  if (position) query.set('position', position);
  if (watch) query.set('watch', watch);
  const headers = { Accept: 'text/event-stream' };
  if (position) headers['Last-Event-ID'] = position;
  const response = await call(`/events?${query}`, { signal, headers, raw: true });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = '';
  lastFrame = Date.now();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    lastFrame = Date.now();
    pending += value;
    const frames = pending.split(/\r?\n\r?\n/);
    pending = frames.pop();
    for (const frame of frames) readFrame(frame);
  }
}

function readFrame(frame) {
  let kind = 'message';
  let id = null;
  const lines = [];
  for (const line of frame.split(/\r?\n/)) {
    if (line.startsWith('event:')) kind = line.slice(6).trim();
    else if (line.startsWith('id:')) id = line.slice(3).trim();
    else if (line.startsWith('data:')) lines.push(line.slice(5).replace(/^ /, ''));
  }
  if (!lines.length) return;
  const data = JSON.parse(lines.join('\n'));
  if (kind === 'hello') setState('live');
  frameNumber += 1;
  channel.postMessage({ kind: 'frame', from: tab, number: frameNumber, frame: kind, data, id });
  deliver(kind, data, id);
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function lead() {
  isLeader = true;
  channel.postMessage({ kind: 'who-watches' });
  let delay = MIN_DELAY_MS;
  while (session.token && !isEnded) {
    request = new AbortController();
    isReplaced = false;
    const began = Date.now();
    try {
      await read(request.signal);
    } catch (error) {
      if (error.status === 401) return;
    }
    if (isReplaced) continue;
    setState('waiting');
    delay = Date.now() - began > MAX_DELAY_MS ? MIN_DELAY_MS : Math.min(delay * 2, MAX_DELAY_MS);
    await pause(delay * (0.75 + Math.random() / 2));
  }
}

/** Connects again where the set of watched threads is another one. */
let reconnectTimer = null;
let isReplaced = false;
function watchChanged() {
  if (!isLeader) {
    channel.postMessage({ kind: 'watch', tab, threads: [...watched] });
    return;
  }
  clearTimeout(reconnectTimer);
  reconnectTimer = setTimeout(() => {
    isReplaced = true;
    request?.abort();
  }, 20);
}

/** Begins to follow a transcript behind a position; the returned function ends it. */
export function watch(thread, from, line) {
  watched.set(thread, { position: from, line });
  watchChanged();
  return () => {
    watched.delete(thread);
    watchChanged();
  };
}

let seenLeader = null;
let seenNumber = 0;

channel.addEventListener('message', ({ data: message }) => {
  if (message?.kind === 'frame' && !isLeader) {
    // A tab that was frozen may have lost frames: what it shows is read again.
    const isNext = message.from !== seenLeader || message.number === seenNumber + 1;
    seenLeader = message.from;
    seenNumber = message.number;
    deliver(message.frame, message.data, message.id);
    if (!isNext) emit('reset', {});
  } else if (message?.kind === 'state' && !isLeader) setState(message.state);
  else if (message?.kind === 'who-watches') {
    channel.postMessage({ kind: 'watch', tab, threads: [...watched] });
  } else if (message?.kind === 'who-leads' && isLeader) {
    channel.postMessage({ kind: 'state', state });
  } else if (message?.kind === 'watch') {
    const before = otherTabs.get(message.tab)?.threads;
    otherTabs.set(message.tab, { at: Date.now(), threads: new Map(message.threads) });
    const isNew = message.threads.some(([thread]) => !before?.has(thread));
    if (isLeader && (isNew || before?.size > message.threads.length)) watchChanged();
  }
});

/** Where the stream is to begin: behind what was read. The first one counts. */
export const startAt = (from) => {
  position ??= from;
};

/** Begins to read, or to wait until the tab that reads is closed. */
export function startStream() {
  isEnded = false;
  // Another tab may have said it before this one listened.
  emit('state', state);
  if (navigator.locks) navigator.locks.request('rye-ui-stream', lead).finally(() => (isLeader = false));
  else lead();
  channel.postMessage({ kind: 'who-leads' });
  setInterval(() => {
    if (!isLeader && watched.size) channel.postMessage({ kind: 'watch', tab, threads: [...watched] });
    if (isLeader && lastFrame && Date.now() - lastFrame > SILENCE_TIMEOUT_MS) request?.abort();
  }, WATCH_INTERVAL_MS);
  addEventListener('online', () => isLeader && state !== 'live' && request?.abort());
}

export function stopStream() {
  isEnded = true;
  request?.abort();
}
