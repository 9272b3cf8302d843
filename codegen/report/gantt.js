/* gantt.js - the pipeline as a Gantt chart of one step.
 *
 * plan.schedule.stages[i]: runs [times, period, micro-batches from time to time, [[what, chunk, micro-batch, begin, time], ...]], so
 * that a thousand micro-batches in step cost no more than one. Only what is in view is drawn: pieces that are too narrow to be
 * seen one by one are drawn as the share of time that they take. */

const EVENT_CLASS = ["forward", "backward", "gradient", "update"];
const EVENT_LETTER = ["F", "B", "", ""];
const NARROW = 3;            /* pixels of a run's period below which it is drawn as one */
const DETAIL = 48;           /* pixels of a piece of work from which on its kernels and collectives are drawn */
const MAX_ZOOM = 1e6;

const gantt = {from: 0, to: 1, width: 1000, lane: 40, label: 62, top: 22, at: {stage: 0, ps: 0}};

/* The lane's events between FROM and TO, CALL(event, run) each; runs whose period is under LEAST picoseconds come whole. */
function eventsIn(runs, from, to, least, call, whole) {
  for (const run of runs) {
    const [n, period, micro, events] = run, last = events[events.length - 1];
    const begin = events[0][3], end = last[3] + last[4] + (n - 1) * period;
    if (end < from || begin > to)
      continue;
    if (n > 1 && period < least) {
      whole(run, begin, end);
      continue;
    }
    const first = n > 1 ? Math.max(0, Math.floor((from - begin) / period) - 1) : 0;
    const stop = n > 1 ? Math.min(n - 1, Math.ceil((to - begin) / period)) : 0;
    for (let k = first; k <= stop; k++)
      for (const [what, chunk, mb, at, long] of events)
        if (at + k * period <= to && at + k * period + long >= from)
          call({what, chunk, micro: mb + k * micro, begin: at + k * period, time: long});
  }
}

/* Share of a run's time per kind of event, and waiting. */
function runShares(run) {
  const [n, period, , events] = run, whole = n > 1 ? period : events.reduce((t, e) => t + e[4], 0);
  const share = [0, 0, 0, 0];
  for (const e of events)
    share[e[0]] += e[4] / whole;
  return share;
}

/* What EVENT of STAGE consists of: [kind, begin, time, label, layer], in order. Interleaved, a stage's parts take equal times, as in the
 * simulation: a part is its share of what the stage does. */
function piecesOf(stage, event) {
  const program = plan.programs[plan.stages[stage].program], blocks = program.parts[event.what], out = [],
    parts = event.what < 2 ? plan.plan.chunks : 1;
  const whole = [plan.stages[stage].forward_ps, plan.stages[stage].backward_ps][event.what], part = event.what === 0
    ? event.chunk : parts - 1 - event.chunk;
  let at = parts > 1 ? event.begin - whole * part / parts : event.begin;
  for (const [n, layer, step, pieces] of blocks)
    for (let i = 0; i < n; i++)
      for (const [kind, ps, label] of pieces) {
        const begin = Math.max(at, event.begin), end = Math.min(at + ps, event.begin + event.time);
        if (end > begin)
          out.push([kind, begin, end - begin, label, layer === null ? null : layer + i * step]);
        at += ps;
      }
  return out;
}

/* "h.5.attn.c_attn" of a label with a star: layers count from the stage's first. */
function inLayer(label, stage, layer) {
  if (layer === null)
    return label;
  return label.replace(/([^\s,:()]+)\.\*([+-]\d+)?/g, (all, repeat, away) => {
    const r = plan.stages[stage].repeats.find(x => x[0] === repeat);
    return r ? `${repeat}.${r[1] + layer + Number(away || 0)}` : all;
  });
}

function eventName(e) {
  const chunk = plan.plan.chunks > 1 ? `, part ${e.chunk}` : "";
  return e.what < 2 ? `${EVENTS[e.what]} of micro-batch ${e.micro}${chunk}` : e.what === 2 ? "sums of gradients, once per step"
    : "update, once per step";
}

/* How many micro-batches' activations STAGE holds at time PS: forwards begun whose backward has not ended. */
function heldAt(stage, ps) {
  let held = 0;
  for (const [n, period, , events] of plan.schedule.stages[stage])
    for (const [what, , , begin, long] of events) {
      const from = what === 0 ? begin : begin + long, count = n > 1 ? Math.max(0,
        Math.min(n, Math.floor((ps - from) / period) + 1)) : ps >= from ? 1 : 0;
      held += what === 0 ? count : what === 1 ? -count : 0;
    }
  return held;
}

