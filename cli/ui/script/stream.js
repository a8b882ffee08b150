// SPDX-License-Identifier: Apache-2.0
// ---- what the server sends. view -> kind -> value; lists grow.
const views = {};
const valueOf = (view, kind) => (views[view] || {})[kind];
const stream = {source: null, wanted: [], live: false, since: Date.now()};
const MOST_LINES = 3000, MOST_STEPS = 20000;

function take({view, kind, value, values}) {
  const kinds = views[view] = views[view] || {};
  if (!values) {
    kinds[kind] = value;
    return;
  }
  const list = kinds[kind] = kinds[kind] || [];
  for (const entry of values) {
    // The same step may come again after a reconnection, and an earlier one after a job went back.
    if (kind === 'steps') while (list.length && list[list.length - 1][0] >= entry[0]) list.pop();
    list.push(entry);
  }
  const most = kind === 'steps' ? MOST_STEPS : MOST_LINES;
  if (list.length > most) list.splice(0, list.length - most);
}

function setLive(live) {
  stream.live = live;
  const text = byId('connection');
  text.className = live ? 'live' : 'away';
  const shown = live ? 'live' : 'no connection: does takt ui still run?';
  if (text.textContent !== shown) text.textContent = shown;
}

function openStream() {
  if (stream.source) stream.source.close();
  stream.source = null;
  // A browser opens few connections to a server: a page that nobody sees has none.
  if (document.hidden || !stream.wanted.length) return;
  const query = stream.wanted.map(view => 'view=' + encodeURIComponent(view)).join('&');
  const source = stream.source = new EventSource('/api/stream?' + query);
  source.onmessage = event => {
    if (source !== stream.source) return;
    const message = JSON.parse(event.data);
    if (message.kind === 'begin') for (const view of stream.wanted) delete views[view];
    else take(message);
    setLive(true);
    renderSoon();
  };
  source.onerror = () => {
    if (source !== stream.source) return;
    setLive(false);
    // A refused stream is closed for good, so it is opened again here.
    if (source.readyState === 2) setTimeout(() => { if (source === stream.source) openStream(); }, 2000);
  };
}

function want(list) {
  if (stream.source && list.join(' ') === stream.wanted.join(' ')) return;
  stream.wanted = list;
  openStream();
}
document.addEventListener('visibilitychange', openStream);

let due = false;
function renderSoon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    render();
  });
}
