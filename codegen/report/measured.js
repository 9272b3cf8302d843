/* measured.js - what a trainer's profile says (plan.measured, inspect/profile.h) beside what was planned: the largest misses in words,
 * the passes of a step on one time axis, and every row. */

const PASS_NAMES = ["forward", "backward", "update"];

/* Planned passes of a stage, [what, begin, end] in seconds, from the runs of its schedule; a few thousand at most. */
function plannedPasses(stage) {
  const out = [], most = 4000;
  for (const [times, period, , pattern] of plan.schedule.stages[stage])
    for (let k = 0; k < times && out.length < most; k++)
      for (const [what, , , begin, length] of pattern)
        out.push([Math.min(what, 2), (begin + k * period) * PS, (begin + k * period + length) * PS]);
  return out;
}

/* A row of passes over WHOLE seconds. */
function passRow(passes, whole, label) {
  const row = svg("svg", {class: "stack", viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": label});
  row.append(svg("rect", {class: "bubble", width: 1000, height: 22}));
  for (const [what, begin, end, wait] of passes) {
    const cls = ["forward", "backward", "update"][what];
    row.append(hinted(svg("rect", {class: cls, x: 1000 * begin / whole, width: Math.max(0.6, 1000 * (end - begin) / whole), height: 22}),
      [PASS_NAMES[what], `${seconds(begin)} to ${seconds(end)}: ${seconds(end - begin)}`, wait ? `of which ${seconds(wait)} waited for others` : ""]));
  }
  return row;
}

function drawMeasured(at) {
  const m = plan.measured, whole = Math.max(m.step_s, m.planned_step_s), several = plan.stages.length > 1;
  const rowsOf = stage => [["planned", plannedPasses(stage)],
    ["measured", m.passes.filter(p => p[0] === stage).map(p => p.slice(1))]];
  at.hidden = false;
  put(at,
    el("p", {id: "measured-lead"}, `Step ${m.step} of ${m.file}, ${plural(m.ranks, "rank")}: ${seconds(m.step_s)}, planned were `,
      `${seconds(m.planned_step_s)}: ${three(m.step_s / m.planned_step_s)} times as long.`),
    m.misses.length ? el("div", {}, el("h3", {}, "The largest misses"), el("ol", {id: "misses"}, m.misses.map(t => el("li", {}, t))))
      : el("p", {id: "misses"}, "Nothing is off by more than 2 % of the step."),
    legend([["forward", "forward"], ["backward", "backward"], ["update", "update"], ["bubble", "neither"]]),
    el("div", {class: `barrows${plan.stages.length > 16 ? " many" : ""}`, id: "measured-passes"},
      plan.stages.map((s, i) => rowsOf(i).map(([what, passes]) => [el("div", {class: "barname"}, several ? `stage ${i}, ${what}` : what),
        passRow(passes, whole, `${what} passes of stage ${i}`),
        el("div", {class: "barvalue"}, what === "measured" ? `waits ${seconds(m.wait_s[i])}` : "")]))),
    el("p", {class: "note"}, `Both over ${seconds(whole)}. Measured passes are those of a stage's first rank; they hold what it waits for others.`),
    table("Seconds of a step, a rank of a stage on average, without waits", [
      ...(several ? [["stage", "number"]] : []), ["", "text"], ["planned", "number"], ["measured", "number"], ["ratio", "number"], ["off", "number"]],
    m.rows.filter(r => r[3] > 0 || r[4] > 0).map(([stage, , name, planned, seen]) => [...(several ? [String(stage)] : []), name,
      planned > 0 ? seconds(planned) : "none", seen > 0 ? seconds(seen) : "none", planned > 0 && seen > 0 ? three(seen / planned) : "",
      `${seen >= planned ? "+" : "−"}${seconds(Math.abs(seen - planned))}`]), {id: "measured-table"}));
}
