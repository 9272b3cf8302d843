/* summary.js - the head of the page, what else was possible, and what the predictions rest on. */

/* Is the step's time the one with collectives beside kernels (--overlap)? */
const COUNTS_OVERLAP = plan.plan.overlap;
const [TIME_PS, BOUND_PS] = COUNTS_OVERLAP ? [plan.plan.overlapped_ps, plan.plan.overlap_bound_ps]
  : [plan.plan.objective_ps, plan.plan.bound_ps];

/* The gap is a part of this plan's time, how much slower it is a part of the fastest one's. */
function slowerAtMost() {
  return `${three(Math.ceil(1e4 * (TIME_PS / BOUND_PS - 1)) / 100)} %`;
}

function claim() {
  const p = plan.plan, several = plan.stages.length > 1 || p.others.length > 0 || COUNTS_OVERLAP;
  const among = `all ${several ? "plans" : "meshes and micro-batch counts"} searched${p.pinned ? `, ${p.pinned}` : ""}`;
  const model = `by this cost model${COUNTS_OVERLAP ? ", collectives beside kernels counted," : ""}`;
  if (TIME_PS <= 0 || BOUND_PS <= 0)
    return "No bound is known: this plan was not searched for.";
  if (TIME_PS <= BOUND_PS)
    return `Proven the fastest ${model} among ${among}.`;
  return `Proven at most ${slowerAtMost()} slower than the fastest ${model} among ${among}.`;
}

/* What the step's time makes of collectives that run beside kernels; "" where there are none. */
function overlapWords() {
  const p = plan.plan;
  if (COUNTS_OVERLAP)
    return `One after the other, kernels and collectives take ${time(p.objective_ps)}: so they are drawn below, and listed.`;
  if (p.overlapped_ps <= 0 || time(p.overlapped_ps) === time(p.objective_ps))
    return "";
  return `Kernels and collectives are counted one after the other; beside each other, as the trainer runs some, they take about ${time(p.overlapped_ps)}.`;
}

function drawSummary(at) {
  const m = plan.model, p = plan.plan, s = COUNTS_OVERLAP ? 1e-12 * TIME_PS : p.predicted.step_s, first = plan.stages[0], program = plan.programs[first.program];
  const unit = m.tokens_per_sample > 1 ? "tokens" : "samples", full = plan.stages[p.fullest];
  at.firstElementChild.textContent = m.preset ? `${m.name} (${m.preset})` : m.name;
  document.title = `${m.name}${m.preset ? ` (${m.preset})` : ""} on ${plan.cluster.words}`;
  const batch = `batch ${thousands(m.batch)}${m.tokens_per_sample > 1 ? ` × ${thousands(m.tokens_per_sample)} tokens` : ""}`;
  const figure = (id, number, what, detail) => el("div", {class: "figure"}, el("dt", {}, what),
    el("dd", {id: `figure-${id}`}, number), el("dd", {class: "detail"}, detail));
  const micro = m.batch / p.micro_batches;
  const meshes = [...new Set(plan.stages.map(x => meshName(plan.programs[x.program])))];
  const recompute = [...new Set(plan.stages.map(x => plan.programs[x.program].recompute))].join(", ");
  put(at,
    el("p", {class: "lead"},
      `${millions(m.parameters)} parameters on ${plan.cluster.words}; ${batch}, ${m.precision}, ${m.optimizer}`),
    el("dl", {class: "figures"},
      figure("step", seconds(s), "a step", COUNTS_OVERLAP ? `one after the other: ${time(p.objective_ps)}`
        : `simulated event by event: ${time(p.simulated_ps)}`),
      figure("rate", `${thousands(m.batch * m.tokens_per_sample / s)} ${unit}/s`, "throughput",
        `${percent(p.peak_fraction * p.predicted.step_s / s)} of the devices’ peak`),
      figure("memory", bytes(full.memory.arena_bytes), "memory of a device", [
        `${percent(full.memory.arena_bytes / plan.device.usable_bytes)} of the ${bytes(plan.device.usable_bytes)} usable`,
        plan.stages.length > 1 ? `; the fullest, stage ${p.fullest}` : ""].join("")),
      figure("gap", BOUND_PS > 0 && TIME_PS <= BOUND_PS ? "0 %" : BOUND_PS > 0 ? `≤ ${slowerAtMost()}` : "?", "slower than the best",
        BOUND_PS > 0 ? `no plan searched is under ${time(BOUND_PS)}` : "no bound")),
    el("p", {id: "claim"}, claim()),
    el("p", {id: "overlap"}, overlapWords()),
    el("p", {}, plan.stages.length > 1
      ? `${plan.stages.length} pipeline stages (${p.schedule}${p.chunks > 1 ? `, ${p.chunks} parts each` : ""}), `
      : "One stage, ", `${plural(p.micro_batches, "micro-batch")} of ${plural(micro, "sample")}, mesh ${meshes.join("; ")}, `,
      `recomputation: ${recompute}.`),
    el("ul", {class: "uses"}, alike(x => plan.programs[x.program].mesh.map(a => [a.axis, a.use])).map(g => {
      const mesh = plan.programs[g.first.program].mesh.filter(a => a.size > 1);
      const who = plan.stages.length > 1 ? `${stagesName(g.stages)}: ` : "";
      return mesh.map(a => el("li", {}, el("span", {class: `key axis${plan.programs[g.first.program].mesh.indexOf(a)}`}),
        el("b", {}, `${who}${a.axis} ${a.size}`), ` splits ${a.use}`));
    })));
  if (program.mesh.every(a => a.size === 1) && plan.stages.length === 1)
    at.querySelector(".uses").append(el("li", {}, "Nothing is split: there is one device."));
}

