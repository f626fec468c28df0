/** Two chosen runs, side by side. */

import { api } from "../base/api.js";
import { fill, h, headRow, setText, show, unseen } from "../base/dom.js";
import { duration, number, runName, words } from "../base/format.js";
import { COLUMNS, pathOf } from "./columns.js";
import { keyOf } from "./selection.js";

/** Compare runs in `root`; `clear` takes the choice back. The answer is to be called with what is chosen. */
export function comparison(root, clear) {
  const stepTimes = new Map();
  const lines = [
    ["Health", (run) => words(run.health)], ["Why", (run) => run.health_reason],
    ...COLUMNS.slice(3).map(([, title, , value, shown]) => [title, (run) => shown(value(run), run)]),
    ["Failures", (run) => number(run.failed_count)], ["Time of a step", (run) => duration(stepTimes.get(keyOf(run)))],
  ];
  const body = h("tbody");
  const frame = h("div", { class: "scroll", tabindex: 0 });
  const hint = h("p", { class: "hint" }, "Choose a second run.");
  fill(root, h("header", {}, h("h2", {}, "Comparison"), h("button", { type: "button", class: "tools", onclick: clear }, "Close")), hint, frame);
  let shownKeys = "";

  async function ask(run) {
    stepTimes.set(keyOf(run), null);
    const { median_s: medians } = await api(`/api/runs/${encodeURIComponent(run.run_id)}/step-times`, { query: { generation: run.generation } });
    const known = medians.filter((time) => time != null).sort((one, other) => one - other);
    stepTimes.set(keyOf(run), known[Math.floor(known.length / 2)]);
  }

  return (runs) => {
    const keys = runs.map(keyOf).join("\n");
    if (keys !== shownKeys) {
      shownKeys = keys;
      fill(frame, h("table", {}, headRow([unseen("Figure"), ...runs.map((run) => h("a", { href: pathOf(run), "data-link": true }, runName(run)))]), body));
      fill(body, lines.map(([title]) => h("tr", {}, h("th", { scope: "row" }, title), runs.map(() => h("td", { class: "foreign" })))));
    }
    for (const run of runs) {
      if (!run.groups_count && !stepTimes.has(keyOf(run))) ask(run).catch(() => {}); // it shows that the time is not known
      lines.forEach(([, shown], at) => setText(body.rows[at].cells[1 + runs.indexOf(run)], shown(run)));
    }
    show(root, runs.length);
    show(hint, runs.length === 1);
    show(frame, runs.length > 1);
  };
}
