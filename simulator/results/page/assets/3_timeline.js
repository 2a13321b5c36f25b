// Which rank did what, when: lanes of spans, drawn on a canvas because no library's marks carry 100,000 of them.

// Kinds of operations whose name alone does not tell what is done.
const EXPLAINED = new Map([
  ["copies", "kernels that copy and cast tensors around collectives"],
  ["accumulate", "kernels that add a micro-batch's gradients to the sum"],
]);

// Place [px] of a stream's name, right of the name of its rank.
const STREAM = 140;

class Lane {
  constructor(packed, lanes) {
    this.rank = packed.rank;
    this.alike = packed.alike.length;
    // Ranges of ranks, or names of servers or switches.
    this.members = typeof packed.rank === "number" ? ranges(packed.alike) : packed.alike;
    this.noun = typeof packed.rank !== "number" ? "" : this.alike > 1 ? "ranks " : "rank ";
    this.who = this.called(3);
    this.stream = packed.stream;
    // "communication expert tensor" is longer than its room; the tooltip says the whole.
    this.said = packed.stream.replace(/^communication (.+)$/, "$1 comm.");
    this.start = sums(packed.start);
    this.end = this.start.map((start, i) => start + packed.duration[i]);
    this.kind = packed.kind;
    this.name = packed.name;
    this.waits = packed.waits || [];
    this.kernels = packed.kernels || [];
    this.texts = lanes;
  }
  // The lane's name with the first `count` ranges: "ranks 0-5, 8-13, ... ×56".
  called(count, noun = this.noun) {
    const more = count < this.members.length ? ", ..." : "";
    return `${noun}${this.members.slice(0, count).join(", ")}${more}${this.alike > 1 ? ` ×${this.alike}` : ""}`;
  }
  // The longest name for which `fits` is true; a narrow place has the numbers without their noun.
  shortened(fits) {
    const counts = Array.from({ length: Math.min(this.members.length, 8) }, (_, i) => i + 1).reverse();
    const names = [this.noun, ""].flatMap((noun) => counts.map((count) => this.called(count, noun)));
    return names.find(fits) ?? names.at(-1);
  }
  everybody() { return this.called(this.members.length); }
  // The first span that ends after a time; spans of a stream do not overlap, those of sends may.
  first(time) {
    let low = 0;
    let high = this.end.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] < time) low = middle + 1; else high = middle;
    }
    return Math.max(0, low - (["sends", "receives", "sends to stages"].includes(this.stream) ? 64 : 1));
  }
  at(time, slack) {
    for (let i = this.first(time - slack); i < this.start.length && this.start[i] <= time + slack; i++) {
      if (this.end[i] >= time - slack) return i;
    }
    return -1;
  }
  nameOf(i) { return this.texts.names[this.name[i]]; }
  kindOf(i) { return this.texts.kinds[this.kind[i]]; }
  // Kinds of kernels and their shares of a span, in order; null where they are not known.
  partsOf(i) { return (this.kernels[i] ?? -1) < 0 ? null : this.texts.passes[this.kernels[i]]; }
}

