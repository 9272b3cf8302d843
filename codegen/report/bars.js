/* bars.js - where a step's time goes, and what lies in a device's memory. */

/* A bar of PARTS, [value, class, hint]s, in which WHOLE fills the width. */
function stack(parts, whole, label) {
  let x = 0;
  const bar = svg("svg", {class: "stack", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img",
    "aria-label": label});
  for (const [value, cls, hint] of parts) {
    const w = 1000 * value / whole;
    if (w > 0)
      bar.append(hinted(svg("rect", {class: cls, x, width: Math.max(w, 0.5), height: 22}), hint));
    x += w;
  }
  return bar;
}

function barRows(groups, bar, text) {
  return el("div", {class: `barrows${groups.length > 16 ? " many" : ""}`},
    groups.map(g => [el("div", {class: "barname"}, plan.stages.length > 1 ? stagesName(g.stages) : "each device"),
    bar(g.first), el("div", {class: "barvalue"}, text(g.first))]));
}

/* ---- time ---- */

/* A stage's parts; what it waits is the step less its own. */
function timeParts(stage) {
  const p = stage.predicted, step_s = plan.plan.predicted.step_s;
  return TIME_PARTS.map(([key, name, cls]) => [key === "bubble_s" ? Math.max(0, step_s - p.step_s) : p[key], name, cls]);
}

function drawTime(at) {
  const p = plan.plan, step_s = p.predicted.step_s, slow = plan.stages[p.slowest];
  const groups = alike(s => timeParts(s).map(x => x[0]));
  put(at,
    el("p", {}, plan.stages.length > 1
      ? `Every device of a stage does the same at the same time. The step lasts as long as stage ${p.slowest} is busy and waits.`
      : "Every device does the same at the same time."),
    legend(TIME_PARTS.filter(([key]) => plan.stages.some(s => key === "bubble_s" ? step_s - s.predicted.step_s > 1e-12
      : s.predicted[key] > 0))
      .map(([, name, cls]) => [cls, name])),
    barRows(groups, s => stack(timeParts(s).map(([v, name, cls]) => [v, cls,
      [name, `${seconds(v)}, ${percent(v / step_s)} of the step`]]),
      step_s, timeParts(s).filter(x => x[0] > 0).map(([v, name]) => `${name} ${percent(v / step_s)}`).join(", ")),
    s => `busy ${seconds(s.predicted.step_s)}`),
    table(plan.stages.length > 1 ? `Of stage ${p.slowest}, which is busy longest` : "Of a step",
      [["", "text"], ["time", "number"], ["share", "number"]],
      timeParts(slow).filter(x => x[0] > 0).map(([v, name, cls]) => [el("span", {}, el("span", {class: `key ${cls}`}), name),
        seconds(v),
        percent(v / step_s)]), {id: "time-table"}),
    el("p", {class: "note"}, `Once per step, after the last backward: ${time(slow.once_ps)}`,
      slow.update_ps ? `, of which ${time(slow.update_ps)} wait for the norm of all gradients (the update)` : "", "."),
    el("div", {id: "collectives"}), el("div", {id: "kernels"}));
  choose(at.querySelector("#collectives"), "Collectives of", collectivesTable);
  choose(at.querySelector("#kernels"), "Kernels of", kernelsTable);
}

/* A table that MAKE(stage) makes, for the stage that is chosen where there are several. */
function choose(at, label, make) {
  const groups = alike(s => [s.program]), slow = groups.findIndex(g => g.stages.includes(plan.plan.slowest));
  const body = el("div", {});
  const show = g => body.replaceChildren(make(g.first, plan.programs[g.first.program]));
  if (groups.length > 1)
    put(at, el("label", {class: "pick"}, `${label} `, el("select", {onchange: e => show(groups[e.target.value])},
      groups.map((g, i) => el("option", {value: i, selected: i === slow}, stagesName(g.stages))))));
  put(at, body);
  show(groups[slow]);
}

/* Where the cause begins in a reason: after the name that it is about. */
function causeOf(reason) {
  const at = [" sums over ", " rests ", " needs ", " takes ", " adds up ", " is "].map(v => reason.indexOf(v)).filter(i =>
    i >= 0);
  return at.length ? [reason.slice(0, Math.min(...at)), reason.slice(Math.min(...at) + 1)] : ["", reason];
}

