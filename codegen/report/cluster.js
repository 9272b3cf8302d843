/* cluster.js - the cluster drawn: which devices are which stage, and in one node which links each mesh axis runs over. */

const MAX_NODES = 256;       /* drawn one by one */
const STAGE_HUES = 12;

function stageColour(i) {
  const n = plan.stages.length;
  return n === 1 ? "var(--m-reserved)"
    : `hsl(${Math.round((i % STAGE_HUES) * 360 / Math.min(n, STAGE_HUES) + 210) % 360} 48% ${i % 2 ? 68 : 76}%)`;
}

function stageOf(device) {
  return plan.stages.findIndex(s => device >= s.first_device && device < s.first_device + s.devices);
}

/* Where DEVICE lies on its stage's mesh, per axis. */
function coordinates(device) {
  const s = plan.stages[stageOf(device)], program = plan.programs[s.program], at = device - s.first_device;
  return program.mesh.map(a => Math.floor(at / a.stride) % a.size);
}

/* ---- all nodes ---- */

function deviceHint(device) {
  const i = stageOf(device);
  if (i < 0)
    return [`device ${device}`, "not used"];
  const s = plan.stages[i], program = plan.programs[s.program], at = coordinates(device);
  return [`device ${device}, stage ${i}`, s.first_layer ? s.first_layer === s.last_layer ? s.first_layer
    : `${s.first_layer} … ${s.last_layer}` : "the whole model",
    program.mesh.filter(a => a.size > 1).map(a => `${a.axis} ${at[program.mesh.indexOf(a)]} of ${a.size}`).join(", ")
      || "alone",
    `${bytes(s.memory.arena_bytes)} of memory`];
}

/* Nodes as boxes of devices, in rows of as many as fit WIDTH. */
function drawNodes(width, chosen) {
  const c = plan.cluster, per = c.devices_per_node, nodes = Math.min(c.nodes, MAX_NODES), size = nodes > 64 ? 9 : nodes > 16
    ? 13 : nodes > 2 ? 19 : 30;
  const across = Math.min(per, per > 16 ? 16 : per > 4 && nodes > 1 ? 4 : 8), down = Math.ceil(per / across),
    w = across * size + 10, h = down * size + 10 + (nodes > 16 ? 0 : 14);
  const columns = Math.max(1, Math.floor((width + 6) / (w + 6))), rows = Math.ceil(nodes / columns);
  const drawing = svg("svg", {viewBox: `0 0 ${Math.max(columns * (w + 6), 60)} ${rows * (h + 6)}`, role: "img",
    "aria-label": `${plural(c.nodes, "node")} of ${plural(per, "device")}: ${plan.stages.map((s, i) => `stage ${i} on devices ${s.first_device} to ${s.first_device + s.devices - 1}`).join(", ")}`});
  drawing.style.maxWidth = `${Math.max(columns * (w + 6), 60)}px`;
  for (let n = 0; n < nodes; n++) {
    const x = (n % columns) * (w + 6) + 2, y = Math.floor(n / columns) * (h + 6) + 2;
    const g = svg("g", {class: "node", "data-node": n, onclick: () => chosen(n)},
      svg("rect", {class: "node-box", x, y, width: w - 2, height: h - 2, rx: 4}));
    if (nodes <= 16)
      g.append(svg("text", {class: "node-name", x: x + 5, y: y + 13}, c.nodes > 1 ? `node ${n}` : c.name));
    for (let k = 0; k < per && n * per + k < c.devices; k++) {
      const device = n * per + k, stage = stageOf(device), dx = x + 4 + (k % across) * size,
        dy = y + (nodes <= 16 ? 18 : 4) + Math.floor(k / across) * size;
      g.append(hinted(svg("rect", {class: "device", x: dx, y: dy, width: size - 1, height: size - 1, rx: 2,
        style: `fill: ${stage < 0 ? "var(--bubble)" : stageColour(stage)}`}),
        deviceHint(device)));
      if (size >= 19)
        g.append(svg("text", {class: "device-number", x: dx + size / 2 - 0.5, y: dy + size / 2, style: size < 25
          ? "font-size: 9px" : null}, String(device)));
    }
    drawing.append(g);
  }
  return drawing;
}

