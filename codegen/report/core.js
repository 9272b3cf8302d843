/* core.js - the plan's data, numbers as people write them, elements, hints, and what is drawn when.
 *
 * plan: one object, written by codegen/report_html*.c. Texts that recur are numbers of plan.strings: S(n). Times are in
 * picoseconds (_ps) or seconds (_s). Every element is made by el() and every text set as text, so nothing in a name is markup. */

const plan = JSON.parse(document.getElementById("plan").textContent);
const S = n => plan.strings[n];
const PS = 1e-12;
const STEP_PS = plan.plan.objective_ps;

/* ---- what things are called, and their colours (report.css) ---- */

const PHASES = ["prologue", "forward", "backward", "update"];
const ROLES = ["value", "input", "weight", "optimiser state", "gradient sum"];
const EVENTS = ["forward", "backward", "gradients", "update"];
/* Kinds of pieces, as report_html_time.c numbers them. */
const PIECES = ["compute", "activation sums", "gradient sums", "weight gathers", "stage to stage", "local copies", "update"];
const PIECE_CLASS = ["compute", "activation", "gradient", "parameter", "receive", "local", "update"];
const TIME_PARTS = [
  ["compute_s", "compute", "compute"], ["activation_comm_s", "activation sums", "activation"],
  ["gradient_comm_s", "gradient sums", "gradient"], ["parameter_comm_s", "weight gathers", "parameter"],
  ["receive_s", "stage to stage", "receive"], ["update_s", "update", "update"], ["bubble_s", "bubble", "bubble"]];
const MEMORY_PARTS = [
  ["parameters", "weights", "m-weights"], ["gradients", "gradients", "m-gradients"], ["optimizer", "optimiser", "m-optimizer"],
  ["activations", "activations", "m-activations"], ["inputs", "inputs", "m-inputs"], ["workspace", "workspace", "m-workspace"],
  ["gaps", "gaps", "m-gaps"]];

/* ---- numbers ---- */

function three(v) {
  const a = Math.abs(v);
  return v.toFixed(a < 9.995 ? 2 : a < 99.95 ? 1 : 0);
}

function thousands(n) {
  return Math.round(n).toLocaleString("en-US");
}

function seconds(s) {
  for (const [scale, unit] of [[1, "s"], [1e3, "ms"], [1e6, "µs"]])
    if (Math.abs(s) * scale >= 0.9995)
      return `${s * scale >= 999.5 ? thousands(s * scale) : three(s * scale)} ${unit}`;
  return s === 0 ? "0 s" : `${three(s * 1e9)} ns`;
}

const time = ps => seconds(ps * PS);

function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (u < 4 && n >= 1023.5) {
    n /= 1024;
    u++;
  }
  return u === 0 ? `${n} bytes` : `${three(n)} ${units[u]}`;
}

function millions(n) {
  const units = ["", " K", " M", " B", " T"];
  let u = 0;
  while (u < 4 && n >= 999.5) {
    n /= 1000;
    u++;
  }
  return u === 0 ? String(Math.round(n)) : three(n) + units[u];
}

function rate(bytes_per_s) {
  return `${three(bytes_per_s / 1e9)} GB/s`;
}

function percent(share) {
  return share > 0 && share < 0.0005 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
}

function plural(n, word) {
  return `${thousands(n)} ${word}${n === 1 ? "" : /(s|x|ch|sh)$/.test(word) ? "es" : "s"}`;
}

/* "0-11,14" as [[0, 11], [14, 14]]. */
function spans(text) {
  return text ? text.split(",").map(p => p.split("-").map(Number)).map(p => [p[0], p[p.length - 1]]) : [];
}

/* [0, 1, 2, 5] as "0-2, 5". */
function ranges(numbers) {
  const out = [];
  for (const n of numbers) {
    const last = out[out.length - 1];
    if (last && n === last[1] + 1)
      last[1] = n;
    else
      out.push([n, n]);
  }
  return out.map(([a, b]) => a === b ? `${a}` : `${a}–${b}`).join(", ");
}

/* ---- elements ---- */

const SVG = "http://www.w3.org/2000/svg";

/* el("td", {class: "number"}, "12 ms", other): an element; svg("rect", {x: 1}) of a drawing. */
function fill(e, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on"))
      e.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined)
      e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.flat(Infinity).filter(c => c !== null && c !== undefined && c !== false));
  return e;
}
function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/* CHILDREN at the end of AT. */
function put(at, ...children) {
  fill(at, {}, children);
}