/* ---- drawing ---- */

const toX = ps => gantt.label + (ps - gantt.from) / (gantt.to - gantt.from) * (gantt.width - gantt.label);
const toPs = x => gantt.from + (x - gantt.label) / (gantt.width - gantt.label) * (gantt.to - gantt.from);

function ticks(from, to, about) {
  const rough = (to - from) / about, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough), out = [];
  for (let t = Math.ceil(from / step) * step; t <= to; t += step)
    out.push(t);
  return out;
}

function drawBlock(g, stage, e, y, h) {
  const x = Math.max(toX(e.begin), gantt.label), end = Math.min(toX(e.begin + e.time), gantt.width), w = end - x;
  if (w <= 0)
    return;
  const long = toX(e.begin + e.time) - toX(e.begin), pieces = long >= DETAIL ? piecesOf(stage, e) : [];
  g.append(svg("rect", {class: `event ${EVENT_CLASS[e.what]}`, x, y, width: Math.max(w - (long > 6 ? 1 : 0), 0.3), height: h}));
  const names = [eventName(e), `${EVENT_LETTER[e.what]}${e.micro}`, `${e.micro}`].slice(h > 30 ? 0 : 1),
    name = names.find(n => w > 6.6 * n.length + 6);
  if (name && e.what < 2)
    g.append(svg("text", {class: "eventname", x: x + w / 2, y: y + (pieces.length ? h * 0.32 : h / 2), "text-anchor": "middle",
      "dominant-baseline": "central"}, name));
  drawPieces(g, pieces, y + h * 0.6, h * 0.4, x, end);
}

/* Pieces side by side; neighbours of a kind and slivers are drawn as one. */
function drawPieces(g, pieces, y, h, from, end) {
  let cls = null, x = 0, stop = 0;
  const flush = () => {
    const a = Math.max(x, from), b = Math.min(stop, end);
    if (cls !== null && b > a)
      g.append(svg("rect", {class: `piece ${cls}`, x: a, y, width: Math.max(b - a, 0.2), height: h}));
  };
  for (const [kind, at, ps] of pieces) {
    const a = toX(at), b = toX(at + ps);
    if (b < from || a > end)
      continue;
    const apart = b - a > 12;
    if (PIECE_CLASS[kind] !== cls || apart) {
      flush();
      cls = PIECE_CLASS[kind];
      x = a + (apart && a > from ? 0.5 : 0);
    }
    stop = b;
  }
  flush();
}

function drawRun(g, run, begin, end, y, h) {
  const x = Math.max(toX(begin), gantt.label), w = Math.min(toX(end), gantt.width) - x;
  let top = y;
  if (w <= 0)
    return;
  runShares(run).forEach((share, what) => {
    if (share > 0)
      g.append(svg("rect", {class: `event ${EVENT_CLASS[what]}`, x, y: top, width: w, height: share * h}));
    top += share * h;
  });
  if (w > 60 && h > 14)
    g.append(svg("text", {class: "eventname", x: x + w / 2, y: y + h / 2, "text-anchor": "middle",
      "dominant-baseline": "central"},
      run[3].length > 1 && w > 130
        ? `${thousands(run[0])} × (${run[3].length > 4 ? `${run[3].length} pieces` : run[3].map(e => EVENTS[e[0]]).join(", ")})`
        : `${thousands(run[0])} ×`));
}

function drawLane(svgEl, stage, y) {
  const h = gantt.lane - 6, g = svg("g", {}), span = gantt.to - gantt.from, x = Math.max(toX(0), gantt.label);
  const end = Math.min(toX(plan.schedule.end_ps), gantt.width);
  g.append(svg("text", {class: "lanename", x: 0, y: y + h / 2, "dominant-baseline": "central"},
    gantt.lane > 15 || stage % 4 === 0 ? `stage ${stage}` : ""));
  if (end > x)
    g.append(svg("rect", {class: "bubble", x, y, width: end - x, height: h}));
  const least = NARROW * span / (gantt.width - gantt.label);
  eventsIn(plan.schedule.stages[stage], gantt.from, gantt.to, least, e => drawBlock(g, stage, e, y, h),
    (run, a, b) => drawRun(g, run, a, b, y, h));
  svgEl.append(g);
}