/* "+1.3 %"; what rounds to nothing has no sign. */
function slowerBy(ps) {
  const more = (100 * (ps / STEP_PS - 1)).toFixed(1);
  return +more === 0 ? "0.0 %" : `${more > 0 ? "+" : ""}${more} %`;
}

function drawOthers(at) {
  const p = plan.plan;
  if (!p.others.length) {
    put(at, el("p", {}, `The search kept no runner-up${p.pinned ? ` (${p.pinned})` : ""}.`));
    return;
  }
  const most = Math.max(...p.others.map(o => o.time_ps));
  const bar = ps => svg("svg", {class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true"},
    svg("rect", {class: "compute", width: 100 * STEP_PS / most, height: 10}),
    svg("rect", {class: "loss", x: 100 * STEP_PS / most, width: Math.max(0, 100 * (ps - STEP_PS) / most), height: 10}));
  put(at, table("Runners-up, the best first: how much longer a step takes, and what it loses by", [
    ["slower", "number"], ["a step", "number"], ["", "bars"], ["plan", "why"], ["why", "why"]],
  p.others.map(o => [slowerBy(o.time_ps), time(o.time_ps),
    bar(o.time_ps),
    o.what, o.why || "nothing sticks out"]), {id: "others-table"}));
}

function drawBasis(at) {
  const p = plan.plan, d = plan.device, peaks = Object.entries(d.peak_flops_per_s);
  put(at,
    el("p", {}, "Times are predicted, not measured: a model of kernels and collectives over the figures below, which the " +
      "search minimises. ", claim()),
    el("dl", {class: "facts"},
      el("dt", {}, "step of this plan"), el("dd", {id: "objective"}, `${thousands(p.objective_ps)} ps`),
      el("dt", {}, "no plan searched is under"), el("dd", {id: "bound"}, p.bound_ps > 0 ? `${thousands(p.bound_ps)} ps`
        : "not known"),
      el("dt", {}, "optimality gap"), el("dd", {id: "gap"}, `${+(100 * p.gap).toPrecision(6)} %`),
      el("dt", {}, "with collectives beside kernels"), el("dd", {id: "overlapped"}, `${thousands(p.overlapped_ps)} ps`,
        COUNTS_OVERLAP && BOUND_PS > 0 ? `; no plan searched is under ${thousands(p.overlap_bound_ps)} ps` : ""),
      el("dt", {}, "schedule run event by event"), el("dd", {id: "simulated"}, `${thousands(p.simulated_ps)} ps`),
      el("dt", {}, "device"), el("dd", {},
        `${d.name}: ${bytes(d.mem_bytes)} of which ${bytes(d.usable_bytes)} are used at most, `,
        `${rate(d.mem_bytes_per_s)} memory, ${seconds(d.launch_s)} per kernel; peak `,
        peaks.map(([k, v]) => `${k} ${three(v / 1e12)}`).join(", "), " TFLOP/s")),
    el("div", {id: "figures"}));
  const files = [...new Set(plan.figures.map(f => f[0]))];
  at.querySelector("#figures").append(...files.map(f => {
    const rows = plan.figures.filter(x => x[0] === f);
    return more(`${S(f)}: ${plural(rows.length, "figure")}`, table(`Figures of ${S(f)} and where each is from`,
      [["what", "text"], ["figures", "text"], ["source", "why"], ["line", "number"]],
      rows.map(x => [S(x[2]), S(x[3]), S(x[4]) || "none given", String(x[1])])));
  }));
}
