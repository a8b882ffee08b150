// SPDX-License-Identifier: Apache-2.0
// ---- the pages of one job
const STEP = {step: 0, loss: 1, norm: 2, rate: 3, tokens: 4, seconds: 5, bubble: 6, validation: 7, bubbles: 8};  // places in a step's values
const TABS = [['', 'Overview'], ['timeline', 'Timeline'], ['ranks', 'Ranks'], ['faults', 'Faults'], ['logs', 'Logs'], ['spec', 'Job file']];
const MOST_POINTS = 400, MOST_FAULTS = 64;

// The points that a curve shows: of many neighbours the lowest and the highest.
function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const size = Math.ceil(points.length / (MOST_POINTS / 2)), kept = [];
  for (let at = 0; at < points.length; at += size) {
    let low = points[at], high = points[at];
    for (const point of points.slice(at, at + size)) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function chart(title, steps, place, format, marks = []) {
  const points = steps.filter(step => isNumber(step[place])).map(step => [step[STEP.step], step[place]]);
  if (!points.length) return section(title, el('p', {class: 'quiet'}, 'no step yet'));
  let low = Math.min(...thinned(points).map(point => point[1]), ...marks.map(mark => mark[1]));
  let high = Math.max(...thinned(points).map(point => point[1]), ...marks.map(mark => mark[1]));
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) {
    low -= Math.abs(low) * 0.05 || 0.5;
    high += Math.abs(high) * 0.05 || 0.5;
  }
  const first = points[0][0], last = points[points.length - 1][0];
  const WIDTH = 400, HEIGHT = 130, LEFT = 58, BOTTOM = 20, TOP = 8;
  const x = step => (LEFT + (WIDTH - LEFT - 6) * (last > first ? (step - first) / (last - first) : 0.5)).toFixed(1);
  const y = value => (TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low))).toFixed(1);
  const newest = points[points.length - 1][1];
  const lines = [0, 0.5, 1].map(share => low + share * (high - low));
  const path = thinned(points).map(([step, value]) => `${x(step)},${y(value)}`).join(' ');
  return section(title,
      el('p', {class: 'small quiet'}, `step ${last}: `, el('b', {}, format(newest)), marks.length ? `, validation ${format(marks[marks.length - 1][1])}` : ''),
      svg('svg', {class: 'chart', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img',
                  'aria-label': `${title} over steps ${first} to ${last}: from ${format(points[0][1])} to ${format(newest)}, ` +
                      `between ${format(low)} and ${format(high)}`},
          lines.map(value => [svg('line', {class: 'grid-line', x1: LEFT, x2: WIDTH - 6, y1: y(value), y2: y(value)}),
                              svg('text', {x: LEFT - 6, y: Number(y(value)) + 4, 'text-anchor': 'end'}, format(value))]),
          svg('text', {x: LEFT, y: HEIGHT - 4}, first), svg('text', {x: WIDTH - 6, y: HEIGHT - 4, 'text-anchor': 'end'}, last),
          svg('polyline', {class: 'line', points: path}),
          marks.map(([step, value]) => svg('circle', {class: 'dot', cx: x(step), cy: y(value), r: 2.6}, svg('title', {}, `validation at step ${step}: ${format(value)}`)))));
}

// ---- where the time went
const PARTS = [['compute', 'the work itself'], ['imbalance', 'stages that take longer than others'], ['schedule', 'the bubble of the schedule'],
               ['communication', 'messages between ranks'], ['data', 'tokens that were not there'], ['sync', 'sums over ranks'],
               ['runtime', 'the engine, and processes that did not run']];

function splitSection(job) {
  const split = valueOf('job:' + job.name, 'split');
  if (!split) return section('Where the time went', el('p', {class: 'quiet'}, 'No step has been explained yet.'));
  const share = name => split[name] / split.step_seconds;
  return section('Where the time went',
      el('p', {class: 'small quiet'}, `step ${split.step}: ${duration(split.step_seconds)}; predicted ${duration(job.predicted_step_seconds)}`),
      bar('The parts of the step, which the table below lists', PARTS.map(([name]) => [name, split[name], `${name}: ${percent(share(name))}`])),
      table('Parts of the step', [['part', ([name]) => [swatch(name), name]], ['time', ([name]) => duration(Math.max(0, split[name])), 'number'],
                                  ['share', ([name]) => percent(share(name)), 'number'], ['what it is', ([, meaning]) => meaning, 'wide']], PARTS, ([name]) => name));
}