function drawGantt() {
  const chart = document.getElementById("gantt"), n = plan.stages.length, height = gantt.top + n * gantt.lane + 4;
  chart.replaceChildren(svg("title", {}, "Gantt chart of one training step"));
  chart.setAttribute("viewBox", `0 0 ${gantt.width} ${height}`);
  chart.setAttribute("height", height);
  for (const t of ticks(gantt.from, gantt.to, gantt.width / 110)) {
    const x = toX(t);
    chart.append(svg("line", {class: "tick", x1: x, x2: x, y1: gantt.top - 5, y2: height - 4}),
      svg("text", {class: "ticktext", x, y: 12, "text-anchor": x > gantt.width - 30 ? "end" : x < gantt.label + 12 ? "start"
        : "middle"}, t === 0 ? "0" : time(t)));
  }
  for (let i = 0; i < n; i++)
    drawLane(chart, i, gantt.top + i * gantt.lane);
  const cursor = toX(gantt.at.ps);
  if (document.activeElement === chart && cursor >= gantt.label && cursor <= gantt.width)
    chart.append(svg("rect", {class: "cursor", x: cursor - 1, y: gantt.top + gantt.at.stage * gantt.lane - 2, width: 2,
      height: gantt.lane - 2}));
  const whole = plan.schedule.end_ps / (gantt.to - gantt.from);
  document.getElementById("zoomed").textContent = whole < 1.001 ? "the whole step"
    : `${time(gantt.from)} to ${time(gantt.to)}, ${three(whole)} × larger`;
  chart.dataset.from = gantt.from;
  chart.dataset.to = gantt.to;
}

/* ---- looking around ---- */

function setView(from, to) {
  const end = plan.schedule.end_ps, span = Math.min(Math.max(to - from, end / MAX_ZOOM), end);
  gantt.from = Math.min(Math.max(from, 0), end - span);
  gantt.to = gantt.from + span;
  drawGantt();
}

function zoomAt(ps, factor) {
  const share = (ps - gantt.from) / (gantt.to - gantt.from), span = (gantt.to - gantt.from) / factor;
  setView(ps - share * span, ps + (1 - share) * span);
}

/* One micro-batch of the stage that is busy longest, in the middle of the step. */
function zoomMicro() {
  const stage = plan.plan.slowest, one = plan.stages[stage],
    span = 1.15 * (one.forward_ps + one.backward_ps) / plan.plan.chunks;
  let middle = plan.schedule.end_ps / 2, found = null;
  eventsIn(plan.schedule.stages[stage], middle, middle + 4 * span, 0, e => found = found || (e.what === 0 ? e : null), () => 0);
  if (!found)
    eventsIn(plan.schedule.stages[stage], 0, plan.schedule.end_ps, 0, e => found = found || (e.what === 0 ? e : null), () => 0);
  const begin = found ? found.begin : 0;
  setView(begin - 0.05 * span, begin + span);
}

/* What STAGE does at PS, as lines of a hint. */
function describe(stage, ps) {
  let found = null, before = 0, after = plan.schedule.end_ps;
  eventsIn(plan.schedule.stages[stage], 0, plan.schedule.end_ps, 0, e => {
    if (e.begin <= ps && ps < e.begin + e.time)
      found = e;
    else if (e.begin + e.time <= ps)
      before = Math.max(before, e.begin + e.time);
    else
      after = Math.min(after, e.begin);
  }, () => 0);
  const held = heldAt(stage, ps), holds = plan.plan.chunks > 1 ? `${held} parts of micro-batches` : plural(held, "micro-batch");
  if (!found)
    return {lines: [`stage ${stage}: waiting`, `${time(after - before)}, from ${time(before)} to ${time(after)}`,
      `holds activations of ${holds}`],
      begin: before, end: after};
  const lines = [`stage ${stage}: ${eventName(found)}`,
    `${time(found.time)}, from ${time(found.begin)} to ${time(found.begin + found.time)}`];
  const piece = piecesOf(stage, found).find(p => p[1] <= ps && ps < p[1] + p[2]);
  if (piece)
    lines.push(`${PIECES[piece[0]]}: ${inLayer(S(piece[3]), stage, piece[4])}, ${time(piece[2])}`);
  lines.push(`holds activations of ${holds}`);
  return {lines, begin: found.begin, end: found.begin + found.time};
}

