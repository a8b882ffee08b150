// SPDX-License-Identifier: Apache-2.0
// ---- the pages of the cluster and of all jobs
const ENDED = ['SUCCEEDED', 'FAILED', 'CANCELLED'];
const MOST_ROWS = 100;
const shownInFull = new Set();  // tables whose rows are all shown
const filters = {};             // by page, what the user typed

const problemOf = view => {
  const problem = valueOf(view, 'problem');
  return problem ? el('p', {class: 'problem', role: 'alert'}, problem.text) : null;
};

function filterBox(page, label) {
  return el('label', {}, label, el('input', {id: 'filter', type: 'search', 'data-page': page, autocomplete: 'off', value: filters[page] || ''}));
}
const passes = (page, ...texts) => {
  const wanted = (filters[page] || '').toLowerCase();
  return !wanted || texts.some(text => String(text).toLowerCase().includes(wanted));
};

function limited(id, label, columns, rows, key) {
  const all = shownInFull.has(id) || rows.length <= MOST_ROWS;
  return [table(label, columns, all ? rows : rows.slice(0, MOST_ROWS), key),
          all ? null : el('p', {}, el('button', {type: 'button', 'data-action': 'all', 'data-table': id}, `show all ${rows.length}`))];
}

function jobColumns(ended) {
  return [['job', job => jobLink(job.name)], ['state', job => stateText(job.state)],
          ['step', job => `${job.step} of ${job.steps}`, 'number'],
          ['loss', job => digits(job.loss), 'number'],
          ['tokens/s', job => count(job.tokens_per_second), 'number'],
          ended ? ['ended', job => clockTime(job.end_time)] : ['left', job => job.eta_seconds > 0 ? duration(job.eta_seconds) : NONE, 'number'],
          ['ranks', job => job.ranks || NONE, 'number'],
          ['why', job => [job.reason || '', job.warnings ? el('span', {class: 'warn'}, ` (${plural(job.warnings, 'warning')})`) : null], 'wide']];
}

// One square for each worker, coloured by state; the table has the same as text.
function workerMap(workers) {
  const size = 14, columns = Math.max(8, Math.min(64, Math.ceil(Math.sqrt(workers.length * 4))));
  const rows = Math.ceil(workers.length / columns);
  const squares = workers.map((worker, i) =>
      svg('rect', {x: (i % columns) * size, y: Math.floor(i / columns) * size, width: size - 2, height: size - 2, rx: 2,
                   class: 'fill-' + worker.state, 'data-tip': workerText(worker)}));
  return svg('svg', {class: 'workers', viewBox: `0 0 ${64 * size} ${rows * size}`, role: 'img',
                     'aria-label': `${plural(workers.length, 'worker')}, one square each`}, squares);
}
const workerText = worker => `${worker.name}: ${worker.state}${worker.job ? `, rank ${worker.rank} of ${worker.job}` : ''}`;
function workerNotes(worker) {
  return [worker.drained && 'drained', worker.leaving && 'leaving', worker.quarantined && 'quarantined',
          worker.held && 'holds a job that the coordinator does not know', worker.refuses, worker.blame,
          worker.last_seen && `last seen ${clockTime(worker.last_seen)}`].filter(Boolean).join('; ');
}
const deviceText = worker => worker.device ? `${worker.device.name}, ${bytes(worker.device.memory_bytes)}`
    : `${plural(worker.cores, 'core')}, ${bytes(worker.memory_bytes)}`;

