/** What workers write, as it comes. */

import { coalesced, fill, h, setText, show, visible } from "../base/dom.js";
import { count, parseRanges, ranges } from "../base/format.js";
import { openStream } from "../base/live.js";

const LINES_MAX = 5_000; // shown, and waiting while it is paused
const TAIL = 200;
const TAIL_AGAIN = 50;
const SMALL_WORLD = 16; // up to here all ranks are shown unless some are chosen
const HIDDEN_MS = 600_000; // what is written meanwhile would be missed

export function mount(root, context) {
  const field = h("input", {
    name: "ranks", placeholder: "all ranks", "aria-label": "Ranks, e.g. 0-3,7", size: 12, autocomplete: "off", "data-log-ranks": true,
  });
  const start = h("button", { class: "primary", "data-follow": true }, "Follow");
  const pause = h("button", { type: "button", "aria-pressed": "false", disabled: true, "data-pause": true, onclick: toggle }, "Pause");
  const clear = h("button", { type: "button", disabled: true, onclick: () => { waiting = []; fill(list); } }, "Clear");
  const form = h("form", { class: "buttons", onsubmit: (event) => { event.preventDefault(); follow(); } }, field, start, pause, clear);
  const status = h("p", { class: "hint", role: "status", "data-log-status": true },
    "Workers wait for no reader: what comes faster than it is read is counted.");
  const error = h("p", { class: "error foreign", role: "alert", hidden: true });
  const list = h("div", {
    class: "logs", role: "log", "aria-live": "off", "aria-label": "Output of workers", tabindex: "0", hidden: true, "data-log": true,
  });
  const latest = h("button", { type: "button", class: "latest", hidden: true, onclick: () => { isAtEnd = true; toEnd(); } }, "↓ latest");
  fill(context.tools, form);
  fill(root, error, status, h("div", { class: "log-frame" }, list, latest));

  let stream = null;
  let waiting = [];
  let dropped = 0;
  let isPaused = false;
  let isAtEnd = true;
  let wasOpen = false;
  let worldSize = null;
  let isOver = false; // the run
  let isGone = false;
  let tools = null; // for lines, which come later

  async function follow() {
    stop();
    let ranks;
    try {
      if (!field.value.trim() && worldSize > SMALL_WORLD) field.value = "0";
      ranks = parseRanges(field.value);
    } catch (problem) {
      return fail(problem.message);
    }
    show(error, false);
    if (!tools) {
      const loaded = await import("./log_lines.js").catch((problem) => fail(problem.message));
      if (!loaded || tools || isGone) return;
      tools = loaded.lineTools(list, context.runId, () => { if (isAtEnd) toEnd(); });
      form.append(...tools.controls);
    }
    fill(list);
    waiting = [];
    wasOpen = false;
    setPaused(false);
    show(list, true);
    pause.disabled = clear.disabled = false;
    setText(start, isOver ? "Show again" : "Follow anew");
    // The lines that were shown already are not asked for again in full.
    const query = () => ({ ranks: ranks.length ? ranges(ranks) : null, tail: wasOpen ? TAIL_AGAIN : TAIL, generation: context.generation });
    stream = openStream(context.path("logs"), { query, isEnding: true, hiddenMs: HIDDEN_MS, onState });
    stream.on("lines", take);
  }

  function onState({ isOpen, isOver: hasEnded, isFinal, since, reason }) {
    if (isFinal) return fail(reason);
    if (isOpen && wasOpen) add([{ note: "connected again; some lines may be repeated" }]);
    wasOpen ||= isOpen;
    if (isOpen) setText(status, "Following.");
    else if (hasEnded) setText(status, "End of output: the run has ended.");
    else if (since) setText(status, `Not connected: ${reason}. It is tried again.`);
  }

  function fail(reason) {
    error.textContent = visible(reason);
    show(error, true);
    setText(status, "");
  }

  function take(pieces) {
    const now = Date.now();
    // Where all of it is matters once it cannot be followed any more.
    add(pieces.filter((piece) => piece.path == null || isOver)
      .map((piece) => ({ ...piece, at: piece.age_s == null ? null : now - piece.age_s * 1_000 })));
  }

  function add(pieces) {
    waiting.push(...pieces);
    if (waiting.length > LINES_MAX) {
      dropped += waiting.length - LINES_MAX;
      waiting = waiting.slice(-LINES_MAX);
    }
    if (!isPaused) return paint();
    const lost = dropped ? `, ${dropped} more were left out` : "";
    setText(status, `Paused; ${count(waiting.length, "line")} ${waiting.length === 1 ? "waits" : "wait"}${lost}.`);
  }

  const paint = coalesced(() => {
    if (isPaused || !waiting.length) return;
    if (dropped) waiting.unshift({ note: `${count(dropped, "line")} left out: they came faster than they were read` });
    list.append(...waiting.map(tools.element));
    waiting = [];
    dropped = 0;
    while (list.childElementCount > LINES_MAX) list.firstChild.remove();
    if (isAtEnd) toEnd();
    show(latest, !isAtEnd);
  });

  function toEnd() {
    list.scrollTop = list.scrollHeight;
    show(latest, false);
  }

  list.addEventListener("scroll", () => {
    isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
    if (isAtEnd) show(latest, false);
  }, { passive: true });

  function setPaused(isNow) {
    isPaused = isNow;
    pause.setAttribute("aria-pressed", String(isNow));
    setText(pause, isNow ? "Go on" : "Pause");
    if (stream) setText(status, isNow ? "Paused." : "Following.");
  }

  function toggle() {
    setPaused(!isPaused);
    paint();
  }

  function stop() {
    stream?.close();
    stream = null;
  }

  return {
    update(kind, data) {
      if (kind === "run") {
        worldSize = data.world_size;
        isOver = data.phase === "ended";
        if (!stream) setText(start, isOver ? "Show" : "Follow");
      } else if (kind === "select" && data != null) field.value = data;
    },
    key(event) {
      if (event.key === "p" && stream) toggle();
    },
    show() {
      field.focus({ preventScroll: true });
      return true;
    },
    destroy() {
      isGone = true;
      stop();
      paint.cancel();
    },
  };
}