/* ---- one node ---- */

const HUBS = {switch: "NVSwitch", pcie: "PCIe", shared: "shared memory", mesh: ""};

/* The axis along which A and B differ alone, or -1. */
function axisBetween(a, b) {
  if (stageOf(a) !== stageOf(b) || stageOf(a) < 0)
    return -1;
  const x = coordinates(a), y = coordinates(b), differ = x.map((v, i) => i).filter(i => x[i] !== y[i]);
  return differ.length === 1 ? differ[0] : -1;
}

/* Pairs of neighbours in the rings of each axis among DEVICES of a node, [a, b, axis]. */
function ringPairs(devices) {
  const out = [];
  for (const a of devices) {
    const s = plan.stages[stageOf(a)];
    if (!s)
      continue;
    plan.programs[s.program].mesh.forEach((axis, i) => {
      const at = coordinates(a)[i];
      for (const next of at + 1 < axis.size ? [a + axis.stride] : axis.size > 2 ? [a - (axis.size - 1) * axis.stride] : [])
        if (devices.includes(next))
          out.push([a, next, i]);
    });
  }
  return out;
}

function wires(devices, place) {
  const c = plan.cluster, g = svg("g", {});
  const wire = (a, b, cls, width, hint, bend) => {
    const [x1, y1] = place(a), [x2, y2] = place(b), mx = (x1 + x2) / 2 * bend, my = (y1 + y2) / 2 * bend;
    g.append(hinted(svg("path", {class: `wire ${cls}`, d: `M${x1},${y1}Q${mx},${my} ${x2},${y2}`, "stroke-width": width}),
      hint));
  };
  if (c.kind === "mesh") {
    for (const a of devices)
      for (const b of devices) {
        const n = a < b ? c.links[a % c.devices_per_node][b % c.devices_per_node] : 0, axis = n ? axisBetween(a, b) : -1;
        const name = axis < 0 ? "between groups" : plan.programs[plan.stages[stageOf(a)].program].mesh[axis].axis;
        if (n)
          wire(a, b, axis < 0 ? "unused" : `axis${axis}`, 2.5 * n, [`devices ${a} and ${b}: ${plural(n, "link")}`,
            `${rate(n * c.link_bytes_per_s)}; ${name}`], 1);
      }
    return g;
  }
  for (const a of devices)
    g.append(svg("path", {class: "wire unused", d: `M${place(a)}L0,0`, "stroke-width": 1.5}));
  for (const [a, b, axis] of ringPairs(devices)) {
    const m = plan.programs[plan.stages[stageOf(a)].program].mesh[axis];
    wire(a, b, `axis${axis}`, 3, [`${m.axis} ${m.size}: devices ${a} and ${b}`, m.bytes_per_s
      ? `${rate(m.bytes_per_s)} per device within the node` : ""].filter(x => x), axis ? 0.55 : 0.85);
  }
  return g;
}

/* The device that DEVICE hands its results to: at the same place in the next stage; -1: none. */
function nextDevice(device) {
  const i = stageOf(device), s = plan.stages[i], next = plan.stages[i + 1];
  return s && next ? next.first_device + Math.floor((device - s.first_device) * next.devices / s.devices) : -1;
}

/* From stage to stage: to the peer in this node, else to the network. */
function stageWires(devices, place) {
  const g = svg("g", {});
  for (const a of devices) {
    const b = nextDevice(a), [x, y] = place(a), r = Math.hypot(x, y) || 1, turn = 0.14;
    if (b < 0)
      continue;
    const inside = devices.includes(b), [x2, y2] = inside ? place(b) : [(x * Math.cos(turn) - y * Math.sin(turn)) / r * 172,
      (x * Math.sin(turn) + y * Math.cos(turn)) / r * 172];
    g.append(hinted(svg("path", {class: "wire receive", "stroke-width": 2, "stroke-dasharray": "2 3",
      d: `M${x},${y}Q${(x + x2) * 0.56},${(y + y2) * 0.56} ${x2},${y2}`}),
      [`stage ${stageOf(a)} to stage ${stageOf(a) + 1}`, `device ${a} to device ${b}${inside ? "" : ", over the network"}`]));
  }
  return g;
}