const stepsOf = job => valueOf('job:' + job.name, 'steps') || [];
// Seconds that are left, from the pace of the last steps.
function secondsLeft(job, steps) {
  const recent = steps.slice(-20).map(step => step[STEP.seconds]).filter(isNumber);
  if (!recent.length || ENDED.includes(job.state)) return NaN;
  return (job.steps - steps[steps.length - 1][STEP.step]) * recent.reduce((sum, each) => sum + each, 0) / recent.length;
}

function overviewTab(job) {
  const steps = stepsOf(job);
  const marks = steps.filter(step => isNumber(step[STEP.validation])).map(step => [step[STEP.step], step[STEP.validation]]);
  const saved = job.checkpoint;
  return [
    el('div', {class: 'grid'},
        chart('Loss', steps, STEP.loss, value => digits(value), marks), chart('Tokens per second', steps, STEP.tokens, count),
        chart('Step time', steps, STEP.seconds, duration), chart('Bubble', steps, STEP.bubble, percent),
        chart('Gradient norm', steps, STEP.norm, value => digits(value)), chart('Learning rate', steps, STEP.rate, value => digits(value, 3))),
    splitSection(job),
    section('Checkpoints',
        el('p', {}, saved ? `The newest complete one is of step ${saved.step}, from ${clockTime(saved.time)}.`
            : (job.spec.checkpoint && job.spec.checkpoint.directory) ? 'None is complete yet.' : 'This job saves none.'),
        job.spec.checkpoint && job.spec.checkpoint.directory
            ? el('p', {class: 'small quiet'}, `In ${job.spec.checkpoint.directory}, ${
                job.spec.checkpoint.every_steps ? `every ${plural(job.spec.checkpoint.every_steps, 'step')}` : 'at its end'}.`) : null,
        job.resumed_step > 0 ? el('p', {}, `The job went on from step ${job.resumed_step}.`) : null,
        job.memory_step > 0 ? el('p', {}, `This generation went on from copies in memory of step ${job.memory_step}.`) : null,
        job.copy_every_steps > 0 ? el('p', {class: 'small quiet'}, `Copies in memory: every ${plural(job.copy_every_steps, 'step')}.`) : null),
    section('What happened', table('States of the job',
        [['when', change => clockTime(change.time)], ['state', change => stateText(change.state)], ['why', change => change.reason || '', 'wide']],
        [...job.transitions].reverse().slice(0, MOST_ROWS)))];
}

// ---- ranks
const MEMORY = ['weights', 'gradients', 'optimizer', 'stash', 'messages', 'tokens', 'scratch', 'snapshot', 'process', 'copies'];

// The axes of the mesh beside that of the pipeline, from the outermost one to that of neighbouring ranks; none if all
// chains are replicas.
function axesOf(job, chains) {
  const asked = (job.spec || {}).parallelism || {};
  const context = Math.max(1, asked.context || 1), tensor = Math.max(1, asked.tensor || 1);
  if (context * tensor === 1) return [];
  return [{name: 'data', size: Math.max(1, Math.round(chains / (context * tensor)))}, {name: 'context', size: context}, {name: 'tensor', size: tensor}]
      .filter(axis => axis.size > 1);
}

function placeOf(rank, axes) {
  let rest = rank;
  return [...axes].reverse().map(({name, size}) => {
    const place = rest % size;
    rest = Math.floor(rest / size);
    return `${name} ${place}`;
  }).reverse().join(', ');
}

