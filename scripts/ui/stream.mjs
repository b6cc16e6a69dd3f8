// The event stream: restarts and reloads lose nothing, tabs share it and agree, and long lists.

import { assert, call, goTo, inspect, openContext, signIn, sleep, ui, until } from './browser.mjs';

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

/** Follows a busy thread while the page is reloaded and the server is stopped and started. */
export async function restart(page) {
  await ui.world.run(['-q', 'run', 'team/busy', 'topic=x', '--async']);
  const busy = await until('the busy thread', async () => (await ui.world.threads()).find((one) => one.directive === 'team/busy' && one.status === 'running'));
  await goTo(page, `#/threads/${busy.thread_id}`);
  await page.waitForFunction(() => document.querySelectorAll('.event.model').length >= 2);
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll('.event.model').length >= 4);
  const shownBefore = (await shownLines(page)).length;
  await ui.world.stop(ui.server);
  await sleep(1200);
  const again = await ui.world.serve(['--port', String(ui.server.port)]);
  Object.assign(ui.server, { child: again.child, code: again.code });
  await until('the end of the busy thread', async () => (await ui.world.threads()).find((one) => one.thread_id === busy.thread_id).status === 'completed');
  const expected = await until('the session after the restart', () => durableLines(busy.thread_id).catch(() => null));
  await until('all events in the page', async () => (await shownLines(page)).length >= expected.length).catch(() => {});
  checkLines(await shownLines(page), expected);
  await page.waitForSelector('.connection.live');
  return `${expected.length} durable events, ${shownBefore} before the restart, none lost, none twice`;
}

export async function twoTabs(context, page) {
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
  for (const tab of [first, second]) await tab.waitForFunction((count) => document.querySelectorAll('.question').length === count - 1, before);
  await page.close();
  // The tab that read the stream may be closed: another one takes over.
  await ui.world.thread('ask');
  for (const tab of [first, second]) await tab.waitForFunction((count) => document.querySelectorAll('.question').length === count, before);
  await ui.world.thread('read');
  await goTo(first, '#/threads');
  await goTo(second, '#/threads');
  const listed = await until('both lists agree', async () => {
    const [one, other] = await Promise.all([first, second].map((tab) => tab.evaluate(() => document.querySelector('.page-head [role="status"]').textContent)));
    return one === other && one;
  });
  // More tabs than a browser allows connections to a host, while those that have the session are busy.
  const busy = Promise.all([first, second].map((tab) => tab.evaluate(() => {
    for (const end = Date.now() + 3000; Date.now() < end; );
  })));
  const more = [];
  for (let count = 0; count < 6; count += 1) {
    const tab = await context.newPage();
    await tab.goto(`${ui.server.origin}/#/threads`);
    more.push(tab);
  }
  await busy;
  for (const tab of more) {
    await tab.waitForSelector('.connection.live');
    await tab.waitForFunction((words) => document.querySelector('.page-head [role="status"]')?.textContent === words, listed);
  }
  const tabs = new Set([first, second, ...more]);
  const isOpen = (made) => tabs.has(made.serviceWorker() ? null : made.frame().page());
  await until('one stream', () => [...open].filter(isOpen).length === 1).catch(() => {});
  const streams = [...open].filter(isOpen).length;
  assert(streams === 1, `${streams} streams for ${tabs.size} tabs`);
  for (const tab of [second, ...more]) await tab.close();
  return { page: first, figures: `${streams} stream for ${tabs.size} tabs, all show ${listed}` };
}

/** Thousands of threads are listed to the last one, of which only those in sight are in the document. */
export async function longLists() {
  const most = ui.isShort ? 1000 : 10_000;
  const missing = most - (await ui.world.threads()).length;
  if (missing > 0) await ui.world.fill(missing);
  const context = await openContext();
  const page = await signIn(context);
  await goTo(page, '#/cost');
  await goTo(page, '#/threads');
  const shown = () => page.evaluate(() => [Number(document.querySelector('.page-head [role="status"]').textContent.replace(/\D/g, '')), document.querySelectorAll('.grid-rows > *').length]);
  await until('all rows', async () => (await shown())[0] >= most);
  const last = (await ui.world.threads()).at(-1).thread_id;
  await until('the last row', async () => {
    await page.evaluate(() => (document.querySelector('main').scrollTop = 1e9));
    return page.$(`.grid-rows [data-key="${last}"]`);
  });
  const [count, rows] = await shown();
  await inspect(page);
  await context.close();
  assert(rows < 120, `${rows} rows in the document`);
  return `${count} threads listed, ${rows} rows in the document`;
}
