// Which point is shown, and what follows from that: the picker drives every picture; tables sort and filter.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { point: data.spoken ? data.spoken[0] ?? 0 : 0, drawn: null };
const at = (id) => document.getElementById(id);

function settingsOf(index) { return data.points[index].at; }

function pointAt(places) {
  return data.points.findIndex((point) => point.at.every((value, axis) => value === places[axis]));
}

function picker() {
  const selects = data.axes.map((axis, number) => {
    const select = make("select", { id: `axis${number}`, onchange: () => {
      const places = data.axes.map((_, i) => Number(at(`axis${i}`).value));
      pick(pointAt(places));
    } }, ...axis.values.map((value, i) => make("option", { value: i, text: value })));
    return make("label", {}, `${axis.name} `, select);
  });
  const turn = (by) => pick((state.point + by + data.points.length) % data.points.length);
  at("picker").replaceChildren(...selects,
    ...(data.points.length > 1 ? [make("button", { class: "plain", text: "Previous point", onclick: () => turn(-1) }),
      make("button", { class: "plain", text: "Next point", onclick: () => turn(1) })] : []));
}

function pick(index) {
  if (index < 0 || index >= data.points.length) return;
  state.point = index;
  settingsOf(index).forEach((value, axis) => { at(`axis${axis}`).value = value; });
  for (const row of document.querySelectorAll("#all tbody tr")) row.classList.toggle("spoken", Number(row.dataset.index) === index);
  for (const cell of document.querySelectorAll("td[data-point]")) cell.classList.toggle("spoken", Number(cell.dataset.point) === index);
  const point = data.points[index];
  at("shown").textContent = point.title;
  at("because").textContent = unbroken(point.error || point.because || "");
  at("trace").replaceChildren(...(point.files && point.files.length ? ["Files of this point: "] : []), ...(point.files || []).flatMap(([name, path]) => [make("a", { href: path, text: name }), " "]));
  overview();
  breakdown();
  losses();
  show(index);
  address();
}

// The address names the view, so that a link shows it again: the point, the window [s], the filter and the order of the
// table (a minus for falling values), and the panels that are open.
// #point=3&window=0.1,0.2&filter=step<30+ms&sort=-step&open=links,groups
function address() {
  const { view, played } = state;
  const zoomed = view && state.drawn === state.point && (view.from > 0 || view.to < view.end);
  const parts = new URLSearchParams({ point: state.point });
  // A window that was asked for stays in the address until the point is drawn.
  if (state.asked) parts.set("window", state.asked.join(","));
  else if (zoomed) parts.set("window", [view.from, view.to].map((t) => Number((t * played.unit_s).toPrecision(6))).join(","));
  if (at("filter").value) parts.set("filter", at("filter").value);
  const sorted = document.querySelector("#all th:is([aria-sort=ascending], [aria-sort=descending])");
  if (sorted) parts.set("sort", `${sorted.getAttribute("aria-sort") === "descending" ? "-" : ""}${sorted.textContent}`);
  const open = panels().filter((one) => one.open).map((one) => one.id.replace("panel", ""));
  if (open.join() !== state.opened) parts.set("open", open.join());
  // Commas need no escape, and are read more easily without.
  const hash = `#${parts.toString().replaceAll("%2C", ",")}`;
  // A page inside another page, or a file in some browsers, may not change its address.
  try { history.replaceState(null, "", hash); } catch { /* the page works without */ }
}

// Panels that the reader opens and closes.
const panels = () => [...document.querySelectorAll("details[id]")];

function asked(hash) {
  const parts = new URLSearchParams(hash.slice(1));
  const point = Number(parts.get("point") ?? NaN);
  const window = (parts.get("window") || "").split(",").map(Number);
  return { point: Number.isInteger(point) && point >= 0 && point < data.points.length ? point : null,
    window: window.length === 2 && window[1] > window[0] ? window : null,
    filter: parts.get("filter") || "", sort: parts.get("sort") || "", open: parts.get("open") ?? state.opened };
}

// The table and the panels as an address asks for them.
function restore({ filter, sort, open }) {
  at("filter").value = filter;
  filterRows();
  const name = sort.replace(/^-/, "");
  const heads = [...document.querySelectorAll("#all thead th")];
  sortRows(at("all"), heads.findIndex((head) => head.textContent === name), sort !== name);
  for (const one of panels()) one.open = open.split(",").includes(one.id.replace("panel", ""));
}