function ranksTab(job) {
  const steps = stepsOf(job), newest = steps[steps.length - 1];
  const workers = new Map((valueOf('cluster', 'workers') || []).map(worker => [worker.name, worker]));
  const ppSize = Math.max(1, job.memory.length, ...job.stages.map(stage => stage.pp_rank + 1));
  const chains = Math.max(1, Math.round(job.ranks.length / ppSize));
  const axes = axesOf(job, chains);
  const nameOf = bound => `${bound.rank}${axes.length ? ` (${placeOf(bound.rank, axes)})` : ''}: ${bound.worker}`;
  const rows = Array.from({length: ppSize}, (_, p) => {
    const ranks = job.ranks.filter(bound => Math.floor(bound.rank / chains) === p);
    const memory = job.memory[p] || {};
    const limits = ranks.map(bound => workers.get(bound.worker)).filter(Boolean)
        .map(worker => worker.device ? worker.device.memory_bytes : worker.memory_bytes).filter(limit => limit > 0);
    return {p, ranks, memory, total: MEMORY.reduce((sum, kind) => sum + (memory[kind] || 0), 0), limit: limits.length ? Math.min(...limits) : NaN,
            stages: job.stages.filter(stage => stage.pp_rank === p), bubble: newest ? newest[STEP.bubbles][p] : NaN};
  });
  const largest = Math.max(1, ...rows.map(row => row.total));
  const columns = [
    ['pp rank', row => row.p, 'number'],
    ['layers', row => row.stages.map(stage => `stage ${stage.stage}: ${stage.first_layer} to ${stage.last_layer - 1}`).join('; ')],
    ['bubble', row => percent(row.bubble), 'number'],
    ['memory (predicted)', row => [bytes(row.total), bar(`Memory of pp rank ${row.p}`, MEMORY.map(kind =>
        [kind, row.memory[kind] || 0, `${kind}: ${bytes(row.memory[kind])}`]), 'bar low', largest)]],
    ['of', row => bytes(row.limit), 'number'],
    ['workers', row => row.ranks.length > 8
        ? el('details', {'data-key': 'workers-' + row.p}, el('summary', {}, plural(row.ranks.length, 'worker')), row.ranks.map(nameOf).join(', '))
        : row.ranks.map(nameOf).join(', ') || NONE, 'wide']];
  const used = MEMORY.filter(kind => rows.some(row => row.memory[kind] > 0));
  return [section('Ranks', el('p', {class: 'small quiet'}, job.ranks.length ? `${plural(job.ranks.length, 'rank')}: ${ppSize} in a pipeline, ${plural(chains, 'chain')}${axes.map(axis => `, ${axis.name} ${axis.size}`).join('')}.` : 'The job holds no workers now.'),
      limited('ranks', 'Ranks', columns, rows, row => row.p)),
    section('Memory by kind', el('p', {class: 'small quiet'}, 'What the plan predicts for each worker. Grafana shows what workers have measured.'),
        table('Memory by kind', [['pp rank', row => row.p, 'number'], ...used.map(kind => [[swatch(kind), kind], row => bytes(row.memory[kind] || 0), 'number'])],
              rows.slice(0, MOST_ROWS), row => row.p))];
}

// ---- faults
function recorder(rank) {
  return el('details', {'data-key': 'recorder-' + rank.rank},
      el('summary', {}, `flight recorder of rank ${rank.rank}`),
      table(`Flight recorder of rank ${rank.rank}`,
            [['instruction', done => done.instruction], ['step', done => done.step, 'number'], ['took', done => duration(done.seconds), 'number'],
             ['ended before the report', done => duration(done.ended_seconds_ago), 'number']], rank.recent));
}

function faultsTab(job) {
  const columns = [['rank', rank => rank.rank, 'number'], ['worker', rank => rank.worker], ['last step', rank => rank.last_step, 'number'],
                   ['did', rank => rank.instruction || NONE], ['for', rank => duration(rank.instruction_seconds), 'number'],
                   ['waited for', rank => rank.waiting_for || 'nothing', 'wide'], ['reported', rank => clockTime(rank.time)]];
  const faults = job.fault;
  return [job.warnings.length ? section('Warnings', el('ul', {}, job.warnings.map(warning => el('li', {}, warning)))) : null,
          faults.length
              ? section('What each rank did at the last fault', limited('faults', 'Ranks at the fault', columns, faults, rank => rank.rank),
                        faults.filter(rank => rank.recent.length).slice(0, MOST_FAULTS).map(recorder))
              : section('Faults', el('p', {class: 'quiet'}, 'No fault is on record.')),
          job.violations.length ? section('Wrong fields', table('Wrong fields',
              [['field', wrong => wrong.field], ['value', wrong => wrong.value], ['rule', wrong => wrong.rule, 'wide'], ['fix', wrong => wrong.fix, 'wide']], job.violations)) : null];
}