/* Records of one kind, axes, phase and cause as one row. */
function collectiveRows(program) {
  const rows = new Map();
  for (const [, times, kind, mask, phase, role, , size, count, cost_ps, reason] of program.collectives) {
    const [name, cause] = causeOf(S(reason)), key = [kind, mask, phase, cause].join("|");
    if (!rows.has(key))
      rows.set(key, {kind: S(kind), mask, phase, role: S(role), cause, names: new Set(), n: 0, bytes: 0, ps: 0});
    const r = rows.get(key);
    r.n += times * count;
    r.bytes += times * count * size;
    r.ps += times * count * cost_ps;
    if (name)
      r.names.add(name);
  }
  return [...rows.values()].sort((a, b) => b.ps - a.ps);
}

function because(row) {
  const names = [...row.names];
  if (names.length === 1)
    return `${names[0]} ${row.cause}`;
  return row.cause + (names.length
    ? `: ${names.slice(0, 3).join(", ")}${names.length > 3 ? ` and ${names.length - 3} more` : ""}` : "");
}

function collectivesTable(stage, program) {
  const rows = collectiveRows(program);
  if (!rows.length)
    return el("p", {}, "No collectives: nothing is split.");
  return table("Collectives of a step: how many, over which axes, bytes per device in all, time, and why", [
    ["collective", "text"], ["over", "text"], ["phase", "text"], ["times", "number"], ["bytes", "number"], ["time", "number"],
    ["of the step", "number"], ["why", "why"]],
  rows.map(r => [r.kind, axesName(program, r.mask), PHASES[r.phase], thousands(r.n), bytes(r.bytes), time(r.ps),
    percent(r.ps / STEP_PS),
    because(r)]));
}

function kernelsTable(stage, program) {
  const rows = program.kernels.map(k => ({name: S(k[2]), phase: k[3], op: S(k[4]), split: S(k[8]), n: k[1] * k[11],
    ps: k[1] * k[11] * k[9]}))
    .sort((a, b) => b.ps - a.ps), most = 12, rest = rows.slice(most).reduce((sum, r) => sum + r.ps, 0);
  const shown = rows.slice(0, most).filter(r => r.ps > 0).map(r => [r.name, r.op, PHASES[r.phase], thousands(r.n), time(r.ps),
    percent(r.ps / STEP_PS),
    r.split]);
  if (rest > 0)
    shown.push([`${rows.length - most} more`, "", "", "", time(rest), percent(rest / STEP_PS), ""]);
  return more("The kernels that take longest",
    table("Kernels of a step by time, those of layers that are alike together (* is the layer)", [
    ["kernel", "text"], ["op", "text"], ["phase", "text"], ["times", "number"], ["time", "number"], ["of the step", "number"],
    ["split", "why"]], shown));
}

/* ---- memory ---- */

/* What STAGE holds while the step goes on: what rests is always there, activations come with the micro-batches that are held.
 * Steps of a curve, [x in 0..1000, micro-batches]. */
function heldOverTime(stage) {
  const out = [], columns = 500, end = plan.schedule.end_ps;
  for (let i = 0; i <= columns; i++) {
    const held = heldAt(stage, i / columns * end);
    if (!out.length || out[out.length - 1][1] !== held)
      out.push([1000 * i / columns, held]);
  }
  return out;
}

function drawOver(stage) {
  const s = plan.stages[stage], m = s.memory, usable = plan.device.usable_bytes, chunks = plan.plan.chunks,
    most = s.in_flight * chunks;
  const rest = MEMORY_PARTS.filter(([key]) => key !== "activations" && m[key] > 0),
    top = Math.max(m.arena_bytes, Math.min(usable, 1.6 * m.arena_bytes));
  const y = v => 150 * (1 - v / top), steps = heldOverTime(stage), all = Math.max(most, ...steps.map(x => x[1]));
  const drawing = svg("svg", {class: "over", viewBox: "0 0 1000 150", preserveAspectRatio: "none", height: 150, role: "img",
    "aria-label": `Memory of a device of stage ${stage} over the step: ${bytes(m.arena_bytes - m.activations)} always, and up to ${bytes(m.activations)} of activations`});
  let below = 0;
  for (const [key, name, cls] of rest) {
    drawing.append(hinted(svg("rect", {class: cls, x: 0, y: y(below + m[key]), width: 1000,
      height: y(below) - y(below + m[key])}), [name, bytes(m[key])]));
    below += m[key];
  }
  let path = `M0,${y(below)}`;
  for (const [i, [x, held]] of steps.entries())
    path += `V${y(below + m.activations * held / all)}H${i + 1 < steps.length ? steps[i + 1][0] : 1000}`;
  drawing.append(svg("path", {class: "m-activations", d: `${path}V${y(below)}Z`}));
  if (usable <= top)
    drawing.append(svg("line", {class: "limit", x1: 0, x2: 1000, y1: y(usable), y2: y(usable)}));
  drawing.addEventListener("pointermove", e => {
    const box = drawing.getBoundingClientRect(), ps = (e.clientX - box.left) / box.width * plan.schedule.end_ps,
      held = heldAt(stage, ps);
    showTip(e, [`at ${time(ps)}`,
      `activations of ${held}${chunks > 1 ? ` of ${all} parts of micro-batches` : ` of ${plural(all, "micro-batch")}`}`,
      `about ${bytes(Math.round(m.activations * held / all))}`]);
  });
  drawing.addEventListener("pointerleave", hideTip);
  return el("figure", {}, drawing, el("figcaption", {class: "note"},
    `0 to ${time(plan.schedule.end_ps)}; the top is ${usable <= top ? "what is usable, " : ""}${bytes(Math.round(top))}`,
      ". Activations are drawn in proportion to the micro-batches that are held; their room is allocated all the time."));
}

