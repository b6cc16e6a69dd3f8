// Walks the page of `rye ui` in a real browser, on real threads, and tries what must be refused.
//
// node check.mjs BINARY [--short] [--pictures FOLDER] [--threads N]

import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import zlib from 'node:zlib';
import {
  assert, axe, call, goTo, inspect, latency, launch, newCode, openContext, painted, say, scrolling, share, signIn, sleep, SOURCES, ui, until,
} from './browser.mjs';
import { takePictures } from './pictures.mjs';
import { HOSTILE_FILE, World, request } from './world.mjs';

const MAX_BYTES = 60_000;
const words = process.argv.slice(2);
const option = (name, value) => (words.includes(name) ? words[words.indexOf(name) + 1] : value);
const isShort = words.includes('--short');
const pictures = option('--pictures', null);
ui.world = new World(path.resolve(words[0]), { isPlain: Boolean(pictures) });
const failures = [];
const began = Date.now();
const only = process.env.ONLY?.split(',');

/** One thing that must hold; what it returns is printed beside it. */
async function step(name, run) {
  if (only && !only.some((word) => name.includes(word))) return;
  const from = Date.now();
  try {
    const figures = await run();
    say(`✓ ${name}${figures ? `: ${figures}` : ''} (${((Date.now() - from) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(name);
    say(`✗ ${name}: ${error.stack ?? error}`);
  }
}

/** What the open pages of a thread show of its durable events, by line, with repeats. */
const shownLines = (page) => page.evaluate(() => [...document.querySelectorAll('.event[data-line]')].map((node) => Number(node.dataset.line)));

const SHOWN = /^(thread_|cognition_in|cognition_out$|tool_call_start|checkpoint$|directive_return|child_|human_|content_|error_|retry_)/;

async function durableLines(id) {
  const answer = await call(ui.server, `/threads/${id}/transcript?limit=5000&deltas=false`);
  return answer.body.data.events.filter((event) => SHOWN.test(event.event_type)).map((event) => event.line);
}

function checkLines(shown, expected) {
  const lost = expected.filter((line) => !shown.includes(line));
  const twice = shown.filter((line, index) => shown.indexOf(line) !== index);
  assert(!lost.length, `lost lines ${lost.slice(0, 10)} of ${expected.length}`);
  assert(!twice.length, `lines shown twice: ${twice.slice(0, 10)}`);
}

const find = (threads, name) => threads.find((one) => one.directive === `team/${name}`);

async function sizes() {
  let all = 0;
  for (const name of fs.readdirSync(SOURCES)) all += zlib.gzipSync(fs.readFileSync(path.join(SOURCES, name)), { level: 9 }).length;
  assert(all <= MAX_BYTES, `${all} bytes compressed, more than ${MAX_BYTES}`);
  const forbidden = /\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setAttribute\('on|https?:\/\/(?!www\.w3\.org\/2000\/svg))/;
  for (const name of fs.readdirSync(SOURCES).filter((one) => /\.(js|html|css)$/.test(one))) {
    const match = forbidden.exec(fs.readFileSync(path.join(SOURCES, name), 'utf8'));
    assert(!match, `${name} holds ${match?.[0]}`);
  }
  return `${all} bytes of at most ${MAX_BYTES}`;
}

async function refusals() {
  const target = '/api/v1/threads';
  const token = { Authorization: `Bearer ${ui.server.token}` };
  const cases = [
    ['no token', target, { headers: {} }, 401],
    ['another token', target, { headers: { Authorization: `Bearer ${'x'.repeat(43)}` } }, 401],
    ['token in a cookie', target, { headers: { Cookie: `token=${ui.server.token}; rye-token=${ui.server.token}` } }, 401],
    ['token in the address', `${target}?token=${ui.server.token}`, {}, 401],
    ['a used code', '/api/v1/session', { method: 'POST', body: { code: ui.server.code } }, 401],
    ['foreign host', target, { headers: { ...token, Host: `evil.test:${ui.server.port}` } }, 403],
    ['foreign host of the page', '/', { headers: { Host: `evil.test:${ui.server.port}` } }, 403],
    ['foreign origin', target, { headers: { ...token, Origin: 'http://evil.test' } }, 403],
    ['origin of another port', target, { headers: { ...token, Origin: `http://127.0.0.1:${ui.server.port + 1}` } }, 403],
    ['no origin at all (null)', target, { headers: { ...token, Origin: 'null' } }, 403],
    ['own origin', target, { headers: { ...token, Origin: ui.origin } }, 200],
  ];
  for (const [name, to, options, status] of cases) {
    const answer = await request(ui.server.port, to, options);
    assert(answer.status === status, `${name}: ${answer.status} instead of ${status}`);
    assert(!answer.headers['set-cookie'], `${name}: a cookie`);
    assert(!answer.headers['access-control-allow-origin'], `${name}: other origins may read it`);
  }
  const page = await request(ui.server.port, '/');
  const policy = page.headers['content-security-policy'] ?? '';
  for (const part of ["default-src 'none'", "require-trusted-types-for 'script'", "frame-ancestors 'none'"]) assert(policy.includes(part), `the policy lacks ${part}: ${policy}`);
  return `${cases.length} requests`;
}

/** Pages of other origins in the same browser: another port, and a name that leads here. */
async function otherOrigins() {
  const evil = http.createServer((_, response) => {
    response.setHeader('Content-Type', 'text/html');
    response.end(`<script>
      window.got = [];
      const read = (name, run) => run().then((value) => window.got.push(name + ' ' + value), () => window.got.push(name + ' refused'));
      read('fetch', () => fetch('${ui.origin}/api/v1/threads', {headers: {Authorization: 'Bearer ${ui.server.token}'}}).then((r) => r.text()));
      read('simple', () => fetch('${ui.origin}/api/v1/session', {method: 'POST', headers: {'Content-Type': 'text/plain'}, body: '{}'}).then((r) => r.text()));
      read('opaque', () => fetch('${ui.origin}/', {mode: 'no-cors'}).then((r) => r.text()).then((t) => t ? 'read' : Promise.reject()));
      const frame = document.createElement('iframe'); frame.src = '${ui.origin}/';
      frame.onload = () => { try { frame.contentDocument.title; window.got.push('frame ' + (frame.contentDocument.title || 'refused')); } catch { window.got.push('frame refused'); } };
      document.documentElement.append(frame);
    </script>`);
  });
  await new Promise((resolve) => evil.listen(0, '127.0.0.1', resolve));
  const context = await ui.browser.newContext();
  try {
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${evil.address().port}/`);
    await page.waitForFunction(() => window.got.length >= 4);
    const got = await page.evaluate(() => window.got);
    assert(got.every((line) => line.endsWith('refused')), got.join('; '));
    const rebound = await context.newPage();
    const answer = await rebound.goto(`http://rebound.test:${ui.server.port}/`);
    assert(answer.status() === 403, `a name that leads here gets ${answer.status()}`);
    return got.join(', ');
  } finally {
    evil.close();
    await context.close();
  }
}

async function walk(context, page, threads) {
  const one = find(threads, 'read').thread_id;
  const hostile = find(threads, 'hostile').thread_id;
  const parent = find(threads, 'parent').thread_id;
  const routes = {
    threads: '#/threads', tree: '#/threads?view=tree', filtered: '#/threads?show=failed', none: '#/threads?q=nothing-of-this-name',
    hooked: `#/threads/${find(threads, 'hooked').thread_id}`, secret: `#/threads/${find(threads, 'secret').thread_id}`, long: `#/threads/${find(threads, 'long').thread_id}`,
    compute: `#/threads/${find(threads, 'compute').thread_id}`, 'compute-record': `#/threads/${find(threads, 'compute').thread_id}/record`, 'hostile-timeline': `#/threads/${hostile}/timeline`, 'hostile-cost': `#/threads/${hostile}/cost`,
    gifts: '#/bundles/gifts', lore: '#/items/knowledge/gifts/lore', 'lore-search': '#/items?q=lore', 'gifts-tool': '#/items/tool/gifts/hi',
    thread: `#/threads/${one}`, hostile: `#/threads/${hostile}`, timeline: `#/threads/${parent}/timeline`, 'thread-cost': `#/threads/${one}/cost`, record: `#/threads/${hostile}/record`,
    approvals: '#/approvals', cost: '#/cost', items: '#/items', 'items-search': '#/items?q=clock', item: '#/items/tool/team/clock', directive: '#/items/directive/team/hostile',
    bundles: '#/bundles', bundle: '#/bundles/ryeos', keys: '#/keys', config: '#/config', doctor: '#/doctor', unknown: '#/%3Cimg%20src=x%20onerror=window.__executed=30%3E', 'no-thread': '#/threads/thread-000000000000',
  };
  const serious = [];
  const wide = [];
  for (const [index, [name, route]] of Object.entries(routes).entries()) {
    await goTo(page, route);
    if (name === 'bundles') await upgrades(page);
    for (const fold of await page.$$('main details:not([open]) > summary')) if (await fold.isVisible()) await fold.click();
    if (!isShort || index % 2 === 1) serious.push(...(await axe(page)).map((line) => `${name}: ${line}`));
    await inspect(page);
    if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) wide.push(name);
    const raw = await page.evaluate(() => /[\u202a-\u202e\u2066-\u2069\u200b\u001b]/.test(document.body.innerText));
    assert(!raw, `${name}: a hidden character is in the text as it is`);
  }
  const narrow = await context.newPage();
  await narrow.setViewportSize({ width: 360, height: 740 });
  await narrow.goto(`${ui.server.origin}/`);
  await narrow.waitForSelector('main h1');
  // The short form looks at every other route here, and with axe at the others above.
  for (const [name, route] of Object.entries(routes).filter((_, index) => !isShort || index % 2 === 0)) {
    await goTo(narrow, route);
    if (!isShort) serious.push(...(await axe(narrow)).map((line) => `${name} narrow: ${line}`));
    if (await narrow.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.querySelector('main').scrollWidth > document.querySelector('main').clientWidth + 1)) wide.push(`${name} at 360`);
  }
  await narrow.close();
  assert(!serious.length, serious.join('\n'));
  assert(!wide.length, `wider than the window: ${wide.join(', ')}`);
  return `${Object.keys(routes).length} routes, axe: 0 serious`;
}

