// What a person does in the page: answers, and everything that can be done to threads and tools.

import fs from 'node:fs';
import path from 'node:path';
import { assert, call, find, goTo, inspect, ui, until } from './browser.mjs';
import { request } from './world.mjs';

export async function approvals(page) {
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
  const wait = (count) => page.waitForFunction((most) => document.querySelectorAll('.question').length <= most, count);
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

export async function actions(page, threads) {
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
  await until('the resumed thread', async () => (await call(ui.server, `/threads/${stopped}`)).body.data.status === 'completed');
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
  await until('the end of the cancelled thread', async () => (await call(ui.server, `/threads/${slow.thread_id}`)).body.data.status === 'cancelled');
  await goTo(page, '#/items/tool/team/clock');
  await page.fill('.run-form [name="text"]', '<img src=x onerror=window.__executed=31>');
  await page.click('.run-form button[type="submit"]');
  await page.waitForFunction(() => document.querySelector('.run-result pre, .run-result .notice'));
  const result = await page.evaluate(() => document.querySelector('.run-result').innerText);
  assert(/utc|time|Result/i.test(result), `the tool's result: ${result}`);
  await inspect(page);
  return 'copy, download, resume with limits, fork, cancel, run a tool';
}