function windowText() {
  const { view, played } = state;
  const [from, to, end] = [view.from, view.to, view.end].map((t) => write(t * played.unit_s, "s"));
  at("window").textContent = view.from <= 0 && view.to >= view.end ? `Shown: the whole run (${end}).` : `Shown: ${from} to ${to} of ${end}.`;
}

async function show(index) {
  const packed = data.views[index];
  at("views").classList.toggle("hidden", !packed);
  at("noview").textContent = packed ? "" : data.points[index].noview;
  if (!packed) { state.drawn = index; return; }
  const played = await unpack(packed);
  if (state.point !== index) return;
  const view = new TimeWindow(played.end || 1);
  state.view = view;
  state.played = played;
  state.timeline = played.lanes.lanes.length ? new Timeline(at("timeline"), played, view) : null;
  at("timelinepanel").classList.toggle("hidden", !state.timeline);
  at("colourpanel").classList.toggle("hidden", !played.lanes.lanes.some((lane) => (lane.kernels || []).length));
  if (state.timeline) state.timeline.colourBy(at("colourby").value === "kernel kind");
  listExposed(at("exposedpanel"), at("exposed"), state.timeline);
  at("memorypanel").classList.toggle("hidden", !played.memory);
  if (played.memory) { state.memory = new Memory(at("memory"), played, view, data.mostMemory); new Holders(at("holders"), state.memory, view); }
  at("memoryscale").classList.toggle("hidden", data.points.length < 2);
  if (played.memory) state.memory.scaleToOwn(at("memoryown").checked);
  at("pipelinepanel").classList.toggle("hidden", !played.pipeline);
  if (played.pipeline) state.pipeline = new Timeline(at("pipeline"), { ...played, lanes: played.pipeline }, view);
  groups(data.points[index].groups || []);
  at("linkspanel").classList.toggle("hidden", !data.points[index].links && !played.links.rows.length);
  const off = played.links.off_links;
  at("nolinks").textContent = data.points[index].links || (off ? `${off[0].toUpperCase()}${off.slice(1)}; replaced collectives use no link here. To see the links of all collectives, run again with --set training.collectives=played.` : "");
  at("links").replaceChildren();
  if (played.links.rows.length) state.links = new Links(at("links"), played, view);
  const drawn = data.topologies[data.points[index].topology];
  at("topology").replaceChildren();
  if (drawn && played.links.rows.length) {
    const uses = new Map(Object.entries(played.links.more || {}));
    for (const row of played.links.rows) for (const name of row.names) uses.set(name, row.used ?? 0);
    topology(at("topology"), drawn, uses, played.links.complete !== false);
  }
  at("notes").textContent = played.notes.join("; ");
  at("search").value = "";
  // The window is wide before anybody follows, so that all draw once more where scrollbars have come or gone.
  view.followers.add(windowText);
  requestAnimationFrame(() => {
    const wanted = state.asked;
    state.asked = null;
    view.tell();
    state.drawn = index;
    if (wanted) view.set(wanted[0] / played.unit_s, wanted[1] / played.unit_s);
    address();
    let waiting = null;
    view.followers.add(() => { clearTimeout(waiting); waiting = setTimeout(address, 200); });
  });
}

function groups(rows) {
  at("groupspanel").classList.toggle("hidden", !rows.length);
  at("groups").replaceChildren(make("table", {}, make("tbody", {}, ...rows.map(([kind, text]) => make("tr", {},
    make("td", { text: kind }), make("td", { class: "text", text }))))));
}