/** Asks for newer versions, and what one would change. */
async function upgrades(page) {
  await page.click('[data-action="outdated"]');
  await page.click('[data-action="plan"]', { timeout: 30_000 });
  await page.waitForSelector('.upgrade h1, .upgrade details', { timeout: 30_000 });
  const text = await page.evaluate(() => document.querySelector('.upgrade').innerText);
  for (const part of ['1.0.0', '1.1.0', '1 replaced', 'It asks for more', 'config.item: system', 'rye bundle upgrade gifts']) assert(text.includes(part), `the upgrade does not show ${part}: ${text}`);
}

/** What happened in threads is in their conversations. */
async function contents(page, threads) {
  const wanted = {
    write: ['.diff .added', '.diff .removed', '.event.seal', 'Approved'], hooked: ['.event.note', 'blocked', 'remember'], secret: ['1 secret redacted', 'OPENAI_API_KEY'], long: ['Compacted', 'removed'],
    retry: ['Retry 1 of', 'HTTP 503'], compute: ['Approved'], parent: ['Child started', 'completed'], fail: ['Failed', 'HTTP 400'],
  };
  for (const [name, parts] of Object.entries(wanted)) {
    await goTo(page, `#/threads/${find(threads, name).thread_id}`);
    // Three times: what is folded may hold more that is.
    for (const again of [1, 2, 3]) for (const fold of await page.$$('.conversation details:not([open]) > summary')) if (again && (await fold.isVisible())) await fold.click();
    const text = await page.evaluate(() => document.querySelector('.conversation').innerText);
    for (const part of parts) assert(/^\./.test(part) ? await page.$(part) : text.includes(part), `team/${name} does not show ${part}: ${text.slice(0, 1500)}`);
    if (name === 'compute') assert(/sandbox: /.test(text) && /writes/.test(text), `no receipt: ${text}`);
    assert(!text.includes('sk-check'), `team/${name} shows the key`);
  }
  await goTo(page, `#/threads/${find(threads, 'compute').thread_id}/record`);
  const record = await page.evaluate(() => document.querySelector('.thread-body').innerText);
  for (const part of ['sandbox: ', 'verified', 'Fingerprint', 'Permissions']) assert(record.includes(part), `the record does not show ${part}`);
  await goTo(page, `#/threads/${find(threads, 'parent').thread_id}/timeline`);
  const spans = await page.$$eval('.timeline .span', (nodes) => nodes.map((node) => node.className.replace('span ', '')));
  for (const kind of ['model', 'tool', 'child', 'wait']) assert(spans.includes(kind), `the timeline has no ${kind}: ${spans}`);
  await goTo(page, '#/cost');
  for (const part of ['.chart svg .column', '.chart svg text.value', '.budget [role="meter"]', 'table tbody tr']) assert(await page.$(part), `the cost page has no ${part}`);
  for (const words of ['Directive', 'Model', 'Project', 'Tree']) {
    await page.getByRole('button', { name: words, exact: true }).click();
    assert(await page.$('.shares tbody tr'), `no sums by ${words}`);
  }
  await goTo(page, '#/items/tool/team/count');
  for (const part of ['.source-range.signed', '.source-range.signature', '.why-tiers li', '.why-element', '.why-arrow']) assert(await page.$(part), `the item has no ${part}`);
  return `${Object.keys(wanted).length} conversations, record, timeline, cost, source`;
}

