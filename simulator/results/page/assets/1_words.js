"use strict";
// How are numbers written, elements made, and packed columns read? Text only ever enters the page as text.

// A number and its unit stay in one line, as in the texts that html_text.py writes.
const unbroken = (text) => text.replace(/(\d) (?=(?:%|[kKMGTPE]?i?B(?:\/s)?|[kMGT]?b\/s|ns|us|ms|s|min|h|[kMGTPE]?FLOP(?:\/s)?|(?:tokens|samples)\/s)(?![\w/]))/g, "$1\u00a0");

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.map((one) => (typeof one === "string" ? unbroken(one) : one)));
  return element;
}

function shape(tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

const scaled = (value, units, digits = 4) => {
  const [unit, factor] = units.find(([, f]) => Math.abs(value) >= f) || units[units.length - 1];
  return `${Number((value / factor).toPrecision(digits))} ${unit}`;
};
const TIMES = [["s", 1], ["ms", 1e-3], ["us", 1e-6], ["ns", 1e-9]];
const DECIMAL = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
const BINARY = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];

// By the unit that a column or an axis has: the same words as in the terminal.
const written = {
  s: (v) => (v === 0 ? "0 s" : scaled(v, TIMES)),
  B: (v) => scaled(v, BINARY, 3),
  size: (v) => scaled(v, BINARY),
  "B/s": (v) => `${scaled(v, DECIMAL)}/s`,
  share: (v) => `${(100 * v).toFixed(1)} %`,
  number: (v) => Number(v.toPrecision(5)).toLocaleString("en-US"),
  text: (v) => String(v),
};
const write = (value, unit) => (value === null || value === undefined ? "-" : (written[unit] || written.text)(value));

// Whole numbers in short: [0, 1, 2, 5] are 0-2 and 5; [6, 14, 22, 30] are "6, 14, ..., 30". Returns the parts.
function ranges(numbers) {
  const sorted = [...new Set(numbers)].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length;) {
    const step = sorted[i + 1] - sorted[i];
    let last = i;
    while (sorted[last + 1] - sorted[last] === step) last += 1;
    // Fewer than four numbers with a larger step are no shorter as a range.
    const long = last - i >= (step === 1 ? 1 : 3);
    if (!long) { parts.push(String(sorted[i])); i += 1; continue; }
    parts.push(step === 1 ? `${sorted[i]}-${sorted[last]}` : `${sorted[i]}, ${sorted[i + 1]}, ..., ${sorted[last]}`);
    i = last + 1;
  }
  return parts;
}

function sums(distances) {
  const places = new Float64Array(distances.length);
  let at = 0;
  for (let i = 0; i < distances.length; i++) places[i] = at += distances[i];
  return places;
}

async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const tip = {
  show(event, text) {
    const box = document.getElementById("tip");
    box.textContent = unbroken(text);
    box.style.display = "block";
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 6)}px`;
    box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 6))}px`;
  },
  hide() { document.getElementById("tip").style.display = "none"; },
};

// Colours of the page as it is shown, light or dark.
const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A colour as it can be seen on the panel that is shown: on a dark one dark colours become paler, and what stands for
// nothing (the palest grey) becomes the darkest.
const NOTHING = ["#e4e4e4", "#434b53"];
const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
const luminance = (colour) => channels(colour).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (one, other) => { const [a, b] = [luminance(one), luminance(other)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); };
function visible(colour) {
  const panel = themed("--panel");
  if (luminance(panel) > 0.5) return colour;
  if (colour.toLowerCase() === NOTHING[0]) return NOTHING[1];
  let shade = colour;
  while (contrast(shade, panel) < 3) shade = `#${channels(shade).map((v) => Math.round(v + (255 - v) * 0.12).toString(16).padStart(2, "0")).join("")}`;
  return shade;
}
const colourOf = (name) => visible(data.colours[name] || "#767676");
