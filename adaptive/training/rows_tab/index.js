// The tab "Rows". TensorBoard imports this module into an iframe and calls render(). No build step, no network.

import {LINES, count, draw} from './lanes.js';

const EVERY_MS = 30000, FEW = 10;  // tables to show at first, the largest
const STYLE = `
:root{color-scheme:light;--paper:#fff;--ink:#1b1f24;--soft:#59636e;--line:#c9d0d8;--device:#0072b2;--host:#e3e7ec;
--file:#f1e4cf;--in:#00805e;--out:#c2410c;--saturated:#b00020;--live_keys:#2456a6}
:root.dark{color-scheme:dark;--paper:#303030;--ink:#f0f0f0;--soft:#b4bcc6;--line:#59616b;--device:#56b4e9;--host:#42474e;
--file:#574a35;--in:#22c79b;--out:#ff9145;--saturated:#ff8a8a;--live_keys:#8ab4ff}
body{margin:0;padding:14px 20px;background:var(--paper);color:var(--ink);font:14px/1.45 Roboto,system-ui,sans-serif}
header{display:flex;flex-wrap:wrap;gap:8px 22px;align-items:baseline}
select{font:inherit;max-width:60vw;color:inherit;background:var(--paper)}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;padding:0;margin:10px 0;color:var(--soft)}
li span{display:inline-block;width:14px;height:10px;margin-right:6px;border-radius:2px}
.chart{max-width:1500px}
svg{display:block;width:100%}
text{fill:var(--ink);font-size:12px}
.soft,.tick{fill:var(--soft);font-size:11px}
.tick{text-anchor:end;font-size:9px}
.name{font-weight:600}
.host{fill:var(--host)} .file{fill:var(--file)} .device{fill:var(--device)}
.in{fill:var(--in)} .out{fill:var(--out)}
.line,.halo{fill:none;stroke-width:2.6;stroke-linejoin:round}
.saturated{stroke:var(--saturated)} .live_keys{stroke:var(--live_keys)}
.halo{stroke:var(--paper);stroke-width:4.6;stroke-opacity:.85}
.mark{stroke:var(--line);stroke-width:.6} .cursor{stroke:var(--ink);stroke-dasharray:3 3}
#tip{position:fixed;pointer-events:none;background:var(--paper);border:1px solid var(--line);border-radius:4px;
padding:8px 12px;box-shadow:0 2px 8px #0005;white-space:pre-wrap;width:max-content;max-width:calc(100% - 36px);font-variant-numeric:tabular-nums;display:none;z-index:2}
#note{color:var(--soft)}`;

let shown = null;  // the run's rows

export async function render() {
  build();
  theme();
  await runs();
  setInterval(() => { if (!document.hidden) runs(); }, EVERY_MS);
  addEventListener('resize', paint);
}

function make(name, properties = {}, ...inner) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...inner);
  return element;
}

function build() {
  const run = make('select', {id: 'run', onchange: rows, ariaLabel: 'run'});
  const kinds = [['share', 'relative to the table (square root)'], ['own', 'relative to the maximum']];
  const kind = make('select', {id: 'kind', onchange: paint}, ...kinds.map(([value, text]) => new Option(text, value)));
  const legend = [['device', 'on the device'], ['host', 'in host memory'], ['file', 'in files'], ['in', 'admitted per step'],
    ['out', 'evicted per step'], ...LINES];
  const entries = legend.map(([name, text]) => {
    const colour = make('span');
    colour.style.background = `var(--${name})`;
    const entry = make('li', {id: `legend-${name}`}, colour, text);
    return entry;
  });
  document.head.append(make('style', {textContent: STYLE}));
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.id = 'lanes';
  document.body.append(
    make('header', {}, make('label', {}, 'run ', run), make('label', {}, 'height ', kind),
      make('label', {id: 'more'}, make('input', {id: 'all', type: 'checkbox', onchange: paint}), ' all tables'), make('span', {id: 'note'})),
    make('ul', {}, ...entries), make('div', {className: 'chart'}, svg), make('div', {id: 'tip'}));
}

/** Follow TensorBoard's dark mode if this frame can read it, else the browser's. */
function theme() {
  let dark = matchMedia('(prefers-color-scheme: dark)').matches;
  try {
    const outside = window.parent === window ? null : window.parent.document.body;
    if (outside) {
      const follow = () => document.documentElement.classList.toggle('dark', outside.classList.contains('dark-mode'));
      new MutationObserver(follow).observe(outside, {attributes: true, attributeFilter: ['class']});
      dark = outside.classList.contains('dark-mode');
    }
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;  // another origin: use the browser's choice
  }
  document.documentElement.classList.toggle('dark', dark);
}

