"use strict";
// --- charts: the values under the pointer, the scale, downloads ---------------------------------------------
const SVG = "http://www.w3.org/2000/svg";
const charts = new WeakMap();
const dataOf = chart => { if (!charts.has(chart)) charts.set(chart, JSON.parse(chart.dataset.chart)); return charts.get(chart); };
const short = value => String(Number(value.toPrecision(4)));
function place(chart, x, y) { // the same formula as `_placing` in chart.py
  const {frame: [left, right, top, bottom], scales} = dataOf(chart), kind = chart.dataset.scale || "linear";
  const [first, last, low, high] = scales[kind], scale = kind === "log" ? Math.log : Number;
  const across = last > first ? (x - first) / (last - first) : 0.5;
  return [left + across * (right - left), bottom - (scale(y) - scale(low)) / (scale(high) - scale(low)) * (bottom - top)];
}
const outputOf = chart => chart.closest("figure").querySelector("output");
function hide(chart) {
  for (const node of chart.querySelectorAll(".pointer, .dot")) node.remove();
  const output = outputOf(chart);
  if (chart.dataset.idle !== undefined) output.textContent = chart.dataset.idle;
  delete chart.dataset.idle;
}
function show(chart, x) {
  const data = dataOf(chart), points = data.lines.flatMap(line => line.points), output = outputOf(chart);
  if (!points.length) return;
  const idle = chart.dataset.idle ?? output.textContent;
  hide(chart);
  chart.dataset.idle = idle;
  let near = points[0][0];
  for (const point of points) if (Math.abs(point[0] - x) < Math.abs(near - x)) near = point[0];
  chart.dataset.at = near;
  const rule = document.createElementNS(SVG, "line"), [, , top, bottom] = data.frame, [at] = place(chart, near, points[0][1]);
  for (const [name, value] of Object.entries({class: "pointer", x1: at, x2: at, y1: top, y2: bottom})) rule.setAttribute(name, value);
  chart.append(rule);
  const told = [];
  data.lines.forEach((line, i) => {
    const point = line.points.find(point => point[0] === near);
    if (!point) return;
    const dot = document.createElementNS(SVG, "circle"), [cx, cy] = place(chart, point[0], point[1]);
    for (const [name, value] of Object.entries({class: `dot c${i % 12}`, r: 3.5, cx, cy})) dot.setAttribute(name, value);
    chart.append(dot);
    told.push((data.lines.length > 1 ? line.name + " " : "") + short(point[1]) + (point.length > 2 ? ` (${short(point[2])} to ${short(point[3])})` : ""));
  });
  output.textContent = `${data.x} ${short(near)}: ${told.join(", ")}`;
}
document.addEventListener("pointermove", event => {
  const chart = event.target.closest?.("svg.chart");
  for (const other of document.querySelectorAll("svg.chart[data-idle]")) if (other !== chart && other !== document.activeElement) hide(other);
  if (!chart) return;
  const {frame: [left, right], scales: {linear: [first, last]}} = dataOf(chart);
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
  show(chart, first + (at - left) / (right - left) * (last - first));
});
document.addEventListener("keydown", event => {
  const chart = event.target.closest?.("svg.chart"), step = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
  if (!chart || !step) return;
  event.preventDefault();
  const xs = [...new Set(dataOf(chart).lines.flatMap(line => line.points.map(point => point[0])))].sort((a, b) => a - b);
  const now = xs.indexOf(Number(chart.dataset.at)), to = now < 0 ? (step < 0 ? xs.length - 1 : 0) : now + step;
  outputOf(chart).setAttribute("aria-live", "polite");
  show(chart, xs[Math.min(Math.max(to, 0), xs.length - 1)]);
});
document.addEventListener("focusout", event => { if (event.target.matches?.("svg.chart")) hide(event.target); });

function save(name, kind, href) {
  const link = Object.assign(document.createElement("a"), {download: name.replace(/[^\w.-]+/g, "_") + "." + kind, href});
  link.click();
}
function csv(chart) {
  const data = dataOf(chart), cell = text => /[",\n]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : text;
  const heads = data.lines.flatMap(line => line.points.some(point => point.length > 2) ? [line.name, line.name + " lowest", line.name + " highest"] : [line.name]);
  const rows = new Map();
  let column = 0;
  for (const line of data.lines) {
    const wide = line.points.some(point => point.length > 2) ? 3 : 1;
    for (const [x, ...values] of line.points) { if (!rows.has(x)) rows.set(x, Array(heads.length).fill("")); values.forEach((value, i) => { rows.get(x)[column + i] = value; }); }
    column += wide;
  }
  return [[data.x, ...heads], ...[...rows].sort((a, b) => a[0] - b[0]).map(([x, values]) => [x, ...values])].map(row => row.map(cell).join(",")).join("\n") + "\n";
}
function drawing(chart) { // the chart with its styles inside, as it looks now
  const copy = chart.cloneNode(true), from = [chart, ...chart.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  to.forEach((node, i) => {
    const look = getComputedStyle(from[i]);
    for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"]) node.style.setProperty(name, look.getPropertyValue(name));
  });
  const [, , width, height] = chart.getAttribute("viewBox").split(" ").map(Number), back = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({width, height, fill: getComputedStyle(chart.closest("figure")).backgroundColor})) back.setAttribute(name, value);
  copy.prepend(back);
  for (const name of ["data-chart", "data-idle", "data-at", "tabindex"]) copy.removeAttribute(name);
  copy.setAttribute("xmlns", SVG); copy.setAttribute("width", width * 2); copy.setAttribute("height", height * 2);
  return {text: new XMLSerializer().serializeToString(copy), width: width * 2, height: height * 2};
}
const uri = (text, type) => `data:${type};charset=utf-8,${encodeURIComponent(text)}`;
document.addEventListener("click", event => {
  const button = event.target.closest?.("[data-do]");
  if (!button) return;
  const figure = button.closest("figure"), chart = figure.querySelector("svg.chart"), name = figure.dataset.metric;
  hide(chart);
  if (button.dataset.do === "log") {
    chart.dataset.scale = chart.dataset.scale === "log" ? "linear" : "log";
    button.setAttribute("aria-pressed", chart.dataset.scale === "log");
    for (const plot of chart.querySelectorAll(".plot")) plot.setAttribute("display", plot.classList.contains(chart.dataset.scale) ? "inline" : "none");
  } else if (button.dataset.do === "csv") save(name, "csv", uri(csv(chart), "text/csv"));
  else if (button.dataset.do === "svg") save(name, "svg", uri(drawing(chart).text, "image/svg+xml"));
  else {
    const {text, width, height} = drawing(chart), picture = new Image();
    picture.onload = () => {
      const canvas = Object.assign(document.createElement("canvas"), {width, height});
      canvas.getContext("2d").drawImage(picture, 0, 0, width, height);
      save(name, "png", canvas.toDataURL("image/png"));
    };
    picture.src = uri(text, "image/svg+xml");
  }
});
// --- a link to a closed section opens it --------------------------------------------------------------------
function openTarget() {
  const details = location.hash.length > 1 && document.getElementById(location.hash.slice(1))?.querySelector(":scope > details");
  if (details) details.open = true;
}
addEventListener("hashchange", openTarget);
openTarget();
