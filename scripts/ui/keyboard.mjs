// The page without a mouse, and notifications.

import { assert, call, find, goTo, openContext, signIn, ui, until } from './browser.mjs';

export async function keyboard(page) {
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
export async function keyboardOnly(context, threads) {
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
  // A question cannot be answered in the moment it appears.
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
  await page.waitForFunction(() => document.querySelector('.run-result')?.textContent && !document.querySelector('.run-result').textContent.includes('Running'));
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
export async function notifications() {
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
