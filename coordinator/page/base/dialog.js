/** Dialogs: modal, so that focus stays within, and back where it was afterwards. */

import { h } from "./dom.js";

const KEYS = [
  ["?", "these keys"],
  ["d", "light or dark"],
  ["z", "local time or UTC"],
  ["u", "up: all runs"],
  ["/", "search the runs"],
  ["t", "to the timeline"],
  ["e", "to the events"],
  ["f", "to the failure report"],
  ["r", "to the grid of ranks"],
  ["l", "to the logs"],
  ["p", "pause or follow the logs"],
  ["← →", "on the timeline: earlier, later"],
  ["+ −", "on the timeline: closer, wider"],
  ["0", "on the timeline: all of it"],
  ["n b", "on the timeline: next failure, the one before"],
  ["← → ↑ ↓", "on the ranks: from one to another; Enter shows it"],
  ["n", "on the ranks: the next that stands out"],
];

/** Open a dialog with a title; the answer is closed by `close()`. */
export function openDialog(title, content, { name = "dialog" } = {}) {
  const before = document.activeElement;
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", "data-dialog": name }, heading, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
  });
  // A click on the backdrop is one on the dialog itself.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Show what keys do. */
export function showKeys() {
  const close = h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
  const dialog = openDialog("Keys", [
    h("dl", { class: "keys" }, KEYS.flatMap(([key, what]) => [
      h("dt", {}, key.split(" ").flatMap((part, at) => [at ? " " : null, h("kbd", {}, part)])), h("dd", {}, what),
    ])),
    h("div", { class: "buttons" }, close),
  ], { name: "keys" });
  close.focus();
}
