// Numbers, money and time as people read them.

const LOCALE = 'en-US';
const whole = new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 0 });

/** `12,345`. */
export const count = (value) => (Number.isFinite(value) ? whole.format(value) : '–');

/** `1 item`, `2 items`. */
export const plural = (value, word, words = `${word}s`) => `${count(value)} ${value === 1 ? word : words}`;

/** Dollars: cents for sums, four digits for what is smaller. */
export function money(value) {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '$0';
  if (Math.abs(value) >= 1000) return `$${whole.format(value)}`;
  if (Math.abs(value) >= 1) return `$${value.toFixed(2)}`;
  if (value < 0.0001) return '<$0.0001';
  const exact = value.toFixed(4);
  return `$${exact.endsWith('00') ? value.toFixed(2) : exact}`;
}

/** `820 ms`, `3.4 s`, `2 min 5 s`, `3 h 20 min`. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return '–';
  if (ms < 1000) return ms === 0 ? '0 s' : `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return `${minutes} min${Math.round(seconds) % 60 ? ` ${Math.round(seconds) % 60} s` : ''}`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Milliseconds since 1970 of a timestamp, or of a number. */
export const instant = (value) => (typeof value === 'number' ? value : Date.parse(value ?? ''));

/** `now`, `4 min`, `3 h`, `12 d`: how long ago. */
export function ago(value, now = Date.now()) {
  const seconds = Math.max(0, (now - instant(value)) / 1000);
  if (!Number.isFinite(seconds)) return '';
  if (seconds < 10) return 'now';
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

const two = (value) => String(value).padStart(2, '0');

/** `2026-01-02 03:04:05` in local time. */
export function clock(value) {
  const date = new Date(instant(value));
  if (Number.isNaN(date.getTime())) return '';
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** `03:04:05` in local time. */
export const time = (value) => clock(value).slice(11);

/** The digits of a thread's id, which are enough to name it. */
export const shortId = (id) => String(id ?? '').replace(/^thread-/, '');

/** `4.1 KB`. */
export const bytes = (value) =>
  value < 1024 ? `${value} B` : value < 1 << 20 ? `${(value / 1024).toFixed(1)} KB` : `${(value / (1 << 20)).toFixed(1)} MB`;
