// --- groups of rollouts: filters, pages, colours, the marks of one answer -----------------------------------
const PAGE = 6; // groups on a page
let page = 0;
const flagged = name => rollout => rollout.dataset.flags.split(" ").includes(name);
const kept = { // what the choice "show" keeps
  differ: rollout => new Set([...rollout.parentElement.querySelectorAll(".rollout")].map(one => one.dataset.reward)).size > 1,
  underpaid: flagged("underpaid"), ungrounded: flagged("ungrounded"), disagree: flagged("disagree"), failed: flagged("failed"),
};
const textOf = rollout => rollout.querySelector(".text");
function applyFilter() {
  const form = document.getElementById("filter"), cards = [...document.querySelectorAll("#rollouts article.card")];
  const value = name => form.elements[name] ? form.elements[name].value : "";
  const low = value("low") === "" ? -Infinity : Number(value("low")), high = value("high") === "" ? Infinity : Number(value("high"));
  const text = value("text").toLowerCase(), lengths = cards.flatMap(card => [...card.querySelectorAll(".rollout")].map(one => Number(one.dataset.length))).sort((a, b) => b - a);
  const long = lengths[Math.max(Math.ceil(lengths.length / 10) - 1, 0)];
  const wanted = value("show") === "longest" ? rollout => Number(rollout.dataset.length) >= long : kept[value("show")] || (() => true);
  const fitting = [];
  let count = 0;
  for (const card of cards) {
    const fits = ["step", "phase", "task"].every(key => !value(key) || card.dataset[key] === value(key));
    let left = 0;
    for (const rollout of card.querySelectorAll(".rollout")) {
      const reward = Number(rollout.dataset.reward);
      rollout.hidden = !(fits && wanted(rollout) && reward >= low && reward <= high && (!text || textOf(rollout).textContent.toLowerCase().includes(text)));
      if (!rollout.hidden) left += 1;
    }
    if (left) fitting.push(card);
    count += left;
  }
  const pages = Math.max(Math.ceil(fitting.length / PAGE), 1);
  page = Math.min(Math.max(page, 0), pages - 1);
  for (const card of cards) card.hidden = true;
  for (const card of fitting.slice(page * PAGE, (page + 1) * PAGE)) { card.hidden = false; colour(card, value("colour")); }
  document.getElementById("shown").textContent = `${count} rollouts in ${fitting.length} groups, page ${page + 1} of ${pages}`;
  for (const button of document.querySelectorAll("[data-page]")) button.disabled = button.dataset.page < 0 ? page === 0 : page === pages - 1;
}
// Words that are in both texts, in order: the longest common subsequence.
function common(a, b) {
  const width = b.length + 1, best = new Uint16Array((a.length + 1) * width), shared = new Set();
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    best[i * width + j] = a[i] === b[j] ? best[(i + 1) * width + j + 1] + 1 : Math.max(best[(i + 1) * width + j], best[i * width + j + 1]);
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { shared.add(i); i++; j++; }
    else if (best[(i + 1) * width + j] >= best[i * width + j + 1]) i++;
    else j++;
  }
  return shared;
}
const plain = new WeakMap();
function colour(card, mode) {
  const rollouts = [...card.querySelectorAll(".rollout")], words = rollout => textOf(rollout).textContent.match(/\s+|\w+|[^\w\s]/g)?.slice(0, 900) || [];
  for (const rollout of rollouts) {
    const text = textOf(rollout);
    if (plain.has(text)) { text.replaceChildren(...plain.get(text)); plain.delete(text); }
    for (const span of text.querySelectorAll("span")) span.style.cssText = mode && span.dataset[mode] || "";
  }
  if (mode !== "differences") return;
  const first = words(rollouts[0]);
  for (const rollout of rollouts.slice(1)) {
    const text = textOf(rollout), own = words(rollout), shared = common(own, first), rest = text.textContent.slice(own.join("").length);
    const nodes = own.map((word, i) => {
      if (shared.has(i)) return document.createTextNode(word);
      const mark = document.createElement("mark");
      mark.textContent = word;
      return mark;
    });
    plain.set(text, [...text.childNodes]);
    text.replaceChildren(...nodes, rest);
  }
}
document.addEventListener("input", event => { if (event.target.form?.id === "filter") { page = 0; applyFilter(); } });
document.addEventListener("submit", event => event.preventDefault());
document.addEventListener("click", event => {
  const button = event.target.closest?.("[data-page]");
  if (!button) return;
  page += Number(button.dataset.page);
  applyFilter();
  document.getElementById("rollouts").scrollIntoView();
});
function onlyMine(event) { // point at an answer, or focus it: only its own marks stay
  const rollout = event.target.closest?.(".rollout"), card = event.target.closest?.("article.card");
  for (const mark of document.querySelectorAll(".seen .off")) mark.classList.remove("off");
  if (rollout && card) for (const mark of card.querySelectorAll(".seen .said")) mark.classList.toggle("off", mark.dataset.index !== rollout.dataset.index);
}
document.addEventListener("pointerover", onlyMine);
document.addEventListener("focusin", onlyMine);
if (document.getElementById("filter")) applyFilter();
