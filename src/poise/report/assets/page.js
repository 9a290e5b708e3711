// The page: filters on top, and one function a section that draws what is chosen.
const DATA = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const COLOURS = Object.fromEntries(DATA.methods.map(m => [m.name, m.name === "zero-shot" ? "var(--zero-shot)" : m.colour]));
const METRIC = Object.fromEntries(DATA.metrics.map(m => [m.name, m]));
const state = {
  setting: 0, metric: DATA.metrics[0].name,
  datasets: new Set(DATA.datasets.map(d => d.name)), methods: new Set(DATA.methods.map(m => m.name)),
};
const groupsOf = dataset => DATA.groups.filter(g => g.setting === state.setting && g.dataset === dataset && state.methods.has(g.method));
const datasets = () => DATA.datasets.filter(d => state.datasets.has(d.name) && groupsOf(d.name).length);
const methods = () => DATA.methods.map(m => m.name).filter(name => datasets().some(d => groupsOf(d.name).some(g => g.method === name)));
const find = (dataset, method) => groupsOf(dataset).find(g => g.method === method);
const mean = values => values.reduce((sum, v) => sum + v, 0) / values.length;
const swatch = colour => el("i", { style: `background:${colour}` });

function chip(label, pressed, onClick, colour) {
  const node = el("button", { type: "button", class: "chip", "aria-pressed": String(pressed) });
  if (colour) node.append(swatch(colour));
  node.append(label);
  node.addEventListener("click", onClick);
  return node;
}

function toggle(set, name) {
  if (set.has(name) && set.size > 1) set.delete(name); else set.add(name);
  draw();
}

function drawFilters() {
  const lines = [];
  if (DATA.settings.length > 1) {
    const choose = el("select", { "aria-label": "Model and setting" });
    DATA.settings.forEach((setting, k) => choose.append(el("option", { value: k }, setting.label)));
    choose.value = state.setting;
    choose.addEventListener("change", () => { state.setting = Number(choose.value); draw(); });
    lines.push(el("div", { class: "filter" }, el("span", {}, "Model"), choose));
  }
  const line = (title, chips) => lines.push(el("div", { class: "filter" }, el("span", {}, title), ...chips));
  line("Datasets", DATA.datasets.map(d => chip(d.name, state.datasets.has(d.name), () => toggle(state.datasets, d.name))));
  line("Methods", DATA.methods.map(m => chip(m.name, state.methods.has(m.name), () => toggle(state.methods, m.name), COLOURS[m.name])));
  line("Metric", DATA.metrics.map(m => chip(m.title, m.name === state.metric, () => { state.metric = m.name; draw(); })));
  at("filters").replaceChildren(...lines);
}

function averaged(method, metric) {
  const found = datasets().map(d => find(d.name, method)?.metrics[metric]);
  if (!found.length || found.some(f => !f)) return null;
  const value = mean(found.map(f => f[0]));
  // independent datasets: the half-widths of a mean add in squares
  const half = side => Math.sqrt(found.reduce((sum, f) => sum + (f[side] - f[0]) ** 2, 0)) / found.length;
  return [value, Math.max(0, value - half(1)), value + half(2)];
}

function published(method, metric, dataset) {
  const setting = DATA.settings[state.setting];
  const row = DATA.published.find(p => p.method === method && p.metric === metric && p.framework === setting.framework && p.init === setting.init && dataset in p.values);
  return row ? row.values[dataset] : null;
}

function ranks(values, higher) {
  const order = [...new Set(values.filter(v => v !== null))].sort((a, b) => (higher ? b - a : a - b));
  return values.map(v => (v === null || order.length < 2 ? 0 : order.indexOf(v) + 1));
}