// Points that differ from the one that is shown along one axis alone, a line for each compared setting.
function overview() {
  const place = at("overview");
  const axis = data.overview.axis;
  if (axis === null) return;
  const own = settingsOf(state.point);
  const lines = new Map();
  data.points.forEach((point, index) => {
    const same = point.at.every((value, i) => i === axis || data.axes[i].compared || value === own[i]);
    const y = point.figures[data.overview.key];
    if (!same || y === null || y === undefined) return;
    const name = point.at.filter((_, i) => data.axes[i].compared && i !== axis).map((v, i) => data.axes.filter((a, k) => a.compared && k !== axis)[i].values[v]).join(", ") || data.name;
    if (!lines.has(name)) lines.set(name, []);
    const x = data.axes[axis].numbers[point.at[axis]];
    lines.get(name).push({ x, y, index, text: `${name}\n${data.axes[axis].values[point.at[axis]]}: ${write(y, data.overview.unit)}${point.fits ? "" : "\ndoes not fit"}` });
  });
  const fixed = data.axes.map((a, i) => (i === axis || a.compared ? "" : a.values[own[i]])).filter(Boolean).join(", ");
  const marks = data.crossings.filter((one) => one.axis === axis && Object.entries(one.fixed).every(([i, v]) => own[i] === v)).map((one) => ({ x: one.at, text: one.text }));
  xyChart(place, {
    series: [...lines].map(([name, points], i) => ({ name, points, colour: data.series[name] || data.palette[i % data.palette.length] })),
    marks, onPick: pick, title: `${capital(data.overview.name)} by ${data.axes[axis].name}${fixed ? ` (${fixed})` : ""}`,
    x: { name: data.axes[axis].name, log: true, base: 2, ticks: data.axes[axis].numbers, write: (v) => data.axes[axis].values[data.axes[axis].numbers.indexOf(v)] ?? String(v) },
    y: data.overview.unit === "B" ? { name: "", zero: true, ticks: byteTicks, write: (v) => write(v, "B") }
      : { name: "", log: true, write: (v) => write(v, data.overview.unit) },
  });
}

function breakdown() {
  const own = settingsOf(state.point);
  // Without an axis to draw along, bars stand beside the answer, whose table has speed and memory.
  const beside = data.overview.axis === null;
  const rows = [];
  data.points.forEach((point, index) => {
    if (!point.parts || !point.at.every((value, i) => data.axes[i].compared || !data.axes.some((a) => a.compared) || value === own[i])) return;
    rows.push({ label: point.label, index, total: point.parts.reduce((sum, [, v]) => sum + v, 0), parts: point.parts, note: beside && !point.losses ? (point.fits ? "" : "does not fit") : point.note || "", bad: !point.fits });
  });
  if (!rows.length) { at("breakdownpanel").classList.add("hidden"); return; }
  // Of what is learned the losses stand there.
  const learned = data.points.some((point) => point.losses);
  at("breakdownpanel").classList.toggle("hidden", beside && !learned);
  // Points under other conditions have bars once one of them is selected.
  const fixed = data.axes.map((axis, i) => (axis.compared || !data.axes.some((a) => a.compared) ? "" : axis.values[own[i]])).filter(Boolean);
  const some = rows.length < data.points.length && fixed.length ? `, with ${fixed.join(" and ")} (${rows.length} of ${data.points.length} points)` : "";
  bars(at(beside && !learned ? "overview" : "breakdown"), { rows, title: `${data.parts}${some}`, unit: "s", picked: state.point, onPick: pick });
}

function losses() {
  const runs = data.points.map((point, index) => ({ point, index })).filter(({ point }) => point.losses);
  const beside = data.overview.axis === null;
  at("losspanel").classList.toggle("hidden", !runs.length || beside);
  if (!runs.length) return;
  xyChart(at(beside ? "overview" : "loss"), {
    series: runs.map(({ point, index }, i) => ({ name: point.label, colour: data.palette[i % data.palette.length],
      points: point.losses.map((y, x) => ({ x, y, index, text: `${point.label}\nstep ${x}: loss ${y}` })) })),
    x: { name: "step (from 0)", write: (v) => String(v) }, y: { name: "loss (nats per token)", write: (v) => String(Number(v.toPrecision(4))) },
    title: "Loss per step", onPick: pick,
  });
}

function front() {
  const place = at("front");
  at("frontpanel").classList.toggle("hidden", !data.front.length);
  if (!data.front.length) return;
  const dot = (point, index) => ({ x: point.figures[data.frontKeys[0]], y: point.figures[data.frontKeys[1]], index, label: point.label, text: `${point.label}\n${write(point.figures[data.frontKeys[0]], "s")}, ${write(point.figures[data.frontKeys[1]], "B")}${point.fits ? "" : "\ndoes not fit"}` });
  const fitting = data.points.map(dot).filter((p) => data.points[p.index].fits && p.x);
  const short = data.points.map(dot).filter((p) => !data.points[p.index].fits && p.x);
  xyChart(place, {
    labels: data.points.length <= 16, legend: true,
    // A front of one point is no line.
    series: [{ name: data.front.length > 1 ? "Pareto front" : "fastest, and least memory", colour: "#009e73", points: data.front.map((i) => dot(data.points[i], i)) },
      { name: "fits", colour: "#0072b2", line: false, points: fitting.filter((p) => !data.front.includes(p.index)) },
      { name: "does not fit", colour: "#d55e00", line: false, points: short }].filter((one) => one.points.length),
    x: { name: data.frontTime, log: true, write: (v) => write(v, "s") }, y: { name: "peak memory", zero: true, ticks: byteTicks, write: (v) => write(v, "B") },
    title: `Peak memory vs ${data.frontTime}`, onPick: pick,
  });
}

