// One lane per table: its rows by tier over the steps of a run. Texts from data are set as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';
const NAME = 150, RIGHT = 14, AREA = 44, MOVES = 20, GAP = 14, TOP = 6, AXIS = 24;

/** Lines in a lane: keys of a table that are also classes, and their names. */
export const LINES = [['saturated', 'saturated: updates move them by less than 5% of their length'],
  ['live_keys', 'keys with a row']];

export function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** The height in a lane for a number of rows: relative to the table with a square root, so 1% and 100% are both
 * visible, or linear and relative to the maximum in the lane. */
export function scaleOf(table, kind) {
  const most = Math.max(1, ...table.resident, ...LINES.flatMap(([key]) => table[key]));
  const whole = table.rows || most;
  if (kind === 'own') return {height: rows => AREA * Math.min(rows / most, 1), marks: [[most, count(most)]]};
  const marks = [0.01, 0.1, 0.3, 1].map(share => [share * whole, `${share * 100}%`]);
  return {height: rows => AREA * Math.sqrt(Math.min(rows / whole, 1)), marks};
}

export function count(number) {
  return number === null ? 'unknown' : number.toLocaleString('en', {maximumFractionDigits: number < 10 ? 1 : 0});
}

/** Draw the lanes of these tables into an SVG of the given width; showTip(table or null, place, event) is called as the pointer moves. */
export function draw(svg, run, tables, width, kind, showTip) {
  svg.replaceChildren();
  const height = TOP + tables.length * (AREA + MOVES + GAP) + AXIS;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;  // in CSS too, or many lanes are squeezed into one screen
  const steps = run.steps, last = steps.length - 1;
  const first = steps[0], span = Math.max(steps[last] - first, 1), room = width - NAME - RIGHT;
  const x = place => NAME + room * (last ? (steps[place] - first) / span : 0.5);
  tables.forEach((table, number) => lane(svg, run, table, TOP + number * (AREA + MOVES + GAP), x, kind, width));
  axis(svg, steps, x, height - AXIS + 12);
  const cursor = element('line', {class: 'cursor', y1: 0, y2: height - AXIS, visibility: 'hidden'});
  svg.append(cursor);
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * width / box.width, down = (event.clientY - box.top) * height / box.height;
    const number = Math.floor((down - TOP) / (AREA + MOVES + GAP));
    if (at < NAME - 8 || !tables[number]) return svg.onpointerleave(event);
    let place = 0;
    for (let other = 1; other <= last; other++) if (Math.abs(x(other) - at) < Math.abs(x(place) - at)) place = other;
    for (const end of ['x1', 'x2']) cursor.setAttribute(end, x(place));
    cursor.setAttribute('visibility', 'visible');
    showTip(tables[number], place, event);
  };
  svg.onpointerleave = event => {
    cursor.setAttribute('visibility', 'hidden');
    showTip(null, 0, event);
  };
}

function lane(svg, run, table, top, x, kind, width) {
  const group = element('g', {class: 'lane'}), floor = top + AREA, {height, marks} = scaleOf(table, kind);
  const name = table.name.length > 18 ? `${table.name.slice(0, 17)}…` : table.name;
  group.append(element('text', {x: 0, y: top + 14, class: 'name'}, name));
  group.append(element('text', {x: 0, y: top + 30, class: 'soft'}, `${count(table.rows)} rows`));
  const box = {x: NAME, y: top, width: width - NAME - RIGHT, height: AREA};
  group.append(element('rect', {...box, class: run.host === 'file' ? 'file' : 'host'}));
  group.append(element('path', {d: area(table.resident.map(height), x, floor), class: 'device'}));
  for (const [rows, text] of marks) {
    const y = floor - height(rows);
    group.append(element('line', {x1: NAME, x2: width - RIGHT, y1: y, y2: y, class: 'mark'}));
    group.append(element('text', {x: NAME - 6, y: Math.max(y + 3, top + 8), class: 'tick'}, text));
  }
  for (const [key] of LINES) {
    if (!table[key].some(rows => rows > 0)) continue;
    const d = line(table[key].map(height), x, floor);
    for (const name of ['halo', `line ${key}`]) group.append(element('path', {d, class: name}));
  }
  moves(group, table, x, floor + MOVES / 2 + 2);
  svg.append(group);
}

/** Rows admitted (up) and evicted (down) per step, relative to the maximum in this lane. */
function moves(group, table, x, middle) {
  const most = Math.max(...table.admitted, ...table.evicted), half = MOVES / 2 - 1;
  group.append(element('line', {x1: NAME, x2: x(table.admitted.length - 1), y1: middle, y2: middle, class: 'mark'}));
  if (!(most > 0)) return;
  const to = (values, sign) => area(values.map(value => sign * half * value / most), x, middle);
  group.append(element('path', {d: to(table.admitted, 1), class: 'in'}));
  group.append(element('path', {d: to(table.evicted, -1), class: 'out'}));
  group.append(element('text', {x: NAME - 6, y: middle + 3, class: 'tick'}, `±${count(most)}/step`));
}

function points(heights, x, floor) {
  const all = heights.map((height, place) => `${x(place).toFixed(1)},${(floor - height).toFixed(1)}`);
  if (all.length > 1) return all;
  return [-3, 3].map(by => `${(x(0) + by).toFixed(1)},${(floor - heights[0]).toFixed(1)}`);  // one interval: a short bar
}

function line(heights, x, floor) {
  return `M${points(heights, x, floor).join('L')}`;
}

function area(heights, x, floor) {
  const all = points(heights, x, floor);
  return `M${all[0].split(',')[0]},${floor}L${all.join('L')}L${all[all.length - 1].split(',')[0]},${floor}Z`;
}

function axis(svg, steps, x, y) {
  const wanted = [0, 1, 2, 3, 4].map(part => Math.round(part * (steps.length - 1) / 4));
  for (const place of new Set(wanted)) {
    const anchor = steps.length === 1 ? 'middle' : place === 0 ? 'start' : place === steps.length - 1 ? 'end' : 'middle';
    svg.append(element('text', {x: x(place), y, class: 'soft', 'text-anchor': anchor}, `step ${count(steps[place])}`));
  }
}
