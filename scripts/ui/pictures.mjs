// The pictures of the page: a world in which something of everything happens, and every page of it.

import { execFileSync, spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { find, goTo, openContext, signIn, ui, until } from './browser.mjs';

/** Threads that run, wait, failed, were cancelled and ask. */
export async function runNow(world) {
  const running = (name) => until(name, async () => (await world.threads()).find((one) => one.directive === `team/${name}` && one.status === 'running'));
  for (const name of ['secret', 'fail', 'write']) await world.thread(name);
  await world.run(['-q', 'execute', 'examples/hello', 'name=Ada'], { may: true });
  await world.run(['-q', 'run', 'team/slow', 'topic=the release', '--async']);
  await world.run(['-q', 'thread', 'cancel', (await running('slow')).thread_id]);
  await until('the cancelled thread', async () => find(await world.threads(), 'slow').status === 'cancelled');
}

/** What runs while pictures are taken. */
async function keepBusy(world) {
  await world.run(['-q', 'run', 'team/slow', 'topic=the release', '--async']);
  await until('a thread that runs', async () => (await world.threads()).some((one) => one.status === 'running'));
}

/** Pictures of every page: light, dark and narrow. */
export async function takePictures(folder) {
  fs.mkdirSync(folder, { recursive: true });
  const threads = await ui.world.threads();
  const thread = threads.find((row) => row.directive === 'team/write' && row.status === 'completed').thread_id;
  const of = (name) => `#/threads/${find(threads, name).thread_id}`;
  const routes = {
    threads: '#/threads', tree: '#/threads?view=tree', thread: `#/threads/${thread}`, timeline: `${of('parent')}/timeline`, 'thread-cost': `#/threads/${thread}/cost`, record: `#/threads/${thread}/record`,
    approvals: '#/approvals', cost: '#/cost', items: '#/items', item: '#/items/tool/examples/hello', bundles: '#/bundles', bundle: '#/bundles/gifts', receipts: `${of('compute')}/record`, keys: '#/keys', config: '#/config', doctor: '#/doctor',
  };
  const kinds = { light: { colorScheme: 'light' }, dark: { colorScheme: 'dark' }, narrow: { colorScheme: 'light', viewport: { width: 360, height: 740 }, deviceScaleFactor: 1.5 } };
  for (const [kind, options] of Object.entries(kinds)) {
    await keepBusy(ui.world);
    const context = await openContext(options);
    const page = await signIn(context);
    await page.waitForSelector('.connection.live');
    for (const [name, route] of Object.entries(routes)) {
      await goTo(page, route);
      if (name === 'bundles') {
        await page.click('[data-action="outdated"]');
        await page.click('[data-action="plan"]');
        await page.waitForSelector('.upgrade details');
        await page.evaluate(() => document.querySelector('.upgrade').closest('.card').scrollIntoView());
      }
      if (name === 'receipts') {
        await page.click('.table-scroll details > summary');
        await page.evaluate(() => document.querySelector('.table-scroll details').closest('.card').scrollIntoView());
      }
      await page.mouse.move(0, 0);
      await page.evaluate(() => document.activeElement?.blur());
      await page.waitForTimeout(250);
      await page.screenshot({ path: path.join(folder, `${name}-${kind}.png`) });
    }
    await context.close();
  }
  // Where pngquant is installed, a third of the size.
  const files = fs.readdirSync(folder).filter((name) => name.endsWith('.png')).map((name) => path.join(folder, name));
  if (!spawnSync('pngquant', ['--version']).error) execFileSync('pngquant', ['--force', '--ext', '.png', '--quality', '70-95', ...files]);
  return `${Object.keys(routes).length * 3} in ${folder}`;
}
