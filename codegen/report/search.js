/* search.js - one box that finds ops, tensors, collectives, plans and figures, and shows them where they stand. */

const MAX_FOUND = 40;
const search = {index: [], hits: [], at: -1};

/* {text (to match), kind, title, detail, go}. */
function indexTree(node, path) {
  for (const c of node.children.values()) {
    const here = [...path, c], cells = cellsOf(c), names = here.map(n => n.name).join("."), go = () => reveal(here);
    const group = path.find(n => n.layers), where = group ? `, ${group.name}` : "";
    const fused = c.kernels.map(k => S(k[7])).join(" ");
    if (c.layers)
      search.index.push({text: `${names} ${c.title} layers`.toLowerCase(), kind: "layers", title: c.name, detail: c.where, go});
    else if (c.tensors.length || c.kernels.length)
      search.index.push({text: `${names} ${c.path} ${cells.what} ${cells.words} ${fused}`.toLowerCase(),
        kind: c.kernels.length ? "op" : "tensor", title: c.path, detail: `${cells.what}${where}`, go});
    for (const k of c.comms)
      search.index.push({text: `${S(k[2])} ${c.path} ${S(k[10])} collective`.toLowerCase(), kind: S(k[2]), title: c.path,
        detail: `${S(k[10])}${where}`, go});
    indexTree(c, here);
  }
}

function showAt(id, row) {
  const section = document.getElementById(id), at = row || section;
  for (let d = at; d; d = d.parentElement)
    if (d.tagName === "DETAILS")
      d.open = true;
  at.tabIndex = -1;
  at.focus();
  at.scrollIntoView({block: "center"});
  at.classList.add("flash");
  setTimeout(() => at.classList.remove("flash"), 1500);
}

function buildIndex() {
  indexTree(tree.root, []);
  plan.stages.forEach((s, i) => search.index.push({text: `stage ${i} ${s.first_layer} ${s.last_layer}`.toLowerCase(),
    kind: "stage", title: `stage ${i}`,
    detail: s.first_layer ? `${s.first_layer} … ${s.last_layer}` : "", go: () =>
      showAt("timeline", document.querySelectorAll("#stages-table tbody tr")[i])}));
  plan.plan.others.forEach((o, i) => search.index.push({text: `${o.what} ${o.why} runner-up plan`.toLowerCase(), kind: "plan",
    title: o.what, detail: o.why || "",
    go: () => showAt("others", document.querySelectorAll("#others-table tbody tr")[i])}));
  const rows = [...document.querySelectorAll("#figures tbody tr")];
  plan.figures.forEach((f, i) => search.index.push({text: `${S(f[0])} ${S(f[2])} ${S(f[3])} ${S(f[4])} figure`.toLowerCase(),
    kind: "figure",
    title: `${S(f[2])}: ${S(f[3])}`, detail: S(f[4]), go: () => showAt("basis", rows[i])}));
}

function find(text) {
  const words = text.toLowerCase().split(/\s+/).filter(w => w), hits = [];
  if (!words.length)
    return hits;
  for (const entry of search.index)
    if (words.every(w => entry.text.includes(w)))
      hits.push(entry);
  /* Names that begin or end so come first. */
  const rank = h => h.title.toLowerCase() === words[0] ? 0 : h.title.toLowerCase().endsWith(words[0]) ? 1
    : h.title.toLowerCase().includes(words[0]) ? 2 : 3;
  return hits.map((h, i) => [rank(h), i, h]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(x => x[2]);
}

function showFound() {
  const list = document.getElementById("found"), input = document.getElementById("search");
  if (!search.index.length)
    buildIndex();
  search.hits = find(input.value);
  search.at = -1;
  const shown = search.hits.slice(0, MAX_FOUND);
  list.replaceChildren(...shown.map((h, i) => el("li", {role: "option", id: `found-${i}`, "aria-selected": "false",
    onpointerdown: e => {
    e.preventDefault();
    choose1(i);
  }}, el("span", {class: "kind"}, h.kind), el("b", {}, h.title), el("span", {class: "note"}, ` ${h.detail}`))));
  if (input.value.trim() && search.hits.length !== shown.length)
    list.append(el("li", {class: "note", role: "presentation"}, `and ${search.hits.length - shown.length} more`));
  if (input.value.trim() && !shown.length)
    list.append(el("li", {class: "note", role: "presentation"}, "nothing found"));
  list.hidden = !input.value.trim();
  input.setAttribute("aria-expanded", String(!list.hidden));
  input.removeAttribute("aria-activedescendant");
  if (!list.hidden)
    say(`${search.hits.length} found`);
}

function choose1(i) {
  const hit = search.hits[i];
  closeFound();
  if (hit)
    hit.go();
}

function closeFound() {
  document.getElementById("found").hidden = true;
  document.getElementById("search").setAttribute("aria-expanded", "false");
}

function searchKey(e) {
  const options = [...document.querySelectorAll("#found [role='option']")];
  if (e.key === "ArrowDown" || e.key === "ArrowUp") {
    e.preventDefault();
    search.at = options.length ? (search.at + (e.key === "ArrowDown" ? 1 : -1) + options.length) % options.length : -1;
    options.forEach((o, i) => o.setAttribute("aria-selected", String(i === search.at)));
    if (options[search.at]) {
      e.target.setAttribute("aria-activedescendant", options[search.at].id);
      options[search.at].scrollIntoView({block: "nearest"});
    }
  } else if (e.key === "Enter") {
    e.preventDefault();
    choose1(Math.max(0, search.at));
  } else if (e.key === "Escape") {
    closeFound();
  }
}

function startSearch() {
  const input = document.getElementById("search");
  input.addEventListener("input", showFound);
  input.addEventListener("focus", () => input.value.trim() && showFound());
  input.addEventListener("blur", closeFound);
  input.addEventListener("keydown", searchKey);
  document.addEventListener("keydown", e => {
    if (e.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
      e.preventDefault();
      input.focus();
    }
  });
}