/** Each field that others write is shown as the text it is. */
async function corpus(page, threads) {
  const hostile = find(threads, 'hostile').thread_id;
  const img = (number) => `onerror=window.__executed=${number}>`;
  const model = '<img src=x onerror="window.__executed=1">';
  const fields = [
    ['folder of the project', '#/threads', '.project', img(21)], ['owner', '#/threads', '.nav-foot', img(21)],
    ['prompt, model text, reasoning, result', `#/threads/${hostile}`, '.conversation', model], ['file name', `#/threads/${hostile}`, '.conversation', HOSTILE_FILE], ['file name in a diff', `#/threads/${hostile}`, '.diff', HOSTILE_FILE],
    ['name of an argument', `#/threads/${hostile}`, '.event.tool dl', model], ['name of a tool', `#/threads/${hostile}`, '.event.tool summary strong', model, 'some'],
    ['inputs', `#/threads/${hostile}`, '.thread-side', img(22)], ['message of the provider', `#/threads/${find(threads, 'fail').thread_id}`, 'main', model], ['reason in the list', '#/threads?show=failed', '.grid-rows', model],
    ['hook', `#/threads/${find(threads, 'hooked').thread_id}`, '.conversation', img(21)], ['summary', `#/threads/${find(threads, 'long').thread_id}`, '.conversation', model],
    ['output of a program', `#/threads/${find(threads, 'compute').thread_id}`, '.conversation', img(21)], ['prompt in the record', `#/threads/${hostile}/record`, '.thread-body', model],
    ['arguments of a question', '#/approvals', '.questions', model], ['description of a tool', '#/items/tool/team/clock', '.lead', model], ['description of a directive', '#/items/directive/team/hostile', '.lead', model], ['source', '#/items/directive/team/hostile', '.source', model],
    ['title of knowledge', '#/items?q=lore', '.item-list', img(21)], ['metadata', '#/items/knowledge/gifts/lore', 'main', img(21)], ['description of a bundle', '#/bundles/gifts', '.lead', model], ['owner of a key', '#/keys', 'main', img(21)],
    ['value of a setting', '#/config?', 'main', img(23)], ['search in the address', `#/threads?q=${encodeURIComponent(model)}`, 'input[type="search"]', model, 'value'], ['search for items', `#/items?q=${encodeURIComponent(model)}`, 'input[type="search"]', model, 'value'],
  ];
  for (const [name, route, selector, text, kind] of fields) {
    await goTo(page, route);
    for (const fold of await page.$$('main details:not([open]) > summary')) if (await fold.isVisible()) await fold.click();
    const shown = await page.$$eval(selector, (nodes, isValue) => nodes.map((node) => (isValue ? node.value : node.textContent)).join('\n'), kind === 'value');
    assert(shown.includes(text), `${name}: ${text} is not in ${selector} of ${route}: ${shown.slice(0, 400)}`);
    assert(!(await page.$('main img, main iframe, main script, main style, main a[href^="javascript"]')), `${name}: markup in the page`);
    await inspect(page);
  }
  return `${fields.length} fields`;
}

