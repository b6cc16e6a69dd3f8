// The frame of the page: session, navigation, theme, the state of the connection, announcements, notifications.

import { fill, h, icon, plain } from './dom.js';
import { plural } from './format.js';
import { ApiError, isReadOnly, openSession, session, signOut } from './session.js';
import { on, startStream, stopStream } from './stream.js';
import { loadThreads, onThreads, summary } from './data.js';
import { announce, errorBox, toast, toasts, liveRegion } from './parts.js';

const ROUTES = {
  threads: { name: 'Threads', module: () => import('./threads.js') },
  approvals: { name: 'Approvals', module: () => import('./approvals.js') },
  cost: { name: 'Cost', module: () => import('./cost.js') },
  items: { name: 'Items', module: () => import('./items.js') },
  bundles: { name: 'Bundles', module: () => import('./installation.js') },
  keys: { name: 'Keys', module: () => import('./installation.js') },
  config: { name: 'Config', module: () => import('./installation.js') },
  doctor: { name: 'Doctor', module: () => import('./installation.js') },
};
const PRIMARY = ['threads', 'approvals', 'cost', 'items'];

const main = h('main', { id: 'main', tabindex: '-1' });
const badge = h('span.badge', { hidden: true });
const connection = h('span.connection', { role: 'status' });
let view = null;
let title = 'rye';
let viewNumber = 0;

/** The route in the address: `#/threads/ID?q=x`. */
function route() {
  const [path, query] = (location.hash.replace(/^#\/?/, '') || 'threads').split('?');
  const parts = path.split('/').map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: parts[0], rest: parts.slice(1), query: new URLSearchParams(query) };
}

function showTitle() {
  const open = summary.openApprovals;
  document.title = plain(`${open ? `(${open}) ` : ''}${title} · rye`);
  badge.hidden = !open;
  badge.textContent = open ? String(open) : '';
  badge.setAttribute('aria-label', plural(open, 'open question'));
}

const links = {};
function navLink(page) {
  const link = h('a.nav-link', { href: `#/${page}` }, icon(page), h('span', ROUTES[page].name), page === 'approvals' && badge);
  links[page] = link;
  return link;
}

function themeSwitch() {
  const order = ['auto', 'light', 'dark'];
  const names = { auto: 'Theme of the system', light: 'Light theme', dark: 'Dark theme' };
  const icons = { auto: 'auto', light: 'sun', dark: 'moon' };
  let theme = localStorage.getItem('rye-theme');
  if (!order.includes(theme)) theme = 'auto';
  const button = h('button.icon-button', { type: 'button', id: 'theme' });
  const apply = () => {
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    fill(button, icon(icons[theme]));
    button.setAttribute('aria-label', names[theme]);
    button.title = names[theme];
    dispatchEvent(new Event('rye-theme'));
  };
  button.addEventListener('click', () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    localStorage.setItem('rye-theme', theme);
    apply();
    announce(names[theme]);
  });
  apply();
  return button;
}

function notifyButton() {
  const button = h('button.icon-button', { type: 'button', id: 'notify' }, icon('bell'));
  const isOn = () => localStorage.getItem('rye-notify') === 'on' && Notification.permission === 'granted';
  const apply = () => {
    const label = isOn() ? 'Notifications are on: turn off' : 'Notify me of new questions';
    button.setAttribute('aria-label', label);
    button.setAttribute('aria-pressed', String(isOn()));
    button.title = label;
  };
  button.addEventListener('click', async () => {
    if (isOn()) localStorage.setItem('rye-notify', 'off');
    else if ((await Notification.requestPermission()) === 'granted') localStorage.setItem('rye-notify', 'on');
    else toast('The browser does not allow notifications for this page.', 'warning');
    apply();
  });
  apply();
  on('approvals', ({ added }) => {
    if (!Array.isArray(added) || !added.length) return;
    announce(`${plural(added.length, 'new question')}: open Approvals to answer.`);
    if (!isOn() || document.hasFocus()) return;
    for (const id of added) {
      // One tag for one question: tabs do not show it twice. What is asked stays on the page.
      const note = new Notification('rye asks for approval', { body: plain(id), tag: `rye-${id}`, icon: '/icon.svg' });
      note.addEventListener('click', () => {
        focus();
        location.hash = `#/approvals/${encodeURIComponent(id)}`;
        note.close();
      });
    }
  });
  return 'Notification' in window ? button : null;
}

