"use strict";
// A table inside <div class="filterable" data-filter="2,3"> gets a search field, and a choice for each of
// these columns (counted from 0); a cell may hold several values, with commas. A choice stands in the address,
// so that a view can be linked: index.html#family=agent&q=search. Without this script the whole table is shown.
for (const box of document.querySelectorAll("div.filterable")) {
  const table = box.querySelector("table"), rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  const valuesOf = (row, column) => row.cells[column].textContent.split(",").map(part => part.trim()).filter(Boolean);
  const form = document.createElement("form"), count = document.createElement("output"), choices = [];
  form.className = "filters";
  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = "search";
  search.setAttribute("aria-label", "search the table");
  form.append(search);
  for (const column of box.dataset.filter.split(",").map(Number)) {
    const select = document.createElement("select"), name = heads[column].textContent;
    select.setAttribute("aria-label", name);
    select.append(new Option(name + ": all", ""));
    const values = new Set(rows.flatMap(row => valuesOf(row, column)));
    for (const value of [...values].sort()) select.append(new Option(value, value));
    choices.push([column, select]);
    form.append(select);
  }
  form.append(count);
  const apply = () => {
    const text = search.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = choices.every(([column, select]) => !select.value || valuesOf(row, column).includes(select.value));
      row.hidden = !(fits && row.textContent.toLowerCase().includes(text));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  const fields = [["q", search], ...choices.map(([column, select]) => [heads[column].textContent.trim(), select])];
  const read = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const [name, field] of fields) if (wanted.has(name)) field.value = wanted.get(name);
    apply();
  };
  const write = () => {
    const set = fields.filter(([, field]) => field.value).map(([name, field]) => [name, field.value]);
    history.replaceState(null, "", set.length ? "#" + new URLSearchParams(set) : location.pathname);
  };
  for (const row of rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = heads[column].textContent; });
  form.addEventListener("input", () => { apply(); write(); });
  addEventListener("hashchange", read);
  form.addEventListener("submit", event => event.preventDefault());
  box.prepend(form);
  read();
}
