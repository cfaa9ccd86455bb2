"use strict";
// A table inside <div class="filterable" data-filter="2,3"> gets a search field, and a choice for each of
// these columns (counted from 0). Without this script the whole table is shown.
for (const box of document.querySelectorAll("div.filterable")) {
  const table = box.querySelector("table"), rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
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
    const values = new Set(rows.map(row => row.cells[column].textContent.trim()).filter(Boolean));
    for (const value of [...values].sort()) select.append(new Option(value, value));
    choices.push([column, select]);
    form.append(select);
  }
  form.append(count);
  const apply = () => {
    const text = search.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = choices.every(([column, select]) => !select.value || row.cells[column].textContent.trim() === select.value);
      row.hidden = !(fits && row.textContent.toLowerCase().includes(text));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", event => event.preventDefault());
  box.prepend(form);
  apply();
}