async function hiddenMarks(page, threads) {
  await goTo(page, `#/threads/${find(threads, 'hostile').thread_id}`);
  await page.waitForFunction(() => document.querySelectorAll('.event').length > 4);
  const marks = await page.evaluate(() => [...document.querySelectorAll('.hidden-char')].map((node) => node.textContent));
  assert(marks.includes('\\u{202e}') && marks.includes('\\u{1b}') && marks.includes('\\u{200b}'), `marks: ${[...new Set(marks)]}`);
  const literal = await page.evaluate(() => document.querySelector('.conversation').innerText.includes('<img src=x onerror="window.__executed=1">'));
  assert(literal, 'markup is not shown as text');
  return `${marks.length} marks`;
}

async function keyboard(page) {
  await goTo(page, '#/threads');
  await page.keyboard.press('/');
  assert(await page.evaluate(() => document.activeElement.type === 'search'), '/ does not lead to the search');
  await page.keyboard.press('Escape');
  await page.evaluate(() => document.querySelector('.grid-rows [tabindex="0"]').focus());
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('End');
  const row = await page.evaluate(() => document.activeElement.dataset.key);
  assert(row, 'no row has the focus after End');
  await page.keyboard.press('Enter');
  await page.waitForFunction((key) => location.hash.includes(key), row);
  await page.waitForSelector('.tabs');
  await page.waitForFunction(() => document.activeElement.tagName === 'H1');
  for (const landmark of ['header', 'nav[aria-label="Pages"]', 'main', '[aria-live]']) assert(await page.$(landmark), `no ${landmark}`);
  return 'search, arrows, End, Enter, focus at the heading';
}

const press = async (page, ...keys) => {
  for (const key of keys) await page.keyboard.press(key);
};

/** Tab until the focus is on what matches, at most so often. */
async function tabTo(page, selector, most = 60) {
  for (let count = 0; count < most; count += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate((wanted) => Boolean(document.activeElement?.matches(wanted)), selector)) {
      const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
      assert(outline !== 'none', `the focus on ${selector} cannot be seen`);
      return;
    }
  }
  throw new Error(`Tab does not lead to ${selector}`);
}