function drawTable() {
  const metric = METRIC[state.metric], shown = datasets(), names = methods();
  const columns = [...shown.map(d => ({ head: d.heading, name: d.name, n: d.name })), ...(shown.length > 1 ? [{ head: "Avg.", name: null }] : [])];
  const head = el("tr", {}, el("th", {}, `${metric.title}${metric.unit ? ` (${metric.unit})` : ""} ${metric.higher ? "↑" : "↓"}`));
  columns.forEach(c => head.append(el("th", c.name ? { title: c.name } : { class: "average" }, c.head)));
  const body = names.map(method => el("tr", {}, el("td", {}, swatchLabel(method))));
  for (const column of columns) {
    const cells = names.map(m => (column.name ? find(column.name, m)?.metrics[metric.name] ?? null : averaged(m, metric.name)));
    const place = ranks(cells.map(c => (c ? Number(fixed(c[0], metric.digits)) : null)), metric.higher);
    names.forEach((method, k) => body[k].append(cell(cells[k], place[k], metric, column, method)));
  }
  at("table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
  const first = shown.map(d => groupsOf(d.name)[0]);
  at("results-say").textContent = `${metric.about} Model ${DATA.settings[state.setting].label}. ` +
    first.map(g => `${g.dataset}: ${g.n} images${g.seeds.length > 1 ? `, seeds ${g.seeds.join(", ")}` : ""}`).join("; ") + ".";
  at("table-notes").replaceChildren(...DATA.notes.map(note => el("li", {}, note)));
}

function swatchLabel(method) {
  const node = el("span", {});
  node.append(el("i", { style: `display:inline-block;width:.6rem;height:.6rem;border-radius:50%;margin-right:.5rem;background:${COLOURS[method]}` }), method);
  return node;
}

function cell(value, place, metric, column, method) {
  const node = el("td", column.name ? {} : { class: "average" });
  if (!value) { node.append("—"); return node; }
  node.append(el("span", { class: place === 1 ? "best" : place === 2 ? "second" : "" }, fixed(value[0], metric.digits)));
  node.append(el("small", { title: "95 % interval" }, `${fixed(value[1], metric.digits)} – ${fixed(value[2], metric.digits)}`));
  const told = column.name && published(method, metric.name, column.name);
  if (told) node.append(el("small", { class: "told", title: "published, CLIP ViT-B/16" }, `paper ${fixed(told, metric.digits)}`));
  return node;
}

function perDataset(id, make) {
  at(id).replaceChildren(...datasets().map(d => make(d, groupsOf(d.name))).filter(Boolean));
}

function rows(d, plots) {
  return el("div", {}, el("h3", {}, d.name), el("div", { class: "row" }, ...plots));
}

function drawPlots() {
  const points = methods().map(method => ({ method, x: averaged(method, "ece"), y: averaged(method, "accuracy") })).filter(p => p.x && p.y);
  at("scatter").replaceChildren(...(points.length ? [figure("", "", scatterPlot(points, COLOURS), 620)] : [el("p", { class: "none" }, "No method has all chosen datasets.")]));
  const ece = g => `ECE ${fixed(g.metrics.ece[0])} %, n ${g.n}${g.seeds.length > 1 ? `×${g.seeds.length}` : ""}`;
  perDataset("reliability-plots", (d, groups) => rows(d, groups.map(g => figure(g.method, ece(g), reliabilityPlot(g)))));
  const means = g => `✓ ${fixed(g.confidence.correct, 3)}  ✗ ${fixed(g.confidence.wrong, 3)}`;
  perDataset("confidence-plots", (d, groups) => rows(d, groups.map(g => figure(g.method, means(g), histogramPlot(g)))));
  const tuned = groups => groups.filter(g => g.method !== "zero-shot");
  perDataset("entropy-plots", (d, groups) => tuned(groups).length ? figure(d.name, `n ${groups[0].n}`, pairedPlot(tuned(groups)), 60 + 46 * tuned(groups).length) : null);
  perDataset("discrepancy-plots", (d, groups) => tuned(groups).length ? figure(d.name, `n ${groups[0].n}`, sharePlot(tuned(groups), COLOURS), 300) : null);
  perDataset("risk-plots", (d, groups) => figure(d.name, `n ${groups[0].n}`, linePlot(groups, COLOURS), 330));
  for (const id of ["confidence", "entropy"]) if (!at(id).querySelector(".legend")) {
    at(`${id}-plots`).before(el("div", { class: "legend" }, el("span", {}, swatch("var(--blue)"), "correct"), el("span", {}, swatch("var(--red)"), "wrong")));
  }
}

function drawTexts() {
  const shown = DATA.texts.filter(t => state.datasets.has(t.dataset));
  const dispersion = datasets().flatMap(d => groupsOf(d.name).map(g => [d.name, g]));
  at("texts-say").textContent = "ATFD is the mean distance of the class texts to their centre. " + (shown.length ? "Plots: one t-SNE of both; circles before, dots after tuning for one image." : DATA.texts_note);
  const list = shown.map(t => rows({ name: `${t.dataset}, image ${t.image}` }, Object.keys(t.methods).filter(m => state.methods.has(m)).map(m => figure(m, `ATFD ${fixed(t.start, 3)} → ${fixed(t.methods[m].atfd, 3)}`, textPlot(t, m, COLOURS)))));
  const table = el("table", {}, el("tr", {}, el("th", {}, "Mean ATFD"), ...methods().map(m => el("th", {}, m))));
  for (const d of datasets()) table.append(el("tr", {}, el("td", {}, d.name), ...methods().map(m => {
    const found = dispersion.find(([name, g]) => name === d.name && g.method === m);
    return el("td", {}, found ? fixed(found[1].atfd, 3) : "—");
  })));
  at("texts-plots").replaceChildren(el("div", { class: "scroll" }, table), ...list);
}

function drawAblation() {
  const grid = ["tpt", "tpt+cats", "kld", "kld+cats"], there = datasets().filter(d => grid.every(m => DATA.groups.some(g => g.setting === state.setting && g.dataset === d.name && g.method === m)));
  at("ablation").hidden = !there.length;
  if (!there.length) return;
  at("ablation-say").textContent = `Mean over ${there.map(d => d.name).join(", ")}; the paper's column is its mean over ten datasets with CLIP ViT-B/16.`;
  const table = at("ablation-table");
  table.replaceChildren(el("tr", {}, ...["Objective", "Temperature", "Acc. (%)", "ECE (%)", "paper Acc.", "paper ECE"].map(t => el("th", {}, t))));
  for (const m of grid) {
    const value = metric => mean(there.map(d => DATA.groups.find(g => g.setting === state.setting && g.dataset === d.name && g.method === m).metrics[metric][0]));
    const paper = metric => DATA.published.find(p => p.table === "table5" && p.method === m && p.metric === metric).average;
    table.append(el("tr", {}, el("td", {}, m.startsWith("kld") ? "KL divergence" : "entropy"), el("td", {}, m.endsWith("+cats") ? "confidence-aware" : "none"),
      ...[value("accuracy"), value("ece")].map(v => el("td", {}, fixed(v))), ...[paper("accuracy"), paper("ece")].map(v => el("td", {}, el("span", { class: "told" }, fixed(v))))));
  }
}

function drawRuns() {
  at("runs").replaceChildren(...DATA.runs.map(run => el("details", {}, el("summary", {}, `${run.run}: ${run.device || "device not recorded"}`), el("pre", {}, JSON.stringify(run, null, 1)))));
}

function draw() { drawFilters(); drawTable(); drawPlots(); drawTexts(); drawAblation(); }

function theme(name) { document.documentElement.dataset.theme = name; }
const prefers = matchMedia("(prefers-color-scheme: dark)");
theme(prefers.matches ? "dark" : "light");
prefers.addEventListener("change", event => theme(event.matches ? "dark" : "light"));
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
at("lead").textContent = DATA.lead;
draw();
drawRuns();
