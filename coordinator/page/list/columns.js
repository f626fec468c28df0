/** Lists of runs: their columns, and a run as a row. */

import { h, setAttribute, setText } from "../base/dom.js";
import { ago, clock, duration, number, percent, runName, words } from "../base/format.js";

/** How a run may be, what needs attention first. */
export const HEALTHS = ["crash_loop", "hanging", "no_progress", "failed", "degraded", "waiting", "healthy", "stopped", "succeeded"];
const RECENT_S = 86_400; // a failure needs attention for so long

/** How much an age has grown since the run was told. */
const grownS = (run) => (Date.now() - (run.at ?? Date.now())) / 1_000;
const startedS = (run) => (run.age_s == null ? null : -run.age_s - grownS(run));
export const endedAgo = (run) => (run.ended_age_s == null ? null : run.ended_age_s + grownS(run));
const lasted = (run) => (run.age_s == null ? null : run.age_s - (run.ended_age_s ?? -grownS(run)));

/** The place of a run by what needs attention; all that is over comes last. */
export function urgency(run) {
  const isOver = run.ended_age_s != null && !(run.health === "failed" && endedAgo(run) < RECENT_S);
  return isOver ? HEALTHS.length : HEALTHS.indexOf(run.health);
}

/** Name and title, whether it is a number, what it is sorted by, and how that is shown. */
export const COLUMNS = [
  ["run", "Run", false, (run) => run.run_id],
  ["health", "Health", false, urgency],
  ["why", "Why", false, null],
  ["hosts", "Hosts", true, (run) => run.agents_count, number],
  ["step", "Step", true, (run) => run.step, number],
  ["started", "Started", true, startedS, (at) => ago(at && -at)],
  ["duration", "Duration", true, lasted, duration],
  ["restarts", "Restarts", true, (run) => run.restarts_used, (used, run) => (run.launcher ? `by ${run.launcher}` : `${used}/${run.restarts_max}`)],
  ["goodput", "Goodput", true, (run) => run.effective_ratio, percent],
  ["owner", "Owner", false, (run) => run.labels?.owner, (name) => name ?? "–"],
];

export const pathOf = (run, isLatest) => `/runs/${encodeURIComponent(run.run_id)}${
  run.groups_count ? "?job=1" : isLatest ? "" : `?generation=${run.generation}`}`;

export function row(run, columns = COLUMNS) {
  return h("tr", { "data-run": run.run_id, "data-generation": run.generation },
    h("th", { scope: "row", class: "foreign run-name" }, h("a", { "data-link": true }, runName(run))),
    h("td", { "data-cell": "health" }, h("span", { class: "state" })),
    h("td", { class: "foreign reason", "data-cell": "why" }, h("span"), h("small")),
    columns.slice(3).map(([name, title, isNumber]) => h("td", { class: isNumber ? "number" : "foreign", "data-cell": name, "data-title": title })));
}

/** Show a run as it is now. Without a generation the latest is shown, whichever that will be. */
export function updateRow(element, run, { columns = COLUMNS, isLatest = true } = {}) {
  const [name, health, why, ...cells] = element.children;
  setAttribute(name.querySelector("a"), "href", pathOf(run, isLatest));
  setText(health.firstChild, words(run.health));
  setAttribute(health.firstChild, "data-state", run.health);
  const failure = run.last_failure;
  setText(why.firstChild, run.health_reason);
  setText(why.lastChild, run.ended_age_s != null ? `ended ${ago(endedAgo(run))}`
    : failure ? `last failure ${ago(failure.age_s + grownS(run))}: ${failure.reason}` : "");
  columns.slice(3).forEach(([column, , , value, shown], at) => {
    setText(cells[at], shown(value(run), run));
    if (column === "started" && run.age_s != null) setAttribute(cells[at], "title", clock(Date.now() + 1_000 * startedS(run), { withDay: true }));
  });
}