/* Lines to the network of devices whose groups leave the node, by axis. */
function networkWires(devices, place) {
  const g = svg("g", {});
  for (const a of devices) {
    const s = plan.stages[stageOf(a)], [x, y] = place(a), r = Math.hypot(x, y) || 1;
    let k = 0;
    if (s)
      plan.programs[s.program].mesh.forEach((axis, i) => {
        if (axis.nodes < 2)
          return;
        const turn = (k++ - 0.5) * 0.09, cx = Math.cos(turn), sx = Math.sin(turn), ux = (x * cx - y * sx) / r,
          uy = (x * sx + y * cx) / r;
        g.append(hinted(svg("path", {class: `wire axis${i}`, "stroke-width": 3, "stroke-dasharray": "5 3",
          d: `M${x},${y}L${ux * 172},${uy * 172}`}),
          [`${axis.axis} ${axis.size}: over the network`,
            `${plural(axis.nodes, "node")} in a group, ${rate(axis.network_bytes_per_s)} of a node for a group`]));
      });
  }
  return g;
}

function drawNode(node) {
  const c = plan.cluster, per = c.devices_per_node, devices = [];
  for (let d = node * per; d < Math.min((node + 1) * per, c.devices) && devices.length < 32; d++)
    devices.push(d);
  const n = devices.length, size = n > 16 ? 12 : 18, radius = n === 1 ? 0 : 122;
  const place = d => {
    const angle = 2 * Math.PI * ((d - devices[0]) + 0.5) / n - Math.PI / 2;
    return [Math.round(radius * Math.cos(angle) * 10) / 10, Math.round(radius * Math.sin(angle) * 10) / 10];
  };
  const networked = devices.some(d => plan.stages[stageOf(d)] && plan.programs[plan.stages[stageOf(d)].program].mesh.some(a =>
    a.nodes > 1));
  const drawing = svg("svg", {viewBox: n > 2 || networked ? "-185 -185 370 370" : "-185 -40 370 80", role: "img",
    "aria-label": `Node ${node} with its links, coloured by mesh axis`});
  if (c.nics > 0)
    drawing.append(svg("circle", {class: networked ? "wire" : "wire unused", r: 174, "stroke-width": 1,
      "stroke-dasharray": "2 4", style: "color: var(--soft)"}));
  drawing.append(networkWires(devices, place), stageWires(devices, place), wires(devices, place));
  if (HUBS[c.kind] && n > 1)
    drawing.append(svg("rect", {class: "hub", x: -48, y: -14, width: 96, height: 28, rx: 6}),
      svg("text", {class: "node-name", "text-anchor": "middle", y: 4}, HUBS[c.kind]));
  for (const d of devices) {
    const [x, y] = place(d), stage = stageOf(d);
    drawing.append(hinted(svg("rect", {class: "device", x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: 5,
      style: `fill: ${stage < 0 ? "var(--bubble)" : stageColour(stage)}`}), deviceHint(d)),
    svg("text", {class: "device-number", x, y}, String(d)));
  }
  return drawing;
}

/* ---- the section ---- */

function linkWords() {
  const c = plan.cluster, words = {
    switch: () => `every device to every other at ${[c.rates[0], ...(c.rates.length > 1 ? [c.rates[c.rates.length - 1]] : [])].map(r => `${rate(r[1])} in a group of ${r[0]}`).join(", ")}`,
    mesh: () => `links of ${rate(c.link_bytes_per_s)}; ${rate(c.pcie_bytes_per_s)} over PCIe where there is none`,
    pcie: () => `PCIe, ${rate(c.link_bytes_per_s)} per device, ${rate(c.total_bytes_per_s)} of a node together`,
    shared: () => `threads that share memory, ${rate(c.link_bytes_per_s)} each, ${rate(c.total_bytes_per_s)} together`}[c.kind]();
  const network = c.nics
    ? ` ${plural(c.nics, "network card")} of ${rate(c.nic_bytes_per_s)} per node${c.network_reduces ? "; its switches can reduce" : ""}.` : "";
  return `Within a node: ${words}.${network}`;
}

