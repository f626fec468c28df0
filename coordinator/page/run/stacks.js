/** Where workers are now: their Python stacks, grouped as `coordinator stacks` does. */

import { fill, h, line, show, visible } from "../base/dom.js";
import { clock, count, parseRanges, ranges } from "../base/format.js";

const RANKS_NAMED_MAX = 4;

export function mount(root, context) {
  const field = h("input", { name: "ranks", placeholder: "all ranks", "aria-label": "Ranks, e.g. 0-3,7", size: 12, autocomplete: "off" });
  const button = h("button", { class: "primary", "data-take-stacks": true }, "Take stacks");
  const form = h("form", { class: "buttons", onsubmit: (event) => { event.preventDefault(); take(); } }, field, button);
  const error = h("p", { class: "error foreign", role: "alert", hidden: true });
  const result = h("div", { class: "stacks", "data-stacks": true }, h("p", { class: "empty" },
    "Shows where every worker is at this moment. Nothing is stopped, and it takes 4 s at most."));
  fill(context.tools, form);
  fill(root, error, result);
  let request = null;

  async function take() {
    request?.abort();
    request = new AbortController();
    show(error, false);
    button.disabled = true;
    button.textContent = "Asking…";
    try {
      const ranks = parseRanges(field.value);
      const document = await context.api("stacks", { query: { ranks: ranks.length ? ranges(ranks) : null }, signal: request.signal });
      paint(document);
      context.announce(`stacks: ${count(document.groups.length, "group")}`);
    } catch (problem) {
      if (problem.name !== "AbortError") {
        error.textContent = visible([problem.reason ?? problem.message, problem.hint].filter(Boolean).join(" – "));
        show(error, true);
      }
    }
    button.disabled = false;
    button.textContent = "Take stacks";
  }

  function paint({ groups, unanswered }) {
    // What is alone somewhere is looked for: it is open.
    const smallest = Math.min(...groups.map((group) => group.workers.length));
    const silent = new Map();
    for (const worker of unanswered) {
      const why = worker.reason.replace(/\bprocess \d+\b/, "its process");
      silent.set(why, [...(silent.get(why) ?? []), worker]);
    }
    fill(result, h("p", { class: "muted" }, `Taken at ${clock(Date.now())}`),
      groups.map((group) => h("details", { class: "text", "data-stack-group": true, open: group.workers.length === smallest },
        h("summary", {}, h("code", { class: "foreign" }, group.place), ": ", h("strong", {}, who(group.workers))),
        group.collectives.map((text) => h("p", { class: "foreign" }, visible(text))),
        h("pre", { class: "foreign", tabindex: "0", "aria-label": `Stack of rank ${group.workers[0].rank}` }, firstThread(group.stacks)))),
      [...silent].map(([why, workers]) => h("p", { class: "foreign", "data-unanswered": true },
        `${who(workers)} gave no stacks: ${line(why)}`)),
      !groups.length && !unanswered.length && h("p", { class: "empty" }, "No worker has one of these ranks."));
  }

  return {
    update(kind, data) {
      if (kind === "select") field.value = data ?? "";
    },
    show() {
      field.focus({ preventScroll: true });
      return true;
    },
    destroy() { request?.abort(); },
  };
}

function who(workers) {
  const named = workers.length > RANKS_NAMED_MAX ? ranges(workers.map((worker) => worker.rank))
    : workers.map((worker) => `${worker.rank} on ${line(worker.name, 64)}`).join(", ");
  return `${count(workers.length, "rank")} (${named})`;
}

/** The calls of the first thread, innermost first. */
function firstThread(stacks) {
  return visible(stacks.replace(/^\n+/, "").split("\n\n")[0].split("\n").slice(1)
    .map((call) => call.replace(/^ {2}/, "")).join("\n"));
}
