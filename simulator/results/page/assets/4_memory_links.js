// What did a rank hold, when, and how full were links: two pictures along the same time as the lanes.

// Even steps of a binary unit, up to a number of bytes.
function byteTicks(most) {
  const [, unit] = BINARY.find(([, f]) => most >= f) || ["B", 1];
  return evenTicks(0, most / unit, 4).map((v) => v * unit);
}

class Memory {
  // `most`: bytes that the axis reaches, the same for all points of a page.
  constructor(place, played, view, most) {
    const memory = played.memory;
    Object.assign(this, { memory, view, most, reach: most, unit: played.unit_s, end: played.end });
    this.time = sums(memory.time);
    this.total = this.time.map((_, i) => memory.held.reduce((sum, column) => sum + column[i], 0));
    this.canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": this.words() });
    this.legend = make("div", { class: "legend" });
    place.replaceChildren(make("p", { class: "note", text: this.words() }), this.canvas, this.legend);
    steer(this.canvas, view);
    this.canvas.addEventListener("pointermove", (event) => tip.show(event, this.tipText()));
    view.followers.add(() => this.draw());
    this.draw();
  }
  // The axis reaches this point's peak, or the most of all points.
  scaleToOwn(own) { this.reach = own ? 0 : this.most; this.view.tell(); }
  words() {
    const { memory } = this;
    const peak = this.total[memory.peak];
    const of = memory.capacity ? ` of ${write(memory.capacity, "B")} (${write(peak / memory.capacity, "share")})` : "";
    return `Peak memory: ${write(peak, "B")}${of} on rank ${memory.rank} at ${write(this.time[memory.peak] * this.unit, "s")}.`;
  }
  at(time) {
    let i = 0;
    while (i + 1 < this.time.length && this.time[i + 1] <= time) i += 1;
    return i;
  }
  // The step under the cursor, else at the marked time, else the peak; and which of the three it is.
  shown() {
    if (this.view.cursor !== null) return [this.at(this.view.cursor), "at the cursor"];
    if (this.view.marked !== null) return [this.at(this.view.marked), "at the marked time"];
    return [this.memory.peak, "at the peak"];
  }
  tipText() {
    const [i] = this.shown();
    const rows = this.memory.categories.map((name, c) => [name, this.memory.held[c][i]]).filter(([, bytes]) => bytes);
    return [`${write(this.time[i] * this.unit, "s")}: ${write(this.total[i], "B")}`,
      ...rows.map(([name, bytes]) => `${name}: ${write(bytes, "B")}`)].join("\n");
  }
  draw() {
    const height = 210;
    const [pen, width] = sharp(this.canvas, height);
    const left = gutter(width);
    const floor = height - AXIS;
    const peak = this.total[this.memory.peak] || 1;
    const most = Math.max(this.reach, peak);
    const near = this.memory.capacity && this.memory.capacity <= most;
    const top = 1.06 * most;
    timeAxis(pen, left, width, floor, this.view, this.unit);
    const x = (t) => left + ((t - this.view.from) / (this.view.to - this.view.from)) * (width - left);
    const y = (bytes) => floor - (bytes / top) * (floor - 6);
    pen.save(); pen.beginPath(); pen.rect(left, 0, width - left, floor); pen.clip();
    const below = new Float64Array(this.time.length);
    this.memory.categories.forEach((name, c) => {
      pen.fillStyle = colourOf(name);
      const column = this.memory.held[c];
      for (let i = 0; i < this.time.length; i++) {
        const until = i + 1 < this.time.length ? this.time[i + 1] : this.end;
        if (column[i]) {
          // Whole pixels: else neighbours leave pale seams between them.
          const [from, to] = [Math.floor(x(this.time[i])), Math.ceil(x(until))];
          // The peak may last for no time, and is still to be seen below its mark.
          const wide = Math.max(to - from, i === this.memory.peak ? 3 : 1);
          pen.fillRect(from, y(below[i] + column[i]), wide, y(below[i]) - y(below[i] + column[i]));
        }
        below[i] += column[i];
      }
    });
    if (near) {
      pen.strokeStyle = themed("--text"); pen.setLineDash([6, 4]);
      pen.beginPath(); pen.moveTo(left, y(this.memory.capacity)); pen.lineTo(width, y(this.memory.capacity)); pen.stroke();
      pen.setLineDash([]);
    }
    const peakX = x(this.time[this.memory.peak]);
    pen.fillStyle = themed("--text");
    pen.beginPath(); pen.moveTo(peakX, y(peak)); pen.lineTo(peakX - 5, y(peak) - 7); pen.lineTo(peakX + 5, y(peak) - 7); pen.fill();
    pen.restore();
    pen.textAlign = "right";
    pen.fillStyle = themed("--soft");
    for (const bytes of byteTicks(most)) pen.fillText(write(bytes, "B"), left - 6, Math.max(8, y(bytes)));
    if (near) { pen.textAlign = "left"; pen.fillText("capacity", left + 4, y(this.memory.capacity) + 10); }
    cursorLines(pen, left, width, floor, this.view);
    const [shown, when] = this.shown();
    this.legend.replaceChildren(...this.memory.categories.map((name, c) => {
      const swatch = make("i");
      swatch.style.background = colourOf(name);
      return make("span", {}, swatch, `${name} ${write(this.memory.held[c][shown], "B")}`);
    }).filter((_, c) => this.memory.held[c].some((bytes) => bytes > 0)), make("span", { text: `(${when})` }));
  }
}

