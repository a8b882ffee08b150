// SPDX-License-Identifier: Apache-2.0
// Draws a timeline on a canvas, zooms, and explains what the pointer is on. The page of `takt trace` and that of
// `takt ui` share it. `WritePage` and `TimelineData` make the data (page.h).
//
// makeTimeline(given, {find, keys}): find(id) returns the elements canvas, in, out, fit, step, predicted, messages,
// lanes, range, tip and legend; keys is what hears the keyboard. given: the data, or null until load(data).
const TIMELINE_KINDS = {F: ['F forward', [122, 176, 236]], B: ['B backward (I and W)', [134, 204, 146]],
                        I: ['I gradient of inputs', [245, 186, 103]], W: ['W gradient of weights', [188, 160, 226]],
                        S: ['S logits', [128, 206, 208]], T: ['T loss, gradients of the head', [238, 150, 160]],
                        x: ['norms, optimizer', [196, 196, 196]], m: ['message, token load, sum', [214, 224, 232]]};
const TIMELINE_CAUSES = ['', '#e6b8b0', '#e0693e', '#5b54c9', '#c0408a', '#8a6d3b', '#333333', '#9fb7b0'];

function makeTimeline(given, {find, keys}) {
  const canvas = find('canvas'), pen = canvas.getContext('2d');
  const TOP = 24, ROW = 24, IDLE = 10, PREDICTED = 11, LANE = 12, GAP = 9, MOST_ARROWS = 3000;
  let LEFT = 130;
  const view = {from: 0, to: 1}, all = {from: 0, to: 1};
  let data = null, perMs = 1, end = 1, slices = [], rows = [], flat = [];
  const ms = units => (units / perMs).toFixed(3) + ' ms';

  // ---- rows of items in time: what a row shows never overlaps
  const bodyOf = rank => data.programs[data.ranks[rank].program].body;
  const prologueOf = rank => data.programs[data.ranks[rank].program].prologue;
  const instructionOf = item => (item.type === 'prologue' ? prologueOf : bodyOf)(item.r)[item.i];

  function slicesOf(rank) {  // by step and instruction: [start, end]
    return rank.steps.map(deltas => {
      let at = 0;
      const list = [];
      for (let i = 0; i < deltas.length; i += 2) {
        const start = at + deltas[i];
        list.push([start, start + deltas[i + 1]]);
        at = start + deltas[i + 1];
      }
      return list;
    });
  }

  function makeRows() {
    const rows = [];
    data.ranks.forEach((rank, r) => {
      const lanes = data.programs[rank.program].lanes;
      const items = lanes.map(() => []);
      slices[r].forEach((list, s) => list.forEach(([start, stop], i) => {
        items[bodyOf(r)[i][3]].push({start, end: stop, r, s, i, type: 'work'});
      }));
      for (const [s, i, start, stop] of rank.prologue) {
        items[prologueOf(r)[i][3]].push({start, end: stop, r, s, i, type: 'prologue'});
      }
      let at = 0;
      for (let k = 0; k < rank.idle.length; k += 6) {
        const [gap, length, cause, peer, before, s] = rank.idle.slice(k, k + 6);
        const start = at + gap;
        items[0].push({start, end: start + length, r, s, i: before, type: 'idle', cause, peer});
        at = start + length;
      }
      items[0].sort((a, b) => a.start - b.start);
      rows.push({r, lane: 0, kind: 'compute', name: rank.name, items: items[0]});
      if (data.predicted) {
        const predicted = data.steps.flatMap(([, begin], s) => data.predicted[rank.program].map(([i, start, stop]) =>
            ({start: begin + start, end: begin + stop, r, s, i, type: 'predicted'})));
        rows.push({r, kind: 'predicted', name: 'predicted', items: predicted.sort((a, b) => a.start - b.start)});
      }
      lanes.forEach((name, lane) => {
        if (lane > 0) rows.push({r, lane, kind: 'lane', name, items: items[lane].sort((a, b) => a.start - b.start)});
      });
    });
    return rows;
  }
  const shown = id => find(id).checked;

  function layout() {  // places rows; the height of all
    let y = TOP;
    for (const row of rows) {
      row.visible = row.kind === 'compute' || (row.kind === 'predicted' ? shown('predicted') : shown('lanes'));
      if (!row.visible) continue;
      if (row.kind === 'compute' && y > TOP) y += GAP;
      row.height = row.kind === 'compute' ? ROW : row.kind === 'predicted' ? PREDICTED : LANE;
      row.y = y;
      y += row.height + (row.kind === 'compute' ? 1 : 2);
    }
    return y + 6;
  }

  // ---- picture
  function colour(kind, chunk, chunks) {
    const share = chunks > 1 ? chunk / (chunks - 1) : 0.5;
    const shade = value => {
      const lighter = 255 - (255 - value) * 0.45, darker = value * 0.8;
      return Math.round(share < 0.5 ? lighter + (value - lighter) * 2 * share : value + (darker - value) * (2 * share - 1));
    };
    return `rgb(${(TIMELINE_KINDS[kind] || TIMELINE_KINDS.x)[1].map(shade).join(',')})`;
  }
  const x = time => LEFT + (time - view.from) / (view.to - view.from) * (width - LEFT);
  const timeAt = pixel => view.from + (pixel - LEFT) / (width - LEFT) * (view.to - view.from);
  let width = 0;
  let ink = {};  // colours of the theme

  function readInk() {
    const style = getComputedStyle(canvas), own = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
    ink = {text: own('--timeline-text', '#222'), quiet: own('--timeline-quiet', '#666'), grid: own('--timeline-grid', '#eee'),
           step: own('--timeline-step', '#b03030'), arrow: own('--timeline-arrow', '#20304a99'),
           causes: TIMELINE_CAUSES.map((colour, cause) => own('--cause-' + cause, colour))};
  }

  function firstVisible(items) {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items[middle].end < view.from) low = middle + 1; else high = middle;
    }
    return low;
  }

  function drawItem(row, item, left, right) {
    const wide = Math.max(right - left, 0.6);
    if (item.type === 'idle') {
      pen.fillStyle = ink.causes[item.cause];
      pen.fillRect(left, row.y + (row.height - IDLE) / 2, wide, IDLE);
      return;
    }
    const [label, kind, chunk, , chunkOfBackward] = instructionOf(item);
    const chunks = data.programs[data.ranks[item.r].program].chunks;
    if (kind === 'O') {
      pen.fillStyle = colour('F', chunk, chunks);
      pen.fillRect(left, row.y, wide, row.height / 2);
      pen.fillStyle = colour('B', chunkOfBackward, chunks);
      pen.fillRect(left, row.y + row.height / 2, wide, row.height / 2);
    } else {
      pen.fillStyle = colour(kind, chunk, 'xm'.includes(kind) ? 1 : chunks);
      pen.fillRect(left, row.y, wide, row.height);
    }
    if (wide > 4) {
      pen.strokeStyle = '#5558';
      pen.strokeRect(left + 0.25, row.y + 0.25, wide - 0.5, row.height - 0.5);
    }
    if (wide > label.length * 6 + 4 && row.kind === 'compute') {
      pen.fillStyle = '#000';
      pen.textAlign = 'center';
      pen.fillText(label, (Math.max(left, LEFT) + Math.min(right, width)) / 2, row.y + row.height / 2 + 4);
    }
  }

  function drawRow(row) {
    let drawn = -1;  // what is narrower than a pixel is drawn once a pixel
    for (let k = firstVisible(row.items); k < row.items.length && row.items[k].start <= view.to; ++k) {
      const item = row.items[k], left = x(item.start), right = x(item.end);
      if (right - left < 0.6 && Math.floor(left) === drawn) continue;
      drawn = Math.floor(right);
      drawItem(row, item, left, right);
    }
  }

  function drawArrows() {
    const arrows = [];
    data.steps.forEach(([, begin, stop], s) => {
      if (arrows.length > MOST_ARROWS || begin > view.to || stop < view.from) return;
      for (const [from, i, to, j] of data.messages) {
        const [sent] = slices[from][s][i], [, received] = slices[to][s][j];
        if (received >= view.from && sent <= view.to) arrows.push([from, sent, to, received]);
      }
    });
    if (arrows.length > MOST_ARROWS) return false;
    pen.strokeStyle = pen.fillStyle = ink.arrow;
    for (const [from, sent, to, received] of arrows) {
      const down = flat[to].y > flat[from].y;
      const y0 = flat[from].y + (down ? ROW : 0), y1 = flat[to].y + (down ? 0 : ROW);
      const x0 = x(sent), x1 = x(received);
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x1, y1);
      pen.stroke();
      const angle = Math.atan2(y1 - y0, x1 - x0);
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.lineTo(x1 - 6 * Math.cos(angle - 0.4), y1 - 6 * Math.sin(angle - 0.4));
      pen.lineTo(x1 - 6 * Math.cos(angle + 0.4), y1 - 6 * Math.sin(angle + 0.4));
      pen.fill();
    }
    return true;
  }

  function drawAxis(height) {
    const scale = (width - LEFT) / (view.to - view.from) * perMs;  // pixels per millisecond
    let tick = 10 ** Math.floor(Math.log10(90 / scale));
    for (const factor of [2, 2.5, 2]) if (tick * scale < 90) tick *= factor;
    const digits = Math.max(0, Math.min(4, -Math.floor(Math.log10(tick))));
    pen.textAlign = 'center';
    for (let n = Math.ceil(view.from / perMs / tick); n * tick * perMs <= view.to; ++n) {
      const at = x(n * tick * perMs);
      pen.fillStyle = ink.grid;
      pen.fillRect(at, TOP - 4, 1, height);
      pen.fillStyle = ink.quiet;
      pen.fillText((n * tick).toFixed(digits) + ' ms', at, 11);
    }
    pen.fillStyle = ink.step;
    for (const [step, begin] of data.steps) {
      const at = x(begin);
      if (at < LEFT || at > width) continue;
      pen.fillRect(at, TOP - 8, 1, height);
      pen.textAlign = 'left';
      pen.fillText('step ' + step, at + 3, TOP - 2);
    }
  }

  function draw() {
    if (!canvas.isConnected || !data) return;
    readInk();
    const height = layout(), ratio = devicePixelRatio || 1;
    width = Math.max(280, canvas.parentElement.clientWidth - 2);
    LEFT = width < 600 ? 78 : 130;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = width + 'px';
    canvas.style.height = height + 'px';
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = '11px Helvetica, Arial, sans-serif';
    pen.lineWidth = 0.7;
    drawAxis(height);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, height);
    pen.clip();
    for (const row of rows) if (row.visible) drawRow(row);
    const complete = !shown('messages') || drawArrows();
    pen.restore();
    pen.textAlign = 'left';
    for (const row of rows) {
      if (!row.visible) continue;
      pen.fillStyle = row.kind === 'compute' ? ink.text : ink.quiet;
      pen.fillText(row.name, row.kind === 'compute' ? 6 : 18, row.y + row.height / 2 + 4, LEFT - (row.kind === 'compute' ? 10 : 22));
    }
    find('range').textContent = `${ms(view.from)} to ${ms(view.to)} of ${ms(end)}` + (complete ? '' : '; zoom in to see messages');
  }

  // ---- what is shown
  function show(from, to) {
    const least = Math.min(perMs / 1000, end || 1), most = all.to;
    const length = Math.min(Math.max(to - from, least), most);
    const begin = Math.min(Math.max((from + to - length) / 2, 0), most - length);
    view.from = begin;
    view.to = begin + length;
    draw();
  }
  const zoom = (factor, time = (view.from + view.to) / 2) =>
      show(time - (time - view.from) * factor, time + (view.to - time) * factor);
  const move = share => {
    const by = Math.min(Math.max(share * (view.to - view.from), -view.from), all.to - view.to);
    show(view.from + by, view.to + by);
  };

  canvas.addEventListener('wheel', event => {
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.0015), timeAt(event.offsetX));
  }, {passive: false});
  let dragged = null;
  canvas.addEventListener('pointerdown', event => {
    dragged = event.offsetX;
    canvas.classList.add('dragging');
  });
  addEventListener('pointerup', () => { dragged = null; canvas.classList.remove('dragging'); });
  canvas.addEventListener('pointermove', event => {
    if (dragged !== null) {
      move((dragged - event.offsetX) / (width - LEFT));
      dragged = event.offsetX;
    }
    hover(event);
  });
  canvas.addEventListener('pointerleave', () => { find('tip').style.display = 'none'; });
  keys.addEventListener('keydown', event => {
    const does = {'+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), '0': () => show(all.from, all.to),
                  ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25)}[event.key];
    if (does && !event.ctrlKey && !event.metaKey && event.target.tagName !== 'SELECT') {
      event.preventDefault();
      does();
    }
  });

  function itemAt(px, py) {
    const row = rows.find(each => each.visible && py >= each.y && py < each.y + each.height);
    if (!row || px < LEFT) return null;
    const time = timeAt(px), near = 2 * (view.to - view.from) / (width - LEFT);
    const index = firstVisible(row.items);
    let best = null;
    for (let k = index; k < row.items.length && row.items[k].start <= time + near; ++k) {
      const item = row.items[k];
      if (item.start <= time && time < item.end) return {row, item};
      if (item.end >= time - near) best = {row, item};
    }
    return best;
  }

  function explain({row, item}) {
    const name = instructionOf(item)[0], step = data.steps[item.s][0];
    const times = `${ms(item.start)} to ${ms(item.end)} (${ms(item.end - item.start)})`;
    if (item.type === 'idle') {
      const who = item.peer < 0 ? '' : ` ${item.peer}`;
      return `idle before ${name}, ${data.ranks[item.r].name}, step ${step}\n${times}\n` +
          `${data.causes[item.cause][0]}${who}: ${data.causes[item.cause][1]}`;
    }
    const what = item.type === 'predicted' ? 'predicted' : item.type === 'prologue' ? 'before it, to fill the pipeline' : row.kind === 'lane' ? row.name : 'measured';
    return `${name} on ${data.ranks[item.r].name}, step ${step}, ${what}\n${times}`;
  }

  function hover(event) {
    const found = itemAt(event.offsetX, event.offsetY), tip = find('tip');
    tip.style.display = found ? 'block' : 'none';
    if (!found) return;
    tip.textContent = explain(found);
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
    tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + 'px';
  }

  // ---- controls
  const option = (value, text) => Object.assign(document.createElement('option'), {value, textContent: text});
  const swatch = (fill, text, css = '') => {
    const span = document.createElement('span'), box = document.createElement('i');
    box.style.background = fill;
    box.className = css;
    span.append(box, text);
    return span;
  };

  function fillControls() {
    readInk();
    find('step').replaceChildren(option('', 'all'), ...data.steps.map(([step], s) => option(s, step)));
    const used = new Set(data.programs.flatMap(program => program.body.map(([, kind]) => kind)));
    const idleUsed = new Set(data.ranks.flatMap(rank => rank.idle.filter((_, k) => k % 6 === 2)));
    find('legend').replaceChildren(
        ...Object.keys(TIMELINE_KINDS).filter(kind => used.has(kind) || (used.has('O') && 'FB'.includes(kind)))
            .map(kind => swatch(colour(kind, 0, 1), TIMELINE_KINDS[kind][0])),
        ...data.causes.map((cause, n) => n && idleUsed.has(n) ? swatch(ink.causes[n], `idle, ${cause[0]}: ${cause[1]}`, 'idle') : '')
            .filter(Boolean));
  }

  find('in').addEventListener('click', () => zoom(0.5));
  find('out').addEventListener('click', () => zoom(2));
  find('fit').addEventListener('click', () => show(all.from, all.to));
  for (const id of ['predicted', 'messages', 'lanes']) find(id).addEventListener('change', draw);
  find('step').addEventListener('change', event => {
    const step = data.steps[event.target.value];
    if (step) show(step[1], step[2]); else show(all.from, all.to);
  });
  addEventListener('resize', draw);

  // Draws other data. With `keep` a view that was zoomed stays where it is in the step.
  function load(given, keep = false) {
    const zoomed = keep && data && (view.from !== all.from || view.to !== all.to);
    const from = view.from - all.from, length = view.to - view.from;
    data = given;
    perMs = 1e6 / data.unit_ns;
    end = data.steps[data.steps.length - 1][2];
    // Before the first step some receives of its messages wait already: there to see, not to begin with.
    Object.assign(all, {from: data.steps[0][1], to: Math.max(end, 1)});
    slices = data.ranks.map(slicesOf);
    rows = makeRows();
    flat = rows.filter(row => row.kind === 'compute');
    Object.assign(view, all);
    fillControls();
    if (zoomed) show(all.from + from, all.from + from + length); else draw();
  }

  if (given) load(given);
  return {canvas, pen, view, x, timeAt, load, draw, colour, swatch,
          get data() { return data; }, get rows() { return rows; }, get perMs() { return perMs; }, get end() { return end; }};
}
