// Builds DOM from plain values. Every text becomes a text node, and characters that do not show as themselves are written
// out. There is no way to pass markup: nothing in this page parses HTML.

// Control characters, marks that turn text around, blanks without width, fillers, tags, lone surrogates.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}\ud800-\udfff]/gu;
// The same, and secrets that were taken out.
const MARKED = new RegExp(`${HIDDEN.source}|\\[redacted:[\\w.-]+\\]`, 'gu');
const SVG = 'http://www.w3.org/2000/svg';

const written = (char) => `\\u{${char.codePointAt(0).toString(16)}}`;

/** The text with hidden characters written out, as one string: for attributes, titles, file names. */
export const plain = (value) => String(value ?? '').replace(HIDDEN, written);

/** A text node, or a fragment in which hidden characters and redactions are marked. */
export function text(value) {
  const string = String(value);
  if (string.search(MARKED) < 0) return document.createTextNode(string);
  const fragment = document.createDocumentFragment();
  let from = 0;
  for (const match of string.matchAll(MARKED)) {
    if (match.index > from) fragment.append(string.slice(from, match.index));
    const mark = document.createElement('span');
    const isHidden = match[0][0] !== '[';
    mark.className = isHidden ? 'hidden-char' : 'redacted';
    mark.textContent = isHidden ? written(match[0]) : match[0];
    fragment.append(mark);
    from = match.index + match[0].length;
  }
  fragment.append(string.slice(from));
  return fragment;
}

function setProperty(node, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
  else if (name === 'vars') for (const [key, item] of Object.entries(value)) node.style.setProperty(key, item);
  else if (name === 'value' || name === 'checked' || name === 'disabled' || name === 'open') node[name] = value;
  else if (name === 'href') {
    if (!String(value).startsWith('#')) throw new TypeError('links lead to routes of this page');
    node.setAttribute('href', value);
  } else if (/^(style|src|srcdoc|action|formaction|xlink:href)$/.test(name)) throw new TypeError(`attribute ${name}`);
  else node.setAttribute(name, value === true ? '' : plain(value));
}

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) setProperty(node, name, value);
  add(node, children);
  return node;
}

/** Appends texts, nodes and lists of them; nothing for `null`, `undefined` and `false`. */
export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : text(child));
  }
  return node;
}

const tags = new Map();
function parse(tag) {
  if (!tags.has(tag)) {
    const [name, ...classes] = tag.split('.');
    tags.set(tag, [name || 'div', classes.join(' ')]);
  }
  return tags.get(tag);
}

/** An HTML element: `h('a.row', {href: '#/'}, 'text', child)`. */
export function h(tag, properties, ...children) {
  const [name, classes] = parse(tag);
  const node = document.createElement(name);
  if (classes) node.className = classes;
  if (properties instanceof Node || typeof properties !== 'object' || Array.isArray(properties)) {
    return build(node, null, [properties, ...children]);
  }
  return build(node, properties, children);
}

/** An SVG element. */
export function s(tag, properties, ...children) {
  const [name, classes] = parse(tag);
  const node = document.createElementNS(SVG, name);
  if (classes) node.setAttribute('class', classes);
  return build(node, properties, children);
}

/** Replaces what a node holds. */
export const fill = (node, ...children) => {
  node.replaceChildren();
  return add(node, ...children);
};

/** Drawings of 16 × 16, by name. */
const ICONS = {
  threads: 'M3 3.5h10M6 8h7M6 12.5h7M3 3.5v9M3 8h3M3 12.5h3',
  approvals: 'M8 1.8 13.5 4v4c0 3.2-2.2 5.3-5.5 6.3C4.7 13.3 2.5 11.2 2.5 8V4ZM5.6 8l1.8 1.8L10.6 6.3',
  cost: 'M2.5 13.5h11M4 13V9M8 13V3M12 13V6',
  items: 'M2.5 4.5 8 2l5.5 2.5v7L8 14l-5.5-2.5ZM2.5 4.5 8 7l5.5-2.5M8 7v7',
  bundles: 'M2.5 6h11v7.5h-11ZM2.5 6 4.5 2.5h7l2 3.5M6.5 8.5h3',
  keys: 'M10 6a2.8 2.8 0 1 1-1.5 2.5L3 14v-2.5M5.5 11.5 7 13M11 5.3h.01',
  config: 'M2.5 4.5h6M12 4.5h1.5M10.3 2.8v3.4M2.5 11.5H4M7.5 11.5h6M5.8 9.8v3.4',
  doctor: 'M1.5 8.5h3l1.5-5 3 9.5 2-6 .8 1.5h2.7',
  sun: 'M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1',
  moon: 'M13.5 9.5A6 6 0 1 1 6.5 2.5a5 5 0 0 0 7 7Z',
  auto: 'M8 2a6 6 0 1 0 0 12ZM8 2a6 6 0 0 1 0 12',
  search: 'M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M10.3 10.3 14 14',
  open: 'M6 3.5 10.5 8 6 12.5',
  out: 'M9.5 2.5h4v11h-4M9.5 8h-7M5 5 2 8l3 3',
  bell: 'M8 2a4 4 0 0 0-4 4c0 4-1.5 5-1.5 5h11S12 10 12 6a4 4 0 0 0-4-4M6.7 13.5h2.6',
};

/** A drawing that is only decoration: words beside it say the same. */
export const icon = (name) =>
  s('svg.icon', { viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' }, s('path', { d: ICONS[name] }));
