/** Lines of output that are shown: searched, by their level, with times, and saved. */

import { h, line, show } from "../base/dom.js";
import { clock, count } from "../base/format.js";

const COLOURS = 6;
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const LEVEL = // as api/log_lines.py knows it
  /\b(DEBUG|INFO|WARN|ERROR|CRITICAL|FATAL)|(?:\[|\blevel["']?[=:] ?["']?)(debug|info|warn|error|critical|fatal)|^([DIWEF])\d{4} /;
const LETTERS = "diwecf"; // of the levels; the last one stands for the one before it
const LEVEL_CHARACTERS = 200;

/** What is done with the lines in `list`; `onChange` is called when others are shown. */
export function lineTools(list, runId, onChange) {
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search output", size: 12, oninput: filter });
  const least = h("select", { "aria-label": "Least level", onchange: filter },
    ["all levels", ...LEVELS].map((name, place) => h("option", { value: place - 1 }, name)));
  const times = h("input", { type: "checkbox", onchange: filter });
  const save = h("button", { type: "button", onclick: download }, "Download");
  const pieces = new WeakMap(); // of each element
  const levels = new Map(); // the latest of each stream: lines behind a record have its level

  function element(piece) {
    const text = piece.line ?? piece.note ?? piece.problem ?? (piece.path && `all of its ${piece.stream} is in ${piece.path} on ${piece.host}`)
      ?? `${count(piece.missed, "line")} of its ${piece.stream ?? "output"} not shown: they came faster than they were read`;
    const isNote = piece.line == null;
    const from = piece.name ? `rank ${piece.rank} on ${line(piece.name, 80)}, round ${piece.round_id}, ${piece.stream ?? ""}` : null;
    const made = h("div", { class: isNote ? "log-line note" : "log-line", "data-stream": piece.stream, title: from },
      h("span", { class: "log-rank", "data-colour": piece.rank == null ? null : piece.rank % COLOURS }, piece.rank ?? "–"),
      h("span", { class: "foreign" }, h("time", { class: "hint" }, `${piece.at == null ? "–" : clock(piece.at)} `),
        piece.problem ? `no output: ${text}` : text));
    const stream = `${piece.rank} ${piece.stream}`;
    const match = isNote ? null : LEVEL.exec(text.slice(0, LEVEL_CHARACTERS));
    if (match) levels.set(stream, Math.min(LEVELS.length - 1, LETTERS.indexOf(match.slice(1).find(Boolean)[0].toLowerCase())));
    pieces.set(made, { ...piece, isNote, text, level: levels.get(stream) ?? -1 });
    sift(made);
    return made;
  }

  function sift(made) {
    const { isNote, text, level } = pieces.get(made);
    show(made, isNote || (level >= least.value && text.toLowerCase().includes(search.value.toLowerCase())));
    show(made.lastChild.firstChild, times.checked && !isNote);
  }

  function filter() {
    for (const made of list.children) sift(made);
    onChange();
  }

  /** Save the lines that are shown as a file. */
  function download() {
    const lines = [...list.children].filter((made) => !made.hidden).map((made) => pieces.get(made))
      .map(({ rank, at, text }) => `${at == null ? "" : `${new Date(at).toISOString()} `}[rank${rank ?? ""}]: ${text}\n`);
    const href = URL.createObjectURL(new Blob(lines, { type: "text/plain" }));
    h("a", { href, download: `${runId}-output.txt` }).click();
    URL.revokeObjectURL(href);
  }

  return { controls: [search, least, h("label", {}, times, " times"), save], element };
}
