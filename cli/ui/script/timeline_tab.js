// SPDX-License-Identifier: Apache-2.0
// ---- the live timeline of a job: an overview of all ranks, and a picture of some of them (makeTimeline)
const RANKS_OF_PICTURE = 64;
const picture = {drawn: null, shows: '', asked: '', problem: '', busy: false};

function timelineTab(job, route) {
  const overview = valueOf('timeline:' + job.name, 'overview');
  const first = firstRank(route), ranks = overview ? overview.ranks.length : 0;
  const address = from => `#/jobs/${encodeURIComponent(job.name)}/timeline?` + new URLSearchParams({...(route.query.step ? {step: route.query.step} : {}), first: from});
  const pager = ranks <= RANKS_OF_PICTURE ? null : el('p', {class: 'tools'},
      first > 0 ? el('a', {href: address(Math.max(0, first - RANKS_OF_PICTURE)), 'data-key': 'before'}, 'ranks before') : null,
      el('b', {}, `ranks ${first} to ${Math.min(ranks, first + RANKS_OF_PICTURE) - 1} of ${ranks}`),
      first + RANKS_OF_PICTURE < ranks ? el('a', {href: address(first + RANKS_OF_PICTURE), 'data-key': 'after'}, 'ranks after') : null);
  return [problemOf('timeline:' + job.name),
          overview ? overviewSection(overview, job) : section('All ranks', el('p', {class: 'quiet'}, 'No step has been measured yet.')),
          el('section', {'aria-label': 'Timeline', id: 'picture'},
              el('h2', {}, 'Measured over predicted'),
              pager,
              el('p', {class: 'problem', id: 'picture-problem', hidden: !picture.problem}, picture.problem || ''),
              el('div', {'data-keep': true, id: 'picture-tools'},
                  el('div', {class: 'tools'},
                      el('button', {type: 'button', id: 'out', 'aria-label': 'zoom out'}, '\u2212'), el('button', {type: 'button', id: 'in', 'aria-label': 'zoom in'}, '+'),
                      el('button', {type: 'button', id: 'fit'}, 'all'),
                      el('label', {}, 'step', el('select', {id: 'step'})),
                      el('label', {}, el('input', {type: 'checkbox', id: 'predicted', checked: true}), 'predicted'),
                      el('label', {}, el('input', {type: 'checkbox', id: 'messages', checked: true}), 'messages'),
                      el('label', {}, el('input', {type: 'checkbox', id: 'lanes'}), 'all lanes'),
                      el('label', {}, el('input', {type: 'checkbox', id: 'hold'}), 'hold this step'),
                      el('span', {id: 'range'})),
                  el('div', {id: 'legend', class: 'legend'}),
                  el('canvas', {id: 'canvas', tabindex: 0, role: 'img', 'aria-label': 'Timeline of the ranks: what each did when, and why it waited'}),
                  el('p', {class: 'quiet small'}, 'Wheel or + and \u2212: zoom. Drag, or the arrow keys: move. Point at anything to see what it is and why.')))];
}

const firstRank = route => Math.max(0, Math.floor(Number(route.query.first) / RANKS_OF_PICTURE || 0)) * RANKS_OF_PICTURE;

// Of many ranks, how busy they were and what the others waited for, as text.
function overviewSection(overview, job) {
  const seconds = overview.ranks.map(([, , compute]) => compute);
  const mean = seconds.reduce((sum, each) => sum + each, 0) / (seconds.length * overview.seconds || 1);
  const idle = overview.causes.map((cause, n) => [cause, overview.ranks.reduce((sum, rank) => sum + rank[3][n], 0)]);
  const least = seconds.indexOf(Math.min(...seconds));
  const text = `Step ${overview.step}, ${duration(overview.seconds)}: the ranks computed ${percent(mean)} of it` +
      `, the least busy one is ${overview.ranks[least][0]} with ${percent(seconds[least] / overview.seconds)}.`;
  const waits = idle.filter(([, all]) => all > 0).sort((a, b) => b[1] - a[1])
      .map(([cause, all]) => `${cause} ${percent(all / (overview.seconds * seconds.length))}`).join(', ');
  return section('All ranks', el('p', {}, text, waits ? ` Idle by cause: ${waits}.` : ''),
      el('canvas', {id: 'overview', role: 'img', 'data-keep': true, 'data-job': job.name, 'aria-label': 'What every rank did in the step, one row each. ' + text}));
}

// One row of pixels or more for each rank, one column for each part of the step.
function drawOverview(route) {
  const canvas = byId('overview'), overview = valueOf('timeline:' + route.job, 'overview');
  if (!canvas || !overview || canvas.overview === overview) return;
  canvas.overview = overview;
  const ranks = overview.ranks.length, tall = Math.max(1, Math.min(10, Math.floor(160 / ranks)));
  canvas.width = overview.num_bins;
  canvas.height = ranks * tall;
  canvas.style.height = Math.max(ranks * tall, 60) + 'px';
  const pen = canvas.getContext('2d'), style = getComputedStyle(canvas);
  const colours = {};
  for (const [kind, [, rgb]] of Object.entries(TIMELINE_KINDS)) colours[kind] = `rgb(${rgb.join(',')})`;
  TIMELINE_CAUSES.forEach((colour, cause) => { colours[cause] = style.getPropertyValue('--cause-' + cause).trim() || colour; });
  overview.ranks.forEach(([, letters], r) => {
    for (let at = 0; at < letters.length;) {
      let end = at + 1;
      while (end < letters.length && letters[end] === letters[at]) ++end;
      if (colours[letters[at]]) {
        pen.fillStyle = colours[letters[at]];
        pen.fillRect(at, r * tall, end - at, tall);
      }
      at = end;
    }
  });
}

// Reads the picture of the newest step, or of the one that the address names, if it is not there yet.
async function updatePicture(route) {
  const overview = valueOf('timeline:' + route.job, 'overview');
  const held = byId('hold');
  if (!byId('canvas') || picture.busy || (!overview && !route.query.step)) return;
  const step = Number(route.query.step) || 0, first = firstRank(route);
  const place = `${route.job} ${first}`;
  const wanted = `${place} ${step || overview.step}`;
  const isDrawn = picture.drawn && picture.drawn.canvas === byId('canvas');
  if (wanted === picture.asked && (isDrawn || picture.problem)) return;
  if (held && held.checked && picture.shows === place && isDrawn) return;
  picture.busy = true;
  picture.asked = wanted;
  try {
    const answer = await fetch('/api/timeline?' + new URLSearchParams({job: route.job, step, first}));
    if (!answer.ok) throw new Error((await answer.text()).trim());
    showPicture(await answer.json(), place);
    picture.problem = '';
  } catch (error) {
    picture.problem = error.message;
  }
  picture.busy = false;
  renderSoon();
}

function showPicture(data, place) {
  const canvas = byId('canvas');
  if (!canvas) return;
  if (!picture.drawn || picture.drawn.canvas !== canvas) picture.drawn = makeTimeline(null, {find: byId, keys: canvas});
  picture.drawn.load(data, picture.shows === place);
  picture.shows = place;
}
