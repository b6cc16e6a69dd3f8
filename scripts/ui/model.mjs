// A model server on loopback that speaks chat completions and follows scripts. The prompt names the script
// (`scenario: NAME`); the step is the number of tool results in the conversation.

import http from 'node:http';

const CORPUS = [
  '<img src=x onerror="window.__executed=1">', '<script>window.__executed=2</script>', '"><svg onload=window.__executed=3>',
  "javascript:window.__executed=4//", '<iframe srcdoc="<script>parent.__executed=5</script>"></iframe>', '{{constructor.constructor("window.__executed=6")()}}',
  '<a href="javascript:window.__executed=7">x</a>', '</textarea><script>window.__executed=8</script>', '${window.__executed=9}', '<style>*{background:url(http://203.0.113.7/)}</style>',
  '\u202eevil\u202c', '\u200bzero\u2066iso', '\u001b[31mred',
];
const MARKUP = CORPUS[0];
/** Texts that must never run, load or turn other text around. */
export const HOSTILE = CORPUS.join(' ');

/** The key that stands in a file, and must not stand in a record. */
export const SECRET = 'sk-check-0123456789abcdefghij';

const usage = (completion, prompt = 1200) => ({ prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What each script answers at a step: `{text, calls, pieces, delay, status}`. */
const SCENARIOS = {
  done: () => ({ text: 'Done.' }),
  read: (step) => (step < 2 ? { text: `I read part ${step + 1}.`, calls: [['read', { path: 'notes.md' }]] } : { text: 'Read it twice: the release is ready.' }),
  hostile: (step, file) => [
    { text: HOSTILE, calls: [['read', { path: file }]], id: MARKUP, reasoning: HOSTILE },
    { text: HOSTILE, calls: [['read', { path: HOSTILE, [MARKUP]: MARKUP }]] },
    { text: HOSTILE, calls: [[`read ${MARKUP}`, { path: file }]] },
    { text: HOSTILE, calls: [['write', { path: file, content: `${HOSTILE} again\n` }]] },
  ][step] ?? { text: `# ${HOSTILE}\n\`\`\`\n${HOSTILE}\n\`\`\`` },
  hooked: (step) => [
    { text: 'I read what I may not.', calls: [['read', { path: 'secret.txt' }]] },
    { text: 'I read something else.', calls: [['read', { path: 'notes.md' }]] },
  ][step] ?? { text: 'The hooks let me end.' },
  secret: (step) => (step === 0 ? { text: 'I look for keys.', calls: [['read', { path: 'keys.txt' }]] } : { text: `It says ${SECRET}.` }),
  // Its conversation is compacted once: then there are fewer results than steps.
  long: (step, file, memory) => {
    memory.parts = (memory.parts ?? 0) + 1;
    return memory.parts <= 5 ? { text: `Part ${memory.parts} of a long conversation.`, calls: [['read', { path: 'notes.md' }]], prompt: memory.parts === 5 ? 16_000 : 1200 } : { text: 'Shorter now.' };
  },
  compute: (step) => (step === 0 ? { text: 'I count.', calls: [['count', {}]] } : { text: 'Counted.' }),
  ask: (step) => (step === 0 ? { text: 'I need to write the notes.', calls: [['write', { path: 'release.md', content: `# Release 2.1\n\n- faster start\n- ${HOSTILE}\n` }]] } : { text: 'The notes are where you allowed them.' }),
  write: (step) => (step === 0 ? { text: 'First I read what there is.', calls: [['read', { path: 'notes.md' }]] } : step === 1 ? { text: 'Now I write the notes of the release.', calls: [['write', { path: 'notes.md', content: '# Notes of release 2.1\n\nThe release is ready.\n\n- starts twice as fast\n- the parser reads tabs\n' }]] } : { text: 'The notes are written: two changes, in the order of their weight.' }),
  busy: (step) => (step < 25 ? { text: `Step ${step + 1}: `.repeat(4), calls: [['read', { path: 'notes.md' }]], pieces: 5, delay: 40 } : { text: 'All steps are done.' }),
  slow: () => ({ text: Array.from({ length: 400 }, (_, number) => `word${number}`).join(' '), pieces: 400, delay: 50 }),
  fail: () => ({ status: 400 }),
  retry: (step, file, memory) => {
    memory.tries = (memory.tries ?? 0) + 1;
    return memory.tries === 1 ? { status: 503 } : { text: 'Answered at the second try.' };
  },
  parent: (step) => (step === 0 ? { calls: [['thread_directive', { directive_name: 'team/read' }]] } : { text: 'The child is done.' }),
};

function answer(script, body, response, number) {
  const tools = (body.tools ?? []).map((tool) => tool.function.name);
  const base = { id: `chat_${number}`, object: 'chat.completion.chunk', created: 0, model: body.model };
  const write = (value) => response.write(`data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`);
  return (async () => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    const text = script.text ?? '';
    if (script.reasoning) write({ ...base, choices: [{ index: 0, delta: { role: 'assistant', reasoning_content: script.reasoning }, finish_reason: null }] });
    const size = Math.ceil(text.length / (script.pieces ?? 1)) || 1;
    for (let at = 0; at < text.length; at += size) {
      write({ ...base, choices: [{ index: 0, delta: { role: 'assistant', content: text.slice(at, at + size) }, finish_reason: null }] });
      if (script.delay) await sleep(script.delay);
    }
    const calls = (script.calls ?? []).map(([name, input], index) => ({
      index, id: `call_${number}_${index}${script.id ?? ''}`, type: 'function', function: { name: tools.find((tool) => tool.endsWith(name)) ?? name, arguments: JSON.stringify(input) },
    }));
    if (calls.length) write({ ...base, choices: [{ index: 0, delta: { tool_calls: calls }, finish_reason: null }] });
    write({ ...base, choices: [{ index: 0, delta: {}, finish_reason: calls.length ? 'tool_calls' : 'stop' }] });
    write({ ...base, choices: [], usage: usage(Math.max(8, Math.ceil(text.length / 4)), script.prompt) });
    write('[DONE]');
    response.end();
  })();
}

/** Starts the server; resolves to `{url, stop}`. `isPlain` is for pictures: what it refuses is refused in plain words. */
export function startModel(file, isPlain) {
  const memory = {};
  let number = 0;
  const server = http.createServer((request, response) => {
    let text = '';
    request.on('data', (piece) => (text += piece));
    request.on('end', () => {
      const body = JSON.parse(text || '{}');
      const said = JSON.stringify(body.messages ?? []);
      const name = /scenario: (\w+)/.exec(said)?.[1] ?? 'done';
      const step = (body.messages ?? []).filter((message) => message.role === 'tool').length;
      // A conversation is summed up by a thread of its own.
      const isSummary = said.includes('Compact a conversation') || (name === 'long' && !(body.tools ?? []).some((tool) => tool.function.name.includes('read')));
      const script = isSummary ? { calls: [['directive_return', { summary: `It was about ${HOSTILE}` }]] } : (SCENARIOS[name] ?? SCENARIOS.done)(step, file, memory);
      number += 1;
      if (script.status) {
        response.writeHead(script.status, { 'Content-Type': 'application/json' });
        response.end(JSON.stringify({ error: { message: isPlain ? 'the handbook is too long for this model' : `refused: ${HOSTILE}`, type: script.status < 500 ? 'invalid_request_error' : 'server_error' } }));
      } else answer(script, body, response, number).catch(() => response.destroy());
    });
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve({ url: `http://127.0.0.1:${server.address().port}/v1`, stop: () => server.close() })));
}
