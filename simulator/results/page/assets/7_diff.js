// Two runs, one window of time: what differs, and both timelines with one cursor.

// The same view in another unit of time, so that two runs share a window.
function inUnit(played, unit) {
  const factor = played.unit_s / unit;
  if (factor === 1) return played;
  const scaled = (values) => { const at = sums(values).map((v) => v * factor); return Array.from(at, (v, i) => v - (i ? at[i - 1] : 0)); };
  const lanes = (packed) => packed && { ...packed, lanes: packed.lanes.map((lane) => ({ ...lane, start: scaled(lane.start), duration: lane.duration.map((v) => v * factor) })) };
  return { ...played, unit_s: unit, end: played.end * factor, lanes: lanes(played.lanes), pipeline: lanes(played.pipeline),
    memory: played.memory && { ...played.memory, time: scaled(played.memory.time) } };
}

// Bytes that both memory axes reach: the larger peak, or the capacity where it is near.
function mostMemory(memories) {
  const peaks = memories.map((one) => Math.max(...one.held[0].map((_, i) => one.held.reduce((sum, column) => sum + column[i], 0))));
  const peak = Math.max(1, ...peaks);
  return Math.max(peak, ...memories.map((one) => one.capacity || 0).filter((capacity) => capacity < 2.5 * peak));
}

async function showPair(number) {
  const pair = data.pairs[number];
  state.pair = number;
  document.querySelectorAll("#differences tbody").forEach((body, i) => body.classList.toggle("hidden", i !== number));
  const packed = pair.views.map((view) => (view ? unpack(view) : null));
  const played = await Promise.all(packed);
  if (state.pair !== number) return;
  const unit = Math.max(...played.filter(Boolean).map((one) => one.unit_s), 1e-12);
  const same = played.map((one) => one && inUnit(one, unit));
  const view = new TimeWindow(Math.max(...same.filter(Boolean).map((one) => one.end), 1));
  state.view = view;
  if (typeof pair.marked_s === "number") view.marked = pair.marked_s / unit;
  const most = mostMemory(same.filter((one) => one && one.memory).map((one) => one.memory));
  state.timelines = same.map((one, side) => {
    const place = at(`run${side}`);
    const memory = at(`memory${side}`);
    memory.replaceChildren();
    if (!one || !one.lanes.lanes.length) { place.textContent = "No timeline was stored for this run."; return null; }
    const timeline = new Timeline(place, one, view);
    if (one.memory) new Memory(memory, one, view, most);
    return timeline;
  });
  requestAnimationFrame(() => { view.tell(); state.drawn = number; });
}

function startDiff() {
  for (const hidden of document.querySelectorAll(".needsjs")) hidden.classList.remove("hidden");
  const select = make("select", { id: "pair", onchange: () => showPair(Number(select.value)) },
    ...data.pairs.map((pair, i) => make("option", { value: i, text: pair.label })));
  at("pairs").replaceChildren(make("label", {}, `${data.pairOf} `, select));
  // A single point leaves nothing to select.
  at("pairs").classList.toggle("hidden", data.pairs.length < 2);
  at("search").addEventListener("input", (event) => state.timelines.forEach((one) => one && one.search(event.target.value)));
  at("whole").addEventListener("click", () => state.view && state.view.set(0, state.view.end));
  at("closer").addEventListener("click", () => state.view && state.view.zoom(0.5, (state.view.from + state.view.to) / 2));
  at("wider").addEventListener("click", () => state.view && state.view.zoom(2, (state.view.from + state.view.to) / 2));
  addEventListener("resize", () => state.view && state.view.tell());
  if (data.pairs.length) showPair(0);
}
