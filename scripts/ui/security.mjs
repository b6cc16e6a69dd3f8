// What must be refused: requests of others, other origins, sessions that were not used, changes in a session that only reads.

import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import zlib from 'node:zlib';
import { assert, call, goTo, newCode, newContext, sleep, SOURCES, ui } from './browser.mjs';
import { request } from './world.mjs';

const MAX_BYTES = 60_000;

export async function sizes() {
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

export async function refusals() {
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
export async function otherOrigins() {
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
  const context = await newContext();
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

/** A session that is not used ends; an open page counts as use. */
export async function idle() {
  const other = await ui.world.serve(['--idle-timeout', '15', '--port', '0']);
  const context = await newContext();
  try {
    const code = await newCode(other);
    const page = await context.newPage();
    await page.goto(`${other.origin}/#code=${code}`);
    await page.waitForSelector('.connection.live');
    if (ui.isShort) {
      // The tab keeps its token while it shows something else.
      await page.goto('about:blank');
      await sleep(17_000);
      await page.goto(`${other.origin}/`);
      await page.waitForSelector('main.gate');
      const answer = await call(other, '/threads');
      assert(answer.status === 401, `a session that was not used gets ${answer.status}`);
      return 'a page that was away for 17 s of 15 is signed out';
    }
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
    await page.waitForSelector('main.gate');
    return 'an open page stays for 20 s of 15; one that was away for 17 s is signed out';
  } finally {
    await context.close();
    await ui.world.stop(other);
  }
}

export async function readOnly() {
  const other = await ui.world.serve(['--read-only', '--port', '0']);
  const context = await newContext();
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