function groupDevices(first, axis, most) {
  const numbers = [...Array(Math.min(axis.size, most)).keys()].map(k => first + k * axis.stride).join(", ");
  return axis.size > most ? `${numbers}, … ${first + (axis.size - 1) * axis.stride}` : numbers;
}

function axesTable() {
  const rows = alike(s => plan.programs[s.program].mesh).flatMap(g => {
    const mesh = plan.programs[g.first.program].mesh;
    return mesh.filter(a => a.size > 1).map(a => [plan.stages.length > 1 ? stagesName(g.stages) : "all", el("span", {},
      el("span", {class: `key axis${mesh.indexOf(a)}`}), `${a.axis} ${a.size}`), a.use,
    groupDevices(g.first.first_device, a, 3),
    a.nodes > 1 ? `${a.nodes} nodes, ${a.local} in each` : "one node", a.bytes_per_s ? rate(a.bytes_per_s) : "–",
      a.network_bytes_per_s ? rate(a.network_bytes_per_s) : "–"]);
  });
  return rows.length ? table("Mesh axes: which devices talk to each other, and how fast all groups can at once",
    [["stages", "text"], ["axis", "text"], ["splits", "text"],
    ["a group’s devices", "text"], ["over", "text"], ["in a node, per device", "number"], ["network, per node", "number"]],
      rows) : null;
}

/* The same in words, beside the drawing, where there are few. */
function axisCards() {
  return alike(s => plan.programs[s.program].mesh).flatMap(g => plan.programs[g.first.program].mesh.map((a, i) => a.size > 1
    && el("div", {class: `axis-card axis${i}`},
    el("h3", {}, `${plan.stages.length > 1 ? `${stagesName(g.stages)}: ` : ""}${a.axis} ${a.size}`),
    facts([["splits", a.use], ["a group’s devices", groupDevices(g.first.first_device, a, 16)],
      ["in a node", a.bytes_per_s ? `${rate(a.bytes_per_s)} per device, all groups at once` : ""],
      ["over the network", a.network_bytes_per_s
        ? `${plural(a.nodes, "node")} in a group; ${rate(a.network_bytes_per_s)} of a node for a group` : ""]])))).filter(x =>
        x);
}

function drawCluster(at) {
  const c = plan.cluster, left = el("div", {}), right = el("div", {});
  let node = 0;
  const pick = el("label", {class: "pick note"},
    `${plan.stages.length > 1 ? "Dotted: from stage to stage. " : ""}Links of node `,
    el("input", {type: "number", min: 0, max: c.nodes - 1, value: 0,
    oninput: e => choose2(Math.min(Math.max(0, Math.floor(e.target.value) || 0), c.nodes - 1))}));
  const choose2 = n => {
    node = n;
    pick.querySelector("input").value = n;
    const drawing = drawNode(node), old = right.querySelector("svg");
    if (old)
      old.replaceWith(drawing);
    else
      right.append(drawing);
  };
  put(at, el("p", {}, `${plan.cluster.words}. ${linkWords()}`));
  if (plan.stages.length > 1)
    put(at, el("ul", {class: "legend"}, plan.stages.length <= 32 ? plan.stages.map((s, i) =>
      el("li", {}, el("span", {class: "key", style: `color: ${stageColour(i)}`}),
      `stage ${i}`)) : el("li", {}, `${plan.stages.length} stages, in the order of the devices`)));
  const cards = axisCards(), few = cards.length <= 6, table = few ? null : axesTable(), none = cards.length ? null
    : el("p", {}, "Nothing is split over devices.");
  if (c.nodes > 1) {
    put(right, pick);
    put(at, el("div", {class: "cluster"}, left, right), table);
    left.append(drawNodes(left.getBoundingClientRect().width || 700, choose2));
    if (c.nodes > MAX_NODES)
      left.append(el("p", {class: "note"}, `and ${thousands(c.nodes - MAX_NODES)} nodes more, of the stages that follow`));
    put(left, few && cards, none);
  } else {
    put(left, el("p", {class: "note"}, c.devices > 1
      ? `The links, coloured by the mesh axis that runs over them${plan.stages.length > 1 ? "; dotted: from stage to stage" : ""}:` : ""), right);
    put(at, el("div", {class: "cluster one"}, left, el("div", {}, few && cards, none)), table);
  }
  choose2(0);
}
