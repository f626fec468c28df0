/** There is no such run, or not for this reader: says so, and names the runs that were perhaps meant. */

import { api } from "../base/api.js";
import { fill, h, show } from "../base/dom.js";
import { runName } from "../base/format.js";

const SIMILAR_MAX = 5;
const LIKE_LEAST = 0.3;
const NOT_FOUND = 404;

/** Show it in `main`, in place of a run. */
export async function showNoRun(main, { runId, generation, status, reason }) {
  show(document.getElementById("connection"), false); // there is nothing to be connected to
  const similar = h("ul", { "data-similar": true });
  const title = status !== NOT_FOUND ? reason
    : generation ? `There is no generation ${generation} of the run “${runId}”` : `There is no run “${runId}”`;
  fill(main, h("section", { class: "notice", "data-view": "notice" }, h("h1", { class: "foreign" }, title), similar,
    h("p", {}, h("a", { href: "/", "data-link": true }, "All runs"))));
  const { runs, jobs } = await api("/api/runs").catch(() => ({ runs: [], jobs: [] }));
  const likes = [...jobs, ...runs].map((run) => [likeness(runId, run.run_id), run]).filter(([like]) => like >= LIKE_LEAST)
    .sort(([one, first], [other, second]) => other - one || (second.generation ?? 1) - (first.generation ?? 1));
  if (!likes.length) return;
  fill(similar, h("li", {}, "Perhaps you mean"), likes.slice(0, SIMILAR_MAX).map(([, run]) => h("li", {}, h("a", {
    class: "foreign", "data-link": true, href: `/runs/${encodeURIComponent(run.run_id)}${run.groups_count ? "?job=1" : `?generation=${run.generation}`}`,
  }, runName(run)))));
}

/** How alike two names are, from 0 to 1: what they share of their pairs of characters. */
function likeness(...names) {
  const [pairs, others] = names.map((name) => new Set([...name].slice(1).map((_, at) => name.slice(at, at + 2))));
  return (2 * [...pairs].filter((pair) => others.has(pair)).length) / (pairs.size + others.size);
}