/* ROWS of cells under HEADS, [title, class]; a cell is a text or an element. */
function table(caption, heads, rows, attributes) {
  const narrow = heads.some(([, cls]) => cls === "why") ? " cards" : ""; /* on narrow screens a row is a few lines */
  return el("div", {class: `scroll${narrow}`}, el("table", attributes,
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, heads.map(([title, cls]) => el("th", {scope: "col", class: cls}, title)))),
    el("tbody", {}, rows.map(cells => el("tr", {}, cells.map((c, i) => el(i ? "td" : "th",
      {class: heads[i][1], scope: i ? null : "row", "data-label": heads[i][0]}, c)))))));
}

function legend(items) {
  return el("ul", {class: "legend"}, items.map(([cls, text]) => el("li", {}, el("span", {class: `key ${cls}`}), text)));
}

function more(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), ...children);
}

/* ---- hints that follow the pointer, and what a screen reader says ---- */

function showTip(event, lines) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...lines.map((line, i) => el(i ? "div" : "strong", {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), w = document.documentElement.clientWidth;
  const x = Math.max(4, Math.min(event.clientX + 14, w - box.width - 4));
  const y = event.clientY + 18 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 18;
  tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(Math.max(2, y))}px)`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function hinted(element, lines) {
  element.addEventListener("pointermove", e => showTip(e, lines));
  element.addEventListener("pointerleave", hideTip);
  return element;
}

function say(text) {
  document.getElementById("said").textContent = text;
}

/* ---- stages that differ by their place alone ---- */

/* [{stages: [numbers], first: stage}]: those whose KEY(stage) is equal, each in the order of the pipeline. */
function alike(key) {
  const groups = new Map();
  plan.stages.forEach((s, i) => {
    const k = JSON.stringify(key(s, i));
    if (!groups.has(k))
      groups.set(k, {stages: [], first: s});
    groups.get(k).stages.push(i);
  });
  return [...groups.values()];
}

function stagesName(numbers) {
  return `stage${numbers.length === 1 ? "" : "s"} ${ranges(numbers)}`;
}

function meshName(program) {
  return program.mesh.filter(a => a.size > 1).map(a => `${a.axis} ${a.size}`).join(" × ") || "one device";
}

function axesName(program, mask) {
  const axes = program.mesh.filter((a, i) => mask >> i & 1);
  return axes.length ? `${axes.map(a => a.axis).join("+")} (${axes.reduce((n, a) => n * a.size, 1)})` : "";
}

/* ---- the page ---- */

function nav() {
  const list = document.getElementById("nav");
  for (const [id, title] of [["summary", "Plan"], ["timeline", "Step"], ...(plan.measured ? [["measured", "Measured"]] : []), ["time", "Time"], ["memory", "Memory"],
    ["cluster", "Cluster"], ["model", "Model"], ["others", "Others"], ["basis", "Basis"]])
    list.append(el("a", {href: `#${id}`}, title));
}

function main() {
  nav();
  drawSummary(document.getElementById("summary"));
  drawTimeline(document.getElementById("timeline"));
  /* What is below the first screen comes after it is painted. */
  requestAnimationFrame(() => setTimeout(() => {
    if (plan.measured)
      drawMeasured(document.getElementById("measured"));
    drawTime(document.getElementById("time"));
    drawMemory(document.getElementById("memory"));
    drawCluster(document.getElementById("cluster"));
    drawModel(document.getElementById("model"));
    drawOthers(document.getElementById("others"));
    drawBasis(document.getElementById("basis"));
    startSearch();
    document.documentElement.dataset.drawn = "all";
    if (location.hash.length > 1)
      document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }));
}

/* On paper everything is open. */
function openForPrint() {
  for (const d of document.querySelectorAll("details:not([open])")) {
    d.open = true;
    d.dataset.closed = "";
  }
}
function closeAfterPrint() {
  for (const d of document.querySelectorAll("details[data-closed]")) {
    d.open = false;
    delete d.dataset.closed;
  }
}

addEventListener("beforeprint", openForPrint);
addEventListener("afterprint", closeAfterPrint);
document.addEventListener("DOMContentLoaded", main);
