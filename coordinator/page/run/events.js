/** What was decided on a run, the latest first. */

import { fill, h, headRow, keyed, setText, show } from "../base/dom.js";
import { ago, clock, count, number, words } from "../base/format.js";

const SHOWN = 200;
const NOTEWORTHY = new Set([
  "round_ended", "agent_removed", "agent_drained", "straggler_found", "hang_found", "run_stopping", "stop_asked", "restart_asked",
  "access_refused", "fault_injected", "fault_over",
]);
const isBad = ({ is_failure: isFailure, kind }) => isFailure || kind === "run_failing" || kind === "run_failed";

export function mount(root, context) {
  const body = h("tbody");
  const table = h("table", { class: "events", "data-events": true },
    headRow(["When", "What", "Round", "Why"]), body);
  const scroll = h("div", { class: "scroll events-scroll", tabindex: "0", "aria-label": "Events" }, table);
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter events", "data-filter": true, oninput: paint });
  const hint = h("span", { class: "hint" });
  const more = h("button", { type: "button", hidden: true, onclick: () => { isWhole = true; paint(); } }, "Show all");
  const empty = h("p", { class: "empty" }, "Nothing was decided yet.");
  fill(context.tools, hint, filter);
  fill(root, scroll, empty, more);
  let events = [];
  let missed = 0;
  let isWhole = false;
  let isFirst = true;
  let marked = 0; // sequence

  function paint() {
    const wanted = filter.value.trim().toLowerCase();
    const text = (event) => [words(event.kind), event.reason, event.caller, event.round_id].join(" ").toLowerCase();
    const matching = wanted ? events.filter((event) => text(event).includes(wanted)) : events;
    const shown = matching.slice(isWhole ? 0 : -SHOWN).reverse();
    keyed(body, shown, (event) => event.sequence, (event) => row(event, !isFirst));
    isFirst = isFirst && !events.length;
    show(empty, !shown.length);
    setText(empty, events.length ? "No event has this." : "Nothing was decided yet.");
    show(scroll, shown.length);
    show(more, shown.length < matching.length);
    setText(more, `Show all ${matching.length}`);
    setText(hint, events.length ? count(events.length, "event") + (missed ? `, ${missed} earlier ones are forgotten` : "") : "");
    age();
  }

  function row(event, isNew) {
    const level = isBad(event) ? "bad" : NOTEWORTHY.has(event.kind) ? "noteworthy" : null;
    const when = { datetime: new Date(event.at).toISOString(), title: `event ${event.sequence}` };
    return h("tr", {
      "data-event": event.sequence, "data-kind": event.kind, "data-level": level, tabindex: "-1", class: isNew ? "arrived" : null,
    },
      h("td", { class: "when" }, h("time", when, clock(event.at)), h("small", {})),
      h("td", { class: "kind" }, words(event.kind), event.count > 1 && h("small", {}, ` × ${number(event.count)}`)),
      h("td", { class: "round" }, event.round_id ?? "–"),
      h("td", { class: "foreign" }, event.reason, event.caller && h("small", { class: "caller-of" }, ` by ${event.caller}`)));
  }

  /** Update ages. */
  function age() {
    const now = Date.now();
    const times = new Map(events.map((event) => [String(event.sequence), event.at]));
    for (const element of body.children) {
      setText(element.firstChild.lastChild, ago((now - times.get(element.dataset.event)) / 1_000));
    }
  }
  const timer = setInterval(() => { if (!document.hidden) age(); }, 5_000);

  /** Mark one event alone; returns its row, null: it is forgotten or not there yet. */
  function mark(sequence) {
    marked = sequence;
    const at = events.findIndex((event) => event.sequence === sequence);
    isWhole ||= at >= 0 && at < events.length - SHOWN;
    paint();
    for (const row of body.children) row.classList.toggle("found", row.dataset.event === String(sequence));
    const found = body.querySelector(".found");
    if (found) scroll.scrollTop = found.offsetTop - scroll.clientHeight / 2;
    return found;
  }

  return {
    update(kind, data) {
      if (kind === "event" && data !== marked) mark(data);
      if (kind === "zone") {
        keyed(body, [], null);
        mark(marked);
      }
      if (kind !== "events") return;
      events = data.all;
      missed = data.missed;
      const telling = data.added.filter((event) => isBad(event) || NOTEWORTHY.has(event.kind));
      if (telling.length) context.announce(telling.slice(-2).map((event) => `${words(event.kind)}: ${event.reason}`).join(". "));
      paint();
      if (marked && !body.querySelector(".found")) mark(marked);
    },
    /** Show one event, by its sequence. */
    show(sequence) {
      filter.value = "";
      const shown = mark(sequence);
      shown?.focus({ preventScroll: true });
      return Boolean(shown);
    },
    destroy() { clearInterval(timer); },
  };
}
