/** All runs, live. */

import { openStream } from "./base/live.js";
import { fill, h, headRow, keyed, setAttribute, setText, show } from "./base/dom.js";
import { count, duration, number, percent, phaseOf, runName, words } from "./base/format.js";
import { partsBar } from "./base/parts.js";

const NO_RUN = "There is no run yet. The first agent that joins makes one.";
export const HEADS = ["Run", "State", "Why", ["Hosts", "number"], ["Restarts", "number"], "Goodput"];

/** Show the list in `main` until `destroy()`. */
export function mountRuns(main, frame) {
  const summary = h("p", { class: "muted", "data-summary": true });
  const only = h("input", {
    type: "search", placeholder: "Filter by name, state, reason", "aria-label": "Filter runs", "data-filter": true,
  });
  const body = h("tbody");
  const table = h("table", { class: "runs", "data-runs": true },
    headRow(HEADS), body);
  const empty = h("p", { class: "empty", hidden: true }, NO_RUN);
  fill(main, h("section", { "data-view": "runs" },
    h("header", { class: "head" }, h("h1", {}, "Runs"), summary, h("span", { class: "grow" }), only),
    h("div", { class: "card wide" }, h("div", { class: "scroll" }, table), empty)));
  let runs = null;

  function paint() {
    if (!runs) return;
    const wanted = only.value.trim().toLowerCase();
    const shown = wanted ? runs.filter((run) => [run.run_id, phaseOf(run), run.reason].join(" ").toLowerCase().includes(wanted)) : runs;
    const latest = new Map();
    for (const run of runs) latest.set(run.run_id, Math.max(run.generation, latest.get(run.run_id) ?? 0));
    keyed(body, [...shown].sort(inOrder), (run) => `${run.run_id}\n${run.generation}`, row,
      (element, run) => updateRow(element, run, latest.get(run.run_id) === run.generation));
    const living = runs.filter((run) => run.phase !== "ended").length;
    setText(summary, runs.length ? `${count(runs.length, "run")}, ${living} ${living === 1 ? "lives" : "live"}`
      + (wanted ? `; ${shown.length} shown` : "") : "");
    setText(empty, runs.length ? "No run has this in its name, state or reason." : NO_RUN);
    show(empty, !shown.length);
    show(table, shown.length);
  }

  const stream = openStream("/api/live", { onState: frame.connected });
  stream.on("runs", (document) => {
    const before = new Map((runs ?? []).map((run) => [run.run_id, phaseOf(run)]));
    const { runs: all = document, jobs = [] } = document;
    runs = [...all.filter((run) => !run.job), ...jobs.map((job) => ({ ...job, generation: 1 }))];
    const changed = runs.filter((run) => before.has(run.run_id) && before.get(run.run_id) !== phaseOf(run));
    if (changed.length) frame.announce(changed.map((run) => `${run.run_id} is ${words(phaseOf(run))}`).slice(0, 3).join(", "));
    paint();
  });
  only.addEventListener("input", paint);
  return {
    destroy: () => stream.close(),
    key(event) {
      if (event.key !== "/") return;
      event.preventDefault();
      only.focus();
    },
  };
}

/** Those that live first; the order stays as runs go on, so that no line moves under a hand. */
function inOrder(one, other) {
  return (one.phase === "ended") - (other.phase === "ended")
    || (one.ended_age_s ?? 0) - (other.ended_age_s ?? 0)
    || (one.run_id < other.run_id ? -1 : one.run_id > other.run_id ? 1 : one.generation - other.generation);
}

export function row(run) {
  return h("tr", { "data-run": run.run_id, "data-generation": run.generation },
    h("th", { scope: "row", class: "foreign run-name" }, h("a", { "data-link": true }, runName(run))),
    h("td", { "data-cell": "state" }, h("span", { class: "state" })),
    h("td", { class: "foreign reason", "data-cell": "reason" }, h("span")),
    h("td", { class: "number", "data-cell": "hosts" }),
    h("td", { class: "number", "data-cell": "restarts" }),
    h("td", { class: "ratio-cell", "data-cell": "goodput" }, h("span", { class: "ratio" }), h("span", { class: "bar-slot" })));
}

export function updateRow(element, run, isLatest) {
  const [name, state, reason, hosts, restarts, goodput] = element.children;
  // Without a generation the latest is shown, whichever that will be.
  const which = run.groups_count ? "?job=1" : isLatest ? "" : `?generation=${run.generation}`;
  const path = `/runs/${encodeURIComponent(run.run_id)}${which}`;
  setAttribute(name.firstChild, "href", path);
  setText(state.firstChild, words(phaseOf(run)));
  setAttribute(state.firstChild, "data-state", phaseOf(run));
  setText(reason.firstChild, run.reason + (run.ended_age_s != null ? ` (${duration(run.ended_age_s)} ago)` : ""));
  setText(hosts, number(run.agents_count));
  setText(restarts, run.launcher ? `by ${run.launcher}` : `${run.restarts_used}/${run.restarts_max}`);
  setText(goodput.firstChild, percent(run.goodput?.effective_ratio));
  partsBar(goodput.lastChild, run.goodput?.parts ?? []);
}
