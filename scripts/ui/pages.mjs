// Every page with what it has to show: contents, widths, accessibility, and hostile texts in every field.

import { assert, axe, find, goTo, inspect, ui, unfold } from './browser.mjs';
import { HOSTILE_FILE } from './world.mjs';

export async function walk(context, page, threads) {
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
    await unfold(page);
    if (!ui.isShort || index % 2 === 0) serious.push(...(await axe(page)).map((line) => `${name}: ${line}`));
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
  for (const [name, route] of Object.entries(routes).filter((_, index) => !ui.isShort || index % 2 === 1)) {
    await goTo(narrow, route);
    if (!ui.isShort) serious.push(...(await axe(narrow)).map((line) => `${name} narrow: ${line}`));
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
  await page.click('[data-action="plan"]');
  await page.waitForSelector('.upgrade h1, .upgrade details');
  const text = await page.evaluate(() => document.querySelector('.upgrade').innerText);
  for (const part of ['1.0.0', '1.1.0', '1 replaced', 'It asks for more', 'config.item: system', 'rye bundle upgrade gifts']) assert(text.includes(part), `the upgrade does not show ${part}: ${text}`);
}

/** What happened in threads is in their conversations. */
export async function contents(page, threads) {
  const wanted = {
    write: ['.diff .added', '.diff .removed', '.event.seal', 'Approved'], hooked: ['.event.note', 'blocked', 'remember'], secret: ['1 secret redacted', 'OPENAI_API_KEY'], long: ['Compacted', 'removed'],
    retry: ['Retry 1 of', 'HTTP 503'], compute: ['Approved'], parent: ['Child started', 'completed'], fail: ['Failed', 'HTTP 400'],
  };
  for (const [name, parts] of Object.entries(wanted)) {
    await goTo(page, `#/threads/${find(threads, name).thread_id}`);
    await unfold(page, '.conversation');
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
export async function corpus(page, threads) {
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
    await unfold(page);
    const shown = await page.$$eval(selector, (nodes, isValue) => nodes.map((node) => (isValue ? node.value : node.textContent)).join('\n'), kind === 'value');
    assert(shown.includes(text), `${name}: ${text} is not in ${selector} of ${route}: ${shown.slice(0, 400)}`);
    assert(!(await page.$('main img, main iframe, main script, main style, main a[href^="javascript"]')), `${name}: markup in the page`);
    await inspect(page);
  }
  return `${fields.length} fields`;
}

export async function hiddenMarks(page, threads) {
  await goTo(page, `#/threads/${find(threads, 'hostile').thread_id}`);
  await page.waitForFunction(() => document.querySelectorAll('.event').length > 4);
  const marks = await page.evaluate(() => [...document.querySelectorAll('.hidden-char')].map((node) => node.textContent));
  assert(marks.includes('\\u{202e}') && marks.includes('\\u{1b}') && marks.includes('\\u{200b}'), `marks: ${[...new Set(marks)]}`);
  const literal = await page.evaluate(() => document.querySelector('.conversation').innerText.includes('<img src=x onerror="window.__executed=1">'));
  assert(literal, 'markup is not shown as text');
  return `${marks.length} marks`;
}
