// SPDX-License-Identifier: Apache-2.0
// Looks for what keeps people from using a page, by the rules that axe-core calls serious or critical and that such a
// page can break: names, labels, roles, references, lists, what the keyboard reaches, and the contrast of text. Headings,
// ids and the width of the page are checked, too. The value of this script is a list of sentences, empty if all is well.
(() => {
  const found = [];
  const complain = (node, what) => found.push(`${what}: ${node.outerHTML.slice(0, 120)}`);
  const isSeen = node => node.getClientRects().length > 0 && getComputedStyle(node).visibility === 'visible';
  const nameOf = node => (node.getAttribute('aria-label') || node.getAttribute('title') || node.textContent || '').trim() ||
      [...(node.labels || [])].map(label => label.textContent.trim()).join(' ');

  for (const node of document.querySelectorAll('a[href], button, input, select, iframe, summary, [role=img], [role=region], nav, canvas, progress')) {
    if (isSeen(node) && !nameOf(node) && !(node.labels && node.labels.length)) complain(node, 'no name');
  }
  for (const node of document.querySelectorAll('input, select')) {
    if (isSeen(node) && !(node.labels && node.labels.length) && !node.getAttribute('aria-label')) complain(node, 'no label');
  }
  const reach = 'a[href], button, input, select, summary, iframe, [tabindex]:not([tabindex="-1"])';
  for (const node of document.querySelectorAll('[aria-hidden=true]')) {
    if (node.matches(reach) || node.querySelector(reach)) complain(node, 'the keyboard reaches what is hidden from readers');
  }
  for (const node of document.querySelectorAll('a[href], button, summary')) {
    if (node.querySelector('a[href], button, input, select')) complain(node, 'a control inside a control');
  }
  for (const node of document.querySelectorAll('main *')) {
    const style = getComputedStyle(node), scrolls = overflow => overflow === 'auto' || overflow === 'scroll';
    const wide = scrolls(style.overflowX) && node.scrollWidth > node.clientWidth + 1;
    const tall = scrolls(style.overflowY) && node.scrollHeight > node.clientHeight + 1;
    if ((wide || tall) && isSeen(node) && !node.matches(reach) && !node.querySelector(reach)) complain(node, 'the keyboard cannot scroll it');
  }
  for (const attribute of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'aria-owns', 'for']) {
    for (const node of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of node.getAttribute(attribute).split(/\s+/)) if (!document.getElementById(id)) complain(node, `${attribute} names nothing`);
    }
  }
  const roles = ['alert', 'img', 'region', 'status', 'tooltip'];  // those that the page has
  for (const node of document.querySelectorAll('[role]')) if (!roles.includes(node.getAttribute('role'))) complain(node, 'an unknown role');
  for (const node of document.querySelectorAll('ul > *, ol > *')) if (!/^(LI|SCRIPT|TEMPLATE)$/.test(node.nodeName)) complain(node, 'no item of its list');
  for (const node of document.querySelectorAll('li')) if (!/^(UL|OL)$/.test(node.parentElement.nodeName)) complain(node, 'an item of no list');
  const viewport = document.querySelector('meta[name=viewport]');
  if (!viewport || /user-scalable\s*=\s*(no|0)|maximum-scale\s*=\s*[01]\b/.test(viewport.content)) found.push('the page cannot be enlarged');
  const ids = [...document.querySelectorAll('[id]')].map(node => node.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) found.push(`id twice: ${id}`);
  for (const node of document.querySelectorAll('[tabindex]')) if (node.tabIndex > 0) complain(node, 'a tabindex above 0');
  for (const node of document.querySelectorAll('th')) if (!node.getAttribute('scope')) complain(node, 'a heading of a table without scope');
  const levels = [...document.querySelectorAll('h1, h2, h3, h4')].filter(isSeen).map(node => Number(node.nodeName[1]));
  if (levels.filter(level => level === 1).length !== 1) found.push(`headings of level 1: ${levels.filter(level => level === 1).length}`);
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) found.push(`heading ${level} after ${levels[i - 1]}`); });
  if (!document.documentElement.lang) found.push('no language');
  if (!document.title) found.push('no title');
  if (document.documentElement.scrollWidth > innerWidth) {
    found.push(`the page is ${document.documentElement.scrollWidth} wide and the window ${innerWidth}`);
  }

  // ---- contrast of text, by WCAG 2.1
  const parse = text => {
    const numbers = (text.match(/[\d.]+/g) || []).map(Number);
    return {rgb: numbers.slice(0, 3), alpha: numbers.length > 3 ? numbers[3] : 1};
  };
  const light = rgb => rgb.map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
      .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const backOf = node => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.alpha > 0.99) return colour.rgb;
    }
    return matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(node) || !isSeen(node) || /^(SCRIPT|STYLE|TITLE|title|NOSCRIPT)$/.test(node.nodeName)) continue;
    seen.add(node);
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const colour = parse(node.namespaceURI.endsWith('svg') ? style.fill : style.color).rgb;
    const [high, low] = [light(colour), light(backOf(node))].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (contrast < least) complain(node, `contrast ${contrast.toFixed(2)} below ${least}`);
  }
  return found;
})()
