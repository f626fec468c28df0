/** Why a run failed: the root cause first, then the victims, folded. */

import { fill, h, headRow, line, visible } from "../base/dom.js";
import { count, duration, phaseOf, words } from "../base/format.js";

const VICTIMS_SHOWN = 200;
const STDERR = "Last lines of stderr";

export function mount(root, context) {
  let asked = null; // the end that was asked for
  let request = null;
  context.showCard(false);

  async function load(run) {
    request?.abort();
    request = new AbortController();
    try {
      const report = await context.api("report", { signal: request.signal });
      paint(report, run);
      context.tell("report", report);
    } catch (error) {
      if (error.name !== "AbortError") asked = null; // with the next document
    }
  }

  function paint(report, run) {
    const { root_causes: causes, victims } = report;
    const isTold = causes.length || victims.length || phaseOf(run) === "failed";
    context.showCard(isTold);
    if (!isTold) return;
    fill(root,
      h("p", { class: "foreign verdict", "data-verdict": true }, report.reason),
      causes.length > 1 && h("p", { class: "muted" },
        `One of ${causes.length}${report.hang ? "" : ", too close in time to be told apart"}:`),
      !causes.length && !report.hang && h("p", { class: "muted" }, "No record of a root cause arrived."),
      causes.map((cause) => failure(cause, "Root cause")),
      hungAt(report.hang),
      folded(victims, report),
      report.earlier?.length ? h("details", { class: "earlier", "data-earlier": true },
        h("summary", {}, `What ended the rounds before (${report.earlier.length})`),
        h("ol", {}, report.earlier.map((reason) => h("li", { class: "foreign" }, reason)))) : null,
      report.goodput && h("p", { class: "muted foreign" }, `Goodput: ${report.goodput}`));
  }

  /** Where all ranks were when the round hung, with the stack of one rank of each group. */
  function hungAt(hang) {
    if (!hang?.groups.length) return null;
    return h("article", { class: "cause", "data-hang": true },
      h("h3", {}, "Where all ranks were when the round hung"),
      hang.collective && h("p", { class: "foreign" }, visible(hang.collective)),
      hang.groups.map((group) => h("details", { class: "text" },
        h("summary", { class: "foreign" },
          `${count(group.count, "rank")} (${group.ranks}) ${group.place}: ${group.is_cause ? "the cause" : group.activity}`),
        h("pre", { class: "foreign", tabindex: "0", "aria-label": `Stack of ranks ${group.ranks}` }, visible(group.stack)))));
  }

  function failure(of, title) {
    const facts = [
      ["Ended by", endedBy(of)],
      ["Likely why", of.explanation],
      ["Message", of.message],
      ["Seen", of.evidence],
      ["Output", of.output_files.length && `${of.output_files.join(" and ")} on ${of.host}`],
    ].filter(([, text]) => text);
    const texts = [["Stacks", of.stacks], ["Traceback", of.traceback], [STDERR, of.stderr_tail]]
      .filter(([, text]) => text?.trim());
    const where = [
      of.name && of.name !== of.host ? `host ${line(of.host, 120)}` : null,
      `local rank ${of.local_rank}`,
      of.pid ? `pid ${of.pid}` : null,
    ];
    return h("article", { class: "cause", "data-root-cause": of.rank },
      h("h3", { class: "foreign" }, `${title}: rank ${of.rank} on ${line(of.name || of.host, 120)}`),
      h("p", { class: "muted foreign" }, where.filter(Boolean).join(", ")),
      h("dl", { class: "evidence" }, facts.flatMap(([head, text]) => [h("dt", {}, head), h("dd", { class: "foreign" }, text)])),
      texts.map(([head, text]) => h("details", { class: "text", open: head !== STDERR || texts.length === 1 },
        h("summary", {}, head),
        h("pre", { class: "foreign", tabindex: "0", "aria-label": head }, visible(text.trimEnd())))));
  }

  function folded(victims, report) {
    const total = report.victims_count ?? victims.length;
    if (!total) return null;
    const of = report.world_size ? ` of ${count(report.world_size, "worker")}` : "";
    const shown = victims.slice(0, VICTIMS_SHOWN);
    return h("details", { class: "victims", "data-victims": total },
      h("summary", {}, `${count(total, "victim")}${of}, ended because of it`),
      h("div", { class: "scroll" }, h("table", {},
        headRow([["Rank", "number"], "Host", "Ended by", "Message"]),
        h("tbody", {}, shown.map((victim) => h("tr", {},
          h("td", { class: "number" }, victim.rank), h("td", { class: "foreign" }, line(victim.name || victim.host, 120)),
          h("td", {}, endedBy(victim)), h("td", { class: "foreign" }, line(victim.message, 300))))))),
      total > shown.length && h("p", { class: "muted" }, `${count(total - shown.length, "other")} stopped by their agents`));
  }

  return {
    update(kind, run) {
      if (kind !== "run") return;
      if (run.phase !== "ended") return;
      const end = `${run.generation} ${run.cause}`;
      if (asked === end) return;
      asked = end;
      load(run);
    },
    destroy() { request?.abort(); },
  };
}

function endedBy(of) {
  if (of.hang) return `hang: ${words(of.hang)}${of.hang_s == null ? "" : ` for ${duration(of.hang_s)}`}`;
  if (of.signal_name) return of.signal_name;
  return of.exit_code < 0 ? `signal ${-of.exit_code}` : `exit code ${of.exit_code}`;
}
