// The page on a store that machines share: a PostgreSQL and a worker are started, and another person than the one who submits
// looks and answers.

import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { assert, call, goTo, newCode, openContext, ui, until } from './browser.mjs';
import { World } from './world.mjs';

const WORKER = 'w1';

function freePort() {
  return new Promise((resolve) => {
    const probe = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

/** A PostgreSQL from Debian's package, on a socket in a folder of its own. */
class Database {
  constructor(port) {
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'rye-ui-database-'));
    this.port = String(port);
    const versions = fs.existsSync('/usr/lib/postgresql') ? fs.readdirSync('/usr/lib/postgresql') : [];
    if (!versions.length) throw new Error('PostgreSQL is not installed: apt-get install postgresql');
    this.bin = path.join('/usr/lib/postgresql', versions.sort((one, other) => Number(one) - Number(other)).at(-1), 'bin');
    this.url = `postgres://rye@/rye?host=${this.folder}&port=${port}`;
  }

  run(program, ...words) {
    // The server refuses to run as root.
    const drop = process.getuid() === 0 ? ['setpriv', '--reuid=postgres', '--regid=postgres', '--clear-groups', 'env', `HOME=${this.folder}`] : [];
    const [first, ...rest] = [...drop, path.join(this.bin, program), ...words];
    return execFileSync(first, rest, { encoding: 'utf8', stdio: ['ignore', program === 'psql' ? 'pipe' : 'ignore', 'ignore'] });
  }

  start() {
    fs.chmodSync(this.folder, 0o755);
    if (process.getuid() === 0) execFileSync('chown', ['postgres', this.folder]);
    this.run('initdb', '-D', `${this.folder}/data`, '-U', 'rye', '--auth=trust', '--no-sync');
    fs.appendFileSync(`${this.folder}/data/postgresql.conf`, `listen_addresses = ''\nport = ${this.port}\nunix_socket_directories = '${this.folder}'\n`);
    this.run('pg_ctl', '-D', `${this.folder}/data`, '-w', '-t', '60', '-l', `${this.folder}/server.log`, 'start');
    this.run('createdb', '-h', this.folder, '-p', this.port, '-U', 'rye', 'rye');
  }

  sql(text) {
    return this.run('psql', '-h', this.folder, '-p', this.port, '-U', 'rye', '-d', 'rye', '-Atq', '-c', `SET search_path TO team; ${text}`).trim();
  }

  stop() {
    if (fs.existsSync(`${this.folder}/data/postmaster.pid`)) this.run('pg_ctl', '-D', `${this.folder}/data`, '-m', 'immediate', '-w', 'stop');
    fs.rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A home with a key, and where its commands run. */
async function makePerson(world, name, env = {}) {
  const home = path.join(world.folder, `${name}-home`);
  const cwd = path.join(world.folder, `${name}-project`);
  for (const folder of [home, cwd]) fs.mkdirSync(folder);
  const person = { name, home, cwd, env: { PATH: process.env.PATH, HOME: home, LANG: 'C.UTF-8', USER: name, ...env } };
  await run(world, person, 'init', '-q');
  return readKey(world, person);
}

const run = (world, person, ...words) => world.run(words, { cwd: person.cwd, env: person.env });

async function readKey(world, person) {
  const { keys } = JSON.parse((await run(world, person, '--json', 'keys', 'list')).out).data;
  person.fingerprint = keys.find((key) => key.own).fingerprint;
  person.pem = path.join(person.home, '.ai/config/keys/signing/public_key.pem');
  person.key = fs.readFileSync(person.pem, 'utf8').split('\n').filter((line) => line && !line.includes('-----')).join('');
  return person;
}

const config = (url, users, workers) => `version: "1.0.0"
category: ""
threads:
  store: team
  stores:
    team:
      url: "${url}"
      schema: team
      users: [${users.map((one) => `"${one.key}"`).join(', ')}]
      workers: [${workers.map((one) => `"${one.key}"`).join(', ')}]
`;

/** Ada submits, a worker runs, and Grace looks and answers in her page. */
async function makeCluster(world, database) {
  await world.make();
  const ada = await readKey(world, { name: 'ada', home: world.home, cwd: world.project, env: world.env });
  const grace = await makePerson(world, 'grace');
  const worker = await makePerson(world, 'worker', { OPENAI_API_KEY: world.env.OPENAI_API_KEY, OPENAI_BASE_URL: world.env.OPENAI_BASE_URL });
  // What needs an answer is the same for those who prepare the thread.
  for (const person of [grace, worker]) {
    fs.cpSync(path.join(ada.home, '.ai/config/agent'), path.join(person.home, '.ai/config/agent'), { recursive: true });
    await run(world, person, '-q', 'keys', 'trust', ada.pem, '--space', 'user', '--owner', 'ada');
  }
  for (const person of [ada, grace, worker]) {
    fs.writeFileSync(path.join(person.home, '.ai/config/config.yaml'), config(database.url, [ada, grace], [worker]));
    await run(world, person, '-q', 'sign', 'config', 'config', '--space', 'user');
    await run(world, person, '-q', 'sign', 'config', 'agent/*', '--space', 'user', '--yes');
  }
  return { ada, grace, worker };
}

export async function cluster() {
  const world = new World(ui.world.rye, { isPlain: true });
  const database = new Database(await freePort());
  let context = null;
  try {
    database.start();
    const { ada, grace, worker } = await makeCluster(world, database);
    const submit = async (name) => /thread-[0-9a-f]{12}/.exec((await run(world, ada, '--json', 'run', `team/${name}`, 'topic=the release', '--on', 'team')).out)[0];
    const early = await submit('read');
    const served = await world.serve([], grace);
    context = await openContext({}, served.origin);
    const page = await context.newPage();
    await page.goto(`${served.origin}/#code=${await newCode(served)}`);
    await page.waitForSelector('.grid-rows [data-key]');
    const list = () => page.evaluate(() => document.querySelector('main').innerText);
    await until('a list without a worker', async () => (await list()).includes('No workers running'));
    await goTo(page, `#/threads/${early}`);
    await page.waitForFunction(() => document.querySelector('.thread-head').innerText.includes('rye worker --on'));
    const child = spawn(world.rye, ['worker', '--on', 'team', '--name', WORKER], { cwd: worker.cwd, env: worker.env, stdio: 'ignore' });
    world.children.add(child);
    await page.waitForFunction(() => document.querySelector('.thread-head').innerText.includes('completed'));
    await page.waitForFunction(() => document.querySelector('.conversation').innerText.includes('the release is ready'));
    await page.waitForFunction((name) => document.querySelector('#verify-badge')?.innerText.includes(name), 'signed by');

    const slow = await submit('slow');
    await goTo(page, '#/threads');
    await page.waitForFunction((id) => document.querySelector(`[data-key="${id}"]`)?.innerText.includes('on w1'), slow);
    await until('the worker and its host', async () => new RegExp(`Workers: ${WORKER} on \\S+, \\d+/\\d+`).test(await list()));
    await goTo(page, `#/threads/${slow}`);
    await page.click('[data-action="cancel"]');
    await page.click('dialog button[type="submit"]');
    await until('the end of the cancelled thread', async () => (await call(served, `/threads/${slow}`)).body.data.status === 'cancelled');

    const short = await submit('short');
    await until('the thread at its limit', async () => (await call(served, `/threads/${short}`)).body.data.status === 'suspended');
    await goTo(page, `#/threads/${short}`);
    await page.click('[data-action="resume"]');
    await page.fill('[name="limit-turns"]', '10');
    await page.click('dialog button[type="submit"]');
    await until('the thread with a higher limit', async () => (await call(served, `/threads/${short}`)).body.data.status === 'completed');

    const asks = await submit('ask');
    await page.waitForFunction(() => document.title.startsWith('(1)'));
    await goTo(page, `#/approvals?thread=${asks}`);
    const question = page.locator('.question', { hasText: 'release.md' });
    await question.waitFor();
    await page.waitForTimeout(700);
    await question.locator('button[data-key="y"]').click();
    await page.waitForFunction(() => !document.querySelector('.question'));
    const signer = database.sql(`SELECT answer_signer FROM approvals JOIN threads USING (thread) WHERE answer IS NOT NULL AND thread_id = '${asks}'`);
    assert(signer === grace.fingerprint, `the answer is signed by ${signer}, not by ${grace.fingerprint} (ada ${ada.fingerprint}, worker ${worker.fingerprint})`);
    await until('the end of the approved thread', async () => (await call(served, `/threads/${asks}`)).body.data.status === 'completed');
    await goTo(page, `#/threads/${asks}`);
    await page.waitForFunction(() => document.querySelector('.conversation').innerText.includes('Approved by grace'));
    const rows = (await call(served, '/threads')).body.data;
    assert(rows.total === 4, `${rows.total} threads`);
    return `4 threads of ${WORKER}, answer signed by ${signer}`;
  } finally {
    await context?.close();
    world.end();
    database.stop();
  }
}