// ---- logs
function logsTab(job) {
  const lines = (valueOf('logs:' + job.name, 'lines') || [])
      .filter(line => passes('logs', line.text, line.level, line.worker, 'rank ' + line.rank));
  const shown = lines.slice(-1000);
  return [problemOf('logs:' + job.name),
          section('Logs of all ranks',
              el('div', {class: 'tools'}, filterBox('logs', 'filter'),
                 el('label', {}, el('input', {id: 'tail', type: 'checkbox', checked: true}), 'show the newest'),
                 el('span', {class: 'quiet small'}, lines.length > shown.length ? `the newest ${shown.length} of ${lines.length} lines` : plural(lines.length, 'line'))),
              el('ol', {class: 'log', id: 'log', tabindex: 0, 'aria-label': 'Log lines'}, shown.map(line =>
                  el('li', {class: line.level === 'error' ? 'bad' : line.level === 'warning' ? 'warn' : false},
                     `${new Date(line.unix_nanos / 1e6).toISOString().slice(11, 23)} ${line.worker} rank ${line.rank} step ${line.step} ${line.level} ${line.text}`))))];
}

// ---- all of a job
function jobHead(job) {
  const steps = stepsOf(job), newest = steps[steps.length - 1];
  const done = newest ? newest[STEP.step] : job.last_step ? job.last_step.step : 0;
  const left = secondsLeft(job, steps);
  return [el('h1', {}, job.name, ' ', stateText(job.state)),
          job.reason ? el('p', {class: 'quiet', role: 'status'}, job.reason) : null,
          job.warnings.length ? el('p', {class: 'note'}, `${plural(job.warnings.length, 'warning')}: ${job.warnings[0]}`) : null,
          el('progress', {max: Math.max(1, job.steps), value: done, 'aria-label': `step ${done} of ${job.steps}`}),
          cards([card('step of ' + job.steps, done), card('left', isNumber(left) ? duration(left) : NONE),
                 card('loss', newest ? digits(newest[STEP.loss]) : NONE), card('tokens/s', newest ? count(newest[STEP.tokens]) : NONE),
                 card(`bubble, ${percent(job.predicted_bubble_fraction)} predicted`, newest ? percent(newest[STEP.bubble]) : NONE),
                 card('schedule', job.schedule || NONE), card('generation', job.generation),
                 card('owner', job.owner || NONE)])];
}

function jobTabs(route) {
  return el('nav', {class: 'tabs', 'aria-label': 'Parts of the job'}, TABS.map(([tab, name]) =>
      el('a', {href: `#/jobs/${encodeURIComponent(route.job)}${tab ? '/' + tab : ''}`, 'aria-current': route.tab === tab ? 'page' : false, 'data-key': 'tab-' + tab}, name)));
}

function specTab(job) {
  const short = value => value && typeof value === 'object' && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).map(([name, part]) => [name, short(part)])
          .filter(([, part]) => part !== '' && !(part && typeof part === 'object' && !Object.keys(part).length)))
      : value;
  const head = job.schedule ? el('p', {}, el('a', {href: `#/schedules?family=${encodeURIComponent(job.schedule)}`}, `${job.schedule} in the explorer of schedules`)) : null;
  return [section('The job as the coordinator has it', head, el('pre', {tabindex: 0}, JSON.stringify(short(job.spec), null, 2)))];
}

function jobPage(route) {
  const view = 'job:' + route.job, job = valueOf(view, 'job');
  if (!job) return [el('h1', {}, route.job), problemOf(view) || el('p', {class: 'quiet'}, 'loading')];
  const body = {'': overviewTab, timeline: timelineTab, ranks: ranksTab, faults: faultsTab, logs: logsTab, spec: specTab}[route.tab] || overviewTab;
  return [problemOf(view), jobHead(job), jobTabs(route), body(job, route)].flat();
}