function drawMemory(at) {
  const d = plan.device, usable = d.usable_bytes, groups = alike(s => s.memory);
  const present = MEMORY_PARTS.filter(([key]) => plan.stages.some(s => s.memory[key] > 0));
  const whole = Math.max(d.mem_bytes, ...plan.stages.map(s => s.memory.arena_bytes));
  const parts = s => [...MEMORY_PARTS.map(([key, name, cls]) => [s.memory[key], cls, [name, bytes(s.memory[key]),
    `${percent(s.memory[key] / usable)} of what is usable`]]),
    [usable - s.memory.arena_bytes, "m-free", ["free", bytes(usable - s.memory.arena_bytes)]],
    [d.mem_bytes - usable, "m-reserved", ["not used by plans", bytes(d.mem_bytes - usable),
      "for the driver and the libraries"]]];
  /* Where all of it is a sliver of the device, the kinds alone are drawn as well. */
  const small = Math.max(...plan.stages.map(s => s.memory.arena_bytes)) < 0.2 * usable;
  const say = s => MEMORY_PARTS.filter(([key]) => s.memory[key] > 0).map(([key, name]) =>
    `${name} ${bytes(s.memory[key])}`).join(", ");
  put(at,
    el("p", {}, `At its fullest moment, of ${bytes(d.mem_bytes)} (${d.name}), `,
      bytes(usable) === bytes(d.mem_bytes) ? "all of which plans may fill. " : `of which plans may fill ${bytes(usable)}. `,
      "Each rank allocates exactly these bytes, once."),
    legend([...present.map(([, name, cls]) => [cls, name]), ["m-free", "free"], ["m-reserved", "not used by plans"]]),
    barRows(groups, s => stack(parts(s), whole, `${say(s)}; of ${bytes(usable)} usable`), s => bytes(s.memory.arena_bytes)));
  if (small)
    put(at, el("p", {class: "note"}, "The same without what is free:"),
      barRows(groups, s => stack(parts(s).slice(0, MEMORY_PARTS.length),
      Math.max(...plan.stages.map(x => x.memory.arena_bytes)), say(s)), s => bytes(s.memory.arena_bytes)));
  const over = el("div", {}), places = alike(x => [x.memory, x.in_flight]);
  const show = g => over.replaceChildren(drawOver(g.stages[0]));
  put(at, el("h3", {}, "Over the step"), places.length > 1 && el("label", {class: "pick note"}, "Of ",
    el("select", {onchange: e => show(places[e.target.value])},
    places.map((g, i) => el("option", {value: i, selected: g.stages.includes(plan.plan.fullest)}, stagesName(g.stages))))),
      over);
  show(places.find(g => g.stages.includes(plan.plan.fullest)));
  const held = alike(s => [s.memory, s.in_flight]), bytesTable = table("Bytes of a device at its fullest",
    [["", "text"], ...present.map(([, name]) => [name, "number"]), ["in all", "number"],
    ["least possible", "number"], ["micro-batches held", "number"]],
  held.map(g => [plan.stages.length > 1 ? stagesName(g.stages) : "each device",
    ...present.map(([key]) => bytes(g.first.memory[key])), bytes(g.first.memory.arena_bytes),
      bytes(g.first.memory.live_bound_bytes),
    thousands(g.first.in_flight)]), {id: "memory-table"});
  put(at, held.length > 12 ? more("The same as a table", bytesTable) : bytesTable);
}
