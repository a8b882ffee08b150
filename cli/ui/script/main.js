// SPDX-License-Identifier: Apache-2.0
// ---- addresses: #/, #/jobs, #/jobs/NAME, #/jobs/NAME/TAB?step=120&first=64, #/schedules?family=zb-v
function routeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, '').split('?');
  const parts = path.split('/').filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  const route = {page: 'cluster', job: '', tab: '', query: Object.fromEntries(new URLSearchParams(query || '')), text: query || ''};
  if (parts[0] === 'schedules') route.page = 'schedules';
  if (parts[0] === 'jobs') route.page = 'jobs';
  if (parts[0] === 'jobs' && parts[1]) Object.assign(route, {page: 'job', job: parts[1], tab: TABS.some(([tab]) => tab === parts[2]) ? parts[2] : ''});
  return route;
}
let route = routeOf(location.hash);

function viewsOf({page, job, tab}) {
  if (page === 'schedules') return [];
  if (page !== 'job') return ['cluster'];
  return ['cluster', 'job:' + job, ...(tab === 'timeline' || tab === 'logs' ? [`${tab}:${job}`] : [])];
}

function schedulesPage() {
  return [el('h1', {}, 'Schedules'),
          el('p', {class: 'quiet'}, 'Every family over a range of sizes and costs, as takt schedule show -f html has it.'),
          el('iframe', {title: 'Explorer of schedules', 'data-keep': true, id: 'explorer', src: '/schedules' + (route.text ? '#' + route.text : '')})];
}

function render() {
  const page = {cluster: clusterPage, jobs: jobsPage, job: jobPage, schedules: schedulesPage}[route.page];
  merge(byId('main'), page(route).flat(Infinity).filter(Boolean));
  const log = byId('log'), tail = byId('tail');
  if (log && tail && tail.checked) log.scrollTop = log.scrollHeight;
  if (route.page === 'job' && route.tab === 'timeline') {
    drawOverview(route);
    updatePicture(route);
  }
}

function go() {
  const before = route;
  route = routeOf(location.hash);
  const name = {cluster: 'Cluster', jobs: 'Jobs', schedules: 'Schedules', job: route.job}[route.page];
  document.title = `${name} \u2013 Takt`;
  for (const link of byId('pages').children) {
    const here = link.dataset.page === (route.page === 'job' ? 'jobs' : route.page);
    if (here) link.setAttribute('aria-current', 'page'); else link.removeAttribute('aria-current');
  }
  const samePage = before.page === route.page && before.job === route.job;
  if (!samePage || before.tab !== route.tab) byId('main').replaceChildren();
  want(viewsOf(route));
  render();
  if (!samePage) {
    byId('main').focus({preventScroll: true});
    scrollTo(0, 0);
  }
}

// ---- keyboard and pointer
addEventListener('keydown', event => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== 'checkbox';
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') {
    if (typing) return event.target.blur();
    location.hash = route.page === 'job' ? (route.tab ? `#/jobs/${encodeURIComponent(route.job)}` : '#/jobs') : '#/';
  }
  if (typing) return;
  if (event.key === '/' && byId('filter')) {
    event.preventDefault();
    byId('filter').focus();
  }
  if ((event.key === '[' || event.key === ']') && route.page === 'job') {
    const at = TABS.findIndex(([tab]) => tab === route.tab) + (event.key === ']' ? 1 : TABS.length - 1);
    const tab = TABS[at % TABS.length][0];
    location.hash = `#/jobs/${encodeURIComponent(route.job)}${tab ? '/' + tab : ''}`;
  }
});
addEventListener('input', event => {
  if (event.target.id !== 'filter') return;
  filters[event.target.dataset.page] = event.target.value;
  renderSoon();
});
addEventListener('click', event => {
  const target = event.target.closest('[data-action="all"], .skip, #overview');
  if (!target) return;
  if (target.matches('.skip')) {
    event.preventDefault();
    byId('main').focus();
  } else if (target.id === 'overview') {
    showRanksAt(target, event.offsetY / target.clientHeight);
  } else {
    shownInFull.add(target.dataset.table);
    render();
  }
});

// A click into the overview shows the ranks that are there.
function showRanksAt(canvas, share) {
  const overview = valueOf('timeline:' + route.job, 'overview');
  if (!overview || overview.ranks.length <= RANKS_OF_PICTURE) return;
  const first = Math.floor(share * overview.ranks.length / RANKS_OF_PICTURE) * RANKS_OF_PICTURE;
  location.hash = `#/jobs/${encodeURIComponent(route.job)}/timeline?` + new URLSearchParams({...route.query, first});
}

addEventListener('pointermove', event => {
  const target = event.target.closest && event.target.closest('[data-tip]'), tip = byId('tip');
  if (!target) {
    if (event.target.id !== 'canvas') tip.style.display = 'none';
    return;
  }
  tip.textContent = target.dataset.tip;
  tip.style.display = 'block';
  tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + 'px';
});

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  if (byId('overview')) byId('overview').overview = null;
  if (picture.drawn && picture.drawn.data) picture.drawn.load(picture.drawn.data);
  renderSoon();
});
addEventListener('hashchange', go);
// The token is in the cookie now: it need not stay in the address, in the history and on screens.
if (location.search) history.replaceState(null, '', location.pathname + location.hash);
go();
