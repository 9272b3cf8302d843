/* tree.js - the model as a tree by the dotted names of its ops and tensors, those of layers that are alike together.
 *
 * A node: {name, path, layers (what a group of layers stands for), children: Map, tensors, kernels, comms}; records are those of
 * report_html_tree.c. Inside a group of layers everything is for one of them. */

function newNode(name, path) {
  return {name, path, children: new Map(), tensors: [], kernels: [], comms: [], row: null};
}

function childOf(node, key, name, path) {
  if (!node.children.has(key))
    node.children.set(key, newNode(name, path));
  return node.children.get(key);
}

/* The node of the dotted NAME below NODE; PREFIX stands for what is left out of it. */
function descend(node, name, prefix) {
  let path = prefix;
  for (const part of name.split(".")) {
    path = path ? `${path}.${part}` : part;
    node = childOf(node, part, part, path);
  }
  return node;
}

/* [repeat, rest] of "h.*.attn.c_attn": ["h", "attn.c_attn"]; null for a name without a layer. */
function splitTemplate(name) {
  const m = /^(.*?)\.\*([+-]\d+)?(?:\.(.*))?$/.exec(name);
  if (!m)
    return null;
  const other = !m[2] ? "" : m[2] === "-1" ? "(of the layer before)" : m[2] === "+1" ? "(of the next layer)"
    : `(of layer ${m[2]})`;
  return [m[1], [other, m[3] || ""].filter(x => x).join(".")];
}

/* The records of PROGRAM as {list, record, name, layers}, in an order that follows the model: what is made first. */
function recordsOf(program) {
  const out = [];
  for (const list of ["tensors", "kernels", "collectives"])
    for (const [at, record] of program[list].entries()) {
      const name = S(record[list === "collectives" ? 6 : 2]);
      out.push({list: list === "collectives" ? "comms" : list, record, name, layers: spans(S(record[0])),
        split: splitTemplate(name),
        order: list === "kernels" ? at + 1 : list === "tensors" && record[3] === 1 ? 0 : Infinity});
    }
  return out;
}

/* What a record decides: names of what it reads from outside do not count, so that a first layer is as the others. */
function decision(list, record) {
  const shardings = operands => operands.map(o => [o[1], o[2]]);
  return JSON.stringify(list === "kernels" ? [list, record.slice(2, 12), shardings(record[12]), shardings(record[13])]
    : [list, record.slice(2)]);
}

/* Layers of one program that hold records alike, by repeat: [{repeat, layers, key, records (those of most layers)}]. */
function layerGroups(records) {
  const byRepeat = new Map(), groups = [];
  for (const r of records) {
    if (!r.split || !r.layers.length)
      continue;
    r.decision = decision(r.list, r.record);
    const layers = byRepeat.get(r.split[0]) || byRepeat.set(r.split[0], new Map()).get(r.split[0]);
    for (const [a, b] of r.layers)
      for (let k = a; k <= b; k++)
        (layers.get(k) || layers.set(k, []).get(k)).push(r);
  }
  for (const [repeat, layers] of byRepeat) {
    const same = new Map();
    for (const [k, list] of [...layers].sort((a, b) => a[0] - b[0])) {
      const key = list.map(r => r.decision).sort().join("\n"), g = same.get(key)
        || same.set(key, {repeat, layers: [], key, records: list}).get(key);
      const common = rs => rs.reduce((n, r) => n + r.layers.reduce((m, [a, b]) => m + b - a + 1, 0), 0);
      g.layers.push(k);
      if (common(list) > common(g.records))
        g.records = list;
    }
    groups.push(...same.values());
  }
  return groups;
}

/* The only stage of a record that is in no layer: from there names of layers can be told. */
const stageOfRecord = new WeakMap();

function addRecords(node, records, prefix, name) {
  for (const r of records)
    (name(r) ? descend(node, name(r), prefix) : node)[r.list].push(r.record);
}

/* Content without which layers a record stands for: equal ones of several stages are one. */
function contentOf(records) {
  return JSON.stringify(records.map(r => [r.list, r.record.slice(2)]));
}

