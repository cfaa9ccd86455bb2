// --- a run that goes on: its server says when there is more, and the sections that changed are replaced -----
{
  const status = document.getElementById("live"), query = location.search;
  const keep = new Set(["rollouts", "config"]); // what a reader is in the middle of; new groups come on request
  let asked = false, again = false;
  async function refresh() {
    if (asked) { again = true; return; }
    asked = true;
    try {
      const reply = await fetch("sections" + query);
      if (!reply.ok) throw new Error(reply.statusText);
      const {sections, order} = await reply.json();
      for (const [id, html] of Object.entries(sections)) {
        const old = document.getElementById(id);
        if (old && (keep.has(id) || old.contains(document.activeElement))) continue;
        const next = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
        if (!old) { const before = order.slice(order.indexOf(id) + 1).map(name => document.getElementById(name)).find(Boolean); before ? before.before(next) : status.before(next); continue; }
        const open = [...old.querySelectorAll("details")].map(one => one.open), fresh = [...next.querySelectorAll("details")];
        if (open.length === fresh.length) fresh.forEach((one, i) => { one.open = open[i]; });
        old.replaceWith(next);
      }
    } catch (error) { status.textContent = "the server of this page has ended"; }
    asked = false;
    if (again) { again = false; refresh(); }
  }
  const events = new EventSource("events" + query);
  events.onmessage = event => {
    const {step, total, finished} = JSON.parse(event.data);
    status.textContent = finished ? `the run has ended after ${step} steps` : `step ${step}${total ? " of " + total : ""}; following`;
    refresh();
  };
  events.onerror = () => { status.textContent = "the server of this page has ended, or is away"; };
}