function frame() {
  const skip = h('button.skip', { type: 'button', onclick: () => main.focus() }, 'Skip to content');
  const more = h('div.nav-more', { id: 'nav-more' }, Object.keys(ROUTES).filter((page) => !PRIMARY.includes(page)).map(navLink));
  const moreButton = h('button.nav-link.more-button', {
    type: 'button', 'aria-expanded': 'false', 'aria-controls': 'nav-more',
    onclick: () => setMore(more.classList.toggle('open')),
  }, icon('config'), h('span', 'More'));
  const setMore = (isOpen) => {
    more.classList.toggle('open', isOpen);
    moreButton.setAttribute('aria-expanded', String(isOpen));
  };
  addEventListener('hashchange', () => setMore(false));
  more.addEventListener('keydown', (event) => event.key === 'Escape' && (setMore(false), moreButton.focus()));
  const project = session.info.project ?? 'user space';
  const folder = project.split('/').filter(Boolean).at(-1) ?? project;
  const header = h('header.top', null,
    h('a.brand', { href: '#/threads', 'aria-label': 'rye, threads' }, h('span.brand-mark', { 'aria-hidden': 'true' }), 'rye'),
    h('span.project', { title: project }, folder),
    isReadOnly() && h('span.pill', 'read-only'),
    h('span.spread'), connection, notifyButton(), themeSwitch(),
    h('button.icon-button.sign-out', { type: 'button', title: 'End this session', 'aria-label': 'End this session', onclick: signOut }, icon('out')));
  const nav = h('nav', { 'aria-label': 'Pages' }, PRIMARY.map(navLink), more, moreButton,
    h('p.nav-foot', null, `rye ${session.info.version}`, h('br'), session.info.owner));
  fill(document.body, skip, header, nav, main, liveRegion, toasts);
}

const STATES = {
  live: ['live', 'Live: changes appear as they happen'],
  waiting: ['reconnecting', 'The connection is lost; trying again'],
  ended: ['ended', 'The session is over'],
};
let connectionTimer = null;
function showState(state) {
  const show = () => {
    connection.className = `connection ${state}`;
    connection.title = STATES[state][1];
    fill(connection, h('span.dot', { 'aria-hidden': 'true' }), h('span.connection-text', STATES[state][0]));
  };
  clearTimeout(connectionTimer);
  // A connection that is made again at once is not worth a word.
  if (state === 'waiting') connectionTimer = setTimeout(show, 700);
  else show();
}

function ended(message) {
  stopStream();
  view?.dispose?.();
  title = 'Session ended';
  showTitle();
  fill(document.body, h('main.gate', { id: 'main' },
    h('span.brand-mark.large', { 'aria-hidden': 'true' }), h('h1', 'rye'), h('p', message),
    h('p', null, 'Run ', h('code', 'rye ui'), ' and open the address it prints. Its code works once.')));
}

async function show() {
  const here = route();
  const entry = Object.hasOwn(ROUTES, here.page) ? ROUTES[here.page] : null;
  viewNumber += 1;
  const mine = viewNumber;
  for (const [page, link] of Object.entries(links)) {
    if (page === here.page) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  if (entry && view?.page === here.page && view.update?.(here)) return;
  const module = entry && (await entry.module());
  if (mine !== viewNumber) return;
  view?.dispose?.();
  view = null;
  main.scrollTop = 0;
  if (!entry) {
    title = 'Not found';
    fill(main, h('div.page', null, h('h1', 'Page not found'), h('p', null, h('a', { href: '#/threads' }, 'Threads'))));
    showTitle();
    return;
  }
  title = entry.name;
  const element = h('div.page', { 'aria-busy': 'true' });
  fill(main, element);
  const opened = { page: here.page };
  view = opened;
  const context = {
    main, element, ...here,
    isCurrent: () => view === opened,
    setTitle: (text) => {
      title = text;
      showTitle();
    },
  };
  try {
    Object.assign(opened, await module.show(context));
  } catch (error) {
    if (mine === viewNumber) fill(element, h('h1', entry.name), errorBox(error));
  }
  element.removeAttribute('aria-busy');
  if (view !== opened) {
    opened.dispose?.();
    return;
  }
  showTitle();
  // After a change of route, a screen reader begins at the heading.
  if (mine > 1 && !element.contains(document.activeElement)) {
    const heading = element.querySelector('h1');
    if (heading) {
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
    }
  }
}

async function start() {
  let info = null;
  let early = null;
  try {
    const opening = openSession(() => ended('The session is over.'));
    early = session.token ? loadThreads(true).then(() => true, () => false) : null;
    info = await opening;
  } catch (error) {
    ended(error instanceof ApiError && error.status === 401 ? 'This code is not valid: it was used, or it is too old.' : error.message);
    return;
  }
  if (!info) {
    ended('No session in this browser.');
    return;
  }
  if (!location.hash) history.replaceState(null, '', '#/threads');
  frame();
  showState('waiting');
  on('state', showState);
  on('end', (data) => data.reason === 'session' && ended('The session is over.'));
  onThreads(showTitle);
  addEventListener('hashchange', () => {
    if (!location.hash.startsWith('#code=')) show();
    else location.reload();
  });
  const loaded = early ? early.then((isRead) => isRead || loadThreads()) : loadThreads();
  await show();
  try {
    await loaded;
  } catch (error) {
    toast(error.message, 'error');
  }
  startStream();
}

addEventListener('unhandledrejection', ({ reason }) => {
  if (reason?.name !== 'AbortError') toast(reason?.message ?? 'failed', 'error');
});
start();
