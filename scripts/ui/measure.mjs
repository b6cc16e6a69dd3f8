// Measures `rye ui`: time to paint, latency of events, cost of streams for threads, memory of the server.
//
// node measure.mjs RYE FAKE [--memory MINUTES] [--only NAMES] [--rounds N] [--threads N]

import { spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { call, goTo, launch, newCode, openContext, say, signIn, sleep, ui, until } from './browser.mjs';
import { World, request } from './world.mjs';

const STREAMS = 64;
const words = process.argv.slice(2);
const option = (name, value) => (words.includes(name) ? words[words.indexOf(name) + 1] : value);

/** Opens streams and reads them without looking at what comes; a process of its own, ended by its parent. */
function readStreams(port, token) {
  for (let number = 0; number < STREAMS; number += 1) {
    const socket = net.connect(port, '127.0.0.1', () => socket.write(`GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Bearer ${token}\r\nAccept: text/event-stream\r\n\r\n`));
    let isOpen = false;
    socket.on('data', () => {
      if (!isOpen) process.stdout.write('open\n');
      isOpen = true;
    });
    socket.on('error', () => process.exit(1));
  }
}

const rows = [];
const failures = [];
function row(what, figure, limit, holds) {
  rows.push([what, figure, limit, holds === null ? '' : holds ? 'holds' : 'DOES NOT HOLD']);
  if (holds === false) failures.push(what);
  say(`${what}: ${figure}`);
}

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.ceil((sorted.length - 1) / 2)]) / 2;
}
const ms = (value) => `${Math.round(value)} ms`;

/** Opens the list by a reload, `runs` times: milliseconds from the start of the navigation, the quickest run first. */
async function paintTimes(count, runs = 5) {
  const threads = await ui.world.threads();
  if (threads.length < count) await ui.world.fill(count - threads.length);
  const found = [];
  for (let run = 0; run < runs; run += 1) {
    const context = await openContext();
    const page = await signIn(context);
    await page.waitForFunction((least) => Number(document.querySelector('.page-head [role="status"]')?.textContent.replace(/\D/g, '')) >= least && !document.querySelector('.page-head [role="status"]').textContent.includes('reading'), count, { timeout: 60_000 });
    await page.reload({ waitUntil: 'commit' });
    found.push(await page.evaluate((least) => new Promise((resolve) => {
      const entries = (part, type = 'resource') => performance.getEntriesByType(type).filter((one) => one.name.includes(part));
      const last = (part) => Math.max(...entries(part).map((one) => one.responseEnd));
      let first = 0;
      const look = () => {
        const text = document.querySelector('.page-head [role="status"]')?.textContent ?? '';
        const hasRows = Boolean(document.querySelector('.grid-rows [data-key]'));
        if (hasRows) first ||= performance.now();
        if (hasRows && Number(text.replace(/\D/g, '')) >= least && !text.includes('reading')) {
          requestAnimationFrame(() => {
            const [list] = entries('/api/v1/threads');
            resolve({ page: performance.getEntriesByType('navigation')[0].responseEnd, scripts: last('.js'), asked: list.requestStart, arrived: list.responseEnd, rest: last('/api/v1/threads'), first, all: performance.now() });
          });
        } else requestAnimationFrame(look);
      };
      look();
    }), count));
    await context.close();
  }
  return found.sort((one, other) => one.all - other.all);
}

async function scrolling(page) {
  await page.bringToFront();
  await goTo(page, '#/threads');
  return page.evaluate(async () => {
    const main = document.querySelector('main');
    const gaps = [];
    let last = performance.now();
    for (let index = 0; index < 60; index += 1) {
      main.scrollTop = (main.scrollHeight / 60) * index;
      await new Promise((resolve) => requestAnimationFrame(resolve));
      gaps.push(performance.now() - last);
      last = performance.now();
    }
    gaps.sort((one, other) => one - other);
    return [gaps[Math.floor(gaps.length * 0.95)], document.querySelectorAll('.grid-rows > *').length];
  });
}