function moveCursor(stage, ps) {
  gantt.at = {stage: Math.min(Math.max(stage, 0), plan.stages.length - 1),
    ps: Math.min(Math.max(ps, 0), plan.schedule.end_ps - 1)};
  const span = gantt.to - gantt.from;
  if (gantt.at.ps < gantt.from || gantt.at.ps > gantt.to)
    setView(gantt.at.ps - span / 2, gantt.at.ps + span / 2);
  else
    drawGantt();
  const text = describe(gantt.at.stage, gantt.at.ps).lines.join("; ");
  document.getElementById("gantt-said").textContent = text;
  say(text);
}

function ganttKey(event) {
  const here = describe(gantt.at.stage, gantt.at.ps);
  const act = {
    "+": () => zoomAt(gantt.at.ps, 2), "=": () => zoomAt(gantt.at.ps, 2), "-": () => zoomAt(gantt.at.ps, 0.5),
    "0": () => setView(0, plan.schedule.end_ps), ArrowRight: () => moveCursor(gantt.at.stage, here.end),
    ArrowLeft: () => moveCursor(gantt.at.stage, here.begin - 1), ArrowDown: () => moveCursor(gantt.at.stage + 1, gantt.at.ps),
    ArrowUp: () => moveCursor(gantt.at.stage - 1, gantt.at.ps), Home: () => moveCursor(gantt.at.stage, 0),
    End: () => moveCursor(gantt.at.stage, plan.schedule.end_ps - 1)}[event.key];
  if (!act || event.ctrlKey || event.altKey || event.metaKey)
    return;
  event.preventDefault();
  act();
}

function listen(chart) {
  let drag = null;
  const at = e => {
    const box = chart.getBoundingClientRect(), y = e.clientY - box.top;
    return {ps: toPs((e.clientX - box.left) * gantt.width / box.width), stage: Math.floor((y - gantt.top) / gantt.lane)};
  };
  chart.addEventListener("pointermove", e => {
    const p = at(e);
    if (drag) {
      const moved = (drag.x - e.clientX) * (drag.to - drag.from) / (gantt.width - gantt.label);
      setView(drag.from + moved, drag.to + moved);
      hideTip();
    } else if (p.stage >= 0 && p.stage < plan.stages.length && p.ps >= 0 && p.ps < plan.schedule.end_ps && p.ps >= gantt.from) {
      showTip(e, describe(p.stage, p.ps).lines);
    } else {
      hideTip();
    }
  });
  chart.addEventListener("pointerleave", hideTip);
  chart.addEventListener("pointerdown", e => {
    const p = at(e);
    if (e.pointerType !== "mouse" && p.stage >= 0 && p.stage < plan.stages.length && p.ps >= gantt.from)
      showTip(e, describe(p.stage, p.ps).lines);
    if (e.button === 0 && e.pointerType === "mouse" && gantt.to - gantt.from < plan.schedule.end_ps) {
      drag = {x: e.clientX, from: gantt.from, to: gantt.to};
      chart.setPointerCapture(e.pointerId);
    }
  });
  for (const end of ["pointerup", "pointercancel"])
    chart.addEventListener(end, () => drag = null);
  chart.addEventListener("dblclick", e => zoomAt(at(e).ps, 3));
  chart.addEventListener("wheel", e => {
    if (!e.ctrlKey && !e.metaKey)
      return;
    e.preventDefault();
    zoomAt(at(e).ps, Math.exp(-e.deltaY / 300));
  }, {passive: false});
  chart.addEventListener("keydown", ganttKey);
  chart.addEventListener("focus", drawGantt);
  chart.addEventListener("blur", drawGantt);
}

/* ---- the section ---- */

/* Per stage: what a screen reader, or who wants numbers, reads instead of the chart. */
function scheduleTable() {
  const end = plan.schedule.end_ps;
  const row = i => {
    let first = end, busy = 0, last = 0;
    for (const [n, period, , events] of plan.schedule.stages[i])
      for (const [, , , begin, long] of events) {
        first = Math.min(first, begin);
        busy += n * long;
        last = Math.max(last, begin + (n - 1) * period + long);
      }
    return {first, busy, last};
  };
  const layers = s => s.first_layer === null ? "" : s.first_layer === s.last_layer ? s.first_layer
    : `${s.first_layer} … ${s.last_layer}`;
  return more("The same as a table", table("When each stage works, and what a micro-batch takes",
    [["stage", "text"], ["layers", "text"],
    ["devices", "number"], ["forward", "number"], ["backward", "number"], ["once", "number"], ["first work at", "number"],
      ["busy", "number"],
    ["waits", "number"], ["holds at most", "number"]],
  plan.stages.map((s, i) => {
    const r = row(i);
    return [String(i), layers(s), `${s.first_device}–${s.first_device + s.devices - 1}`, time(s.forward_ps),
      time(s.backward_ps), time(s.once_ps),
      time(r.first), time(r.busy), percent(1 - r.busy / end), plural(s.in_flight, "micro-batch")];
  }), {id: "stages-table"}));
}

