// --- the page of an evaluation: tables that sort, items that open ---------------------------------------------
{
const facts = JSON.parse(document.getElementById("facts").textContent);
const make = (tag, attributes = {}, ...children) => {
  const node = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
};
const percent = value => value === null || value === undefined ? "" : (100 * value).toFixed(2) + "%";
const names = facts.runs.length === 2 ? ["A", "B"] : ["score"];
document.getElementById("head").textContent = facts.runs.map((run, i) => `${facts.runs.length === 2 ? names[i] + ": " : ""}${run.name} (${run.model}, ${run.engine})`).join("   ");

function table(node, columns, rows, render) {
  let order = null, down = false;
  const draw = () => {
    const sorted = order === null ? rows() : [...rows()].sort((a, b) => {
      const [x, y] = [columns[order].value(a), columns[order].value(b)];
      return (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", {numeric: true})) * (down ? -1 : 1);
    });
    const head = make("tr", {}, ...columns.map((column, i) => {
      const button = make("button", {type: "button"}, column.name), cell = make("th", {scope: "col"}, button);
      if (i === order) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      button.addEventListener("click", () => { down = order === i ? !down : false; order = i; draw(); node.querySelectorAll("th button")[i].focus(); });
      return cell;
    }));
    node.replaceChildren(make("thead", {}, head), make("tbody", {}, ...sorted.map(render)));
  };
  draw();
  return draw;
}

const interval = run => make("span", {}, percent(run.overall), make("span", {class: "interval"}, `[${percent(run.interval.low)}, ${percent(run.interval.high)}]`));
const floorText = run => {
  const parts = [["blank", run.floors.blank], ["constant " + JSON.stringify(run.floors.constant_answer), run.floors.constant], ["random", run.floors.random], ["master key", run.floors.master_key]];
  for (const [name, value] of Object.entries(run.variants || {})) parts.push([name.replace("_", " "), value.overall]);
  return parts.filter(part => part[1] !== null && part[1] !== undefined).map(part => `${part[0]} ${percent(part[1])}`).join(", ");
};
const auditText = run => `no answer found ${percent(run.audit.parse_failures)}, truncated ${percent(run.audit.truncated)}, refused ${percent(run.audit.refused)}, failed ${percent(run.audit.failed)}`;
const scoreColumns = [
  {name: "suite", value: row => row.suite}, {name: "profile", value: row => row.profile},
  ...names.map((name, i) => ({name, value: row => row.runs[i] ? row.runs[i].overall : -1})),
  ...(names.length === 2 ? [{name: "B - A", value: row => row.comparison ? row.comparison.difference : 0}] : []),
  {name: "floors", value: row => row.runs[0].floors.blank}, {name: "audit", value: row => row.runs[0].audit.parse_failures},
];
table(document.getElementById("scores"), scoreColumns, () => facts.scores, row => {
  const last = row.runs[row.runs.length - 1], c = row.comparison;
  return make("tr", {}, make("td", {}, row.suite), make("td", {}, row.profile),
    ...names.map((_, i) => make("td", {class: "number"}, row.runs[i] ? interval(row.runs[i]) : "")),
    ...(names.length === 2 ? [make("td", {class: "number"}, ...(c ? [percent(c.difference), make("span", {class: "interval"}, `[${percent(c.low)}, ${percent(c.high)}], p ${c.p_value.toFixed(4)} (${c.test})`), make("span", {class: "interval"}, `detectable ${percent(c.detectable)}`)] : []))] : []),
    make("td", {}, floorText(last), ...(last.warnings || []).map(text => make("span", {class: "warn"}, text))), make("td", {}, auditText(last)));
});

const status = document.getElementById("status"), suite = document.getElementById("suite"), search = document.getElementById("search");
const statuses = facts.runs.length === 2 ? ["all", "flipped", "gained", "lost", "correct", "wrong"] : ["all", "correct", "wrong"];
status.append(...statuses.map(value => make("option", {value}, value)));
suite.append(...["all suites", ...new Set(facts.items.map(item => item.suite))].map(value => make("option", {value}, value)));
if (facts.items.some(item => item.status === "gained" || item.status === "lost")) status.value = "flipped";
const shown = () => facts.items.filter(item => {
  const words = search.value.toLowerCase();
  return (status.value === "all" || item.status === status.value || (status.value === "flipped" && (item.status === "gained" || item.status === "lost")))
    && (suite.value === "all suites" || item.suite === suite.value)
    && (!words || [item.id, item.question, item.gold, ...item.answers.map(a => a.response)].some(text => text.toLowerCase().includes(words)));
});
const itemColumns = [
  {name: "suite", value: item => item.suite}, {name: "id", value: item => item.id}, {name: "status", value: item => item.status},
  {name: "gold", value: item => item.gold},
  ...names.map((name, i) => ({name: facts.runs.length === 2 ? `extracted in ${name}` : "extracted", value: item => item.answers[i].extracted ?? ""})),
  ...names.map((name, i) => ({name: facts.runs.length === 2 ? `score ${name}` : "score", value: item => item.answers[i].score})),
];
const redraw = table(document.getElementById("items"), itemColumns, () => { const rows = shown(); document.getElementById("count").textContent = `${rows.length} of ${facts.items.length}`; return rows.slice(0, 500); }, item => {
  const row = make("tr", {class: "item", "data-id": item.id}, make("td", {}, item.suite), make("td", {}, make("button", {type: "button"}, item.id)), make("td", {class: {gained: "up", correct: "up", lost: "down", wrong: "down"}[item.status]}, item.status), make("td", {}, item.gold),
    ...item.answers.map(answer => make("td", {}, answer.extracted ?? "nothing")), ...item.answers.map(answer => make("td", {class: "number"}, answer.score.toFixed(2))));
  row.addEventListener("click", () => open(item));
  return row;
});
for (const control of [status, suite, search]) control.addEventListener("input", redraw);

function drawing(item) {
  const picture = item.picture;
  if (!picture) return null;
  if (picture.error) return make("p", {class: "warn"}, picture.error);
  const svg = make("svg:svg", {viewBox: `0 0 ${picture.width} ${picture.height}`, width: Math.max(picture.width, 320), role: "img", "aria-label": `picture of item ${item.id} with its boxes`});
  svg.append(make("svg:image", {href: picture.uri, width: picture.width, height: picture.height}));
  const stroke = Math.max(1, picture.width / 200);
  item.answers.forEach((answer, i) => answer.boxes.forEach(({box, kind}) => {
    if (kind === "gold" && i > 0) return;
    svg.append(make("svg:rect", {class: kind === "gold" ? "gold" : `predicted${i}`, x: Math.min(box[0], box[2]), y: Math.min(box[1], box[3]), width: Math.abs(box[2] - box[0]), height: Math.abs(box[3] - box[1]), "stroke-width": stroke}));
  }));
  return svg;
}
function open(item) {
  const detail = document.getElementById("detail");
  detail.hidden = false;
  detail.replaceChildren(
    make("strong", {}, `${item.suite} ${item.id}`), make("p", {}, drawing(item)), make("pre", {class: "boxed", tabindex: "0"}, item.question), make("p", {}, "gold: ", make("code", {}, item.gold)),
    make("div", {class: "answers"}, ...item.answers.map((answer, i) => make("div", {}, make("strong", {}, facts.runs.length === 2 ? `${names[i]}: ` : "", `${answer.score.toFixed(2)}`),
      make("div", {}, "extracted: ", make("code", {}, answer.extracted ?? "nothing"), ` by ${answer.rule || "no rule"}`, answer.finish === "length" ? ", truncated" : "", answer.error ? `, ${answer.error}` : ""), make("pre", {class: "boxed", tabindex: "0"}, answer.response)))));
  detail.scrollIntoView({block: "nearest"});
  detail.focus();
}
const card = document.getElementById("card");
facts.replay.forEach((command, i) => card.append(make("p", {}, "replay: ", make("code", {}, command)), make("details", {}, make("summary", {}, `card of ${facts.runs[i].name}`), make("pre", {}, JSON.stringify(facts.cards[i], null, 1)))));
if (facts.changed.length) card.prepend(make("p", {}, "differences between the runs:"), make("pre", {}, facts.changed.join("\n")));
}
