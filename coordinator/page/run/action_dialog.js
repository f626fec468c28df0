/** Dialogs of what an admin may do about a run: each says what will happen, and does it. */

import { openDialog } from "../base/dialog.js";
import { h, setText, show } from "../base/dom.js";
import { runName } from "../base/format.js";

const REASON_MAX = 256;
const NAME_MAX = 256;
const SAVING = "Training may save before, if it asks when to; then its workers are stopped.";
const ACTIONS = {
  checkpoint: {
    title: (run) => `Checkpoint ${run} now?`, submit: "Checkpoint now",
    what: "All ranks are told to save at the same step, and go on training. Training that does not ask for notices saves nothing.",
  },
  restart: {
    title: (run) => `Restart ${run}?`, submit: "Restart",
    what: `The round ends, and another one begins with the agents that are there. ${SAVING} No restart is charged.`,
  },
  drain: {
    title: () => "Drain a host or an agent?", submit: "Drain", needsName: "drained",
    what: `Agents of this name, or on the host of this name, leave this run. ${SAVING} A standby or a smaller \
round goes on. Who comes later stands by until it is undrained.`,
  },
  undrain: {
    title: () => "Let a host or an agent in again?", submit: "Undrain", needsName: "let in again",
    what: `The drain of this name is lifted: who stands by for it takes part again, with the next round. \
A drain that holds for all runs is lifted for all runs.`,
  },
  stop: {
    title: (run) => `Stop ${run}?`, submit: "Stop the run", isDangerous: true,
    what: `The run ends for good, on all hosts. ${SAVING}`,
  },
};

/** Ask whether to do it; `preset` is the name of a host or an agent. Returns the dialog. */
export function openAction(name, preset, { context, run, onOutcome }) {
  const action = ACTIONS[name];
  // The same for each try, so that trying again after a lost answer does nothing twice.
  const callId = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const target = action.needsName && h("input", {
    name: "name", required: true, maxlength: NAME_MAX, value: preset, list: "names", autocomplete: "off", "data-target": true,
  });
  const reason = h("input", {
    name: "reason", maxlength: REASON_MAX, autocomplete: "off", placeholder: "for its events and its agents",
    "data-reason-field": true,
  });
  const error = h("p", { class: "error foreign", role: "alert", hidden: true });
  const submit = h("button", { class: action.isDangerous ? "danger" : "primary", "data-confirm": name }, action.submit);
  const cancel = h("button", { type: "button", "data-cancel": true, onclick: () => dialog.close() }, "Cancel");
  const form = h("form", { onsubmit: send }, h("p", {}, action.what),
    target && h("label", { class: "field" }, `Name of the host or agent to be ${action.needsName}`, target),
    target && h("datalist", { id: "names" }, namesFor(name, run).map((value) => h("option", { value }))),
    h("label", { class: "field" }, "Reason", reason), error, h("div", { class: "buttons" }, cancel, submit));
  const dialog = openDialog(action.title(runName(run)), form, { name });
  (target || reason).focus();
  return dialog;

  async function send(event) {
    event.preventDefault();
    submit.disabled = true;
    show(error, false);
    const body = { reason: reason.value.trim(), call_id: callId };
    if (target) Object.assign(body, { name: target.value.trim(), run_id: context.runId });
    try {
      const path = { drain: "/api/drains", undrain: "/api/undrains" }[name] ?? name;
      let answer;
      for (const run_id of name === "undrain" ? await drainedIn(body.name, context) : [body.run_id]) {
        answer = await context.api(path, { method: "POST", body: { ...body, run_id } });
      }
      onOutcome(`${action.submit}: ${answer.outcome || (answer.is_new === false ? "it was so before" : "asked for")}`);
      dialog.close();
    } catch (problem) {
      setText(error, [problem.reason ?? problem.message, problem.hint].filter(Boolean).join(" – "));
      show(error, true);
      submit.disabled = false;
    }
  }
}

/** Return the runs in which a name is drained here: this one, "" for all of them, or both. */
async function drainedIn(name, context) {
  const { drains } = await context.api("drains");
  const runs = drains.filter((drain) => drain.name === name).map((drain) => drain.run_id ?? "");
  return runs.length ? runs : [context.runId];
}

function namesFor(name, run) {
  const agents = run.agents.filter((agent) => agent.is_drained === (name === "undrain"));
  return [...new Set(agents.flatMap((agent) => [agent.name, agent.host]))];
}
