// Small SVG charts. Every text goes through textContent, so a class name can't become markup.
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const el = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  for (const child of children) node.append(child);
  return node;
};
const shape = (name, attributes = {}, text = "") => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== "") node.textContent = text;
  return node;
};
const hover = (node, text) => { node.append(shape("title", {}, text)); return node; };
const fixed = (value, digits = 2) => (value === null || Number.isNaN(value) ? "—" : value.toFixed(digits));
let hatches = 0;

function canvas(width, height, label) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

function figure(title, detail, svg, width = 0) {
  const node = el("figure", width ? { style: `flex: 1 1 ${width}px; max-width: ${Math.round(width * 1.5)}px` } : {});
  if (title) node.append(el("figcaption", {}, el("b", {}, title), el("span", {}, detail)));
  node.append(svg);
  return node;
}

function hatch(svg, colour) {
  const id = `hatch${hatches++}`;
  const pattern = shape("pattern", { id, width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  pattern.append(shape("rect", { width: 1.3, height: 4, fill: colour }));
  const defs = shape("defs");
  defs.append(pattern);
  svg.append(defs);
  return `url(#${id})`;
}

function reliabilityPlot(group) {
  const w = 160, h = 206, top = 6, side = 140, left = 18, foot = 34;
  const svg = canvas(w, h, `Reliability of ${group.method} on ${group.dataset}`);
  const fill = hatch(svg, "var(--red)");
  const x = v => left + v * side, y = v => top + (1 - v) * side, base = top + side + 10;
  const largest = Math.max(...group.bins.map(bin => bin[2])), total = group.bins.reduce((sum, bin) => sum + bin[2], 0);
  for (const [lo, hi, n, acc, conf] of group.bins) {
    const width = (hi - lo) * side - .6;
    if (!n) { svg.append(shape("rect", { x: x(lo), y: top, width, height: side, fill: "var(--empty)", opacity: .55 })); continue; }
    const told = `(${fixed(lo)}, ${fixed(hi)}]: n ${n}, accuracy ${fixed(acc, 3)}, confidence ${fixed(conf, 3)}`;
    svg.append(hover(shape("rect", { x: x(lo), y: y(acc), width, height: acc * side, fill: "var(--bar)" }), told));
    const upper = Math.max(acc, conf), gap = Math.abs(acc - conf);
    svg.append(hover(shape("rect", { x: x(lo), y: y(upper), width, height: gap * side, fill, stroke: "var(--red)", "stroke-width": .7 }), told));
    const height = foot * n / largest;
    svg.append(hover(shape("rect", { x: x(lo), y: base + foot - height, width, height, fill: "var(--sky)" }), `${(100 * n / total).toFixed(1)} % of predictions`));
  }
  svg.append(shape("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "diagonal" }));
  for (const at of [y(0), base + foot]) svg.append(shape("line", { x1: x(0), y1: at, x2: x(1), y2: at, class: "axis" }));
  for (const v of [0, .5, 1]) {
    svg.append(shape("text", { x: left - 3, y: y(v) + 3, "text-anchor": "end" }, String(v)));
    svg.append(shape("text", { x: x(v), y: base + foot + 10, "text-anchor": "middle" }, String(v)));
  }
  return svg;
}

function histogramPlot(group) {
  const w = 160, h = 118, top = 6, left = 18, side = 140, height = 92, bins = group.histogram.correct.length;
  const svg = canvas(w, h, `Confidence of ${group.method} on ${group.dataset}`);
  const largest = Math.max(...group.histogram.correct, ...group.histogram.wrong, 1e-9);
  const x = v => left + v * side, y = v => top + (1 - v / largest) * height;
  for (const [name, colour] of [["correct", "var(--blue)"], ["wrong", "var(--red)"]]) {
    group.histogram[name].forEach((share, k) => svg.append(hover(shape("rect", {
      x: x(k / bins), y: y(share), width: side / bins - .5, height: top + height - y(share), fill: colour, opacity: .58,
    }), `${name}: ${(100 * share).toFixed(1)} % in (${fixed(k / bins)}, ${fixed((k + 1) / bins)}]`)));
    const mean = group.confidence[name];
    if (mean !== null) svg.append(shape("line", { x1: x(mean), x2: x(mean), y1: top, y2: top + height, stroke: colour, "stroke-width": 1.4, "stroke-dasharray": "4 2" }));
  }
  svg.append(shape("line", { x1: x(0), x2: x(1), y1: top + height, y2: top + height, class: "axis" }));
  for (const v of [0, .5, 1]) svg.append(shape("text", { x: x(v), y: top + height + 11, "text-anchor": "middle" }, String(v)));
  return svg;
}

function ticks(low, high, count = 4) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(k => k * power).find(s => s >= raw);
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9; v += step) out.push(Math.abs(v) < 1e-12 ? 0 : v);
  return out;
}
const short = v => String(Math.round(v * 1000) / 1000);

function pairedPlot(groups) {
  const w = 60 + 46 * groups.length, h = 190, left = 34, top = 8, height = 140;
  const svg = canvas(w, h, "Entropy change");
  const ends = (v, e) => v === null ? [] : [v - 2 * (e ?? 0), v + 2 * (e ?? 0)];
  const values = groups.flatMap(g => [...ends(g.entropy.correct, g.entropy.correct_error), ...ends(g.entropy.wrong, g.entropy.wrong_error)]);
  const low = Math.min(0, ...values) * 1.12, high = Math.max(0, ...values) * 1.12 || .01;
  const y = v => top + (high - v) / (high - low) * height;
  for (const v of ticks(low, high)) {
    svg.append(shape("line", { x1: left, x2: w - 6, y1: y(v), y2: y(v), class: "axis" }));
    svg.append(shape("text", { x: left - 4, y: y(v) + 3, "text-anchor": "end" }, short(v)));
  }
  groups.forEach((group, k) => {
    const at = left + 12 + 46 * k;
    [["correct", "var(--blue)", 0], ["wrong", "var(--red)", 17]].forEach(([name, colour, shift]) => {
      const v = group.entropy[name], e = group.entropy[`${name}_error`];
      if (v === null) return;
      svg.append(hover(shape("rect", { x: at + shift, y: Math.min(y(0), y(v)), width: 15, height: Math.abs(y(0) - y(v)), fill: colour }), `${group.method}, ${name}: ${fixed(v, 3)}`));
      if (e !== null) svg.append(shape("line", { x1: at + shift + 7.5, x2: at + shift + 7.5, y1: y(v - 2 * e), y2: y(v + 2 * e), stroke: "var(--ink)" }));
    });
    svg.append(shape("text", { x: at + 16, y: top + height + 16, "text-anchor": "middle", class: "name" }, group.method));
  });
  svg.append(shape("line", { x1: left, x2: w - 6, y1: y(0), y2: y(0), stroke: "var(--ink)" }));
  return svg;
}

function sharePlot(groups, colours) {
  const w = 300, step = 21, left = 66, h = 6 + step * groups.length, largest = Math.max(...groups.map(g => g.discrepancy), .005);
  const svg = canvas(w, h, "Prediction discrepancy");
  groups.forEach((group, k) => {
    const width = (w - left - 48) * group.discrepancy / largest;
    svg.append(shape("text", { x: left - 6, y: k * step + 15, "text-anchor": "end", class: "name" }, group.method));
    svg.append(shape("rect", { x: left, y: k * step + 4, width, height: step - 6, rx: 2, fill: colours[group.method] }));
    svg.append(shape("text", { x: left + width + 5, y: k * step + 15, class: "name" }, `${(100 * group.discrepancy).toFixed(1)} %`));
  });
  return svg;
}

function linePlot(groups, colours) {
  const w = 330, h = 214, left = 32, top = 8, side = 285, height = 172;
  const svg = canvas(w, h, "Risk and coverage");
  const high = Math.max(...groups.flatMap(g => g.risk.filter(p => p[0] > .03).map(p => p[1])), .01) * 1.05;
  const x = v => left + v * side, y = v => top + (1 - Math.min(v, high) / high) * height;
  for (const v of ticks(0, high)) {
    svg.append(shape("line", { x1: left, x2: x(1), y1: y(v), y2: y(v), class: "axis" }));
    svg.append(shape("text", { x: left - 4, y: y(v) + 3, "text-anchor": "end" }, short(v)));
  }
  for (const v of [0, .25, .5, .75, 1]) svg.append(shape("text", { x: x(v), y: top + height + 12, "text-anchor": "middle" }, String(v)));
  svg.append(shape("text", { x: x(.5), y: top + height + 26, "text-anchor": "middle" }, "coverage"));
  for (const group of groups) {
    const path = group.risk.map((p, k) => `${k ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
    svg.append(hover(shape("path", { d: path, fill: "none", stroke: colours[group.method], "stroke-width": 1.8 }), group.method));
  }
  return svg;
}

function scatterPlot(points, colours) {
  const w = 620, h = 320, left = 44, top = 10, side = 550, height = 262;
  const svg = canvas(w, h, "Accuracy against calibration error");
  const span = (low, high) => [low - (high - low) * .12 - .1, high + (high - low) * .12 + .1];
  const [x0, x1] = span(Math.min(...points.map(p => p.x[1])), Math.max(...points.map(p => p.x[2])));
  const [y0, y1] = span(Math.min(...points.map(p => p.y[1])), Math.max(...points.map(p => p.y[2])));
  const x = v => left + (v - x0) / (x1 - x0) * side, y = v => top + (y1 - v) / (y1 - y0) * height;
  for (const v of ticks(y0, y1, 5)) {
    svg.append(shape("line", { x1: left, x2: left + side, y1: y(v), y2: y(v), class: "axis" }));
    svg.append(shape("text", { x: left - 5, y: y(v) + 3, "text-anchor": "end" }, short(v)));
  }
  for (const v of ticks(x0, x1, 6)) svg.append(shape("text", { x: x(v), y: top + height + 14, "text-anchor": "middle" }, short(v)));
  svg.append(shape("text", { x: left + side / 2, y: top + height + 32, "text-anchor": "middle", class: "name" }, "ECE (%)"));
  svg.append(shape("text", { x: left, y: top - 1, class: "name" }, "Accuracy (%)"));
  for (const p of points) {
    const stroke = colours[p.method];
    svg.append(shape("line", { x1: x(p.x[1]), x2: x(p.x[2]), y1: y(p.y[0]), y2: y(p.y[0]), stroke, opacity: .45 }));
    svg.append(shape("line", { x1: x(p.x[0]), x2: x(p.x[0]), y1: y(p.y[1]), y2: y(p.y[2]), stroke, opacity: .45 }));
    svg.append(hover(shape("circle", { cx: x(p.x[0]), cy: y(p.y[0]), r: 5.5, fill: stroke }), `${p.method}: accuracy ${fixed(p.y[0])}, ECE ${fixed(p.x[0])}`));
    svg.append(shape("text", { x: x(p.x[0]) + 9, y: y(p.y[0]) - 6, class: "name" }, p.method));
  }
  return svg;
}

function textPlot(texts, method, colours) {
  const w = 170, pad = 8, svg = canvas(w, w, `Class texts under ${method}`);
  const { before, after } = texts.methods[method], all = [...before, ...after];
  const low = [0, 1].map(d => Math.min(...all.map(p => p[d]))), high = [0, 1].map(d => Math.max(...all.map(p => p[d])));
  const place = p => [0, 1].map(d => pad + (p[d] - low[d]) / (high[d] - low[d] || 1) * (w - 2 * pad));
  svg.append(shape("rect", { x: 0, y: 0, width: w, height: w, rx: 6, fill: "none", class: "axis" }));
  before.forEach((point, k) => {
    const [a, b] = place(point), [c, d] = place(after[k]);
    svg.append(shape("line", { x1: a, y1: b, x2: c, y2: d, class: "axis" }));
    svg.append(shape("circle", { cx: a, cy: b, r: 2.6, fill: "none", stroke: "var(--soft)" }));
    svg.append(hover(shape("circle", { cx: c, cy: d, r: 3, fill: colours[method] }), texts.labels[k]));
  });
  return svg;
}
