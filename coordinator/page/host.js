/** One host over all runs, read once and again every few seconds while it is looked at. */

import { api } from "./base/api.js";
import { fill, h, headRow, show } from "./base/dom.js";
import { ago, count, duration, percent, runName, size, words } from "./base/format.js";

const AGAIN_MS = 5_000;

/** Show the host in `main` until `destroy()`. */
export function mountHost(main, frame, { host }) {
  const problem = h("p", { class: "error foreign", role: "alert", hidden: true });
  const body = h("div");
  fill(main, h("section", { "data-view": "host" }, h("header", { class: "head" }, h("h1", { class: "foreign" }, host)), problem, body));
  let timer = 0;
  let isLeft = false;

  async function read() {
    try {
      paint(await api(`/api/hosts/${encodeURIComponent(host)}`));
      show(problem, false);
      frame.connected({ isOpen: true });
    } catch (error) {
      if (isLeft) return;
      problem.textContent = error.reason ?? error.message;
      show(problem, true);
      if (error.status === 404) return frame.connected({ isOver: true });
    }
    if (!isLeft) timer = setTimeout(read, AGAIN_MS);
  }

  function paint({ runs, drains }) {
    const agents = runs.flatMap((run) => run.agents);
    fill(body,
      drains.map((drain) => h("p", { class: "behind foreign", "data-drain": true },
        `Drained from ${drain.run_id ?? "all runs"} by ${drain.caller ?? "–"}${drain.reason ? `: ${drain.reason}` : ""}`
        + (drain.time_left_s == null ? "" : `; ${duration(drain.time_left_s)} left`))),
      agents.map(agentCard),
      h("div", { class: "card wide" }, h("h2", {}, "Runs"), h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Runs" },
        h("table", { class: "runs" }, headRow(["Run", "Health", "Why", "Failures here", ["Lost", "number"]]),
          h("tbody", {}, runs.map(runRow))))));
  }

  read();
  return { destroy: () => { isLeft = true; clearTimeout(timer); } };
}

function agentCard(agent) {
  const ranks = agent.workers.map((worker) => worker.rank);
  const facts = [
    agent.health ? `health: ${words(agent.health)}${agent.health_reason ? ` (${agent.health_reason})` : ""}` : "health is not checked",
    agent.is_connected ? words(agent.state) : "not connected",
    agent.devices ?? "no devices told",
    ranks.length ? `ranks ${Math.min(...ranks)} to ${Math.max(...ranks)}` : null,
  ];
  return h("div", { class: "card wide", "data-agent": agent.name },
    h("h2", { class: "foreign" }, agent.name), h("p", { class: "foreign" }, facts.filter(Boolean).join(" · ")), gpuTable(agent.gpus));
}

function gpuTable(use) {
  if (!use) return null;
  return h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "GPUs" },
    h("table", {}, headRow([["GPU", "number"], ["Works", "number"], ["Memory", "number"], ["Power", "number"]]),
      h("tbody", {}, use.utilization.map((share, at) => h("tr", {},
        h("td", { class: "number" }, at), h("td", { class: "number" }, percent(share)),
        h("td", { class: "number" }, `${size(use.memory_used_bytes[at])} of ${size(use.memory_bytes[at])}`),
        h("td", { class: "number" }, use.power_watts[at] ? `${Math.round(use.power_watts[at])} W` : "–"))))));
}

function runRow(run) {
  const href = `/runs/${encodeURIComponent(run.run_id)}${run.ended_age_s == null ? "" : `?generation=${run.generation}`}`;
  const ended = run.ended_age_s == null ? "" : ` (${ago(run.ended_age_s)})`;
  return h("tr", { "data-run": run.run_id },
    h("th", { scope: "row", class: "foreign run-name" }, h("a", { href, "data-link": true }, runName(run))),
    h("td", {}, h("span", { class: "state", "data-state": run.health }, words(run.health))),
    h("td", { class: "foreign reason" }, run.health_reason + ended),
    h("td", { class: "foreign" }, run.failure_groups.map((group) =>
      h("div", {}, `${group.cause}, ${count(group.count, "time")}${group.advice ? `: ${group.advice}` : ""}`))),
    h("td", { class: "number" }, run.lost_s ? duration(run.lost_s) : "–"));
}
