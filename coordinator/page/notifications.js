/** What is wrong now, which notifications were sent, and, for admins, who called what. */

import { api } from "./base/api.js";
import { fill, h, headRow, keyed, setAttribute, setText, show } from "./base/dom.js";
import { clock, runName, words } from "./base/format.js";
import { pathOf } from "./list/columns.js";
import { showOutside } from "./list/outside.js";

const AGAIN_MS = 5_000;

/** Show them in `main` until `destroy()`. */
export function mountNotifications(main, frame) {
  const problem = h("p", { class: "error foreign", role: "alert", hidden: true });
  const rows = h("tbody");
  const runs = scrolled("Runs that need attention", ["Run", "Health", "Why"], rows);
  const well = h("p", { class: "empty", hidden: true }, "Nothing is wrong.");
  const outside = h("section", { class: "card wide", "data-outside": true, "aria-label": "Hosts", hidden: true });
  const sent = h("div", { "data-sent": true });
  const entries = h("div");
  const audit = h("details", { class: "card wide", "data-audit": true, hidden: frame.me.role !== "admin", ontoggle: read },
    h("summary", {}, "Audit: who called what of late, and who was refused"), entries);
  const card = (title, body) => h("section", { class: "card wide" }, h("h2", {}, title), body);
  fill(main, h("section", { class: "list", "data-view": "notifications" }, h("header", { class: "head" }, h("h1", {}, "Notifications")),
    problem, card("Runs that need attention", h("div", { "data-firing": true }, runs, well)), outside, card("Sent of late", sent), audit));
  let timer = 0;
  let isLeft = false;

  async function read() {
    clearTimeout(timer);
    try {
      const found = await api("/api/notifications");
      keyed(rows, found.firing, (run) => run.run_id, runRow, updateRunRow);
      show(runs, found.firing.length);
      show(well, !found.firing.length);
      ifChanged(outside, [found.drains, found.hosts], () => showOutside(outside, found));
      ifChanged(sent, found.notifications, () => table("Sent of late", ["When", "To", "Outcome", "What"],
        found.notifications.map((one) => textRow(one, one.endpoint, one.outcome, one.title)), "Nothing was sent."));
      if (audit.open) {
        const { entries: calls } = await api("/api/audit");
        ifChanged(entries, calls, () => table("Audit", ["When", "By", "Result", "What"],
          calls.map((call) => textRow(call, call.caller || "–", call.result, call.text)), "Nothing was called."));
      }
      show(problem, false);
      frame.connected({ isOpen: true });
    } catch (error) {
      if (isLeft) return;
      setText(problem, error.reason ?? error.message);
      show(problem, true);
    }
    clearTimeout(timer);
    if (!isLeft) timer = setTimeout(read, AGAIN_MS);
  }

  read();
  return { destroy: () => { isLeft = true; clearTimeout(timer); } };
}

/** Paint into an element what `make()` returns, unless only ages changed: focus and scroll stay. */
function ifChanged(element, data, make) {
  const text = JSON.stringify(data, (key, value) => (key.endsWith("age_s") || key === "time_left_s" ? undefined : value));
  if (element.shown === text) return;
  element.shown = text;
  const content = make();
  if (content) fill(element, content);
}

function table(label, heads, rows, nothing) {
  if (!rows.length) return h("p", { class: "empty" }, nothing);
  return scrolled(label, heads, h("tbody", {}, rows.reverse()));
}

function scrolled(label, heads, body) {
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, h("table", { class: "runs" }, headRow(heads), body));
}

function runRow(run) {
  return h("tr", { "data-run": run.run_id },
    h("th", { scope: "row", class: "foreign run-name" }, h("a", { href: pathOf(run, true), "data-link": true }, runName(run))),
    h("td", {}, h("span", { class: "state" })), h("td", { class: "foreign reason" }));
}

function updateRunRow({ children: [, health, why] }, run) {
  setText(health.firstChild, words(run.health));
  setAttribute(health.firstChild, "data-state", run.health);
  setText(why, run.health_reason);
}

function textRow({ age_s: age }, ...texts) {
  return h("tr", {}, h("td", { class: "when" }, clock(Date.now() - 1_000 * age)),
    texts.map((text) => h("td", { class: "foreign" }, text)));
}
