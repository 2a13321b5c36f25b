// A plan: bars of the best, memory against time, and a line for each played setting through all of its choices.

function planPick(number) {
  for (const row of document.querySelectorAll("#best tbody tr")) row.classList.toggle("spoken", Number(row.dataset.number) === number);
  for (const line of document.querySelectorAll("#coordinates path.setting")) line.classList.toggle("picked", Number(line.dataset.number) === number);
}

const planColour = (one) => (one.best ? "#009e73" : one.fits ? "#0072b2" : "#d55e00");
const planText = (one) => `${one.label}\n${write(one.time, "s")} per step, ${write(one.memory, "B")}${one.fits ? "" : "\ndoes not fit"}`;

function planFront(plan) {
  const dot = (one) => ({ x: one.time, y: one.memory, index: one.number, text: planText(one) });
  const those = (test) => plan.played.filter(test).map(dot);
  // The front of each number of GPUs is a line of its own.
  const numbers = [...new Set(plan.played.map((one) => one.gpus))].sort((a, b) => a - b);
  const colours = ["#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999"];
  const fronts = numbers.map((gpus, i) => ({
    points: those((one) => one.front && one.gpus === gpus), gpus, colour: colours[i % colours.length] })).map((one) => ({ ...one,
    name: `${one.points.length > 1 ? "Pareto front" : "fastest, and least memory"}${numbers.length === 1 ? "" : ` with ${one.gpus.toLocaleString("en")} GPUs`}` }));
  const series = [
    ...fronts,
    { name: "fits", colour: "#0072b2", line: false, points: those((one) => one.fits && !one.front) },
    { name: "does not fit", colour: "#d55e00", line: false, points: those((one) => !one.fits) },
  ].filter((one) => one.points.length);
  xyChart(at("planfront"), { series, onPick: planPick, title: "Peak memory vs step time",
    x: { name: "step time", write: (v) => write(v, "s") }, y: { name: "peak memory", zero: true, ticks: byteTicks, write: (v) => write(v, "B") } });
}

// An axis of words or numbers that were chosen has a tick for each; time and memory are even scales.
function planAxes(plan) {
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const chosen = plan.axes.map((name, i) => {
    const values = [...new Set(plan.played.map((one) => one.at[i]))].sort(order);
    return { name: name.replace("_", " "), ticks: values.map(String), place: (one) => (values.length > 1 ? values.indexOf(one.at[i]) / (values.length - 1) : 0.5) };
  });
  const even = (name, key, unit) => {
    const all = plan.played.map((one) => one[key]);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return { name, ticks: [write(low, unit), write(high, unit)], place: (one) => (high > low ? (one[key] - low) / (high - low) : 0.5) };
  };
  return [...chosen, even("step", "time", "s"), even("memory", "memory", "B")];
}

function planCoordinates(plan) {
  const place = at("coordinates");
  const axes = planAxes(plan);
  // Names of neighbouring axes need this room; on a narrow screen the picture scrolls.
  const width = Math.max(96 * axes.length, place.clientWidth || 600);
  const height = 300;
  const pad = { left: 34, right: 34, top: 16, bottom: 24 };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": "Each simulated setting as a line through the chosen values" });
  const x = (i) => pad.left + (i * (width - pad.left - pad.right)) / (axes.length - 1);
  const y = (share) => height - pad.bottom - share * (height - pad.top - pad.bottom);
  axes.forEach((axis, i) => svg.append(shape("line", { class: "grid", x1: x(i), x2: x(i), y1: pad.top, y2: height - pad.bottom })));
  // The best are drawn last, so that they lie above.
  for (const one of [...plan.played].sort((a, b) => a.best - b.best)) {
    const points = axes.map((axis, i) => `${x(i)},${y(axis.place(one))}`);
    const line = shape("path", { class: "setting", d: `M${points.join("L")}`, stroke: planColour(one), "data-number": one.number });
    line.addEventListener("pointermove", (event) => tip.show(event, planText(one)));
    line.addEventListener("pointerleave", () => tip.hide());
    line.addEventListener("click", () => planPick(one.number));
    svg.append(line);
  }
  axes.forEach((axis, i) => {
    svg.append(shape("text", { class: "soft", x: x(i), y: height - 6, "text-anchor": "middle" }, axis.name));
    axis.ticks.forEach((text, n) => svg.append(shape("text", { class: "tick", x: x(i), y: y(axis.ticks.length > 1 ? n / (axis.ticks.length - 1) : 0.5) + 4, "text-anchor": "middle" }, text)));
  });
  const legend = make("div", { class: "legend" }, ...[["one of the best settings", "#009e73"], ["fits", "#0072b2"], ["does not fit", "#d55e00"]].filter(([, colour]) => plan.played.some((one) => planColour(one) === colour)).map(([name, colour]) => {
    const swatch = make("i");
    swatch.style.background = colour;
    return make("span", {}, swatch, name);
  }));
  place.replaceChildren(make("p", { class: "note", text: "Each line is a simulated setting and runs through the chosen values. Click a line to find the setting in the table." }), make("div", { class: "scroll" }, svg), legend);
}

function startPlan() {
  for (const hidden of document.querySelectorAll(".needsjs")) hidden.classList.remove("hidden");
  const { plan } = data;
  const draw = () => {
    if (plan.best.length) {
      const rows = plan.best.map((one) => ({ label: one.label, index: one.number, total: one.parts.reduce((sum, [, v]) => sum + v, 0), parts: one.parts, note: one.note }));
      bars(at("planbars"), { rows, title: "Step time, broken down", unit: "s", picked: plan.best[0].number, onPick: planPick });
    }
    if (plan.played.length) { planFront(plan); planCoordinates(plan); }
  };
  draw();
  tables();
  if (plan.best.length) planPick(plan.best[0].number);
  addEventListener("resize", draw);
  state.drawn = 0;
}
