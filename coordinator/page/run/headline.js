/** What a run is doing and why, who is behind, and its figures. */

import { fill, h, setAttribute, setText, show } from "../base/dom.js";
import { ago, number, phaseOf, runName, words } from "../base/format.js";

const REASONS_SHOWN = 8;
const NAMES_SHOWN = 5;

const FACTS = [
  ["round", "Round", (run) => number(run.round_id)],
  ["iteration", "Iteration", (run) => (run.iteration == null ? null : number(run.iteration))],
  ["world-size", "World size", (run) => number(run.world_size)],
  ["agents", "Hosts", (run) => number(run.agents_count)],
  ["step", "Step", (run) => (stepOf(run) == null ? null : number(stepOf(run)))],
  ["restarts", "Restarts", (run) => (run.launcher ? `counted by ${run.launcher}` : `${run.restarts_used} of ${run.restarts_max}`)],
  ["in-process", "In process", (run) => (run.restarts_in_process ? number(run.restarts_in_process) : null)],
  ["failures", "Failures", (run) => number(run.failures_count)],
  ["repeated", "Steps repeated", (run) => (run.steps_repeated ? number(run.steps_repeated) : null)],
  ["ended", "Ended", (run) => (run.ended_age_s == null ? null : ago(run.ended_age_s))],
];

function stepOf(run) {
  const steps = run.agents.flatMap((agent) => agent.workers.map((worker) => worker.step)).filter((step) => step != null);
  return steps.length ? Math.max(...steps) : null;
}

export function mount(root, context) {
  const name = h("h1", { class: "foreign" }, context.runId);
  const state = h("span", { class: "state big", "data-phase": true });
  const reason = h("p", { class: "reason foreign", "data-reason": true, tabindex: 0 }); // a long one scrolls
  const behind = h("p", { class: "behind foreign", "data-behind": true, hidden: true });
  const waiting = h("ul", { class: "waiting", "data-waiting": true, hidden: true });
  const facts = h("dl", { class: "facts" }, FACTS.map(([key, title]) => h("div", { "data-fact": key, hidden: true },
    h("dt", {}, title), h("dd"))));
  fill(root, h("div", { class: "title" }, name, state), reason, behind, waiting, facts);
  let phase = null;
  let latest = null;

  function paintFacts() {
    if (!latest) return;
    const { run, at } = latest;
    const age = run.ended_age_s == null ? null : run.ended_age_s + (Date.now() - at) / 1_000;
    FACTS.forEach(([, , value], place) => {
      const shown = value({ ...run, ended_age_s: age });
      show(facts.children[place], shown != null);
      setText(facts.children[place].lastChild, shown ?? "");
    });
  }

  // Of a run that has ended nothing more is told, and its age grows.
  const timer = setInterval(paintFacts, 5_000);

  return {
    update(kind, run) {
      if (kind !== "run") return;
      setText(name, runName(run));
      const shown = phaseOf(run);
      setText(state, words(shown));
      setAttribute(state, "data-state", shown);
      setText(reason, run.reason);
      if (phase && phase !== shown) context.announce(`the run is ${words(shown)}: ${run.reason}`);
      phase = shown;
      setText(behind, run.behind ? `Behind: ${run.behind}` : "");
      show(behind, run.behind);
      const reasons = new Map();
      for (const agent of run.agents) {
        if (!agent.waiting_reason || agent.group_rank != null) continue;
        reasons.set(agent.waiting_reason, [...(reasons.get(agent.waiting_reason) ?? []), agent.name]);
      }
      const lines = [...reasons].slice(0, REASONS_SHOWN).map(([why, names]) => {
        const more = names.length - NAMES_SHOWN;
        return `${names.slice(0, NAMES_SHOWN).join(", ")}${more > 0 ? ` and ${more} more` : ""}: ${why}`;
      });
      if (waiting.textContent !== lines.join("")) fill(waiting, lines.map((text) => h("li", { class: "foreign" }, text)));
      show(waiting, lines.length);
      latest = { run, at: Date.now() };
      paintFacts();
    },
    destroy() { clearInterval(timer); },
  };
}