/** From the address to an answer, a run and a dialog without a mouse. */
async function keyboardOnly(context, threads) {
  await ui.world.thread('ask');
  const page = await context.newPage();
  await page.goto(`${ui.server.origin}/#/threads`);
  await page.waitForSelector('.grid-rows [data-key]');
  await tabTo(page, '.skip', 3);
  await press(page, 'Enter');
  assert(await page.evaluate(() => document.activeElement.id === 'main'), 'the skip link does not lead to the content');
  await page.evaluate(() => document.activeElement.blur());
  await tabTo(page, '.nav-link[href="#/approvals"]');
  await press(page, 'Enter');
  await page.waitForSelector('.question');
  const open = await page.$$eval('.question', (nodes) => nodes.length);
  const title = Number(/^\((\d+)\)/.exec(await page.title())?.[1]);
  assert(title === open, `the badge says ${title} of ${open}`);
  await page.waitForTimeout(700);
  const isCall = () => page.evaluate(() => document.activeElement.innerText.includes('release.md'));
  for (let count = 0; count < open && !(await isCall()); count += 1) await press(page, 'j');
  assert(await isCall(), 'j does not lead to the call');
  await tabTo(page, '.question button[data-key="n"]');
  await press(page, 'Enter');
  await page.waitForFunction((count) => document.querySelectorAll('.question').length === count, open - 1);
  await page.waitForFunction((count) => (/^\((\d+)\)/.exec(document.title)?.[1] ?? '0') === String(count), open - 1);
  await tabTo(page, '#theme', 120);
  await press(page, 'Enter');
  assert(await page.evaluate(() => document.documentElement.dataset.theme), 'the theme does not change');
  await page.evaluate(() => localStorage.removeItem('rye-theme'));
  await goTo(page, '#/items/tool/team/clock');
  await tabTo(page, '.run-form [name="count"]');
  await page.keyboard.type('3');
  await press(page, 'Enter');
  await page.waitForFunction(() => document.querySelector('.run-result')?.textContent && !document.querySelector('.run-result').textContent.includes('Running'), null, { timeout: 30_000 });
  await goTo(page, `#/threads/${find(threads, 'read').thread_id}`);
  await tabTo(page, '[data-action="fork"]');
  await press(page, 'Enter');
  assert(await page.evaluate(() => document.querySelector('dialog').contains(document.activeElement)), 'the dialog has no focus');
  await press(page, 'Escape');
  assert(await page.evaluate(() => document.activeElement.dataset.action === 'fork'), 'the focus does not return from the dialog');
  await page.close();
  return `answered, run, dialog; the title says ${title}, then ${open - 1}`;
}

/** Notifications come when they were asked for, and say nothing of what is asked. */
async function notifications() {
  const context = await openContext();
  await context.addInitScript(() => {
    window.__notes = [];
    const Shown = window.Notification;
    window.Notification = class extends Shown {
      constructor(title, options) {
        super(title, options);
        window.__notes.push(`${title} ${options.body}`);
      }
    };
  });
  const page = await signIn(context);
  const ask = async () => {
    await ui.world.thread('ask');
    const { approvals: open } = (await call(ui.server, '/approvals')).body.data;
    await page.waitForFunction((count) => document.title.startsWith(`(${count})`), open.length);
  };
  // The browser of the tests says that every page has the focus.
  await page.evaluate(() => (document.hasFocus = () => false));
  await ask();
  assert((await page.evaluate(() => window.__notes.length)) === 0, 'a notification without a request');
  await page.click('#notify');
  await page.waitForSelector('#notify[aria-pressed="true"]');
  await ask();
  const notes = await until('the notification', async () => {
    const shown = await page.evaluate(() => window.__notes);
    return shown.length ? shown : null;
  });
  assert(notes.length === 1 && !/release|write|onerror/.test(notes[0]), notes.join('; '));
  await page.click('#notify');
  await ask();
  await page.waitForTimeout(300);
  assert((await page.evaluate(() => window.__notes.length)) === 1, 'a notification after they were turned off');
  await context.close();
  return 'none before, one while on, none after';
}

/** A session that is not used ends; an open page counts as use. */
async function idle() {
  const other = await ui.world.serve(['--idle-timeout', isShort ? '2' : '15', '--port', '0']);
  const context = await ui.browser.newContext();
  try {
    const code = await newCode(other);
    if (isShort) {
      await sleep(2500);
      const answer = await call(other, '/threads');
      assert(answer.status === 401, `a session that was not used gets ${answer.status}`);
      return 'ended after 2 s without use';
    }
    const page = await context.newPage();
    await page.goto(`${other.origin}/#code=${code}`);
    await page.waitForSelector('.connection.live');
    await page.waitForTimeout(20_000);
    assert(await page.$('.connection.live'), 'an open page lost its session');
    await context.setOffline(true);
    // The stream of a page that is offline ends with its session.
    const cdp = await context.newCDPSession(page);
    await cdp.send('Page.setWebLifecycleState', { state: 'frozen' });
    await ui.world.stop(other);
    const again = await ui.world.serve(['--idle-timeout', '15', '--port', String(other.port)]);
    Object.assign(other, { child: again.child });
    await sleep(17_000);
    await cdp.send('Page.setWebLifecycleState', { state: 'active' });
    await context.setOffline(false);
    await page.waitForSelector('main.gate', { timeout: 20_000 });
    return 'an open page stays for 20 s of 15; one that was away for 17 s is signed out';
  } finally {
    await context.close();
    await ui.world.stop(other);
  }
}

