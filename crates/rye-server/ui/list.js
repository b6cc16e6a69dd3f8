// A list of any length of which only the rows in sight are in the document.

import { h } from './dom.js';

const OVERSCAN = 8;

/**
 * A grid with rows of one height. `columns` are the names of the columns, `render(item, index)` makes a row's cells into the
 * given element, `open(item)` is called for Enter, `key(item)` names a row and `version(item)` says when to render it again.
 */
export function virtualList({ label, columns, render, open, key, version, expand, isTree }) {
  const head = h('div.grid-row.grid-head', { role: 'row', 'aria-rowindex': '1' },
    columns.map((name) => h('div.cell', { role: 'columnheader' }, name)));
  const rows = h('div.grid-rows', { role: 'rowgroup' });
  const spacer = h('div.grid-space', { role: 'presentation' }, rows);
  const element = h('div.grid', { role: isTree ? 'treegrid' : 'grid', 'aria-label': label, 'aria-colcount': columns.length },
    h('div', { role: 'rowgroup' }, head), spacer);

  let items = [];
  let active = null;
  let shown = new Map();
  let scroller = null;
  let frame = 0;
  let isScrolled = false;

  const rowHeight = () => parseFloat(getComputedStyle(element).getPropertyValue('--row')) || 48;
  let height = 48;

  function makeRow(item, index) {
    const id = key(item);
    const row = h('div.grid-row', { role: 'row', 'data-key': id, 'aria-rowindex': index + 2 });
    render(row, item, index);
    row.firstVersion = version(item);
    return row;
  }

  function paint() {
    frame = 0;
    if (!scroller?.isConnected) return;
    // Before anything was scrolled the place of the list does not matter, and is not asked for: that would cost a layout.
    const above = isScrolled ? Math.max(0, scroller.getBoundingClientRect().top - spacer.getBoundingClientRect().top) : 0;
    const visible = isScrolled ? scroller.clientHeight : innerHeight;
    // At first, and after a jump, only what is in sight; the rows around it come with the next frame.
    const middle = items[Math.min(items.length - 1, Math.floor((above + visible / 2) / height))];
    const around = middle && shown.has(key(middle)) ? OVERSCAN : 0;
    const first = Math.max(0, Math.floor(above / height) - around);
    const last = Math.min(items.length, Math.ceil((above + visible) / height) + around);
    const next = new Map();
    const hadFocus = rows.contains(document.activeElement) ? document.activeElement.closest('[data-key]')?.dataset.key : null;
    let place = rows.firstChild;
    for (let index = first; index < last; index += 1) {
      const item = items[index];
      const id = key(item);
      let row = shown.get(id);
      if (!row || row.firstVersion !== version(item)) {
        const fresh = makeRow(item, index);
        if (row) {
          if (row === place) place = fresh;
          row.replaceWith(fresh);
        }
        row = fresh;
      }
      row.setAttribute('aria-rowindex', index + 2);
      row.classList.toggle('odd', index % 2 === 1);
      row.tabIndex = id === active || (active === null && index === 0) ? 0 : -1;
      if (row === place) place = place.nextSibling;
      else rows.insertBefore(row, place);
      next.set(id, row);
    }
    for (const [id, row] of shown) if (!next.has(id)) row.remove();
    shown = next;
    if (!around && next.size) schedule();
    rows.style.setProperty('transform', `translateY(${first * height}px)`);
    if (!rows.querySelector('[tabindex="0"]') && rows.firstChild) rows.firstChild.tabIndex = 0;
    if (hadFocus && shown.get(hadFocus) && !rows.contains(document.activeElement)) shown.get(hadFocus).focus({ preventScroll: true });
  }

  const schedule = () => {
    frame ||= requestAnimationFrame(paint);
  };
  const scrolled = () => {
    isScrolled = true;
    schedule();
  };

  function focusIndex(index) {
    const item = items[Math.max(0, Math.min(items.length - 1, index))];
    if (!item) return;
    active = key(item);
    isScrolled = true;
    const at = items.indexOf(item) * height;
    const offset = spacer.getBoundingClientRect().top - scroller.getBoundingClientRect().top + scroller.scrollTop;
    const headHeight = head.offsetHeight;
    if (offset + at < scroller.scrollTop + headHeight) scroller.scrollTop = offset + at - headHeight;
    if (offset + at + height > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = offset + at + height - scroller.clientHeight;
    }
    paint();
    shown.get(active)?.focus({ preventScroll: true });
  }

  rows.addEventListener('keydown', (event) => {
    const row = event.target.closest('[data-key]');
    if (event.target !== row || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = items.findIndex((item) => key(item) === row.dataset.key);
    const page = Math.max(1, Math.floor(scroller.clientHeight / height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length };
    if (event.key in steps) focusIndex(index + steps[event.key]);
    else if (event.key === 'Enter') open(items[index]);
    else if (expand && (event.key === 'ArrowRight' || event.key === 'ArrowLeft')) expand(items[index], event.key === 'ArrowRight');
    else return;
    event.preventDefault();
  });
  rows.addEventListener('focusin', (event) => {
    const row = event.target.closest('[data-key]');
    if (!row || active === row.dataset.key) return;
    rows.querySelector('[tabindex="0"]')?.setAttribute('tabindex', '-1');
    active = row.dataset.key;
    row.tabIndex = 0;
  });
  rows.addEventListener('click', (event) => {
    if (event.target.closest('a, button') || String(getSelection())) return;
    const row = event.target.closest('[data-key]');
    const item = row && items.find((one) => key(one) === row.dataset.key);
    if (item) open(item);
  });

  const resized = new ResizeObserver(() => {
    height = rowHeight();
    spacer.style.setProperty('height', `${items.length * height}px`);
    schedule();
  });

  return {
    element,
    /** Shows these items. */
    update(next) {
      items = next;
      if (!shown.size) height = rowHeight();
      element.setAttribute('aria-rowcount', items.length + 1);
      spacer.style.setProperty('height', `${items.length * height}px`);
      paint();
    },
    /** Begins to follow the element that scrolls. */
    attach(to) {
      scroller = to;
      scroller.addEventListener('scroll', scrolled, { passive: true });
      resized.observe(element);
    },
    detach() {
      scroller?.removeEventListener('scroll', scrolled);
      resized.disconnect();
    },
  };
}
