/** How further hosts join a run that waits for them, and for how long it waits. */

import { fill, h, setText, show } from "../base/dom.js";
import { count, duration } from "../base/format.js";
import { copyButton } from "./export.js";

export function mount(root, context) {
  const sentence = h("p", { class: "foreign", "data-join": "wait" });
  const command = h("code", { class: "foreign", "data-join": "command" });
  const how = h("div", { hidden: true }, h("p", { class: "muted" }, "On each host that is to join, with the token for joining, the options and the script of the others:"),
    h("div", { class: "join-command" }, command, copyButton("the command", () => command.textContent)));
  fill(root, sentence, how);

  return {
    update(kind, run) {
      if (kind !== "run") return;
      const missing = run.agents_min - run.agents_count;
      const there = `${run.agents_count} of ${count(run.agents_min, "host")} joined.`;
      const left = run.wait_left_s == null ? "" : ` in ${duration(run.wait_left_s)}`;
      const next = missing > 0 ? `gives up${left} unless ${count(missing, "more host")} ${missing === 1 ? "joins" : "join"}` : `goes on${left}`;
      setText(sentence, left ? `${there} The run ${next}.` : there);
      setText(command, commandFor(run, context.coordinators));
      show(how, !run.launcher);
    },
    destroy() {},
  };
}

function commandFor(run, coordinators) {
  const nodes = run.agents_max === run.agents_min ? run.agents_min : `${run.agents_min}:${run.agents_max}`;
  const group = run.job ? `--run-id ${run.job} --replica-group ${run.run_id.slice(run.job.length + 1)}/${run.groups_count}` : `--run-id ${run.run_id}`;
  const access = location.protocol === "http:" ? " --insecure" : "";
  return `agent join --coordinator ${coordinators.join(",")}${access} ${group} --nnodes ${nodes} …`;
}