function drawTimeline(at) {
  const p = plan.plan, n = plan.stages.length, button = (text, label, act) =>
    el("button", {type: "button", "aria-label": label, onclick: act}, text);
  const middle = () => (gantt.from + gantt.to) / 2, drawn = plan.schedule.micro_batches;
  gantt.lane = n > 40 ? 14 : n > 16 ? 20 : n > 8 ? 30 : n > 1 ? 42 : 72;
  gantt.to = plan.schedule.end_ps;
  const chart = svg("svg", {id: "gantt", class: "gantt", tabindex: 0, role: "application", "aria-describedby": "gantt-how",
    "aria-label": "Gantt chart of one training step"});
  put(at,
    el("p", {}, n > 1 ? `${n} stages run ${plural(p.micro_batches, "micro-batch")} (${p.schedule}); a row is what every device of a stage does. `
      : `${p.micro_batches > 1 ? `${plural(p.micro_batches, "micro-batch")}, one after the other` : "One micro-batch"}; the row is what every device does. `,
    `The schedule takes ${time(p.simulated_ps)} when it is run event by event`,
    time(p.simulated_ps) === time(p.objective_ps) ? "." : `; the search’s own formula says ${time(p.objective_ps)}.`),
    drawn < p.micro_batches && el("p", {class: "note"},
      `Drawn are ${thousands(drawn)} of the ${thousands(p.micro_batches)} micro-batches: the middle repeats.`),
    legend([["forward", "forward"], ["backward", "backward"], ["bubble", "waiting (bubble)"], ["compute", "kernels"],
      ["activation", "activation sums"],
      ["gradient", "gradient sums"], ["parameter", "weight gathers"], ["receive", "stage to stage"], ["update", "update"]]
      .filter(([cls]) => ["forward", "backward", "compute", "update"].includes(cls) || (cls === "bubble" ? n > 1
        : plan.stages.some(s => TIME_PARTS.some(([key, , c]) => c === cls && s.predicted[key] > 0))))),
    el("div", {class: "tools"},
      button("+", "Zoom in", () => zoomAt(middle(), 2)), button("−", "Zoom out", () => zoomAt(middle(), 0.5)),
      button("◀", "Earlier", () => setView(gantt.from - (gantt.to - gantt.from) / 2, gantt.to - (gantt.to - gantt.from) / 2)),
      button("▶", "Later", () => setView(gantt.from + (gantt.to - gantt.from) / 2, gantt.to + (gantt.to - gantt.from) / 2)),
      button("whole step", "Show the whole step", () => setView(0, plan.schedule.end_ps)),
      button("one micro-batch", "Show one micro-batch", zoomMicro), button("end", "Show what is done once per step", zoomEnd),
      el("span", {id: "zoomed", class: "note"})),
    el("div", {id: "gantt-box"}, chart),
    el("p", {id: "gantt-said", class: "note said", "aria-hidden": "true"}),
    el("p", {id: "gantt-how", class: "note"},
      "Double-click, Ctrl and wheel, or the buttons zoom; drag moves. With the keyboard: arrows go from piece to " +
      "piece and from stage to stage, + and − zoom, 0 shows all."),
    scheduleTable());
  listen(chart);
  new ResizeObserver(boxes => {
    const width = Math.round(boxes[0].contentRect.width);
    if (width > 0 && width !== gantt.width) {
      gantt.width = width;
      drawGantt();
    }
  }).observe(document.getElementById("gantt-box"));
  gantt.width = Math.round(document.getElementById("gantt-box").getBoundingClientRect().width) || 1000;
  drawGantt();
}

/* From the first event that is done once per step to the end. */
function zoomEnd() {
  let begin = plan.schedule.end_ps;
  for (const runs of plan.schedule.stages)
    for (const [, , , events] of runs)
      for (const e of events)
        begin = e[0] > 1 ? Math.min(begin, e[3]) : begin;
  const span = plan.schedule.end_ps - begin;
  setView(begin - 0.15 * span, plan.schedule.end_ps);
}
