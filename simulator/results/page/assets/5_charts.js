// How does a number vary over all points: lines, dots and bars as SVG, few enough marks for the browser to hover over.

const nice = (rough) => [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(rough))).find((step) => step >= rough * 0.999);

function evenTicks(low, high, most) {
  const step = nice((high - low) / most || 1);
  const ticks = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) ticks.push(Number(v.toPrecision(12)));
  return ticks;
}

// On a logarithmic axis 1, 2 and 5 of each decade, or decades alone, or even steps where the range is narrow.
function numberTicks(low, high, log) {
  if (!log || high / low < 3) return evenTicks(low, high, 5);
  const ticks = [];
  const first = Math.floor(Math.log10(low));
  for (let d = first; d <= Math.log10(high); d++) for (const n of [1, 2, 5]) ticks.push(n * 10 ** d);
  const inside = ticks.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  if (inside.length < 3) return evenTicks(low, high, 5);
  if (inside.length <= 7) return inside;
  const decades = inside.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
  return decades.filter((_, i) => i % Math.ceil(decades.length / 7) === 0);
}

// Whether a segment [[x, y], [x, y]] passes through a box.
function crosses([[x0, y0], [x1, y1]], box) {
  let [from, to] = [0, 1];
  // The part of the segment between two parallel edges, for both pairs of edges.
  for (const [start, by, low, high] of [[x0, x1 - x0, box.left, box.right], [y0, y1 - y0, box.top, box.bottom]]) {
    if (by === 0) { if (start < low || start > high) return false; continue; }
    const [a, b] = [(low - start) / by, (high - start) / by].sort((one, other) => one - other);
    [from, to] = [Math.max(from, a), Math.min(to, b)];
  }
  return from <= to;
}

// Where names of dots stand: beside, above or below their dots, where no other name, dot or line is. A name without such
// a place is left to the pointer. named: [[x, y, text]]; returns [{x, y, text}] with the left end and the middle.
function placedLabels(named, dots, lines, inside) {
  const taken = [];
  for (const [cx, cy, text] of named) {
    const wide = 6.6 * text.length;
    const columns = { right: cx + 8, left: cx - 8 - wide, middle: cx - wide / 2 };
    const places = [["right", 0], ["left", 0], ["right", -11], ["right", 11], ["left", -11], ["left", 11], ["middle", -15], ["middle", 15]];
    const boxes = places.map(([column, by]) => ({ left: columns[column], right: columns[column] + wide, top: cy + by - 7, bottom: cy + by + 7 }));
    const meets = (one, other) => one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
    const box = boxes.find((own) => own.left >= inside.left && own.right <= inside.right && own.top >= inside.top && own.bottom <= inside.bottom &&
      ![...taken.map((one) => one.box), ...dots].some((other) => meets(own, other)) && !lines.some((line) => crosses(line, own)));
    if (box) taken.push({ box, x: box.left, y: (box.top + box.bottom) / 2, text });
  }
  return taken;
}

