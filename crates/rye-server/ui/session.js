// The session: the one-time code of the address becomes a token, the token stays in session storage, and tabs of this
// browser share it over a broadcast channel. There are no cookies: those of one port of this computer reach all others.

const TOKEN_KEY = 'rye-token';
const SHARE_TIMEOUT_MS = 2000;
/** The same where a tab reads the stream: it may be busy. */
const BUSY_TIMEOUT_MS = 20_000;

/** What tabs of this page say to each other. Only pages of the same address get it. */
export const channel = new BroadcastChannel('rye-ui');

/** A request that failed, with what the server says about it. */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error ?? (status ? `the server answered ${status}` : 'the server does not answer'));
    this.status = status;
    this.code = body?.code ?? '';
    this.hints = Array.isArray(body?.hints) ? body.hints : [];
  }
}

/** What the session may do and looks at; filled in by `openSession`. */
export const session = { token: null, info: null };

let onEnd = () => {};

channel.addEventListener('message', ({ data }) => {
  if (data?.kind === 'token-wanted' && session.token) channel.postMessage({ kind: 'token', token: session.token });
  if (data?.kind === 'session-ended' && data.token === session.token) endSession(false);
});

async function askTabs() {
  const locks = await navigator.locks?.query();
  const isTabOpen = locks?.held.some(({ name }) => name === 'rye-ui-stream');
  return new Promise((resolve) => {
    const listen = ({ data }) => {
      if (data?.kind === 'token' && typeof data.token === 'string') finish(data.token);
    };
    const finish = (token) => {
      channel.removeEventListener('message', listen);
      clearTimeout(timer);
      resolve(token);
    };
    const timer = setTimeout(() => finish(null), isTabOpen ? BUSY_TIMEOUT_MS : SHARE_TIMEOUT_MS);
    channel.addEventListener('message', listen);
    channel.postMessage({ kind: 'token-wanted' });
  });
}

/** The code in the address, which is removed from address and history at once. */
function takeCode() {
  const match = /^#code=([A-Za-z0-9_-]{1,256})$/.exec(location.hash);
  if (location.hash.startsWith('#code=')) history.replaceState(null, '', location.pathname);
  return match?.[1] ?? null;
}

function setToken(token) {
  session.token = token;
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

/** The answer to a request that was made before this module was there. */
function takeEarly(path, { method, headers }) {
  const early = globalThis.ryeEarly;
  if (method !== 'GET' || headers.Authorization !== `Bearer ${early?.token}`) return undefined;
  const answer = early.answers.get(path);
  early.answers.delete(path);
  return answer;
}

/** A request to the API; resolves to `data`. */
export async function call(path, { method = 'GET', body, signal, headers, raw, isProbe } = {}) {
  const options = { method, signal, cache: 'no-store', credentials: 'omit', redirect: 'error', headers: { ...headers } };
  if (session.token) options.headers.Authorization = `Bearer ${session.token}`;
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await (takeEarly(path, options) ?? fetch(`/api/v1${path}`, options));
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, null);
  }
  if (response.ok && raw) return response;
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer?.data;
  if (response.status === 401 && path !== '/session' && !isProbe) endSession(true);
  throw new ApiError(response.status, answer);
}

/**
 * Opens the session with the address's code, the stored token or one of another tab; `null` if there is none. A stored
 * token is in `session` at once, so that reading can begin meanwhile.
 */
export async function openSession(ended) {
  onEnd = ended;
  const code = takeCode();
  if (code) {
    const data = await call('/session', { method: 'POST', body: { code } });
    setToken(data.token);
    session.info = data;
    return data;
  }
  for (const find of [() => sessionStorage.getItem(TOKEN_KEY), askTabs]) {
    const found = find();
    const token = found instanceof Promise ? await found : found;
    if (!token) continue;
    session.token = token;
    try {
      session.info = await call('/session');
      setToken(token);
      return session.info;
    } catch (error) {
      if (error.status !== 401) throw error;
    }
  }
  setToken(null);
  return null;
}

/** Forgets the token, here and in other tabs. */
export function endSession(announce) {
  const token = session.token;
  if (!token) return;
  setToken(null);
  if (announce) channel.postMessage({ kind: 'session-ended', token });
  onEnd();
}

/** Ends the session on the server, for all tabs. */
export async function signOut() {
  await call('/session', { method: 'DELETE' }).catch(() => {});
  endSession(true);
}

export const isReadOnly = () => Boolean(session.info?.read_only);