/** How long after an event's time it is in the page, in milliseconds, sorted; of as many events at least. */
async function latency(page, least = 20) {
  const delays = [];
  while (delays.length < least) {
    await ui.world.run(['-q', 'run', 'team/busy', 'topic=x', '--async']);
    const busy = await until('the busy thread', async () => (await ui.world.threads()).find((one) => one.directive === 'team/busy' && one.status === 'running'));
    await goTo(page, `#/threads/${busy.thread_id}`);
    await page.evaluate(() => {
      window.__delays = [];
      new MutationObserver((changes) => {
        for (const change of changes) for (const node of change.addedNodes) {
          const at = Date.parse(node.querySelector?.('.stamp')?.getAttribute('datetime') ?? '');
          if (node.matches?.('.event:not(.streaming)') && at) window.__delays.push(Date.now() - at);
        }
      }).observe(document.querySelector('.conversation'), { childList: true });
    });
    await page.waitForFunction(() => document.querySelector('.conversation .notice.good'), null, { timeout: 60_000 });
    delays.push(...(await page.evaluate(() => window.__delays)));
  }
  return delays.sort((one, other) => one - other);
}

/** The value below which this share of sorted values lies. */
const share = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];

async function paint() {
  for (const [count, most] of [[1000, 200], [10_000, 1000]]) {
    const runs = await paintTimes(count, 9);
    const one = runs[4];
    row(`${count.toLocaleString('en-US')} threads painted`, `${ms(one.all)} (best ${ms(runs[0].all)}, worst ${ms(runs.at(-1).all)})`, ms(most), one.all <= most);
    row('  of these', `page ${ms(one.page)}, scripts ${ms(one.scripts)}, rows asked ${ms(one.asked)}, arrived ${ms(one.rest)}, first rows painted ${ms(one.first)}`, '', null);
  }
  const context = await openContext();
  const [p95, rendered] = await scrolling(await signIn(context));
  await context.close();
  row('scrolling through 10,000', `p95 of a frame ${ms(p95)}, ${rendered} rows in the document`, '50 ms', p95 <= 50);
}

async function events() {
  const context = await openContext();
  const delays = await latency(await signIn(context), 200);
  await context.close();
  const p95 = share(delays, 0.95);
  row('durable event in the page', `p50 ${ms(share(delays, 0.5))}, p95 ${ms(p95)}, most ${ms(delays.at(-1))} (${delays.length} events)`, `p95 ${ms(500)}`, p95 <= 500);
}

async function openStreams() {
  const reader = spawn(process.execPath, [fileURLToPath(import.meta.url), 'streams', String(ui.server.port), ui.server.token], { stdio: ['ignore', 'pipe', 'inherit'] });
  let open = 0;
  reader.stdout.on('data', (piece) => (open += String(piece).split('open').length - 1));
  await until('the streams', () => open === STREAMS, 120_000);
  return async () => {
    reader.kill();
    await new Promise((resolve) => reader.once('exit', resolve));
  };
}

async function storm(rounds, count) {
  const rates = { without: [], with: [] };
  const run = async () => {
    const began = performance.now();
    await ui.world.fill(count, 64);
    return count / ((performance.now() - began) / 1000);
  };
  await run();
  for (let round = 0; round < rounds; round += 1) {
    // The order changes, so that what grows with the store is the same for both.
    for (const kind of round % 2 ? ['with', 'without'] : ['without', 'with']) {
      const close = kind === 'with' ? await openStreams() : null;
      rates[kind].push(await run());
      await close?.();
    }
  }
  const [without, withStreams] = [median(rates.without), median(rates.with)];
  const costs = rates.without.map((rate, round) => 1 - rates.with[round] / rate);
  const cost = median(costs) * 100;
  row('threads/s without streams', `${without.toFixed(0)} (${rates.without.map((rate) => rate.toFixed(0)).join(', ')})`, '', null);
  row(`threads/s with ${STREAMS} streams`, `${withStreams.toFixed(0)} (${rates.with.map((rate) => rate.toFixed(0)).join(', ')})`, '', null);
  row(`cost of ${STREAMS} streams`, `${cost.toFixed(1)} % (${costs.map((one) => `${(one * 100).toFixed(0)} %`).join(', ')})`, '10 %', cost <= 10);
}