function buildTree() {
  const root = newNode("", ""), groups = new Map(), loose = new Map();
  plan.programs.forEach((program, number) => {
    const stages = plan.stages.map((s, i) => i).filter(i => plan.stages[i].program === number), records = recordsOf(program);
    for (const g of layerGroups(records)) {
      const key = `${g.repeat} ${g.key}`, merged = groups.get(key) || groups.set(key, {...g, numbers: [], stages: []}).get(key);
      for (const i of stages) {
        const first = plan.stages[i].repeats.find(x => x[0] === g.repeat);
        merged.numbers.push(...g.layers.map(k => (first ? first[1] : 0) + k));
        merged.stages.push(i);
      }
    }
    /* What is in no layer, by the first part of its name. */
    const top = new Map();
    for (const r of records.filter(x => !x.split || !x.layers.length)) {
      const part = r.name.split(".")[0];
      (top.get(part) || top.set(part, []).get(part)).push(r);
    }
    for (const [part, list] of top) {
      const key = `${part} ${contentOf(list)}`, merged = loose.get(key)
        || loose.set(key, {part, records: list, stages: []}).get(key);
      merged.stages.push(...stages);
    }
  });
  /* In the order in which the model runs: by stage, then by the first kernel; inputs come first. */
  const order = g => g.stages[0] * 1e6 + Math.min(9e5, ...g.records.map(r => r.order));
  const several = plan.stages.length > 1, times = new Map(), entries = [...loose.values(), ...groups.values()].sort((a, b) =>
    order(a) - order(b));
  for (const g of loose.values())
    times.set(g.part, (times.get(g.part) || 0) + 1);
  for (const g of entries) {
    if (g.part !== undefined) {
      const unique = times.get(g.part) === 1, node = childOf(root, unique ? g.part : `${g.part} ${g.stages.join()}`, g.part,
        g.part);
      node.where = several ? stagesName(g.stages) : "";
      if (g.stages.length === 1)
        g.records.forEach(r => stageOfRecord.set(r.record, g.stages[0]));
      addRecords(node, g.records, g.part, r => r.name.split(".").slice(1).join("."));
      continue;
    }
    g.numbers.sort((a, b) => a - b);
    const repeat = descend(root, g.repeat, ""), text = ranges(g.numbers).split(", ");
    const node = childOf(repeat, `layers ${text} ${g.stages.join()}`,
      `${g.repeat}.${text.slice(0, 3).join(", ")}${text.length > 3 ? ", …" : ""}`, `${g.repeat}.*`);
    node.title = `${g.repeat}.${text.join(", ")}`;
    node.layers = g.numbers.length;
    node.inStage = node.layers / new Set(g.stages).size;
    repeat.spread = several;      /* its layers' times are of different devices: there is no sum */
    node.where = [plural(g.numbers.length, "layer") + (g.numbers.length > 1 ? " alike" : ""), several
      ? stagesName([...new Set(g.stages)]) : ""].filter(x => x).join(", ");
    addRecords(node, g.records, `${g.repeat}.*`, r => r.split[1]);
  }
  sumUp(root);
  return root;
}

/* Fill in what each node's records and children take: ps per step, elements of weights. */
function sumUp(node) {
  node.ps = 0;
  node.weights = 0;
  for (const k of node.kernels)
    node.ps += (node.layers || /\*/.test(node.path) ? 1 : k[1]) * k[11] * k[9];
  for (const c of node.comms)
    node.ps += (node.layers || /\*/.test(node.path) ? c[1] / layerCount(c) : c[1]) * c[8] * c[9];
  for (const t of node.tensors)
    node.weights += t[3] === 2 ? t[10] : 0;
  for (const c of node.children.values()) {
    sumUp(c);
    node.ps += c.ps * (c.layers || 1);
    node.weights += c.weights * (c.layers || 1);
  }
}

function layerCount(record) {
  return spans(S(record[0])).reduce((n, [a, b]) => n + b - a + 1, 0) || 1;
}

/* ---- a row ---- */

/* What a node is, in one line: of a weight its sharding at rest, else of its kernel, else of its tensor. */
function cellsOf(node) {
  const t = node.tensors[0], k = node.kernels[0];
  const weight = node.tensors.find(x => x[3] === 2);
  if (weight && !(k && k[3] < 2 && node.tensors[0] !== weight))
    return {what: `weight, ${S(weight[5])}`, shape: S(weight[6]), words: S(weight[7]), local: S(weight[8]), bytes: weight[9]};
  if (k) {
    const out = node.tensors.find(x => x[3] === 0 || x[3] === 4), made = k[13][0];
    return {what: `${S(k[4])}${k[3] === 1 ? "" : `, ${PHASES[k[3]]}`}`, shape: out ? S(out[6]) : made ? S(made[3]) : "",
      words: S(k[8]),
      local: out ? S(out[8]) : made ? S(made[2]) : "", bytes: out ? out[9] : null};
  }
  if (t)
    return {what: `${ROLES[t[3]]}, ${S(t[5])}`, shape: S(t[6]), words: S(t[7]), local: S(t[8]), bytes: t[9]};
  return {what: "", shape: "", words: "", local: "", bytes: null};
}

