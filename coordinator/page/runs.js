/** All runs, live: what needs attention first. */

import { openStream } from "./base/live.js";
import { openPlace, restoreScroll } from "./base/location.js";
import { fill, h, keyed, setAttribute, setText, show } from "./base/dom.js";
import { count, number, words } from "./base/format.js";
import { COLUMNS, HEALTHS, row, updateRow } from "./list/columns.js";
import { comparison } from "./list/comparison.js";
import { showOutside } from "./list/outside.js";
import { keyOf, latestOf, matching, ordering } from "./list/selection.js";

const NO_RUN = "There is no run yet. The first agent that joins makes one.";
const ROWS = 50; // of a page
const AGES_MS = 5_000;

/** Show the list in `main` until `destroy()`. */
export function mountRuns(main, frame) {
  const runs = new Map();
  const others = { jobs: [], drains: [], hosts: [] };
  const opened = new Set(); // ids whose earlier runs are shown
  const inOrder = ordering();
  let isThere = false;
  let at = 1; // the page that is shown
  const place = openPlace({ q: "", health: [], sort: "", page: 1, compare: [] }, () => { only.value = place.state.q; paint(); });
  const set = (changes, isStep = true) => { place.set(changes, { isStep }); paint(); };
  const button = (text, onclick, more = {}) => h("button", { type: "button", onclick, ...more }, text);
  const summary = h("p", { class: "muted", "data-summary": true });
  const only = h("input", {
    type: "search", value: place.state.q, placeholder: "Name, owner, reason or label", "aria-label": "Search runs", "data-filter": true,
    oninput: () => set({ q: only.value, page: 1 }, false),
  });
  const chips = h("div", { class: "buttons chips", role: "group", "aria-label": "Health" });
  const heads = h("tr", {}, COLUMNS.map(([name, title, isNumber, value]) => h("th", { scope: "col", class: isNumber ? "number" : null },
    value ? button(title, () => sortBy(name, isNumber), { class: "quiet" }) : title)));
  const body = h("tbody");
  const table = h("table", { class: "runs", "data-runs": true }, h("thead", {}, heads), body);
  const empty = h("p", { class: "empty", hidden: true }, NO_RUN);
  const range = h("span", { class: "muted", "data-range": true });
  const turn = (by) => { set({ page: at + by }); window.scrollTo(0, 0); };
  const [before, after] = [button("Previous", () => turn(-1)), button("Next", () => turn(1))];
  const pages = h("nav", { class: "buttons", "aria-label": "Pages", hidden: true }, before, range, after);
  const compared = h("section", { class: "card wide", "data-comparison": true, "aria-label": "Comparison", hidden: true });
  const outside = h("section", { class: "card wide", "data-outside": true, "aria-label": "Hosts", hidden: true });
  const compare = comparison(compared, () => set({ compare: [] }));
  fill(main, h("section", { class: "list", "data-view": "runs" },
    h("header", { class: "head" }, h("h1", {}, "Runs"), summary, h("span", { class: "grow" }),
      frame.me.run_id == null && h("a", { href: "/notifications", "data-link": true }, "Notifications"), only), chips, compared,
    h("div", { class: "card wide" }, h("div", { class: "scroll", tabindex: 0 }, table), empty, pages), outside));

  function sortBy(name, isNumber) {
    const [first, second] = isNumber ? [`-${name}`, name] : [name, `-${name}`];
    set({ sort: { [first]: second, [second]: "" }[place.state.sort] ?? first, page: 1 });
  }

  function listRow(run) {
    const element = row(run);
    const name = element.firstChild;
    const choose = () => {
      const others = place.state.compare.filter((key) => key !== keyOf(run));
      set({ compare: others.length < place.state.compare.length ? others : [...others.slice(-1), keyOf(run)] });
    };
    name.prepend(h("input", { type: "checkbox", "aria-label": `Compare ${name.textContent}`, onchange: choose }));
    if (run.earlier) {
      name.append(button("", () => {
        if (!opened.delete(run.run_id)) opened.add(run.run_id);
        paint();
      }, { class: "quiet earlier" }));
    }
    return element;
  }

  function updateListRow(element, run) {
    updateRow(element, run, { isLatest: run.earlier });
    const [choice, toggle] = [element.firstChild.firstChild, element.firstChild.children[2]];
    choice.checked = place.state.compare.includes(keyOf(run));
    setAttribute(element, "class", run.earlier ? null : "before");
    if (!run.earlier || !toggle) return;
    show(toggle, run.earlier.length);
    setText(toggle, `${run.earlier.length} earlier`);
    setAttribute(toggle, "aria-expanded", String(opened.has(run.run_id)));
  }

  function paint() {
    if (!isThere) return;
    const { q, health, sort, page, compare: chosen } = place.state;
    const all = latestOf(runs.values(), others.jobs);
    const matched = matching(all, q);
    const counts = new Map();
    for (const run of matched) counts.set(run.health, (counts.get(run.health) ?? 0) + 1);
    const shown = inOrder(health.length ? matched.filter((run) => health.includes(run.health)) : matched, sort);
    at = Math.max(1, Math.min(page, Math.ceil(shown.length / ROWS)));
    const first = (at - 1) * ROWS;
    const rows = shown.slice(first, first + ROWS).flatMap((run) => (opened.has(run.run_id) ? [run, ...run.earlier] : run));
    keyed(body, rows, (run) => keyOf(run) + Boolean(run.earlier), listRow, updateListRow);
    keyed(chips, HEALTHS.filter((word) => counts.has(word) || health.includes(word)), (word) => word,
      (word) => button("", () => set({
        health: place.state.health.includes(word) ? place.state.health.filter((other) => other !== word) : [...place.state.health, word], page: 1,
      }), { "data-chip": word }),
      (chip, word) => {
        setText(chip, `${words(word)} ${number(counts.get(word) ?? 0)}`);
        setAttribute(chip, "aria-pressed", String(health.includes(word)));
      });
    COLUMNS.forEach(([name], column) => setAttribute(heads.children[column], "aria-sort",
      { [name]: "ascending", [`-${name}`]: "descending" }[sort] ?? null));
    const living = all.filter((run) => run.phase !== "ended").length;
    setText(summary, all.length ? `${count(all.length, "run")}, ${living} ${living === 1 ? "lives" : "live"}`
      + (shown.length < all.length ? `; ${number(shown.length)} shown` : "") : "");
    setText(range, `${number(first + 1)} to ${number(Math.min(first + ROWS, shown.length))} of ${number(shown.length)}`);
    show(pages, shown.length > ROWS);
    before.disabled = at === 1;
    after.disabled = first + ROWS >= shown.length;
    setText(empty, all.length ? "No run has this health and these words." : NO_RUN);
    show(empty, !shown.length);
    show(table, shown.length);
    compare(chosen.map((key) => runs.get(key) ?? all.find((run) => keyOf(run) === key)).filter(Boolean));
    restoreScroll();
  }

  const stream = openStream("/api/live", { onState: frame.connected });
  stream.on("runs", ({ is_whole: isWhole, runs: changed, ...lists }) => {
    const now = Date.now();
    const news = [];
    if (isWhole) runs.clear();
    for (const { made_age_s: age, ...run } of changed) {
      const known = runs.get(keyOf(run));
      if (known && run.health && run.health !== known.health) news.push(`${run.run_id} is ${words(run.health)}`);
      runs.set(keyOf(run), { ...known, ...run, words: null, at: now - 1_000 * age });
    }
    if (news.length) frame.announce(news.slice(0, 3).join(", "));
    for (const job of lists.jobs ?? []) job.at = now;
    Object.assign(others, lists);
    isThere = true;
    paint();
    if (lists.drains || lists.hosts) showOutside(outside, others);
  });
  const timer = setInterval(paint, AGES_MS);
  return {
    destroy() {
      stream.close();
      place.close();
      clearInterval(timer);
    },
    key(event) {
      if (event.key !== "/") return;
      event.preventDefault();
      only.focus();
    },
  };
}
