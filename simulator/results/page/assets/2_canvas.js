// What do all pictures along time share: a window of time, a cursor, a marked time, a sharp canvas, a time axis?

class TimeWindow {
  constructor(end) { this.end = end; this.from = 0; this.to = end; this.cursor = null; this.marked = null; this.followers = new Set(); }
  set(from, to) {
    const width = Math.min(Math.max(to - from, this.end * 1e-7), this.end);
    this.from = Math.min(Math.max(0, from), this.end - width);
    this.to = this.from + width;
    this.tell();
  }
  zoom(factor, at) { this.set(at - (at - this.from) * factor, at + (this.to - at) * factor); }
  pan(share) { const by = share * (this.to - this.from); this.set(this.from + by, this.to + by); }
  point(at) { this.cursor = at; this.tell(); }
  // The cursor leaves with the pointer; a marked time stays.
  mark(at) { this.marked = at; this.tell(); }
  tell() { for (const draw of this.followers) draw(); }
}

const GUTTER = 262;
const AXIS = 22;

function sharp(canvas, height) {
  const width = Math.max(240, canvas.parentElement.clientWidth);
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [pen, width];
}

const gutter = (width) => (width < 600 ? 84 : GUTTER);

function timeTicks(from, to, unit, most) {
  const rough = ((to - from) * unit) / most;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * ten).find((s) => s >= rough);
  const ticks = [];
  for (let t = Math.ceil((from * unit) / step) * step; t <= to * unit * (1 + 1e-12); t += step) ticks.push(t);
  return ticks;
}

function timeAxis(pen, left, width, top, view, unit) {
  const place = (t) => left + ((t / unit - view.from) / (view.to - view.from)) * (width - left);
  pen.fillStyle = themed("--soft");
  pen.strokeStyle = themed("--grid");
  pen.textAlign = "center";
  for (const t of timeTicks(view.from, view.to, unit, Math.max(4, (width - left) / 110))) {
    const x = place(t);
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, top + 4); pen.stroke();
    const room = Math.min(Math.max(x, left + 24), width - 24);
    pen.fillText(write(t, "s"), room, top + 13);
  }
}

function cursorLines(pen, left, width, height, view) {
  for (const [time, dash] of [[view.cursor, []], [view.marked, [4, 3]]]) {
    if (time === null || time < view.from || time > view.to) continue;
    const x = left + ((time - view.from) / (view.to - view.from)) * (width - left);
    pen.strokeStyle = themed("--text");
    pen.setLineDash(dash);
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke();
  }
  pen.setLineDash([]);
}

// Time under the pointer, in the view's units; null left of the pictures.
function timeAt(event, canvas, view) {
  const box = canvas.getBoundingClientRect();
  const left = gutter(box.width);
  const x = event.clientX - box.left;
  return x < left ? null : view.from + ((x - left) / (box.width - left)) * (view.to - view.from);
}

// Wheel with ctrl (or once the picture has the focus) zooms, dragging pans; with shift it selects instead. A click marks.
function steer(canvas, view, onSelect) {
  let dragged = null;
  canvas.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return;
    event.preventDefault();
    const at = timeAt(event, canvas, view);
    view.zoom(event.deltaY > 0 ? 1.25 : 0.8, at === null ? view.from : at);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    const at = timeAt(event, canvas, view);
    if (at === null) return;
    canvas.setPointerCapture(event.pointerId);
    dragged = { x: event.clientX, from: view.from, to: view.to, at, selects: event.shiftKey && onSelect };
  });
  canvas.addEventListener("pointermove", (event) => {
    const at = timeAt(event, canvas, view);
    if (dragged === null) { view.point(at); return; }
    if (dragged.selects) { onSelect(Math.min(dragged.at, at ?? view.from), Math.max(dragged.at, at ?? view.from)); return; }
    const box = canvas.getBoundingClientRect();
    const by = ((dragged.x - event.clientX) / (box.width - gutter(box.width))) * (dragged.to - dragged.from);
    view.set(dragged.from + by, dragged.to + by);
  });
  canvas.addEventListener("pointerup", (event) => {
    // A hand is never quite still.
    if (dragged && !dragged.selects && Math.abs(event.clientX - dragged.x) < 4) view.mark(dragged.at);
    dragged = null;
  });
  canvas.addEventListener("pointerleave", () => { tip.hide(); view.point(null); });
  canvas.addEventListener("keydown", (event) => {
    const middle = view.cursor ?? (view.from + view.to) / 2;
    // W, A, S and D as in Perfetto.
    const act = {
      w: () => view.zoom(0.6, middle), s: () => view.zoom(1.6, middle), a: () => view.pan(-0.2), d: () => view.pan(0.2),
      ArrowLeft: () => view.pan(-0.2), ArrowRight: () => view.pan(0.2), "+": () => view.zoom(0.6, middle),
      "=": () => view.zoom(0.6, middle), "-": () => view.zoom(1.6, middle), 0: () => view.set(0, view.end),
      Enter: () => view.mark(middle), Escape: () => view.mark(null),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (act) { act(); event.preventDefault(); }
  });
}
