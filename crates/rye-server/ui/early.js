// Asks for the session and the first rows before the modules of the page are there. `call` in session.js takes the answers.
{
  const token = sessionStorage.getItem('rye-token');
  if (token && !location.hash.startsWith('#code=')) {
    const ask = (path) => {
      const answer = fetch(`/api/v1${path}`, { cache: 'no-store', credentials: 'omit', redirect: 'error', headers: { Authorization: `Bearer ${token}` } });
      answer.catch(() => {});
      return [path, answer];
    };
    globalThis.ryeEarly = { token, answers: new Map(['/session', '/threads?limit=1000'].map(ask)) };
  }
}