// Allocations whose names differ only in their numbers, as groups: [{name, category, bytes, own}], largest first. The
// name of a group has the ranges of the numbers: "layer 0-31 activations 1".
function groupedAllocations(own) {
  const groups = new Map();
  for (const one of own) {
    const key = `${one.name.replace(/\d+/g, "#")}|${one.category}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  return [...groups.values()].map((alike) => {
    const numbers = alike.map((one) => (one.name.match(/\d+/g) || []).map(Number));
    let place = 0;
    const name = alike[0].name.replace(/\d+/g, () => { const at = place++; return ranges(numbers.map((row) => row[at])).join(", "); });
    return { name, category: alike[0].category, bytes: alike.reduce((sum, one) => sum + one.bytes, 0), own: alike };
  }).sort((a, b) => b.bytes - a.bytes);
}

const MOST_GROUPS = 15;

// The largest groups of allocations at the marked time, or at the peak as long as no time is marked.
class Holders {
  constructor(place, drawn, view) {
    Object.assign(this, { place, drawn, view });
    view.followers.add(() => { if (this.marked !== view.marked) this.draw(); });
    this.draw();
  }
  // A page with many points keeps the allocations of the peak alone.
  atPeak() { return this.marked === null || !this.drawn.memory.allocations.complete; }
  // Allocations are stored largest first, equal ones in natural order.
  groups() {
    const { allocations } = this.drawn.memory;
    const exists = (i) => allocations.begin[i] <= this.marked && (this.marked < allocations.end[i] || allocations.end[i] >= this.drawn.end);
    const places = this.atPeak() ? allocations.peak : [...allocations.bytes.keys()].filter(exists);
    return groupedAllocations(places.map((i) => ({ name: allocations.names[allocations.name[i]],
      category: allocations.categories[allocations.category[i]], bytes: allocations.bytes[i] }))).slice(0, MOST_GROUPS);
  }
  draw() {
    this.marked = this.view.marked;
    const { memory, total, unit } = this.drawn;
    if (!memory.allocations) { this.place.replaceChildren(); return; }
    const [i, when] = this.atPeak() ? [memory.peak, "the peak"] : [this.drawn.at(this.marked), write(this.marked * unit, "s")];
    const caption = make("caption", {}, `Largest allocations at ${when}, of ${write(total[i], "B")}. `);
    if (this.marked !== null) caption.append(make("button", { class: "plain", text: "Back to the peak", onclick: () => this.view.mark(null) }));
    else if (memory.allocations.complete) caption.append("Click on a time for the allocations at that time.");
    const body = this.groups().map((group) => make("tr", {}, make("td", {}, this.named(group)),
      make("td", { class: "text", text: group.category }), make("td", { text: write(group.bytes, "B") })));
    this.place.replaceChildren(...(body.length ? [make("table", {}, caption, make("tbody", {}, ...body))] : []));
  }
  // A group opens to its allocations.
  named({ name, own }) {
    if (own.length === 1) return name;
    return make("details", {}, make("summary", { text: `${name} ×${own.length}` }),
      make("div", { class: "note alike", text: own.map((one) => `${one.name}: ${write(one.bytes, "B")}`).join("\n") }));
  }
}

// Room [px] above a row of links for its name: on a narrow screen the name would be cut beside the row.
const aboveLinks = (width) => (gutter(width) < GUTTER ? 16 : 0);

// Links of one kind that carry alike are one row: how full it is over time, or all along where that is not known.
class Links {
  constructor(place, played, view) {
    Object.assign(this, { rows: played.links.rows, off: played.links.off_links, view, unit: played.unit_s, end: played.end });
    this.canvas = make("canvas", { tabindex: 0, role: "img", "aria-label": this.words() });
    this.said = make("p", { class: "note" });
    this.names = make("p", { class: "note" });
    place.replaceChildren(this.said, this.canvas, this.names);
    steer(this.canvas, view);
    this.canvas.addEventListener("pointermove", (event) => { const row = this.under(event); if (row) tip.show(event, this.text(row)); else tip.hide(); });
    this.canvas.addEventListener("click", (event) => { const row = this.under(event); this.names.textContent = row ? `${row.count} links: ${row.names.slice(0, 40).join(", ")}${row.count > 40 ? ", ..." : ""}` : ""; });
    view.followers.add(() => this.draw());
    this.draw();
  }
  // A row of one link has that link's name, a row of several their kind.
  named(row) { return row.count > 1 ? `${row.count} × ${row.kind}` : row.names[0]; }
  // The sentence is of the window that is shown, where the use over time is known.
  words() {
    const { view, end } = this;
    const whole = view.from <= 0 && view.to >= end;
    // With closed forms the links carry the few transfers that are left, and none of them is a bottleneck.
    if (this.off && this.rows.every((row) => row.used === null || row.used < 0.001)) return "The transfers that are simulated hardly use any link.";
    const many = this.rows.length > 1 ? `Busiest of ${this.rows.length} groups of links` : "Only links used";
    if (whole || this.rows.some((row) => !row.course)) {
      const [first] = this.rows;
      const used = first.used === null ? "" : `, ${write(first.used, "share")} utilised`;
      return `${many} over the whole run: ${this.named(first)}${used}, busy ${write(first.busy, "share")} of the time.`;
    }
    const [best, used] = this.rows.map((row) => [row, this.inWindow(row)]).reduce((a, b) => (b[1] > a[1] ? b : a));
    return `${many} from ${write(view.from * this.unit, "s")} to ${write(view.to * this.unit, "s")}: ${this.named(best)}, ` +
      `${write(used / 100, "share")} utilised.`;
  }
  inWindow(row) {
    const bin = this.end / row.course.length;
    let sum = 0;
    row.course.forEach((percent, i) => { sum += percent * Math.max(0, Math.min(this.view.to, (i + 1) * bin) - Math.max(this.view.from, i * bin)); });
    return sum / (this.view.to - this.view.from);
  }
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.rows[Math.floor((event.clientY - box.top) / (19 + aboveLinks(box.width)))];
  }
  text(row) {
    const used = row.used === null ? "" : `\n${write(row.used, "share")} of the bandwidth used`;
    const now = row.course && this.view.cursor !== null ? `\nat the cursor ${row.course[this.bin(row, this.view.cursor)]} %` : "";
    return `${row.count > 1 ? `each of ${row.count} links: ` : ""}${row.names[0]}\n${write(row.bytes, "size")} at ${write(row.bandwidth, "B/s")}${used}\nbusy ${write(row.busy, "share")} of the time${now}`;
  }
  bin(row, time) { return Math.min(row.course.length - 1, Math.max(0, Math.floor((time / this.end) * row.course.length))); }
  draw() {
    const above = aboveLinks(this.canvas.parentElement.clientWidth);
    const height = this.rows.length * (19 + above) + AXIS;
    const [pen, width] = sharp(this.canvas, height);
    const left = gutter(width);
    timeAxis(pen, left, width, height - AXIS, this.view, this.unit);
    this.rows.forEach((row, number) => {
      const top = number * (19 + above) + above;
      pen.fillStyle = themed("--text"); pen.textAlign = "left";
      pen.save(); pen.beginPath(); pen.rect(0, top - above, above ? width : left - 4, 19); pen.clip();
      // No grid line crosses a name above its row.
      if (above) pen.clearRect(0, top - above, pen.measureText(this.named(row)).width + 4, above);
      pen.fillText(this.named(row), 2, top - above + 9);
      pen.restore();
      pen.fillStyle = themed("--grid");
      pen.fillRect(left, top + 1, width - left, 16);
      const course = row.course || [Math.round(100 * (row.used || 0))];
      const bin = this.end / course.length;
      course.forEach((percent, i) => {
        // Whole pixels: neighbours that share one would be darker there, as stripes that nothing stands for.
        const edge = (n) => Math.round(left + ((n * bin - this.view.from) / (this.view.to - this.view.from)) * (width - left));
        const [from, to] = [edge(i), edge(i + 1)];
        if (to < left || from > width || !percent) return;
        pen.fillStyle = `rgba(213, 94, 0, ${0.12 + 0.88 * Math.min(1, percent / 100)})`;
        pen.fillRect(Math.max(left, from), top + 1, Math.min(width, to) - Math.max(left, from), 16);
      });
      if (!row.course && row.used !== null) { pen.fillStyle = themed("--text"); pen.fillText(`${write(row.used, "share")} over the whole run`, left + 6, top + 9); }
    });
    cursorLines(pen, left, width, height - AXIS, this.view);
    this.said.textContent = this.words();
  }
}
