// The pictures of the page.

import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

/** Pictures of every page: light, dark and narrow. */
export async function takePictures(folder, threads, { openContext, signIn, goTo, find }) {
  fs.mkdirSync(folder, { recursive: true });
  const one = threads.find((row) => row.directive === 'team/write' && row.status === 'completed').thread_id;
  const routes = { threads: '#/threads', tree: '#/threads?view=tree', thread: `#/threads/${one}`, timeline: `#/threads/${find(threads, 'parent').thread_id}/timeline`, 'thread-cost': `#/threads/${one}/cost`, record: `#/threads/${one}/record`, approvals: '#/approvals', cost: '#/cost', items: '#/items', item: '#/items/tool/examples/hello', bundles: '#/bundles', bundle: '#/bundles/gifts', receipts: `#/threads/${find(threads, 'compute').thread_id}/record`, keys: '#/keys', config: '#/config', doctor: '#/doctor' };
  const kinds = { light: { colorScheme: 'light' }, dark: { colorScheme: 'dark' }, narrow: { colorScheme: 'light', viewport: { width: 360, height: 740 }, deviceScaleFactor: 1.5 } };
  for (const [kind, options] of Object.entries(kinds)) {
    const context = await openContext(options);
    const page = await signIn(context);
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
      await page.waitForTimeout(250);
      await page.screenshot({ path: path.join(folder, `${name}-${kind}.png`) });
    }
    await context.close();
  }
  // Where pngquant is installed, a third of the size.
  const files = fs.readdirSync(folder).filter((name) => name.endsWith('.png')).map((name) => path.join(folder, name));
  spawnSync('pngquant', ['--force', '--ext', '.png', '--quality', '70-95', ...files]);
  return `${Object.keys(routes).length * 3} in ${folder}`;
}