// A quantity as it is written in a cell or a condition: [value in units without prefix, unit], or null.
function quantity(text) {
  const [, number, unit] = /^[±+]?(-?[\d.,]*\d)\s*(\S*)/.exec(text.trim()) || [];
  if (number === undefined) return null;
  const factors = new Map([...TIMES, ...DECIMAL, ...BINARY, ["%", 0.01]].map(([name, factor]) => [name.toLowerCase(), factor]));
  const factor = factors.get(unit.toLowerCase().replace(/\/s$/, ""));
  return { value: Number(number.replaceAll(",", "")) * (factor ?? 1), unit: factor === undefined ? "" : unit };
}

// Parts between commas must all hold: "world size=8" or "step<30 ms" of that column, "8 GPUs" or "ring" of any setting.
// A number is meant whole, and with the unit that follows it. Returns {keep: row -> boolean, fault: text}.
function rowFilter(text, heads, rows) {
  const words = (own) => own.toLowerCase().replaceAll(",", "").split(/[\s()]+/).filter(Boolean);
  const isNumber = (word) => /^[\d.]+$/.test(word);
  const settings = (row) => [...row.querySelectorAll("td.text")].map((cell) => cell.textContent);
  // Words that follow a number in a cell: "8 GPUs" is one condition, "8 ring" are two.
  const units = new Set(rows.flatMap(settings).flatMap((cell) => words(cell).filter((_, i, all) => i && isNumber(all[i - 1]))));
  const has = (cell, wanted) => wanted.every((word, i) => words(cell).some((own, place, all) => (isNumber(word)
    ? own === word && (!units.has(wanted[i + 1]) || all[place + 1] === wanted[i + 1]) : own.includes(word))));
  const tests = [];
  let fault = "";
  // A comma between a digit and three digits belongs to the number.
  for (const part of text.split(/(?<!\d),|,(?!\d{3}(?!\d))/).filter((one) => one.trim())) {
    const [, name, sign, value] = /^([^<>=]*)([<>]=?|=)(.*)$/.exec(part) || [];
    if (sign === undefined) { tests.push((row) => has(settings(row).join(" "), words(part))); continue; }
    const column = heads.findIndex((head) => head.toLowerCase().trim() === name.toLowerCase().trim());
    const cell = (row) => row.cells[column];
    const limit = quantity(value);
    if (column < 0) fault = `No column is named "${name.trim()}".`;
    else if (sign === "=") tests.push((row) => cell(row) && has(cell(row).textContent, words(value)));
    else if (!limit) fault = `Write a number after "${name.trim()}${sign}".`;
    else if (!limit.unit && limit.value && rows.some((row) => cell(row) && quantity(cell(row).textContent)?.unit)) fault = `Write a unit after "${part.trim()}".`;
    else tests.push((row) => {
      const own = cell(row) && (cell(row).dataset.v ? Number(cell(row).dataset.v) : quantity(cell(row).textContent)?.value);
      return own !== undefined && { "<": own < limit.value, "<=": own <= limit.value, ">": own > limit.value, ">=": own >= limit.value }[sign];
    });
  }
  return { keep: (row) => tests.every((test) => test(row)), fault };
}

// Rows by a column, falling or rising; in the order of the points if no column has this number.
function sortRows(table, column, falling) {
  const rows = [...table.tBodies[0].rows];
  // The error of a failed point spans all figures, and is none of them.
  const own = (cell) => (cell && cell.colSpan === 1 ? cell.dataset.v ?? cell.textContent : "");
  const value = (row) => { const v = own(row.cells[column]); const n = Number(v); return v === "" || Number.isNaN(n) ? v : n; };
  if (column < 0) rows.sort((a, b) => a.dataset.index - b.dataset.index);
  else rows.sort((a, b) => { const [x, y] = [value(a), value(b)]; return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }); });
  if (column >= 0 && falling) rows.reverse();
  table.querySelectorAll("thead th").forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : falling ? "descending" : "ascending"));
  table.tBodies[0].append(...rows);
}