class Timeline {
  constructor(place, played, view) {
    this.unit = played.unit_s;
    this.view = view;
    this.lanes = played.lanes.lanes.map((lane) => new Lane(lane, played.lanes));
    this.query = "";
    this.matches = new Set();
    this.byKernel = false;
    this.selection = null;
    this.chosen = null;
    this.row = this.lanes.length > 40 ? 12 : this.lanes.length > 16 ? 19 : 25;
    this.canvas = make("canvas", { class: "lanes", tabindex: 0, role: "application",
      "aria-label": `Timeline of ${this.lanes.length} lanes. Left and right arrows pan, plus and minus zoom, ` +
        "0 resets, Enter marks a time, Escape removes the mark, N and P select the next and previous span, up and down arrows select a lane." });
    this.said = make("p", { class: "note", "aria-live": "polite" });
    this.sums = make("div", { class: "scroll" });
    this.names = make("div", { class: "legend" });
    this.legend();
    place.replaceChildren(this.canvas, this.names, this.said, this.sums);
    steer(this.canvas, view, (from, to) => { this.selection = [from, to]; this.sum(); view.tell(); });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("dblclick", (event) => this.zoomTo(this.under(event)));
    this.canvas.addEventListener("click", (event) => { const span = this.under(event); if (span) this.choose(span); });
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    view.followers.add(() => this.draw());
    this.draw();
  }
  // Kinds that are drawn: of operations, or of kernels where they are known.
  kinds() {
    const found = new Set();
    for (const lane of this.lanes) {
      if (this.byKernel && lane.kernels.length) lane.kind.forEach((_, i) => (lane.partsOf(i) || [[lane.kindOf(i)]]).forEach(([kind]) => found.add(kind)));
      else new Set(lane.kind).forEach((kind) => found.add(lane.texts.kinds[kind]));
    }
    return [...found];
  }
  legend() {
    this.names.replaceChildren(...this.kinds().map((kind) => {
      const swatch = make("i");
      swatch.style.background = colourOf(kind);
      return make("span", {}, swatch, EXPLAINED.has(kind) ? `${kind} (${EXPLAINED.get(kind)})` : kind);
    }), ...(this.byKernel ? [make("span", { text: "Within a pass, kinds of kernels are drawn in their order, with the shares of their computed times. " +
      "An operation whose kernels are not known has the colour of its phase." })] : []));
  }
  colourBy(kernels) {
    this.byKernel = kernels;
    this.legend();
    this.view.tell();
  }
  draw() {
    const height = this.lanes.length * this.row + AXIS;
    const [pen, width] = sharp(this.canvas, height);
    const left = gutter(width);
    timeAxis(pen, left, width, height - AXIS, this.view, this.unit);
    const scale = (width - left) / (this.view.to - this.view.from);
    this.lanes.forEach((lane, row) => this.lane(pen, lane, row, left, width, scale));
    if (this.selection) {
      const [from, to] = this.selection.map((t) => left + (t - this.view.from) * scale);
      pen.fillStyle = "#0072b233";
      pen.fillRect(from, 0, to - from, height - AXIS);
    }
    cursorLines(pen, left, width, height - AXIS, this.view);
  }
  lane(pen, lane, row, left, width, scale) {
    const top = row * this.row;
    const before = this.lanes[row - 1];
    pen.fillStyle = themed("--text");
    pen.textAlign = "left";
    const [named, stream] = left > 100 ? [STREAM - 8, STREAM] : [left - 4, null];
    const head = before && before.who === lane.who ? "" : lane.shortened((text) => pen.measureText(text).width <= named);
    if (head) { pen.strokeStyle = themed("--line"); pen.beginPath(); pen.moveTo(0, top); pen.lineTo(width, top); pen.stroke(); }
    pen.fillText(head, 2, top + this.row / 2);
    if (stream !== null) {
      pen.fillStyle = themed("--soft");
      pen.save(); pen.beginPath(); pen.rect(stream, top, left - stream - 4, this.row); pen.clip();
      pen.fillText(lane.said, stream, top + this.row / 2);
      pen.restore();
    }
    let [filled, kind, on] = [-1, -1, -1];
    // A name is drawn when the next bar is known: spans of a lane may overlap, and the later bar lies on top.
    let last = null;
    const nameLast = (next) => { if (last) this.label(pen, last, Math.min(last.wide, next - last.x), top); };
    const from = this.view.from;
    for (let i = lane.first(from); i < lane.start.length && lane.start[i] <= this.view.to; i++) {
      const x = Math.max(left, left + (lane.start[i] - from) * scale);
      const end = Math.min(width, left + (lane.end[i] - from) * scale);
      // A span that ends in a pixel that is drawn already is seen only if it is of another kind; then it lies on top.
      const hidden = end - filled < 0.3;
      if (end < left || (hidden && (lane.kind[i] === kind || Math.floor(x) === on))) continue;
      const wide = Math.max(end - x, 1);
      if (hidden) on = Math.floor(x);
      nameLast(x);
      const faint = this.query && !this.matches.has(lane.name[i]);
      const alpha = faint ? 0.15 : 1;
      const colour = colourOf(lane.kindOf(i));
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      pen.fillRect(x, top + 1, wide > 4 ? wide - 0.6 : wide, this.row - 3);
      const parts = this.byKernel && lane.partsOf(i);
      if (parts) {
        let before = left + (lane.start[i] - from) * scale;
        for (const [name, share] of parts) {
          const after = before + share * (lane.end[i] - lane.start[i]) * scale;
          pen.fillStyle = colourOf(name);
          // The part of it that is in the window.
          const [a, b] = [Math.max(left, before), Math.min(width, after)];
          if (b > a) pen.fillRect(a, top + 1, b - a, this.row - 3);
          before = after;
        }
      }
      last = wide > 9 && this.row > 14 && !parts ? { text: lane.nameOf(i), x, wide, colour, alpha } : null;
      if (this.chosen && this.chosen.lane === lane && this.chosen.i === i) {
        pen.strokeStyle = themed("--text"); pen.strokeRect(x + 0.5, top + 1.5, wide, this.row - 4);
      }
      filled = Math.max(filled, end);
      kind = lane.kind[i];
    }
    nameLast(width);
    pen.globalAlpha = 1;
  }
  // The name of a bar, in the room that the next bar leaves of it.
  label(pen, { text, x, colour, alpha }, room, top) {
    // In a narrow bar of a pipeline, the number of the micro-batch alone.
    const number = /^\d+ /.test(text) ? [`${parseInt(text, 10)}`] : [];
    const said = [...(room > 46 ? [text] : []), ...number].find((one) => pen.measureText(one).width < room - (one === text ? 6 : 3));
    if (said === undefined) return;
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    pen.globalAlpha = alpha;
    pen.fillStyle = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
    pen.textAlign = "left";
    pen.fillText(said, x + (said === text ? 3 : 2), top + this.row / 2);
  }
  laneUnder(event) { return this.lanes[Math.floor((event.clientY - this.canvas.getBoundingClientRect().top) / this.row)]; }
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const lane = this.laneUnder(event);
    const time = timeAt(event, this.canvas, this.view);
    if (!lane || time === null) return null;
    const i = lane.at(time, ((this.view.to - this.view.from) / box.width) * 1.5);
    return i < 0 ? null : { lane, i };
  }
  describe({ lane, i }) {
    const s = this.unit;
    return `${lane.nameOf(i)} (${lane.kindOf(i)})\n${lane.everybody()}, ${lane.stream}\n` +
      `from ${write(lane.start[i] * s, "s")}, takes ${write((lane.end[i] - lane.start[i]) * s, "s")}` +
      this.kernelText(lane.partsOf(i)) + ((lane.waits[i] ?? -1) < 0 ? "" : `\nwaited for ${lane.texts.names[lane.waits[i]]}`);
  }
  kernelText(parts) {
    const sum = new Map();
    for (const [kind, share] of parts || []) sum.set(kind, (sum.get(kind) || 0) + share);
    return sum.size ? `\nkernels: ${[...sum].sort((a, b) => b[1] - a[1]).map(([kind, share]) => `${kind} ${write(share, "share")}`).join(", ")}` : "";
  }
  hover(event) {
    const span = this.under(event);
    const lane = this.laneUnder(event);
    // Beside the spans stand the names, which may be shortened.
    if (span) tip.show(event, this.describe(span));
    else if (lane && timeAt(event, this.canvas, this.view) === null) tip.show(event, `${lane.everybody()}\n${lane.stream}`);
    else tip.hide();
  }
  choose(span) { this.chosen = span; this.said.textContent = this.describe(span).replaceAll("\n", ", "); this.view.tell(); }
  zoomTo(span) {
    if (!span) return;
    const { lane, i } = span;
    const width = Math.max(lane.end[i] - lane.start[i], this.view.end * 1e-6);
    this.view.set(lane.start[i] - width, lane.end[i] + width);
    this.choose(span);
  }
  walk(event) {
    const by = { n: 1, p: -1 }[event.key.toLowerCase()];
    const rows = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by && !rows) return;
    event.preventDefault();
    const now = this.chosen || { lane: this.lanes[0], i: -1 };
    if (by) {
      const i = Math.min(Math.max(now.i + by, 0), now.lane.start.length - 1);
      this.choose({ lane: now.lane, i });
    } else {
      const row = Math.min(Math.max(this.lanes.indexOf(now.lane) + rows, 0), this.lanes.length - 1);
      const lane = this.lanes[row];
      const time = now.i >= 0 ? now.lane.start[now.i] : this.view.from;
      this.choose({ lane, i: Math.min(lane.first(time), lane.start.length - 1) });
    }
    const { lane, i } = this.chosen;
    if (lane.start[i] < this.view.from || lane.end[i] > this.view.to) {
      const width = this.view.to - this.view.from;
      this.view.set(lane.start[i] - width / 2, lane.start[i] + width / 2);
    }
  }
  search(text) {
    this.query = text.trim().toLowerCase();
    this.matches = new Set();
    if (this.lanes.length && this.query) {
      this.lanes[0].texts.names.forEach((name, i) => { if (name.toLowerCase().includes(this.query)) this.matches.add(i); });
    }
    let count = 0;
    let time = 0;
    let first = null;
    for (const lane of this.lanes) {
      lane.name.forEach((name, i) => {
        if (!this.matches.has(name)) return;
        count += 1;
        time += lane.end[i] - lane.start[i];
        first = first || { lane, i };
      });
    }
    this.said.textContent = this.query ? `${count} spans, ${write(time * this.unit, "s")} in total` : "";
    if (first) this.chosen = first;
    this.view.tell();
    return count;
  }
  // Time of each kind within the selection, lane by lane, cut at its ends.
  sum() {
    const [from, to] = this.selection;
    const rows = new Map();
    for (const lane of this.lanes) {
      for (let i = lane.first(from); i < lane.start.length && lane.start[i] < to; i++) {
        const inside = Math.min(lane.end[i], to) - Math.max(lane.start[i], from);
        if (inside <= 0) continue;
        const key = `${lane.who}|${lane.kindOf(i)}`;
        const row = rows.get(key) || { who: lane.who, row: this.lanes.indexOf(lane), kind: lane.kindOf(i), count: 0, time: 0 };
        row.count += 1;
        row.time += inside;
        rows.set(key, row);
      }
    }
    const body = [...rows.values()].sort((a, b) => (a.who === b.who ? b.time - a.time : a.row - b.row)).map((row) => make("tr", {},
      make("td", { text: row.who }), make("td", { class: "text", text: row.kind }),
      make("td", { text: row.count }), make("td", { text: write(row.time * this.unit, "s") }),
      make("td", { text: write(row.time / (to - from), "share") })));
    this.sums.replaceChildren(make("table", { class: "sums" },
      make("caption", { text: `Selected: ${write(from * this.unit, "s")} to ${write(to * this.unit, "s")}` }),
      make("thead", {}, make("tr", {}, ...["rank", "kind", "spans", "time", "share"].map((t) => make("th", { text: t })))),
      make("tbody", {}, ...body)));
  }
}