function workerSection(workers) {
  const matching = workers.filter(worker => passes('cluster', worker.name, worker.state, worker.job, worker.host, deviceText(worker)));
  const states = [...new Set(workers.map(worker => worker.state))];
  const columns = [['worker', worker => worker.name], ['state', worker => stateText(worker.state)],
                   ['holds', worker => worker.job ? [jobLink(worker.job), ` rank ${worker.rank}`] : NONE],
                   ['computes on', deviceText], ['host', worker => worker.host], ['notes', workerNotes, 'wide']];
  if (!workers.length) return section('Workers', el('p', {class: 'quiet'}, 'No worker is attached. Start one: takt local up, or takt-worker.'));
  return section('Workers',
      el('div', {class: 'tools'}, filterBox('cluster', 'filter'), el('span', {class: 'quiet small'}, `${matching.length} of ${workers.length}`)),
      workers.length >= 16 ? workerMap(matching) : null,
      workers.length >= 16 ? el('ul', {class: 'legend'}, states.map(state => el('li', {}, swatch(state), state))) : null,
      limited('workers', 'Workers', columns, matching, worker => worker.name));
}

function devicesText(workers) {
  const kinds = new Map();
  for (const worker of workers) {
    const name = worker.device ? worker.device.name : 'CPU workers';
    kinds.set(name, (kinds.get(name) || 0) + 1);
  }
  return [...kinds].map(([name, number]) => `${number} \u00d7 ${name}`).join(', ');
}

function clusterPage() {
  const workers = valueOf('cluster', 'workers'), jobs = valueOf('cluster', 'jobs');
  const title = el('h1', {}, 'Cluster');
  if (!workers || !jobs) return [title, problemOf('cluster') || el('p', {class: 'quiet'}, 'loading')];
  const held = valueOf('cluster', 'held') || [];
  const inState = state => workers.filter(worker => worker.state === state).length;
  const waiting = jobs.filter(job => !ENDED.includes(job.state) && job.state !== 'RUNNING');
  const running = jobs.filter(job => job.state === 'RUNNING');
  const ended = jobs.filter(job => ENDED.includes(job.state)).slice(0, 8);
  const gone = inState('AWAY') + inState('LOST');
  return [title, problemOf('cluster'),
          cards([card('idle workers', inState('IDLE')), card('busy workers', inState('BUSY'), 'busy'),
                 card('away or lost', gone, gone ? 'bad' : ''), card('jobs running', running.length),
                 card('jobs waiting', waiting.length, waiting.length ? 'warn' : '')]),
          workers.length ? el('p', {class: 'quiet'}, devicesText(workers)) : null,
          waiting.length ? section('Waiting, and for what', table('Waiting jobs',
              [['job', job => jobLink(job.name)], ['state', job => stateText(job.state)], ['owner', job => job.owner || NONE],
               ['since', job => clockTime(job.create_time)], ['why', job => job.reason || '', 'wide']], waiting, job => job.name)) : null,
          held.length ? section('Held by workers, not known here', table('Held jobs',
              [['job', job => job.name], ['ranks', job => `${job.ranks_here} of ${job.num_ranks || '?'}`, 'number'],
               ['why it cannot be adopted', job => job.reason || `it can: takt adopt ${job.name}`, 'wide']], held, job => job.name)) : null,
          section('Running', running.length ? table('Running jobs', jobColumns(false), running, job => job.name)
              : el('p', {class: 'quiet'}, 'Nothing runs. Start a job: takt submit JOB.yaml')),
          workerSection(workers),
          ended.length ? section('Ended last', table('Ended jobs', jobColumns(true), ended, job => job.name)) : null];
}

function jobsPage() {
  const jobs = valueOf('cluster', 'jobs');
  const title = el('h1', {}, 'Jobs');
  if (!jobs) return [title, problemOf('cluster') || el('p', {class: 'quiet'}, 'loading')];
  const matching = jobs.filter(job => passes('jobs', job.name, job.state, job.owner, job.reason, job.schedule));
  return [title, problemOf('cluster'),
          el('section', {'aria-label': 'All jobs'},
              el('div', {class: 'tools'}, filterBox('jobs', 'filter'), el('span', {class: 'quiet small'}, `${matching.length} of ${jobs.length}, newest first`)),
              limited('jobs', 'Jobs', [...jobColumns(false).slice(0, 5), ['owner', job => job.owner || NONE],
                                       ['created', job => clockTime(job.create_time)], ...jobColumns(false).slice(6)],
                      matching, job => job.name))];
}
