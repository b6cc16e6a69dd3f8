// A temporary home and project with directives, items and real threads, and the server under test.

import { execFile, spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { HOSTILE, SECRET, startModel } from './model.mjs';

export const HOSTILE_FILE = 'a<img src=x onerror=window.__executed=20>b.md';
const MARKUP = '<img src=x onerror=window.__executed=21>';
const READ = '<execute><tool>rye.file-system.read</tool></execute>';
const PERMISSIONS = {
  compute: '<execute><tool>team.count</tool></execute>',
  hostile: '<execute><tool>rye.file-system.*</tool></execute>',
  ask: '<execute><tool>rye.file-system.*</tool></execute>',
  write: '<execute><tool>rye.file-system.*</tool></execute>',
  parent: `<execute><tool>rye.file-system.read</tool><tool>rye.agent.threads.*</tool></execute><acknowledge risk="elevated">a check</acknowledge>`,
};

const TITLES = {
  read: 'Read the notes and say whether the release is ready', hostile: 'Summarise what visitors wrote into the form', ask: 'Write what visitors sent into a file', write: 'Write the notes of release 2.1', busy: 'Go through all notes, step by step',
  slow: 'Write a long report', fail: 'Translate the handbook', retry: 'Check the links of the site', parent: 'Lead the release, with a reader', short: 'Collect open questions', done: 'Say that it is done',
  hooked: 'Read what the hooks allow', secret: 'Look for keys in the files', long: 'Talk for a long time', compute: 'Count what there is',
};

const escape = (text) => text.replace(/[^ -~]/g, '').replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');

const directive = (name, limits) => `# ${name}

\`\`\`xml
<directive name="${name}" version="1.0.0">
<metadata>
<description>${escape(`Scenario ${name} ${name === 'hostile' ? HOSTILE : ''}`)}</description>
<category>team</category>
<author>check</author>
<model provider="openai" id="gpt-5-mini"/>
<permissions>${PERMISSIONS[name] ?? READ}</permissions>
<limits ${limits}/>
${name === 'hooked' ? HOOKS : ''}
</metadata>
<inputs><input name="topic" type="string" required="false" default="the release">What it is about</input></inputs>
</directive>
\`\`\`

${TITLES[name] ?? 'Work on the release'}

It is about {input:topic}. (scenario: ${name}) ${name === 'hostile' ? HOSTILE.replace(/[{}$\u001b\u200b\u2066\u202c\u202e]/g, '') : ''}
`;

const TOOL = `version: "1.0.0"
tool_type: native
executor_id: rye/core/primitives/native
category: team
description: ${JSON.stringify(`Says what time it is ${HOSTILE.replace(/[^ -~]/g, '')}`)}
config:
  function: system.facts
  item: time
config_schema:
  type: object
  properties:
    text: {type: string, description: Anything}
    count: {type: integer}
`;

const HOOKS = `<hooks>
<hook id="no_secrets" event="before_tool"><condition path="arguments.path" op="eq" value="secret.txt"/><action primary="execute" item_type="tool" item_id="rye/agent/threads/internal/control"><param name="action" value="block"/><param name="error" value="${escape(`that file is not yours ${MARKUP}`)}"/></action></hook>
<hook id="more" event="before_tool"><condition path="arguments.path" op="eq" value="notes.md"/><action primary="execute" item_type="tool" item_id="rye/agent/threads/internal/control"><param name="action" value="continue"/><param name="note" value="${escape(`remember ${MARKUP}`)}"/></action></hook>
</hooks>`;

const COUNT = `__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "team"
__tool_description__ = "Counts"

CONFIG_SCHEMA = {"type": "object", "properties": {}}


def execute(params, project_path):
    return {"count": 3, "words": "${MARKUP}"}
`;

const LORE = `---
name: lore
title: "Lore ${MARKUP}"
category: gifts
entry_type: note
version: "1.0.0"
author: "${MARKUP}"
---
# Lore ${MARKUP}
`;

const LIMITS = 'turns="40" tokens="10000000" spend="5.0" spawns="5" duration_seconds="600"';

export class World {
  /** `isPlain` is for pictures: without markup in the names of the user and of the folder. `fake` answers the threads of `fill`. */
  constructor(rye, { isPlain = false, fake = null } = {}) {
    this.rye = rye;
    this.fake = fake;
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'rye-ui-'));
    this.home = path.join(this.folder, 'home');
    this.project = path.join(this.folder, isPlain ? 'shop' : `shop${MARKUP}`);
    this.owner = isPlain ? 'ada' : MARKUP;
    this.children = new Set();
  }

  async make() {
    fs.mkdirSync(path.join(this.home, '.ai/config/agent'), { recursive: true });
    fs.mkdirSync(path.join(this.project, '.ai/directives/team'), { recursive: true });
    fs.mkdirSync(path.join(this.project, '.ai/tools/team'), { recursive: true });
    this.model = await startModel(HOSTILE_FILE, this.owner === 'ada');
    this.env = { PATH: process.env.PATH, HOME: this.home, LANG: 'C.UTF-8', USER: this.owner, OPENAI_API_KEY: SECRET, OPENAI_BASE_URL: this.model.url };
    await this.run(['init', '-q']);
    fs.writeFileSync(path.join(this.project, 'notes.md'), '# Notes\n\nThe release is ready.\n');
    fs.writeFileSync(path.join(this.project, HOSTILE_FILE), `${HOSTILE}\n`);
    fs.writeFileSync(path.join(this.project, 'keys.txt'), `key = ${SECRET}\n`);
    fs.writeFileSync(path.join(this.project, '.ai/tools/team/count.py'), COUNT);
    const config = path.join(this.home, '.ai/config/agent');
    fs.writeFileSync(path.join(config, 'capability_risk.yaml'), 'version: "1.0.0"\ncategory: agent\nrisk_levels:\n  write: {policy: approval_required}\n');
    if (this.owner !== 'ada') fs.writeFileSync(path.join(config, 'hooks.yaml'), `version: "1.0.0"\ncategory: agent\nname: hooks\nhooks:\n  - id: never\n    event: after_complete\n    condition: {path: thread_id, op: eq, value: '<img src=x onerror=window.__executed=23>'}\n    action: {primary: execute, item_type: tool, item_id: rye/agent/threads/internal/control, params: {action: continue}}\n`);
    fs.writeFileSync(path.join(config, 'coordination.yaml'), 'version: "1.0.0"\ncategory: agent\ncoordination:\n  continuation: {resume_ceiling_tokens: 200}\n');
    // A prompt of 16,000 tokens is long here: more than was sent is not believed.
    fs.writeFileSync(path.join(config, 'hook_conditions.yaml'), 'version: "1.0.0"\ncategory: agent\nbuiltin_hooks:\n  - id: default_context_compaction\n    event: context_window_pressure\n    layer: 2\n    condition: {path: pressure_ratio, op: gte, value: 0.05}\n    action: {primary: execute, item_type: directive, item_id: rye/agent/threads/default_compaction, params: {pressure_ratio: "${event.pressure_ratio}", tokens_used: "${event.tokens_used}"}}\n    grants: [rye.execute.directive.rye.agent.threads.default_compaction]\n');
    fs.writeFileSync(path.join(config, 'budgets.yaml'), 'version: "1.0.0"\ncategory: agent\nuser: {day: 20, month: 200}\n');
    fs.writeFileSync(path.join(config, 'resilience.yaml'), 'version: "1.0.0"\ncategory: agent\nconcurrency:\n  max_total_threads: 100000\n  max_concurrent_children: 100000\n');
    for (const name of ['done', 'read', 'hostile', 'ask', 'write', 'busy', 'slow', 'fail', 'retry', 'parent', 'short', 'hooked', 'secret', 'long', 'compute']) {
      const text = directive(name, name === 'short' ? LIMITS.replace('turns="40"', 'turns="1"') : LIMITS);
      fs.writeFileSync(path.join(this.project, `.ai/directives/team/${name}.md`), name === 'short' ? text.replace('(scenario: short)', '(scenario: read)') : text);
    }
    fs.writeFileSync(path.join(this.project, '.ai/tools/team/clock.yaml'), TOOL);
    await this.run(['-q', 'sign', 'config', 'agent/*', '--space', 'user', '--yes']);
    await this.run(['-q', 'sign', 'directive', 'team/*', '--yes']);
    await this.run(['-q', 'sign', 'tool', 'team/*', '--yes']);
  }

  /** A bundle of another maker in the project, and a newer version of it at its source. */
  async addBundle() {
    const maker = path.join(this.folder, 'maker');
    const home = path.join(this.folder, 'maker-home');
    const archive = path.join(this.project, 'vendor/gifts.tar.zst');
    for (const folder of [home, path.join(maker, '.ai/tools/gifts'), path.join(maker, '.ai/knowledge/gifts'), path.dirname(archive)]) fs.mkdirSync(folder, { recursive: true });
    const run = (...words) => this.run(words, { cwd: maker, env: { ...this.env, HOME: home, USER: this.owner === 'ada' ? 'grace' : MARKUP } });
    const make = async (version, tool) => {
      fs.writeFileSync(path.join(maker, '.ai/tools/gifts/hi.yaml'), TOOL.replace('category: team', 'category: gifts').replace('version: "1.0.0"', `version: "${version}"\nname: hi`).replace('item: time', `item: ${tool}`));
      await run('-q', 'sign', 'tool', 'gifts/*', '--yes');
      const out = path.join(this.folder, `gifts-${version}.tar.zst`);
      await run('-q', 'bundle', 'create', 'gifts', '--version', version, '--category', 'gifts', '--description', this.owner === 'ada' ? 'Gifts for the shop' : HOSTILE.replace(/[^ -~]/g, ''), '--out', out);
      fs.copyFileSync(out, archive);
    };
    await run('init', '-q');
    fs.writeFileSync(path.join(maker, '.ai/knowledge/gifts/lore.md'), LORE);
    await run('-q', 'sign', 'knowledge', 'gifts/*', '--yes');
    await make('1.0.0', 'time');
    const keys = JSON.parse((await run('--json', 'keys', 'list')).out).data.keys;
    await this.run(['-q', 'add', 'vendor/gifts.tar.zst', '--signer', keys.find((key) => key.own).fingerprint, '--yes']);
    await make('1.1.0', 'system');
  }

  /** Runs the command; resolves to `{code, out, error}`. Exit codes are the caller's to judge unless `may` is left out. */
  run(words, { may = false, cwd = this.project, env = this.env } = {}) {
    return new Promise((resolve, reject) => {
      execFile(this.rye, words, { cwd, env, maxBuffer: 1 << 26, timeout: 120_000 }, (problem, out, error) => {
        const code = problem ? problem.code : 0;
        if (code && !may) reject(new Error(`rye ${words.join(' ')}: ${code} ${error}`));
        else resolve({ code, out, error });
      });
    });
  }

  thread(name, ...more) {
    const topic = more.some((word) => word.startsWith('topic=')) ? [] : ['topic=the release'];
    return this.run(['-q', 'run', `team/${name}`, ...topic, ...more], { may: true });
  }

  async threads() {
    return JSON.parse((await this.run(['--json', 'thread', 'list', '--all'])).out).data.threads;
  }

  /** Starts `rye ui`, of another person if one is named; resolves when it has printed its address. */
  serve(words = [], { cwd = this.project, env = this.env } = {}) {
    return new Promise((resolve, reject) => {
      const child = spawn(this.rye, ['ui', '--no-open', ...(words.includes('--port') ? words : ['--port', '0', ...words])], { cwd, env });
      this.children.add(child);
      let text = '';
      const read = (piece) => {
        text += piece;
        const match = /http:\/\/127\.0\.0\.1:(\d+)\/#code=([A-Za-z0-9_-]+)/.exec(text);
        if (match) resolve({ child, port: Number(match[1]), code: match[2], url: match[0], origin: `http://127.0.0.1:${match[1]}` });
      };
      child.stdout.on('data', read);
      child.stderr.on('data', read);
      child.on('exit', (code) => {
        this.children.delete(child);
        reject(new Error(`rye ui ended with ${code}: ${text}`));
      });
    });
  }

  stop(server) {
    return new Promise((resolve) => {
      const { child } = server;
      if (child.exitCode !== null || child.signalCode) return resolve();
      child.once('exit', resolve);
      child.kill('SIGTERM');
      setTimeout(() => child.kill('SIGKILL'), 5000).unref();
      return undefined;
    });
  }

  /** The model server of the tests; its address. */
  async startFake() {
    if (!this.fakeUrl) {
      const port = await new Promise((resolve) => {
        const probe = http.createServer().listen(0, '127.0.0.1', () => {
          const found = probe.address().port;
          probe.close(() => resolve(found));
        });
      });
      const child = spawn(this.fake, ['--port', String(port), '--turns', '1'], { stdio: ['ignore', 'ignore', 'pipe'] });
      this.children.add(child);
      await new Promise((resolve) => child.stderr.once('data', resolve));
      this.fakeUrl = `http://127.0.0.1:${port}/v1`;
    }
    return this.fakeUrl;
  }

  /** Starts this many short threads through one MCP server, several at once. */
  async fill(count, atOnce = 16) {
    const env = this.fake ? { ...this.env, OPENAI_BASE_URL: await this.startFake() } : this.env;
    const child = spawn(this.rye, ['mcp'], { cwd: this.project, env, stdio: ['pipe', 'pipe', 'ignore'] });
    this.children.add(child);
    const send = (message) => child.stdin.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
    send({ id: 0, method: 'initialize', params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'check', version: '1' } } });
    send({ method: 'notifications/initialized' });
    let sent = 0;
    let done = 0;
    let rest = '';
    await new Promise((resolve, reject) => {
      const next = () => {
        sent += 1;
        send({ id: sent, method: 'tools/call', params: { name: 'rye_execute', arguments: { item_id: 'directive:team/done', thread: 'fork', parameters: { topic: 'x' } } } });
      };
      child.stdout.on('data', (piece) => {
        const lines = (rest + piece).split('\n');
        rest = lines.pop();
        for (const line of lines) {
          const message = JSON.parse(line);
          if (message.id === 0) for (let index = 0; index < Math.min(atOnce, count); index += 1) next();
          else if (message.id) {
            done += 1;
            if (message.error || message.result?.isError) reject(new Error(line.slice(0, 600)));
            if (done === count) resolve();
            else if (sent < count) next();
          }
        }
      });
      child.on('exit', () => reject(new Error('rye mcp ended')));
    });
    child.stdin.end();
    await new Promise((resolve) => child.once('exit', resolve));
    this.children.delete(child);
  }

  end() {
    for (const child of this.children) child.kill('SIGKILL');
    this.model?.stop();
    fs.rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A request as any program could send it; resolves to `{status, body, headers}`. */
export function request(port, target, { method = 'GET', headers = {}, body } = {}) {
  return new Promise((resolve, reject) => {
    const made = http.request({ host: '127.0.0.1', port, path: target, method, headers: { ...(body ? { 'Content-Type': 'application/json' } : {}), ...headers } }, (response) => {
      let text = '';
      response.on('data', (piece) => (text += piece));
      response.on('end', () => {
        let parsed = null;
        try {
          parsed = JSON.parse(text);
        } catch {
          parsed = null;
        }
        resolve({ status: response.statusCode, headers: response.headers, text, body: parsed });
      });
    });
    made.on('error', reject);
    made.end(body ? JSON.stringify(body) : undefined);
  });
}