// The spans of communication that are longest beside no computation of their rank: [{lane, i, exposed}], longest first.
function exposedSpans(lanes, count) {
  const found = [];
  for (const lane of lanes.filter((one) => /^communication|^sends to stages$/.test(one.stream))) {
    const computing = lanes.find((one) => one.stream === "compute" && one.who === lane.who);
    let j = 0;
    lane.start.forEach((start, i) => {
      let hidden = 0;
      while (computing && j < computing.end.length && computing.end[j] <= start) j += 1;
      for (let k = j; computing && k < computing.start.length && computing.start[k] < lane.end[i]; k++) {
        hidden += Math.min(computing.end[k], lane.end[i]) - Math.max(computing.start[k], start);
      }
      const exposed = lane.end[i] - start - hidden;
      if (exposed > 1e-9 * lane.end[i]) found.push({ lane, i, exposed });
    });
  }
  return found.sort((a, b) => b.exposed - a.exposed).slice(0, count);
}

// The longest exposed spans as a list; a click shows one in the timeline.
function listExposed(panel, list, timeline) {
  const spans = timeline ? exposedSpans(timeline.lanes, 10) : [];
  panel.classList.toggle("hidden", !spans.length);
  list.replaceChildren(...spans.map((span) => {
    const { lane, i, exposed } = span;
    const [whole, at] = [lane.end[i] - lane.start[i], lane.start[i]].map((time) => write(time * timeline.unit, "s"));
    const button = make("button", { class: "plain", text: `${lane.nameOf(i)}, ${lane.who}` });
    button.addEventListener("click", () => { timeline.zoomTo(span); timeline.canvas.scrollIntoView({ block: "nearest" }); });
    return make("li", {}, button, ` ${write(exposed * timeline.unit, "s")} of ${whole} exposed, at ${at}`);
  }));
}
