// Charts as SVG of our own, drawn for the width they have, with their numbers as text.

import { add, fill, h, s } from './dom.js';
import { clock, duration, instant } from './format.js';
import { empty, stateMark } from './parts.js';

/** Draws again when the width changes. */
function drawn(label, draw) {
  const element = h('div.chart', { role: 'img', 'aria-label': label });
  let width = 0;
  new ResizeObserver(() => {
    const next = Math.floor(element.clientWidth);
    if (next && next !== width) {
      width = next;
      fill(element, draw(width));
    }
  }).observe(element);
  return element;
}

/** A round number at or above a value, for the top of an axis. */
function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}

/** Columns with their values above them. `rows`: `{name, value, detail}`. */
export function barChart({ label, rows, format, shorten = (name) => name }) {
  if (!rows.some((row) => row.value > 0)) return empty('Nothing was spent');
  const words = rows.filter((row) => row.value > 0).slice(-12).map((row) => `${row.name}: ${format(row.value)}`).join(', ');
  return drawn(`${label}. ${words}`, (width) => {
    const left = 56;
    const height = 220;
    const base = height - 26;
    const head = 22;
    const top = niceTop(Math.max(...rows.map((row) => row.value)));
    const step = (width - left - 4) / rows.length;
    const bar = Math.min(48, Math.max(2, step * 0.7));
    const y = (value) => base - (value / top) * (base - head);
    const svg = s('svg', { width, height, viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
    for (const share of [0, 0.5, 1]) {
      add(svg, s('line.gridline', { x1: left, x2: width, y1: y(top * share), y2: y(top * share) }),
        s('text.axis', { x: left - 8, y: y(top * share) + 4, 'text-anchor': 'end' }, format(top * share)));
    }
    const every = Math.max(1, Math.ceil(54 / step));
    rows.forEach((row, index) => {
      const x = left + step * index + step / 2;
      const tall = Math.max(row.value > 0 ? 2 : 0, base - y(row.value));
      add(svg, s('rect.column', { x: x - bar / 2, y: base - tall, width: bar, height: tall, rx: 2 }, s('title', null, `${row.name}: ${format(row.value)}${row.detail ? `\n${row.detail}` : ''}`)));
      if (row.value > 0 && step >= 46) add(svg, s('text.value', { x, y: base - tall - 6, 'text-anchor': 'middle' }, format(row.value)));
      if ((rows.length - 1 - index) % every === 0) add(svg, s('text.axis', { x: Math.min(x, width - 18), y: height - 8, 'text-anchor': 'middle' }, shorten(row.name)));
    });
    if (step < 46) {
      const peak = rows.reduce((one, other) => (other.value > one.value ? other : one));
      const x = left + step * rows.indexOf(peak) + step / 2;
      add(svg, s('text.value', { x: Math.min(Math.max(x, left + 24), width - 28), y: y(peak.value) - 6, 'text-anchor': 'middle' }, format(peak.value)));
    }
    return svg;
  });
}

const KINDS = [['model', 'asks the model'], ['tool', 'runs a tool'], ['child', 'waits for a child'], ['wait', 'waits']];

/** When the threads of a tree ran: one line for each, with model time, tool time and waits. */
export function timelineChart(threads, pathOf) {
  if (!threads.length) return empty('Nothing has run yet');
  const now = Date.now();
  const end = (value) => (value ? instant(value) : now);
  const from = Math.min(...threads.map((one) => instant(one.started_at)));
  const to = Math.max(from + 1, ...threads.map((one) => end(one.ended_at)));
  const share = (value) => `${(Math.max(0, Math.min(1, (value - from) / (to - from))) * 100).toFixed(3)}%`;
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const sum = (one, kind) => one.spans.filter((span) => span.kind === kind).reduce((total, span) => total + (end(span.to) - instant(span.from)), 0);
  return h('div.timeline', null,
    h('ul.legend', { 'aria-label': 'Colours' }, KINDS.map(([kind, words]) => h('li', null, h(`span.swatch.${kind}`, { 'aria-hidden': 'true' }), words))),
    h('p.muted', `${clock(from)} – ${clock(to)} · ${duration(to - from)}`),
    h('div.timeline-row.axis-row', { 'aria-hidden': 'true' }, h('span'), h('div.lane', null, ticks.map((tick) => h('span.tick', { vars: { left: `${tick * 100}%` } }, duration((to - from) * tick))))),
    h('ul.plain', null, threads.map((one) => h('li.timeline-row', null,
      h('div.timeline-name', { vars: { '--level': Math.min(one.depth, 8) } }, h('a', { href: pathOf(one.thread_id) }, one.directive), stateMark(one.status)),
      h('div.lane', { role: 'img', 'aria-label': `${one.directive}: model ${duration(sum(one, 'model'))}, tools ${duration(sum(one, 'tool'))}, waits ${duration(sum(one, 'wait') + sum(one, 'child'))}` },
        h('span.life', { vars: { left: share(instant(one.started_at)), right: `calc(100% - ${share(end(one.ended_at))})` } }),
        // What a tool call waits for is drawn over the call.
        [...one.spans].sort((before, after) => (before.kind === 'wait' || before.kind === 'child') - (after.kind === 'wait' || after.kind === 'child')).map((span) => h(`span.span.${span.kind}`, {
          title: `${span.kind}: ${span.name} · ${duration(end(span.to) - instant(span.from))}`,
          vars: { left: share(instant(span.from)), right: `calc(100% - ${share(end(span.to))})` },
        })))))));
}