async function approvals(page) {
  const asked = [];
  for (let number = 0; number < 4; number += 1) await ui.world.thread('ask');
  const open = (await call(ui.server, '/approvals')).body.data.approvals;
  assert(open.length >= 4, `${open.length} questions`);
  await goTo(page, '#/approvals');
  await page.waitForFunction((count) => document.querySelectorAll('.question').length >= count, open.length);
  assert(/^\(\d+\)/.test(await page.title()), `no badge in the title: ${await page.title()}`);
  page.on('request', (made) => made.method() === 'POST' && asked.push([new URL(made.url()).pathname, made.postDataJSON()]));
  const text = await page.evaluate(() => [...document.querySelectorAll('.question')].find((node) => node.innerText.includes('release.md')).innerText);
  for (const part of ['release.md', 'faster start', 'Why', 'Who asks', 'Cost so far', '\\u{202e}']) assert(text.includes(part), `the question does not show ${part}`);
  await page.waitForTimeout(700);
  const calls = page.locator('.question', { hasText: 'release.md' });
  const wait = (count) => page.waitForFunction((most) => document.querySelectorAll('.question').length <= most, count, { timeout: 20_000 });
  await page.keyboard.press('j');
  assert(await page.evaluate(() => document.activeElement.classList.contains('question')), 'j focuses no question');
  await calls.first().focus();
  await page.keyboard.press('y');
  await wait(open.length - 1);
  await calls.first().locator('input[name="message"]').fill('not on a Friday');
  await calls.first().locator('button[data-key="n"]').click();
  await wait(open.length - 2);
  await calls.first().locator('button[data-key="i"]').click();
  await wait(open.length - 3);
  await calls.first().locator('button[data-key="s"]').click();
  await wait(open.length - 4);
  const bodies = asked.filter(([to]) => to.includes('/approvals/')).map(([, body]) => body);
  assert(bodies.length === 4 && bodies[0].approved && bodies[1].message === 'not on a Friday' && bodies[2].always === 'item' && bodies[3].always === 'arguments', JSON.stringify(bodies));
  const [to, body] = asked.find(([target]) => target.includes('/approvals/'));
  const replay = await request(ui.server.port, to, { method: 'POST', body, headers: { Authorization: `Bearer ${ui.server.token}` } });
  assert([404, 409].includes(replay.status), `a replayed answer gets ${replay.status}`);
  await ui.world.thread('ask');
  const question = (await call(ui.server, '/approvals')).body.data.approvals.at(-1);
  const forged = await call(ui.server, `/approvals/${question.id}`, { method: 'POST', body: { digest: 'a'.repeat(64), approved: true } });
  assert(forged.status === 409, `another digest gets ${forged.status}`);
  assert((await call(ui.server, '/approvals')).body.data.approvals.some((one) => one.id === question.id), 'another digest answered it');
  const written = await until('the approved call', () => fs.existsSync(path.join(ui.world.project, 'release.md')));
  return `approve, deny, always item, always arguments; replay ${replay.status}, other digest ${forged.status}${written ? ', file written after the yes' : ''}`;
}

async function actions(page, threads) {
  const stopped = find(threads, 'short').thread_id;
  await goTo(page, `#/threads/${stopped}`);
  await page.click('[data-action="copy"]');
  await until('the copy', () => page.evaluate(() => navigator.clipboard.readText()).then((text) => text.includes('team/short') || text.length > 40));
  const [file] = await Promise.all([page.waitForEvent('download'), page.click('[data-action="download"]')]);
  const saved = fs.readFileSync(await file.path(), 'utf8');
  assert(saved.includes('thread_started'), 'the download is not the transcript');
  await page.click('[data-action="resume"]');
  await page.fill('[name="limit-turns"]', '10');
  await page.click('dialog button[type="submit"]');
  await until('the resumed thread', async () => (await call(ui.server, `/threads/${stopped}`)).body.data.status === 'completed', 30_000);
  const before = (await ui.world.threads()).length;
  await goTo(page, `#/threads/${find(threads, 'read').thread_id}`);
  await page.click('[data-action="fork"]');
  await page.fill('dialog [name="turn"]', '1');
  await page.click('dialog button[type="submit"]');
  await until('the fork', async () => (await ui.world.threads()).length === before + 1);
  await ui.world.run(['-q', 'run', 'team/slow', 'topic=x', '--async']);
  const slow = await until('the slow thread', async () => (await ui.world.threads()).find((one) => one.directive === 'team/slow' && one.status === 'running'));
  await goTo(page, `#/threads/${slow.thread_id}`);
  await page.click('[data-action="cancel"]');
  await page.fill('dialog [name="reason"]', 'enough');
  await page.click('dialog button[type="submit"]');
  await until('the end of the cancelled thread', async () => (await call(ui.server, `/threads/${slow.thread_id}`)).body.data.status === 'cancelled', 30_000);
  await goTo(page, '#/items/tool/team/clock');
  await page.fill('.run-form [name="text"]', '<img src=x onerror=window.__executed=31>');
  await page.click('.run-form button[type="submit"]');
  await page.waitForFunction(() => document.querySelector('.run-result pre, .run-result .notice'), null, { timeout: 30_000 });
  const result = await page.evaluate(() => document.querySelector('.run-result').innerText);
  assert(/utc|time|Result/i.test(result), `the tool's result: ${result}`);
  await inspect(page);
  return 'copy, download, resume with limits, fork, cancel, run a tool';
}

