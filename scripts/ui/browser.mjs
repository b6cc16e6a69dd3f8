// The browser of the checks and measurements: contexts in which everything that must not happen is noted, sessions, pages.

import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { request } from './world.mjs';

const require = createRequire(path.join(process.env.CHECK_UI_MODULES, 'x.js'));
const { chromium } = require('playwright-core');
const AXE = fs.readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];
export const SOURCES = path.join(path.dirname(fileURLToPath(import.meta.url)), '../../crates/rye-server/ui');

/** What is checked: the world, its server and the browser, and what must not have happened. */
export const ui = { world: null, server: null, origin: null, browser: null, record: { executed: [], violations: [], foreign: [], errors: [] } };

export const launch = (...flags) => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: [...FLAGS, ...flags] });

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const assert = (is, message) => {
  if (!is) throw new Error(message);
};
export const say = (line) => process.stdout.write(`${line}\n`);

/** Waits until a condition holds, at most so long. */
export async function until(what, condition, ms = 15_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await sleep(50);
  }
}

/** A browser context in which everything that must not happen is noted. */
export async function openContext(options = {}) {
  const context = await ui.browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: 'light', ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write', 'notifications'], { origin: ui.origin });
  await context.addInitScript(() => {
    window.__violations = [];
    document.addEventListener('securitypolicyviolation', (event) => window.__violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
  });
  // To try the page's files without building: the answer's headers, the file of the sources.
  if (process.env.CHECK_UI_LIVE) {
    await context.route(/\.(js|css|svg)$/, async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: fs.readFileSync(path.join(SOURCES, path.basename(new URL(route.request().url()).pathname))) });
    });
  }
  context.on('request', (made) => {
    const url = new URL(made.url());
    if (!['blob:', 'data:'].includes(url.protocol) && url.origin !== ui.origin) ui.record.foreign.push(made.url());
  });
  context.on('page', (page) => {
    page.on('pageerror', (error) => ui.record.errors.push(error.message));
    page.on('console', (message) => {
      if (message.type() === 'error' && !/Failed to load resource|net::ERR_/.test(message.text())) ui.record.errors.push(message.text());
      if (/Content Security Policy|TrustedHTML|Trusted ?Type/i.test(message.text())) ui.record.violations.push(message.text());
    });
    page.on('dialog', (dialog) => {
      ui.record.executed.push(`dialog ${dialog.message()}`);
      dialog.dismiss().catch(() => {});
    });
  });
  return context;
}

export async function inspect(page) {
  const found = await page.evaluate(() => [window.__executed, window.__violations ?? []]);
  if (found[0] !== undefined) ui.record.executed.push(`${page.url()} ${found[0]}`);
  if (found[1].length) ui.record.violations.push(...found[1]);
}

/** Leads to another part of the page; resolves when it is there. */
export async function goTo(page, hash) {
  const isOther = await page.evaluate((to) => {
    const before = location.hash;
    document.querySelector('main > .page')?.setAttribute('data-left', '');
    location.hash = to;
    return location.hash !== before;
  }, hash);
  const there = isOther ? 'main > .page:not([data-left]):not([aria-busy]) h1' : 'main h1';
  await page.waitForSelector(there, { timeout: 20_000 });
  await page.waitForTimeout(120);
}

export async function signIn(context, from = ui.server) {
  const code = await newCode(from);
  const page = await context.newPage();
  await page.goto(`${from.origin}/#code=${code}`);
  await page.waitForSelector('main h1');
  assert(!page.url().includes('code='), 'the code is still in the address');
  return page;
}

/** A code that was not used yet: the one that was printed, then those that a session asks for. */
export async function newCode(from) {
  if (!from.isUsed) {
    from.isUsed = true;
    const answer = await request(from.port, '/api/v1/session', { method: 'POST', body: { code: from.code } });
    assert(answer.status === 200, `the printed code is refused: ${answer.status} ${answer.text}`);
    from.token = answer.body.data.token;
  }
  const answer = await call(from, '/session/code', { method: 'POST', body: {} });
  assert(answer.status === 200, `no new code: ${answer.status} ${answer.text}`);
  return answer.body.data.code;
}

export const call = (from, target, options = {}) => request(from.port, `/api/v1${target}`, { ...options, headers: { Authorization: `Bearer ${from.token}`, ...options.headers } });

export async function axe(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('Runtime.evaluate', { expression: AXE });
  await session.detach();
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations.map((one) => `${one.impact} ${one.id} ${one.nodes[0].target.join(' ')}`)));
  return found.filter((line) => /^(serious|critical)/.test(line));
}

/** Opens the list by a reload, `runs` times: milliseconds from the start of the navigation, the quickest run first. */
export async function painted(count, runs = 5) {
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

export async function scrolling(page) {
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
export async function latency(page, least = 20) {
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
export const share = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
