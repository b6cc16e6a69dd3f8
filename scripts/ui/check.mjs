// Walks the page of `rye ui` in a real browser, on real threads, and tries what must be refused.
//
// node check.mjs BINARY [--short] [--pictures FOLDER]

import path from 'node:path';
import { actions, approvals } from './actions.mjs';
import { cluster } from './cluster.mjs';
import { assert, find, inspect, launch, openContext, say, signIn, ui, until } from './browser.mjs';
import { keyboard, keyboardOnly, notifications } from './keyboard.mjs';
import { contents, corpus, hiddenMarks, walk } from './pages.mjs';
import { runNow, takePictures } from './pictures.mjs';
import { idle, otherOrigins, readOnly, refusals, sizes } from './security.mjs';
import { longLists, restart, twoTabs } from './stream.mjs';
import { HOSTILE_FILE, World } from './world.mjs';

const words = process.argv.slice(2);
const option = (name, value) => (words.includes(name) ? words[words.indexOf(name) + 1] : value);
ui.isShort = words.includes('--short');
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
    });
  };
  await approve('parent');
  for (const name of ['write', 'compute']) {
    if (name === 'compute') await ui.world.thread(name);
    await approve(name);
  }
  if (pictures) {
    await runNow(ui.world);
    await step('pictures', () => takePictures(pictures));
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
  await step('read-only', readOnly);
  await step('long lists', longLists);
  if (!ui.isShort) await step('cluster', cluster);
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
