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
export const ui = { world: null, server: null, origin: null, browser: null, isShort: false, record: { executed: [], violations: [], foreign: [], errors: [] } };

export const launch = (...flags) => chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: [...FLAGS, ...flags] });

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const assert = (is, message) => {
  if (!is) throw new Error(message);
};
export const say = (line) => process.stdout.write(`${line}\n`);

// How long anything is waited for that has no bound of its own; CI's machine is slow.
const WAIT_MS = 180_000;

/** Waits until a condition holds, at most so long. */
export async function until(what, condition, ms = WAIT_MS) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await sleep(50);
  }
}

/** A browser context whose pages wait as long as everything here. */
export async function newContext(options = {}) {
  const context = await ui.browser.newContext(options);
  context.setDefaultTimeout(WAIT_MS);
  context.setDefaultNavigationTimeout(WAIT_MS);
  return context;
}

/** A browser context for pages of a server in which everything that must not happen is noted. */
export async function openContext(options = {}, origin = ui.origin) {
  const context = await newContext({ viewport: { width: 1280, height: 860 }, colorScheme: 'light', ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write', 'notifications'], { origin });
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
    if (!['blob:', 'data:'].includes(url.protocol) && url.origin !== origin) ui.record.foreign.push(made.url());
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

/** Resolves after two frames: what was measured is drawn then. */
export const painted = (page) => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve()))));

/** Leads to another part of the page; resolves when it is there. */
export async function goTo(page, hash) {
  const isOther = await page.evaluate((to) => {
    const before = location.hash;
    document.querySelector('main > .page')?.setAttribute('data-left', '');
    location.hash = to;
    return location.hash !== before;
  }, hash);
  const there = isOther ? 'main > .page:not([data-left]):not([aria-busy]) h1' : 'main h1';
  await page.waitForSelector(there);
  await painted(page);
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
  if (!(await page.evaluate(() => Boolean(globalThis.axe)))) {
    const session = await page.context().newCDPSession(page);
    await session.send('Runtime.evaluate', { expression: AXE });
    await session.detach();
  }
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations.map((one) => `${one.impact} ${one.id} ${one.nodes[0].target.join(' ')}`)));
  return found.filter((line) => /^(serious|critical)/.test(line));
}

/** The newest thread of a scenario. */
export const find = (threads, name) => threads.find((one) => one.directive === `team/${name}`);

/** Unfolds all that is folded, and what is in it then. */
export const unfold = (page, within = 'main') => page.evaluate(async (selector) => {
  for (;;) {
    const closed = [...document.querySelectorAll(`${selector} details:not([open])`)].filter((one) => one.checkVisibility());
    if (!closed.length) return;
    await Promise.all(closed.map((one) => new Promise((resolve) => {
      one.addEventListener('toggle', resolve, { once: true });
      one.querySelector(':scope > summary').click();
    })));
  }
}, within);
