// SPDX-License-Identifier: Apache-2.0
// Looks for what keeps people from using a page: names that are missing, text that does not stand out, headings that
// skip a level, ids that are there twice. The value of this script is a list of sentences, empty if all is well.
(() => {
  const found = [];
  const complain = (node, what) => found.push(`${what}: ${node.outerHTML.slice(0, 120)}`);
  const isSeen = node => node.getClientRects().length > 0 && getComputedStyle(node).visibility === 'visible';
  const nameOf = node => (node.getAttribute('aria-label') || node.getAttribute('title') || node.textContent || '').trim() ||
      [...(node.labels || [])].map(label => label.textContent.trim()).join(' ');

  for (const node of document.querySelectorAll('a[href], button, input, select, iframe, summary, [role=img], [role=region], nav, canvas')) {
    if (isSeen(node) && !nameOf(node) && !(node.labels && node.labels.length)) complain(node, 'no name');
  }
  for (const node of document.querySelectorAll('input, select')) {
    if (isSeen(node) && !(node.labels && node.labels.length) && !node.getAttribute('aria-label')) complain(node, 'no label');
  }
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