function filterRows() {
  const rows = [...document.querySelectorAll("#all tbody tr")];
  const { keep, fault } = rowFilter(at("filter").value, [...document.querySelectorAll("#all thead th")].map((head) => head.textContent), rows);
  let shown = 0;
  for (const row of rows) {
    const keeps = keep(row);
    row.classList.toggle("hidden", !keeps);
    shown += keeps;
  }
  at("filtered").textContent = `${shown < data.points.length ? `${shown} of ` : ""}${data.points.length} ${data.points.length === 1 ? "point" : "points"}${fault ? `. ${fault}` : ""}`;
}

// `changed` is called when a reader has sorted or filtered a table.
function tables(changed = () => {}) {
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead th").forEach((head, column) => {
      const button = make("button", { text: head.textContent, "aria-label": `sort by ${head.textContent}` });
      head.setAttribute("aria-sort", "none");
      head.replaceChildren(button);
      button.addEventListener("click", () => { sortRows(table, column, head.getAttribute("aria-sort") === "ascending"); changed(); });
    });
  }
  const filter = at("filter");
  if (filter) filter.addEventListener("input", () => { filterRows(); changed(); });
  const copy = at("copy");
  if (copy) copy.addEventListener("click", async () => {
    const cell = (one) => { const text = (one.dataset.v ?? one.textContent).replaceAll("\u00a0", " "); return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
    const rows = [...document.querySelectorAll("#all tr")].filter((row) => !row.classList.contains("hidden"));
    const text = rows.map((row) => [...row.cells].map(cell).join(",")).join("\n");
    try { await navigator.clipboard.writeText(text); copy.textContent = `${rows.length - 1} rows copied`; }
    catch { copy.textContent = "The browser does not allow copying"; }
    setTimeout(() => { copy.textContent = "Copy as CSV"; }, 2000);
  });
  for (const row of document.querySelectorAll("#all tbody tr")) row.addEventListener("click", () => pick(Number(row.dataset.index)));
  for (const cell of document.querySelectorAll("td[data-point]")) {
    cell.classList.add("pick");
    cell.tabIndex = 0;
    const go = () => pick(Number(cell.dataset.point));
    cell.addEventListener("click", go);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  }
}

function start() {
  for (const hidden of document.querySelectorAll(".needsjs")) hidden.classList.remove("hidden");
  picker();
  tables(address);
  front();
  state.opened = panels().filter((one) => one.open).map((one) => one.id.replace("panel", "")).join();
  const wanted = asked(location.hash);
  state.asked = wanted.window;
  restore(wanted);
  // A picture in a closed panel has no width, and is drawn again when the panel opens.
  for (const one of panels()) one.addEventListener("toggle", () => { if (state.view) state.view.tell(); address(); });
  pick(wanted.point ?? state.point);
  // The event's address, because a point that was drawn meanwhile has written its own.
  addEventListener("hashchange", (event) => {
    const other = asked(new URL(event.newURL).hash);
    restore(other);
    if (other.point !== null && other.point !== state.point) { state.asked = other.window; pick(other.point); }
    else if (other.window && state.view) state.view.set(...other.window.map((t) => t / state.played.unit_s));
  });
  at("search").addEventListener("input", (event) => { if (state.timeline) state.timeline.search(event.target.value); });
  at("search").addEventListener("keydown", (event) => { if (event.key === "Enter" && state.timeline && state.timeline.chosen) state.timeline.zoomTo(state.timeline.chosen); });
  at("memoryown").addEventListener("change", (event) => { if (state.memory) state.memory.scaleToOwn(event.target.checked); });
  at("colourby").addEventListener("change", (event) => { if (state.timeline) state.timeline.colourBy(event.target.value === "kernel kind"); });
  at("whole").addEventListener("click", () => state.view && state.view.set(0, state.view.end));
  at("closer").addEventListener("click", () => state.view && state.view.zoom(0.5, (state.view.from + state.view.to) / 2));
  at("wider").addEventListener("click", () => state.view && state.view.zoom(2, (state.view.from + state.view.to) / 2));
  const again = () => { overview(); losses(); front(); if (state.view) state.view.tell(); };
  addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { again(); pick(state.point); });
}