/** Follows a busy thread while the page is reloaded and the server is stopped and started. */
async function restart(page) {
  await ui.world.run(['-q', 'run', 'team/busy', 'topic=x', '--async']);
  const busy = await until('the busy thread', async () => (await ui.world.threads()).find((one) => one.directive === 'team/busy' && one.status === 'running'));
  await goTo(page, `#/threads/${busy.thread_id}`);
  await page.waitForFunction(() => document.querySelectorAll('.event.model').length >= 2, null, { timeout: 20_000 });
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.event.model').length >= 4, null, { timeout: 20_000 });
  const shownBefore = (await shownLines(page)).length;
  await ui.world.stop(ui.server);
  await sleep(1200);
  const again = await ui.world.serve(['--port', String(ui.server.port)]);
  Object.assign(ui.server, { child: again.child, code: again.code });
  await until('the end of the busy thread', async () => (await ui.world.threads()).find((one) => one.thread_id === busy.thread_id).status === 'completed', 60_000);
  const expected = await until('the session after the restart', () => durableLines(busy.thread_id).catch(() => null));
  await until('all events in the page', async () => (await shownLines(page)).length >= expected.length, 25_000).catch(() => {});
  checkLines(await shownLines(page), expected);
  await page.waitForSelector('.connection.live');
  return `${expected.length} durable events, ${shownBefore} before the restart, none lost, none twice`;
}

async function twoTabs(context, page) {
  const open = new Set();
  const note = (made) => made.url().includes('/api/v1/events') && open.add(made);
  const drop = (made) => open.delete(made);
  context.on('request', note);
  context.on('requestfinished', drop);
  context.on('requestfailed', drop);
  await ui.world.thread('ask');
  const first = await context.newPage();
  await first.goto(`${ui.server.origin}/#/approvals`);
  const second = await context.newPage();
  await second.goto(`${ui.server.origin}/#/approvals`);
  for (const tab of [first, second]) await tab.waitForSelector('.question');
  const before = await second.$$eval('.question', (nodes) => nodes.length);
  await first.waitForTimeout(800);
  await first.locator('.question', { hasText: 'release.md' }).first().locator('button[data-key="n"]').click();
  for (const tab of [first, second]) await tab.waitForFunction((count) => document.querySelectorAll('.question').length === count - 1, before, { timeout: 15_000 });
  await page.close();
  // The tab that read the stream may be closed: another one takes over.
  await ui.world.thread('ask');
  for (const tab of [first, second]) await tab.waitForFunction((count) => document.querySelectorAll('.question').length === count, before, { timeout: 20_000 });
  await ui.world.thread('read');
  await goTo(first, '#/threads');
  await goTo(second, '#/threads');
  const listed = await until('both lists agree', async () => {
    const [one, other] = await Promise.all([first, second].map((tab) => tab.evaluate(() => document.querySelector('.page-head [role="status"]').textContent)));
    return one === other && one;
  });
  // More tabs than a browser allows connections to a host.
  const more = [];
  for (let count = 0; count < 6; count += 1) {
    const tab = await context.newPage();
    await tab.goto(`${ui.server.origin}/#/threads`);
    more.push(tab);
  }
  for (const tab of more) {
    await tab.waitForSelector('.connection.live');
    await tab.waitForFunction((words) => document.querySelector('.page-head [role="status"]')?.textContent === words, listed, { timeout: 15_000 });
  }
  const tabs = new Set([first, second, ...more]);
  const isOpen = (made) => tabs.has(made.serviceWorker() ? null : made.frame().page());
  await until('one stream', () => [...open].filter(isOpen).length === 1, 5000).catch(() => {});
  const streams = [...open].filter(isOpen).length;
  assert(streams === 1, `${streams} streams for ${tabs.size} tabs`);
  for (const tab of [second, ...more]) await tab.close();
  return { page: first, figures: `${streams} stream for ${tabs.size} tabs, all show ${listed}` };
}

async function readOnly() {
  const other = await ui.world.serve(['--read-only', '--port', '0']);
  const context = await ui.browser.newContext();
  try {
    const code = await newCode(other);
    const page = await context.newPage();
    await page.goto(`${other.origin}/#code=${code}`);
    await page.waitForSelector('main h1');
    assert(await page.$('.pill'), 'the page does not say that it only reads');
    await ui.world.thread('ask');
    await goTo(page, '#/approvals');
    await page.waitForSelector('.question');
    assert(!(await page.$('.question button')), 'there is a button to answer');
    const question = (await call(other, '/approvals')).body.data.approvals[0];
    const statuses = [];
    for (const [target, body] of [[`/approvals/${question.id}`, { digest: question.digest, approved: true }], [`/threads/${question.thread_id}/cancel`, {}], [`/threads/${question.thread_id}/resume`, {}], [`/threads/${question.thread_id}/fork`, {}], ['/run', { type: 'tool', item_id: 'team/clock', parameters: {} }]]) {
      statuses.push((await call(other, target, { method: 'POST', body })).status);
    }
    assert(statuses.every((status) => status === 403), `statuses ${statuses}`);
    return `${statuses.length} requests refused`;
  } finally {
    await context.close();
    await ui.world.stop(other);
  }
}

