/** What is shown, to hand on: buttons that copy it and that download it, and tables as CSV. */

import { h, setText } from "../base/dom.js";

const DONE_MS = 2_000;
const FORMULA = /^[=+\-@\t\r]/; // a spreadsheet would run a text that begins so

/** Buttons to copy and to download a file; `make()` returns its text, or promises it. */
export function exportButtons(what, fileName, make) {
  const kind = fileName.split(".").at(-1).toUpperCase();
  const type = { CSV: "text/csv", JSON: "application/json" }[kind];
  const download = async () => {
    const url = URL.createObjectURL(new Blob([await make()], { type }));
    h("a", { href: url, download: fileName.replace(/[^\w.-]/g, "_") }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000); // browsers read it later
  };
  return [
    button(`Copy ${kind}`, `Copy ${kind} of ${what}`, async () => copyText(await make())),
    button(`Download ${kind}`, `Download ${kind} of ${what}`, download),
  ];
}

/** A button to copy a text. */
export function copyButton(what, make) {
  return button("Copy", `Copy ${what}`, () => copyText(make()));
}

function button(text, title, act) {
  const element = h("button", { type: "button", title, "aria-label": title, onclick: pressed }, text);
  async function pressed() {
    let outcome = "Done";
    try {
      await act();
    } catch {
      outcome = "Failed";
    }
    setText(element, outcome);
    setTimeout(() => setText(element, text), DONE_MS);
  }
  return element;
}

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea", {}); // without encryption browsers have no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("the browser copies nothing");
}

/** A table as CSV; a value that is not known is empty. */
export function csv(columns, rows) {
  const cell = (value) => {
    const text = String(value ?? "").replace(FORMULA, typeof value === "string" ? "'$&" : "$&");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((column) => row[column]))].map((row) => row.map(cell).join(",")).join("\r\n");
}