// series: [{name, colour, line, points: [{x, y, index, text}]}]; marks: [{x, text}]
function xyChart(place, { series, marks = [], x, y, title, onPick, labels = false, legend = series.length > 1, height = 290 }) {
  const all = series.flatMap((one) => one.points).filter((p) => p.y !== null && p.y !== undefined);
  if (!all.length) { place.replaceChildren(); return; }
  const width = Math.max(300, place.clientWidth || 600);
  const pad = { left: 70, right: 16, top: y.name ? 24 : 10, bottom: 42 };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": title });
  const range = (values, log, zero) => {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (zero) low = 0;
    if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
    return log ? [low / 1.15, high * 1.15] : [low, high + 0.05 * (high - low)];
  };
  const [x0, x1] = range(all.map((p) => p.x), x.log, false);
  const [y0, y1] = range(all.map((p) => p.y), y.log, y.zero);
  const along = (v, low, high, log) => (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
  const px = (v) => pad.left + along(v, x0, x1, x.log) * (width - pad.left - pad.right);
  const py = (v) => height - pad.bottom - along(v, y0, y1, y.log) * (height - pad.top - pad.bottom);
  // Labels that would touch the label before are left out; their grid lines stay.
  let free = -Infinity;
  for (const v of x.ticks || numberTicks(x0, x1, x.log)) {
    svg.append(shape("line", { class: "grid", x1: px(v), x2: px(v), y1: pad.top, y2: height - pad.bottom }));
    // The last label ends with the picture, where its middle would be cut.
    const text = x.write(v);
    const last = px(v) + 4 * text.length > width;
    const begin = last ? width - 7 * text.length : px(v) - 3.5 * text.length;
    if (begin < free) continue;
    free = begin + 7 * text.length + 6;
    svg.append(shape("text", { class: "soft", x: last ? width : px(v), y: height - pad.bottom + 16, "text-anchor": last ? "end" : "middle" }, text));
  }
  for (const v of y.ticks ? y.ticks(y1) : numberTicks(y0, y1, y.log)) {
    svg.append(shape("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: py(v), y2: py(v) }));
    svg.append(shape("text", { class: "soft", x: pad.left - 6, y: py(v) + 4, "text-anchor": "end" }, y.write(v)));
  }
  svg.append(shape("text", { class: "soft", x: (pad.left + width) / 2, y: height - 6, "text-anchor": "middle" }, `${x.name}${x.log ? " (logarithmic)" : ""}`));
  svg.append(shape("text", { class: "soft", x: 4, y: 12 }, `${y.name}${y.name && y.log ? " (logarithmic)" : ""}`));
  for (const mark of marks) {
    svg.append(shape("line", { class: "mark", x1: px(mark.x), x2: px(mark.x), y1: pad.top, y2: height - pad.bottom }));
    const end = px(mark.x) > width - 160;
    svg.append(shape("text", { x: px(mark.x) + (end ? -5 : 5), y: pad.top + 12, "text-anchor": end ? "end" : "start" }, mark.text));
  }
  // Lines that come near each other stay visible: each has dashes of its own. Lines on each other share a name.
  const dashes = ["", "7 4", "2 3", "10 3 2 3"];
  const trace = (one) => one.points.filter((p) => p.y !== null && p.y !== undefined).map((p) => [px(p.x), py(p.y)]);
  const groups = [];
  for (const one of series) {
    const own = trace(one);
    const same = groups.find(([first]) => one.line !== false && first.line !== false && trace(first).length === own.length &&
      trace(first).every(([a, b], i) => Math.abs(a - own[i][0]) < 1 && Math.abs(b - own[i][1]) < 1.5));
    if (same) same.push(one); else groups.push([one]);
  }
  const merged = groups.map(([first, ...others]) => (others.length === 0 ? first : { ...first,
    name: `${[first, ...others].map((one) => one.name).join(", ")} (same line)`,
    points: first.points.map((p, i) => ({ ...p, text: [p, ...others.map((one) => one.points[i])].map((at) => at.text).join("\n") })) }));
  const labelled = [];
  // A point without enough memory cannot be run: its dot is hollow.
  const lacks = (p) => data.points?.[p.index]?.fits === false;
  let hollow = false;
  merged.forEach((one, number) => {
    const known = one.points.filter((p) => p.y !== null && p.y !== undefined);
    if (one.line !== false && known.length > 1) {
      svg.append(shape("path", { d: "M" + known.map((p) => `${px(p.x)},${py(p.y)}`).join("L"), fill: "none", stroke: visible(one.colour), "stroke-width": 2, "stroke-dasharray": dashes[number % 4] }));
    }
    if (one.dots === false) return;
    for (const p of known) {
      const dot = shape("circle", { class: "point", cx: px(p.x), cy: py(p.y), r: 4, fill: visible(one.colour), "data-index": p.index ?? "" });
      if (lacks(p)) {
        hollow = true;
        dot.classList.add("lacks");
        dot.style.stroke = visible(one.colour);
      }
      dot.addEventListener("pointermove", (event) => tip.show(event, p.text));
      dot.addEventListener("pointerleave", () => tip.hide());
      if (onPick && p.index !== undefined) dot.addEventListener("click", () => onPick(p.index));
      svg.append(dot);
      if (labels && p.label) labelled.push([px(p.x), py(p.y), p.label]);
    }
  });
  const lines = merged.filter((one) => one.line !== false).map(trace).flatMap((places) => places.slice(1).map((to, i) => [places[i], to]));
  const inside = { left: pad.left, right: width, top: 8, bottom: height - pad.bottom - 8 };
  const dots = merged.flatMap(trace).map(([x, y]) => ({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 }));
  for (const { x, y, text } of placedLabels(labelled, dots, lines, inside)) svg.append(shape("text", { class: "soft label", x, y: y + 4 }, text));
  const names = make("div", { class: "legend" }, ...merged.map((one) => {
    const swatch = make("i");
    swatch.style.background = visible(one.colour);
    return make("span", {}, swatch, one.name);
  }));
  const note = hollow ? make("p", { class: "note", text: "Hollow dots: the point does not fit in memory." }) : "";
  place.replaceChildren(make("p", { class: "note", text: title }), svg, legend ? names : "", note);
}

// rows: [{label, index, total, note, parts: [[name, value]]}], all on one scale; `unit` of the values.
function bars(place, { rows, title, unit, picked, onPick }) {
  const most = Math.max(...rows.map((row) => row.total));
  const body = rows.map((row) => {
    const bar = make("div", { class: "bar", role: "img", "aria-label": row.parts.map(([n, v]) => `${n} ${write(v, unit)}`).join(", ") });
    for (const [name, value] of row.parts) {
      if (!(value > 0)) continue;
      const part = make("span", { "data-part": name, onpointermove: (event) => tip.show(event, `${name}: ${write(value, unit)}, ${write(value / row.total, "share")}`), onpointerleave: () => tip.hide() });
      part.style.width = `${(100 * value) / most}%`;
      part.style.background = colourOf(name);
      bar.append(part);
    }
    const name = make("td", { class: "pick", text: row.label, tabindex: 0, onclick: () => onPick(row.index) });
    return make("tr", { class: row.index === picked ? "spoken" : null }, name, make("td", { class: "text" }, bar),
      make("td", { text: write(row.total, unit) }), make("td", { class: row.bad ? "bad" : null, text: row.note }));
  });
  const there = new Set(rows.flatMap((row) => row.parts.filter(([, v]) => v > 0).map(([n]) => n)));
  const names = [...new Set([...data.partOrder, ...there])].filter((name) => there.has(name));
  const legend = make("div", { class: "legend" }, ...names.map((name) => {
    const swatch = make("i");
    swatch.style.background = colourOf(name);
    return make("span", {}, swatch, name);
  }));
  const table = make("table", { class: "bars" }, make("caption", { text: title }), make("tbody", {}, ...body));
  place.replaceChildren(make("div", { class: "scroll tall" }, table), legend);
}

const VERTICES = [["GPU", "#0072b2", "gpu"], ["switch", "#009e73", "switch"], ["host, network card or server", "#767676", ""]];

// A machine: boxes are switches and hosts, dots are GPUs, lines are cables coloured by the fuller of their directions.
// `complete`: whether a cable that is not among the uses carries nothing; else nothing is known of it.
function topology(place, drawn, uses, complete) {
  const width = 760;
  const height = Math.max(200, Math.min(420, 70 * drawn.levels));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img", "aria-label": drawn.title });
  const x = (v) => 24 + v * (width - 48);
  const y = (v) => 20 + (1 - v) * (height - 40);
  for (const [a, b, names] of drawn.cables) {
    const used = Math.max(...names.map((name) => uses.get(name) ?? 0), 0);
    const known = names.some((name) => uses.has(name));
    const line = shape("line", { x1: x(drawn.at[a][0]), y1: y(drawn.at[a][1]), x2: x(drawn.at[b][0]), y2: y(drawn.at[b][1]),
      class: known ? "cable used" : complete ? "cable idle" : "cable unknown",
      stroke: known ? `rgba(213,94,0,${0.2 + 0.8 * Math.min(1, used)})` : themed("--line"), "stroke-width": known ? 1 + 3 * Math.min(1, used) : 1 });
    const idle = complete ? " unused" : ": no data";
    line.append(shape("title", {}, names.map((name) => `${name}${uses.has(name) ? ` ${write(uses.get(name), "share")} used` : idle}`).join("\n")));
    svg.append(line);
  }
  for (const [name, [vx, vy]] of Object.entries(drawn.at)) {
    const gpu = drawn.kinds[name] === "gpu";
    const [, fill] = VERTICES.find(([, , kind]) => kind === drawn.kinds[name]) || VERTICES[2];
    const dot = gpu ? shape("circle", { cx: x(vx), cy: y(vy), r: 5, fill })
      : shape("rect", { x: x(vx) - 7, y: y(vy) - 5, width: 14, height: 10, rx: 2, fill });
    dot.append(shape("title", {}, `${name} (${drawn.kinds[name]})`));
    svg.append(dot);
  }
  const kinds = new Set(Object.values(drawn.kinds));
  const there = VERTICES.filter(([, , kind]) => (kind ? kinds.has(kind) : [...kinds].some((own) => !["gpu", "switch"].includes(own))));
  const rest = complete ? "grey: unused" : "grey: no data";
  const legend = make("div", { class: "legend" }, ...[...there, ["cable: bandwidth used by the busier direction", "#d55e00"], [rest, themed("--line")]].map(([name, colour]) => {
    const swatch = make("i");
    swatch.style.background = colour;
    return make("span", {}, swatch, name);
  }));
  place.replaceChildren(make("p", { class: "note", text: `${drawn.title}, over the whole run` }), svg, legend);
}