function residentMegabytes() {
  const status = fs.readFileSync(`/proc/${ui.server.child.pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+)/.exec(status)[1]) / 1024;
}

/** Pages, streams, requests and threads come and go; the number of threads stays the same. */
async function memory(minutes) {
  const end = Date.now() + minutes * 60_000;
  const began = Date.now();
  const keep = (await ui.world.threads()).length;
  const samples = [];
  let cycles = 0;
  while (Date.now() < end) {
    const close = await openStreams();
    await ui.world.fill(50, 16);
    const context = await openContext();
    const page = await signIn(context);
    await page.waitForFunction(() => document.querySelector('.grid-rows [data-key]'));
    const [first] = await ui.world.threads();
    for (const hash of [`#/threads/${first.thread_id}`, `#/threads/${first.thread_id}/timeline`, `#/threads/${first.thread_id}/record`, '#/cost', '#/items', '#/items/tool/team/clock', '#/config', '#/approvals']) await goTo(page, hash);
    for (let number = 0; number < 20; number += 1) await call(ui.server, '/threads?limit=10000');
    await context.close();
    await close();
    await ui.world.run(['-q', 'thread', 'prune', '--keep', String(keep), '--delete', '--yes'], { may: true });
    cycles += 1;
    // What was freed is given back or used again: the sample is taken at rest.
    await sleep(3000);
    samples.push([(Date.now() - began) / 60_000, residentMegabytes()]);
  }
  const threads = (await ui.world.threads()).length;
  // The beginning is warming up: caches fill, the allocator takes what it needs, and threads that were removed are still listed for
  // up to five minutes.
  const rest = samples.filter(([at]) => at >= Math.max(6, minutes / 3));
  if (rest.length < 10) return row('growth', 'not known: give --memory at least 15 minutes', '10 % an hour', null);
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [x, y] = [mean(rest.map(([at]) => at)), mean(rest.map(([, value]) => value))];
  const slope = rest.reduce((sum, [at, value]) => sum + (at - x) * (value - y), 0) / rest.reduce((sum, [at]) => sum + (at - x) ** 2, 0);
  const growth = ((slope * 60) / y) * 100;
  const every = Math.max(1, Math.floor(samples.length / 12));
  row('resident memory', samples.filter((_, index) => index % every === 0 || index === samples.length - 1).map(([at, value]) => `${at.toFixed(0)} min ${value.toFixed(0)} MB`).join(', '), '', null);
  row(`growth over ${minutes} min`, `${growth.toFixed(1)} % an hour (${(slope * 60).toFixed(1)} MB; ${cycles} cycles, ${keep} threads, then ${threads})`, '10 % an hour', growth <= 10);
  return undefined;
}

function table() {
  const widths = [0, 1, 2].map((column) => Math.max(...rows.map((cells) => cells[column].length), 8));
  say('');
  for (const cells of [['what', 'figure', 'limit', ''], ...rows]) say(cells.map((cell, column) => (column < 3 ? cell.padEnd(widths[column]) : cell)).join('  ').trimEnd());
}

async function main() {
  const [rye, fake] = words.map((word) => path.resolve(word));
  const only = option('--only', 'paint,latency,storm,memory').split(',');
  ui.world = new World(rye, { isPlain: true, fake });
  await ui.world.make();
  ui.server = await ui.world.serve();
  ui.origin = ui.server.origin;
  await newCode(ui.server);
  ui.browser = await launch();
  if (only.includes('latency')) await events();
  if (only.includes('paint')) await paint();
  if (only.includes('storm')) await storm(Number(option('--rounds', '5')), Number(option('--threads', '1500')));
  if (only.includes('memory')) {
    if (!only.includes('paint')) await ui.world.fill(1000, 64);
    await memory(Number(option('--memory', '20')));
  }
  const health = await request(ui.server.port, '/');
  if (health.status !== 200) failures.push('the server');
  table();
}

if (words[0] === 'streams') readStreams(Number(words[1]), words[2]);
else {
  try {
    await main();
  } catch (error) {
    failures.push('setup');
    say(error.stack ?? String(error));
  } finally {
    await ui.browser?.close().catch(() => {});
    ui.world?.end();
  }
  process.exit(failures.length ? 1 : 0);
}