async function fetched(route) {
  const answer = await fetch(route);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error || `${route}: ${answer.status}`);
  return content;
}

async function runs() {
  const select = document.getElementById('run');
  try {
    const {runs: names, shown: texts, newest} = await fetched('./runs'), before = select.value;
    if (names.join('\n') !== [...select.options].map(option => option.value).join('\n')) {
      select.replaceChildren(...names.map((name, place) => new Option(texts[place], name)));
      select.value = names.includes(before) ? before : newest;
    }
    await rows();
  } catch (error) {
    note(error.message);
  }
}

async function rows() {
  const name = document.getElementById('run').value;
  if (!name) return note('no metrics.jsonl below the log directory');
  try {
    shown = await fetched(`./rows?run=${encodeURIComponent(name)}`);
    // all tables together first, then by size: small tables are completely on the device
    shown.tables.sort((a, b) => !!b.is_whole - !!a.is_whole || (b.rows ?? 0) - (a.rows ?? 0));
    paint();
  } catch (error) {
    shown = null;
    document.getElementById('lanes').replaceChildren();
    note(error.message);
  }
}

function note(text) {
  document.getElementById('note').textContent = text;
}

function paint() {
  if (!shown) return;
  if (!shown.steps.length) return note(`${shown.policy}: no logging interval yet`);
  const svg = document.getElementById('lanes'), last = shown.steps.length - 1;
  const whole = shown.tables[0].resident[last];  // of all tables together, or of the only table
  const room = shown.device_rows[last];
  note(`policy ${shown.policy}: ${count(whole)} rows on the device${room === null ? '' : `, room for ${count(room)}`}`);
  document.getElementById('legend-file').hidden = shown.host !== 'file';
  document.getElementById('legend-host').hidden = shown.host === 'file';
  for (const [key] of LINES) {
    document.getElementById(`legend-${key}`).hidden = !shown.tables.some(table => table[key].some(rows => rows > 0));
  }
  const single = shown.tables.filter(table => !table.is_whole).length, all = document.getElementById('all').checked;
  document.getElementById('more').hidden = single <= FEW;
  const tables = all ? shown.tables : shown.tables.slice(0, FEW + shown.tables.length - single);
  draw(svg, shown, tables, Math.max(svg.parentElement.clientWidth, 420), document.getElementById('kind').value, showTip);
}

function showTip(table, place, event) {
  const tip = document.getElementById('tip');
  tip.style.display = table ? 'block' : 'none';
  if (!table) return;
  const resident = table.resident[place], share = table.rows ? ` (${(100 * resident / table.rows).toFixed(1)}%)` : '';
  const elsewhere = table.rows === null ? 'unknown' : count(table.rows - resident);
  const from = place ? shown.steps[place - 1] : 0;
  tip.textContent = [
    `${table.name}, step ${count(shown.steps[place])}`,
    `on the device    ${count(resident)}${share}`,
    `in ${shown.host === 'file' ? 'files' : 'host memory'}    ${elsewhere}`,
    `admitted per step    ${count(table.admitted[place])}    since step ${count(from)}`,
    `evicted per step    ${count(table.evicted[place])}`,
    ...(table.hot[place]
      ? [`popular    ${count(table.hot[place])}`, `saturated    ${count(table.saturated[place])}`] : []),
    ...(table.live_keys[place] ? ['live_keys', 'admitted_keys', 'expired_keys', 'evicted_keys'] : []).map(
      key => `${key.replace('_', ' ')}${key === 'live_keys' ? '' : ' per step'}    ${count(table[key][place])}` +
        (key === 'live_keys' && table.rows ? ` (${(100 * table[key][place] / table.rows).toFixed(1)}%)` : '')),
    ...(table.live_keys[place] ? [`lookups without a row    ${(100 * table.unadmitted[place]).toFixed(1)}%`] : []),
  ].join('\n');
  tip.style.left = '0';  // so the box is as wide as its text, if the page is
  const box = tip.getBoundingClientRect(), page = document.documentElement;
  tip.style.left = `${Math.max(Math.min(event.clientX + 14, page.clientWidth - box.width - 8), 0)}px`;
  tip.style.top = `${Math.max(Math.min(event.clientY + 14, page.clientHeight - box.height - 8), 0)}px`;
}