function rowOf(node, level, place, of) {
  const c = cellsOf(node), open = node.children.size > 0;
  const cell = (cls, label, content) => el("div", {role: "gridcell", class: cls, "data-label": label}, content);
  const row = el("div", {role: "row", class: "treerow", "aria-level": level, "aria-expanded": open ? "false" : null,
    "aria-posinset": place,
    "aria-setsize": of, tabindex: -1, style: `--level: ${level - 1}`, "data-path": node.path},
  el("div", {role: "rowheader", class: "t-name"}, el("span", {class: "twist", "aria-hidden": "true"}),
    el("span", {class: "t-label", title: node.title}, node.name),
    node.where && el("span", {class: "note"}, ` ${node.where}`)),
  cell("t-what", "", [c.what || (node.weights ? `${millions(node.weights)} parameters${node.layers > 1 ? " each" : ""}` : "")]),
  cell("t-shape", "whole", c.shape), cell("t-words", "split", c.words), cell("t-local", "a device", c.local),
  cell("t-bytes number", "", c.bytes === null ? "" : bytes(c.bytes)),
  cell("t-time number", "", node.ps && !node.spread ? [time(node.ps), node.layers > 1 ? " each" : "",
    svg("svg", {class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true"},
      svg("rect", {class: "compute", width: Math.min(100, 100 * node.ps * (node.inStage || 1) / STEP_PS), height: 10}))] : ""));
  node.row = row;
  row.node = node;
  return row;
}

/* ---- details ---- */

function facts(pairs) {
  return el("dl", {class: "facts"}, pairs.filter(([, v]) => v).map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
}

function operandTable(caption, kernel, operands) {
  const stage = stageOfRecord.get(kernel);
  return operands.length ? table(caption, [["tensor", "text"], ["whole", "text"], ["split", "text"], ["on a device", "text"]],
    operands.map(o => [stage === undefined ? S(o[0]) : inLayer(S(o[0]), stage, 0), S(o[3]), S(o[1]), S(o[2])])) : null;
}

function detailsOf(node) {
  const parts = [];
  for (const t of node.tensors)
    parts.push(facts([[ROLES[t[3]], node.path], ["type", S(t[5])], ["whole", `${S(t[6])}: ${thousands(t[10])} elements`],
      ["split", S(t[7])],
      ["on a device", `${S(t[8])}: ${bytes(t[9])}`], ["made in", t[4] >= 0 ? PHASES[t[4]] : "rests from step to step"],
      ["gathered", t[3] === 2 && /over/.test(S(t[7])) ? t[11] ? "once per step, and kept" : "where it is used" : ""]]));
  for (const k of node.kernels)
    parts.push(facts([["kernel", `${S(k[4])}${S(k[7]) ? `, fused with ${S(k[7])}` : ""}`],
      ["element", S(k[5]) ? `<${S(k[5])}>` : ""], ["in the model file", S(k[6])],
      ["phase", PHASES[k[3]]], ["split", S(k[8])], ["time",
        `${time(k[9])}${k[10] ? ` and ${time(k[10])} of sums inside` : ""}, ${plural(k[11], "time")} a step`]]),
    operandTable("Reads", k, k[12]), operandTable("Makes", k, k[13]));
  if (node.comms.length)
    parts.push(table("Collectives", [["collective", "text"], ["phase", "text"], ["bytes", "number"], ["time", "number"],
      ["times a step", "number"], ["why", "why"]],
      node.comms.map(c => [S(c[2]), PHASES[c[4]], bytes(c[7]), time(c[9]), thousands(c[8]), S(c[10])])));
  return parts;
}

/* ---- the tree ---- */

const tree = {root: null, box: null};

function childrenRows(node, level) {
  const kids = [...node.children.values()];
  return kids.map((c, i) => c.row || rowOf(c, level, i + 1, kids.length));
}

function setOpen(row, open) {
  const node = row.node, level = Number(row.getAttribute("aria-level"));
  if (!node.children.size || (row.getAttribute("aria-expanded") === "true") === open)
    return;
  row.setAttribute("aria-expanded", String(open));
  if (open) {
    let at = row.nextElementSibling?.classList.contains("details") ? row.nextElementSibling : row;
    for (const r of childrenRows(node, level + 1)) {
      at.after(r);
      at = r;
    }
    return;
  }
  for (const c of node.children.values())
    if (c.row?.isConnected) {
      setOpen(c.row, false);
      closeDetails(c.row);
      c.row.remove();
    }
}

function closeDetails(row) {
  if (row.nextElementSibling?.classList.contains("details"))
    row.nextElementSibling.remove();
}

function toggleDetails(row) {
  if (row.nextElementSibling?.classList.contains("details")) {
    closeDetails(row);
    return;
  }
  const parts = detailsOf(row.node);
  if (parts.length)
    row.after(el("div", {class: "details", role: "row", style: row.getAttribute("style")},
      el("div", {role: "gridcell"}, parts)));
}

function focusRow(row) {
  for (const r of tree.box.querySelectorAll(".treerow[tabindex='0']"))
    r.tabIndex = -1;
  row.tabIndex = 0;
  row.focus();
}

function treeKey(e) {
  const row = e.target.closest(".treerow");
  if (!row || e.target !== row || e.ctrlKey || e.altKey || e.metaKey)
    return;
  const rows = [...tree.box.querySelectorAll(".treerow")], i = rows.indexOf(row),
    open = row.getAttribute("aria-expanded") === "true";
  const level = Number(row.getAttribute("aria-level"));
  const act = {
    ArrowDown: () => i + 1 < rows.length && focusRow(rows[i + 1]), ArrowUp: () => i > 0 && focusRow(rows[i - 1]), Home: () =>
      focusRow(rows[0]),
    End: () => focusRow(rows[rows.length - 1]), ArrowRight: () => open ? i + 1 < rows.length && focusRow(rows[i + 1])
      : setOpen(row, true),
    ArrowLeft: () => {
      if (open)
        setOpen(row, false);
      else
        for (let k = i - 1; k >= 0; k--)
          if (Number(rows[k].getAttribute("aria-level")) < level)
            return focusRow(rows[k]);
    },
    Enter: () => toggleDetails(row), " ": () => toggleDetails(row)}[e.key];
  if (act) {
    e.preventDefault();
    act();
  }
}

/* Open everything down to the nodes PATH, [root's child, ..., node], and show the last one's details. */
function reveal(path) {
  for (const node of path.slice(0, -1))
    setOpen(node.row, true);
  const row = path[path.length - 1].row;
  if (!row.nextElementSibling?.classList.contains("details"))
    toggleDetails(row);
  focusRow(row);
  row.scrollIntoView({block: "center"});
}

function drawModel(at) {
  tree.root = buildTree();
  tree.box = el("div", {role: "treegrid", "aria-label": "Operators and tensors by scope", class: "tree"},
    el("div", {role: "row", class: "treehead"}, [["t-name", "name"], ["t-what", "what it is"], ["t-shape", "whole shape"],
      ["t-words", "how it is split"],
      ["t-local", "on a device"], ["t-bytes number", "bytes there"], ["t-time number", "time in a step"]]
      .map(([cls, text]) => el("div", {role: "columnheader", class: cls}, text))));
  const rows = childrenRows(tree.root, 1);
  tree.box.append(...rows);
  rows[0].tabIndex = 0;
  tree.box.addEventListener("click", e => {
    const row = e.target.closest(".treerow");
    if (!row)
      return;
    focusRow(row);
    if (e.target.closest(".t-name") && row.node.children.size)
      setOpen(row, row.getAttribute("aria-expanded") !== "true");
    else
      toggleDetails(row);
  });
  tree.box.addEventListener("keydown", treeKey);
  put(at, el("p", {}, "Layers that are planned alike stand once. A click on a name opens it; on the rest of the row, or Enter, shows what it reads, what it " +
    "makes and why there are collectives. * is the layer, *-1 the one before."), tree.box);
  if (rows.length === 1)
    setOpen(rows[0], true);
}
