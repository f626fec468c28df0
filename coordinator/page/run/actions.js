/** What an admin may do about a run. The dialogs are loaded with the first. */

import { fill, h, setText, show } from "../base/dom.js";

const BUTTONS = { checkpoint: "Checkpoint now", restart: "Restart", drain: "Drain…", undrain: "Undrain…", stop: "Stop" };

export function mount(root, context) {
  if (!context.canAct) return { update() {}, destroy() {} };
  const buttons = Object.fromEntries(Object.entries(BUTTONS).map(([name, text]) => [name,
    h("button", { type: "button", "data-action": name, onclick: () => open(name) }, text)]));
  const row = h("div", { class: "buttons", role: "group", "aria-label": "Actions", hidden: true }, Object.values(buttons));
  const outcome = h("p", { class: "told foreign", role: "status", "data-outcome": true, hidden: true });
  fill(root, row, outcome);
  let run = null;
  let dialog = null;
  let isGone = false;

  /** Ask whether to do it; `preset` is the name of a host or an agent. */
  async function open(name, preset = "") {
    const { openAction } = await import("./action_dialog.js");
    if (!isGone) dialog = openAction(name, preset, { context, run, onOutcome });
  }

  function onOutcome(text) {
    setText(outcome, text);
    show(outcome, true);
  }

  return {
    update(kind, data) {
      if (kind !== "run") return;
      run = data;
      show(row, run.phase !== "ended");
      buttons.restart.disabled = run.phase === "ending" || run.round_id == null;
      buttons.checkpoint.disabled = run.phase !== "running";
    },
    open,
    destroy() {
      isGone = true;
      dialog?.close();
    },
  };
}