async function main() {
  await step('size and sources', sizes);
  await ui.world.make();
  await ui.world.addBundle();
  ui.server = await ui.world.serve();
  ui.origin = ui.server.origin;
  ui.browser = await launch('--host-resolver-rules=MAP rebound.test 127.0.0.1');
  for (const name of ['read', 'retry', 'short', 'write', 'parent']) await ui.world.thread(name);
  const approve = async (name) => {
    await ui.world.run(['-q', 'thread', 'approve', find(await ui.world.threads(), name).thread_id]);
    await until(`the end of ${name}`, async () => {
      const row = find(await ui.world.threads(), name);
      if (row.status === 'suspended') await ui.world.run(['-q', 'thread', 'resume', row.thread_id], { may: true });
      return row.status === 'completed';
    }, 30_000);
  };
  await approve('parent');
  for (const name of ['write', 'compute']) {
    if (name === 'compute') await ui.world.thread(name);
    await approve(name);
  }
  if (pictures) {
    await ui.world.thread('write');
    await ui.world.run(['-q', 'execute', 'examples/hello', 'name=Ada'], { may: true });
    await step('pictures', async () => takePictures(pictures, await ui.world.threads(), { openContext, signIn, goTo, find }));
  }
  for (const name of ['hostile', 'fail', 'hooked', 'secret', 'long', 'ask']) await ui.world.thread(name, ...(name === 'hostile' ? ['topic=<img src=x onerror=window.__executed=22>'] : []));
  await approve('hostile');
  const threads = await ui.world.threads();
  const context = await openContext();
  let page = await signIn(context);
  await step('refused requests', refusals);
  await step('other origins', otherOrigins);
  await step('every page', () => walk(context, page, threads));
  if (!pictures) await step('contents', () => contents(page, threads));
  if (!pictures) await step('hostile fields', () => corpus(page, threads));
  await step('hidden characters', () => hiddenMarks(page, threads));
  await step('keyboard', () => keyboard(page));
  await step('keyboard only', () => keyboardOnly(context, threads));
  await step('notifications', notifications);
  await step('idle sessions', idle);
  await step('approvals', () => approvals(page));
  await step('actions', () => actions(page, threads));
  await step('reload and restart', () => restart(page));
  await step('two tabs', async () => {
    const { page: next, figures } = await twoTabs(context, page);
    page = next;
    return figures;
  });
  await step('latency', async () => {
    const delays = await latency(page);
    const p95 = share(delays, 0.95);
    assert(p95 <= 500, `p95 ${p95} ms`);
    return `p95 ${p95} ms of ${delays.length} events`;
  });
  await step('read-only', readOnly);
  for (const [count, most] of isShort ? [[1000, 200]] : [[1000, 200], [10_000, 1000]]) {
    await step(`${count} threads`, async () => {
      // What the page itself takes, at best of five: scripts/bench-ui measures all of it, on a quiet machine.
      const runs = await painted(count);
      const own = (one) => one.all - Math.max(one.rest, one.scripts);
      const best = Math.min(...runs.map(own));
      const figures = `painted ${Math.round(best)} ms after rows and scripts arrived, of at most ${most}; ${Math.round(runs[0].all)} ms after the start of the navigation (median ${Math.round(runs[2].all)})`;
      assert(best <= most, figures);
      return figures;
    });
  }
  await step('scrolling', async () => {
    if (page.isClosed()) page = await signIn(context);
    const [p95, rows] = await scrolling(page);
    assert(rows < 120, `${rows} rows in the document`);
    return `p95 of a frame ${Math.round(p95)} ms, ${rows} rows in the document`;
  });
  await step('nothing ran, nothing was loaded from elsewhere', async () => {
    for (const open of context.pages()) await inspect(open);
    assert(!ui.record.executed.length, `executed: ${ui.record.executed}`);
    assert(!ui.record.violations.length, `policy violations: ${[...new Set(ui.record.violations)].slice(0, 5)}`);
    assert(!ui.record.foreign.length, `foreign requests: ${ui.record.foreign.slice(0, 5)}`);
    assert(!ui.record.errors.length, `errors: ${[...new Set(ui.record.errors)].slice(0, 5)}`);
    return `0 executions, 0 policy violations, 0 foreign requests (file \`${HOSTILE_FILE}\` included)`;
  });
}

try {
  await main();
} catch (error) {
  failures.push('setup');
  say(`✗ ${error.stack ?? error}`);
} finally {
  await ui.browser?.close().catch(() => {});
  ui.world.end();
}
say(`${failures.length ? `failed: ${failures.join(', ')}` : 'all hold'} (${Math.round((Date.now() - began) / 1000)} s)`);
process.exit(failures.length ? 1 : 0);
