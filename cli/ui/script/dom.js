// SPDX-License-Identifier: Apache-2.0
// ---- elements. Pages are made anew at each change and merged into the document, so that focus, selection, scrolling
// and open details stay. No text becomes markup, and no style attribute is set (the policy of the page forbids it).
const byId = id => document.getElementById(id);

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    node.setAttribute(name, value === true ? '' : String(value));
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
    make(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

const keyOf = node => node.nodeType === 1 ? node.getAttribute('data-key') || node.id : '';
const alike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

function mergeAttributes(old, fresh) {
  for (const {name} of [...old.attributes]) {
    // What the user or a drawing has set stays.
    if (!fresh.hasAttribute(name) && !(name === 'open' && old.nodeName === 'DETAILS') && name !== 'style') old.removeAttribute(name);
  }
  for (const {name, value} of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
}

function merge(parent, fresh) {  // fresh: nodes
  const keyed = new Map([...parent.children].filter(keyOf).map(node => [node.nodeName + ' ' + keyOf(node), node]));
  let at = parent.firstChild;
  for (const node of fresh) {
    let old = keyOf(node) ? keyed.get(node.nodeName + ' ' + keyOf(node)) : at;
    if (old && alike(old, node) && (keyOf(node) || !keyOf(old))) {
      if (old !== at) parent.insertBefore(old, at);
      if (old.nodeType !== 1) {
        if (old.data !== node.data) old.data = node.data;
      } else if (!old.hasAttribute('data-keep')) {
        mergeAttributes(old, node);
        merge(old, [...node.childNodes]);
      }
      at = old.nextSibling;
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// ---- numbers with units
const isNumber = value => typeof value === 'number' && Number.isFinite(value);
const NONE = '\u2013';
function digits(value, most = 4) {  // at most so many digits that mean something
  if (!isNumber(value)) return NONE;
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(most)));
}
const percent = value => isNumber(value) ? (100 * value).toFixed(1) + ' %' : NONE;
function count(value) {
  if (!isNumber(value)) return NONE;
  for (const [size, name] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k']]) {
    if (Math.abs(value) >= size) return digits(value / (name === 'k' ? 1e3 : size), 3) + ' ' + name;
  }
  return digits(value);
}
function bytes(value) {
  if (!isNumber(value)) return NONE;
  for (const [power, name] of [[4, 'TiB'], [3, 'GiB'], [2, 'MiB'], [1, 'KiB']]) {
    if (value >= 1024 ** power) return digits(value / 1024 ** power, 3) + ' ' + name;
  }
  return value + ' B';
}
function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return NONE;
  if (seconds < 1e-3) return digits(1e6 * seconds, 3) + ' \u00b5s';
  if (seconds < 1) return digits(1e3 * seconds, 3) + ' ms';
  if (seconds < 60) return digits(seconds, 3) + ' s';
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (hours < 1) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
const clockTime = text => text ? new Date(text).toLocaleString() : NONE;
const plural = (number, word) => `${number} ${word}${number === 1 ? '' : 's'}`;

// ---- parts that several pages have
const STATES = {RUNNING: 'busy', SUCCEEDED: 'good', FAILED: 'bad', RECOVERING: 'warn', PAUSED: 'warn', LOST: 'bad', AWAY: 'warn', BUSY: 'busy'};
const stateText = state => el('span', {class: 'state ' + (STATES[state] || '')}, state);
const jobLink = (name, rest = '') => el('a', {href: `#/jobs/${encodeURIComponent(name)}${rest}`, 'data-key': 'link-' + name + rest}, name);
const card = (name, value, extra) => el('li', {}, el('b', {class: extra || ''}, value), el('span', {}, name));
const cards = list => el('ul', {class: 'cards'}, list);
const section = (title, ...children) => el('section', {}, el('h2', {}, title), ...children);

// columns: [name, cell of a row, class]
function table(label, columns, rows, keyOfRow) {
  return el('div', {class: 'scroll', role: 'region', 'aria-label': label, tabindex: 0},
      el('table', {},
          el('thead', {}, el('tr', {}, columns.map(([name, , css]) => el('th', {scope: 'col', class: css || false}, name)))),
          el('tbody', {}, rows.map((row, i) =>
              el('tr', {'data-key': 'row-' + (keyOfRow ? keyOfRow(row) : i)},
                  columns.map(([, cell, css]) => el('td', {class: css || false}, cell(row, i))))))));
}

// parts: [name, value, text]. The bar has no text of its own: a table or a list stands beside it.
function bar(label, parts, css = 'bar', whole) {
  const sum = whole || parts.reduce((all, [, value]) => all + Math.max(0, value), 0) || 1;
  let at = 0;
  const rects = parts.filter(([, value]) => value > 0).map(([name, value, text]) => {
    const width = 100 * value / sum, x = at;
    at += width;
    return svg('rect', {x: x.toFixed(3), y: 0, width: width.toFixed(3), height: 1, class: 'fill-' + name}, svg('title', {}, text || name));
  });
  return svg('svg', {class: css, viewBox: '0 0 100 1', preserveAspectRatio: 'none', role: 'img', 'aria-label': label}, rects);
}
const swatch = name => el('span', {class: 'swatch fill-' + name});
