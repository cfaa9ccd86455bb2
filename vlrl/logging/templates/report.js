"use strict";
// The value under the pointer, on every chart.
for (const chart of document.querySelectorAll("svg.chart[data-points]")) {
  const points = JSON.parse(chart.dataset.points), output = chart.parentElement.querySelector("output"), last = output.textContent;
  const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  dot.setAttribute("r", 3.5);
  dot.setAttribute("class", "dot");
  chart.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
    let near = points[0];
    for (const point of points) if (Math.abs(point[2] - at) < Math.abs(near[2] - at)) near = point;
    dot.setAttribute("cx", near[2]);
    dot.setAttribute("cy", near[3]);
    chart.append(dot);
    output.textContent = "step " + Math.round(near[0]) + ": " + Number(near[1].toPrecision(4));
  });
  chart.addEventListener("pointerleave", () => { dot.remove(); output.textContent = last; });
}
// The same for charts of several runs: the value of each at the nearest step.
for (const chart of document.querySelectorAll("svg.curves")) {
  const series = Object.entries(JSON.parse(chart.dataset.series)), output = chart.parentElement.querySelector("output"), idle = output.textContent;
  const rule = document.createElementNS("http://www.w3.org/2000/svg", "line");
  rule.setAttribute("class", "rule");
  chart.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
    const points = series.flatMap(([, values]) => values);
    if (!points.length) return;
    let near = points[0];
    for (const point of points) if (Math.abs(point[2] - at) < Math.abs(near[2] - at)) near = point;
    for (const [name, value] of Object.entries({x1: near[2], x2: near[2], y1: 8, y2: 228})) rule.setAttribute(name, value);
    chart.append(rule);
    const values = series.map(([name, found]) => [name, found.find(point => point[0] === near[0])]).filter(([, point]) => point);
    output.textContent = "step " + near[0] + ": " + values.map(([name, point]) => name + " " + point[1]).join(", ");
  });
  chart.addEventListener("pointerleave", () => { rule.remove(); output.textContent = idle; });
}
// A link to a closed section opens it.
addEventListener("hashchange", () => {
  const details = document.querySelector(location.hash + " > details");
  if (details) details.open = true;
});
// The filter of the rollouts.
const form = document.getElementById("filter");
if (form) {
  const cards = [...document.querySelectorAll("article.card")], shown = document.getElementById("shown");
  const all = [...document.querySelectorAll("article.card .rollout")];
  const lengths = all.map(rollout => Number(rollout.dataset.length)).sort((a, b) => b - a);
  const long = lengths[Math.max(Math.ceil(lengths.length / 10) - 1, 0)];
  // What the choice "show" keeps.
  const kept = {
    differ: rollout => new Set([...rollout.closest(".card").querySelectorAll(".rollout")].map(one => one.dataset.reward)).size > 1,
    disagree: rollout => { const parts = rollout.dataset.parts.split(" ").map(Number); return parts.some(part => part > 0) && parts.some(part => part <= 0); },
    longest: rollout => Number(rollout.dataset.length) >= long,
    unfinished: rollout => rollout.dataset.finish !== "stop",
  };
  const apply = () => {
    const value = name => form.elements[name] ? form.elements[name].value : "";
    const low = value("low") === "" ? -Infinity : Number(value("low")), high = value("high") === "" ? Infinity : Number(value("high"));
    const text = value("text").toLowerCase();
    let count = 0;
    for (const card of cards) {
      const fits = ["step", "phase", "task"].every(key => !value(key) || card.dataset[key] === value(key));
      let left = 0;
      for (const rollout of card.querySelectorAll(".rollout")) {
        const reward = Number(rollout.dataset.reward);
        rollout.hidden = !(fits && (!value("show") || kept[value("show")](rollout)) && reward >= low && reward <= high && rollout.querySelector(".text").textContent.toLowerCase().includes(text));
        if (!rollout.hidden) left += 1;
      }
      card.hidden = left === 0;
      count += left;
    }
    shown.textContent = count + " rollouts";
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  apply();
  // Point at an answer: only its own boxes stay.
  for (const card of cards) for (const rollout of card.querySelectorAll(".rollout")) {
    const mine = () => [...card.querySelectorAll("svg .said")].forEach(mark => mark.classList.toggle("off", mark.dataset.index !== rollout.dataset.index));
    rollout.addEventListener("pointerenter", mine);
    rollout.addEventListener("pointerleave", () => card.querySelectorAll("svg .off").forEach(mark => mark.classList.remove("off")));
  }
}
