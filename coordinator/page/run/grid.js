/** The ranks of the round as cells, coloured by state, step or silence. */

import { color, fill, h, headRow, keyed, line, setAttribute, setText, show } from "../base/dom.js";
import { count, duration, number } from "../base/format.js";
import { RankCanvas } from "../ranks/canvas.js";
import { LAGS, SILENCES_S, STATES } from "../ranks/columns.js";
import { rankSource } from "../ranks/source.js";

const WORST_MAX = 10;
const MODES = [["state", "State"], ["lag", "Step lag"], ["silence", "Silence"]];
const HELP = "Arrow keys move from rank to rank, Enter shows one, n goes to the next that stands out.";

function lags(low, high) { return low === high ? number(low) : `${number(low)} – ${number(high)}`; }

/** How each class of a mode looks: a colour, a sign, and the colour of what is written on it. */
function look(mode, states) {
  if (mode === "state") {
    return states.map((name) => ({
      title: STATES[name].title, sign: STATES[name].sign,
      colour: color(`--rank-${name}`), ink: color(STATES[name].is === "bad" ? "--rank-ink-bad" : "--rank-ink"),
    }));
  }
  const from = mode === "lag" ? LAGS : SILENCES_S;
  const say = mode === "lag" ? number : duration;
  const classes = from.map((low, at) => ({
    title: at + 1 === from.length ? `${say(low)} or more` : mode === "lag" ? lags(low, from[at + 1] - 1) : `${at ? say(low) : 0} – ${say(from[at + 1])}`,
    sign: at ? `${at}` : "",
    colour: color(`--rank-scale-${at}`), ink: color(at > 2 ? "--rank-ink-bad" : "--rank-ink"),
  }));
  return [...classes, { title: "not known", sign: "?", colour: color("--rank-unknown"), ink: color("--rank-ink") }];
}

export function mount(root, context) {
  let ranks = null;
  let stragglers = new Set();
  let mode = "state";
  let worst = [];
  let wanted = null; // rank that was chosen before the ranks were known
  let details = null; // loaded with the first rank that is chosen
  let detailed = null; // rank

  const canvas = new RankCanvas({ point, choose, move, name: line }, (wanted) => look(wanted, ranks.states));
  const help = h("p", { class: "unseen", id: "ranks-help" }, HELP);
  setAttribute(canvas.element, "aria-describedby", "ranks-help");
  const modes = h("span", { class: "segments", role: "group", "aria-label": "Colour ranks by" }, MODES.map(([name, title]) => h("button", {
    type: "button", "data-mode": name, "aria-pressed": name === mode ? "true" : "false", onclick: () => colourBy(name),
  }, title)));
  const summary = h("span", { class: "hint", "data-ranks": "summary" });
  const legend = h("ul", { class: "rank-legend", "aria-label": "Legend", "data-ranks": "legend" });
  const unit = h("span", { class: "muted" });
  const key = h("div", { class: "rank-key" }, unit, legend);
  const tip = h("div", { class: "rank-tip", role: "presentation", hidden: true });
  const note = h("p", { class: "empty", "data-ranks": "note" }, "Loading…");
  const place = h("div", { hidden: true }); // of the details
  const caption = h("caption", {}, "");
  const body = h("tbody");
  const table = h("div", { class: "scroll" }, h("table", { class: "rank-worst", "data-ranks": "worst" }, caption,
    headRow(["Rank", "Host", "State", ["Step", "number"], ["Behind", "number"], ["Silent", "number"], "In"]), body));
  const shown = h("div", { class: "rank-body", hidden: true }, canvas.element, help, key, h("div", { class: "rank-below" }, table, place));
  fill(context.tools, modes, summary);
  root.append(note, shown, tip);

  function take(latest, problem) {
    if (!latest) {
      setText(note, problem.status === 404 ? "There are no ranks." : `The ranks could not be read: ${problem.reason ?? problem.message}. It is tried again.`);
      return;
    }
    const before = ranks;
    ranks = latest;
    const isEmpty = !ranks.size;
    show(shown, !isEmpty);
    show(note, isEmpty);
    show(modes, !isEmpty);
    if (isEmpty) {
      setText(note, ranks.roundId == null ? "There has been no round yet." : "The round has no ranks any more.");
      setText(summary, ranks.standbys ? `${count(ranks.standbys, "host")} waiting` : "");
      showDetails(null);
      return;
    }
    setText(summary, [
      count(ranks.size, "rank"), `on ${count(ranks.names.length, "host")}`,
      ranks.furthest == null ? null : `furthest at step ${number(ranks.furthest)}`,
      ranks.standbys ? `${count(ranks.standbys, "host")} standing by` : null,
    ].filter(Boolean).join(" · "));
    setAttribute(canvas.element, "aria-label", `${count(ranks.size, "rank")} of round ${ranks.roundId} on ${count(ranks.names.length, "host")}`);
    canvas.show(ranks);
    if (wanted != null && wanted < ranks.size) chosen(wanted);
    wanted = null;
    if (before && before.names !== ranks.names) showDetails(null);
    else details?.refresh(ranks);
    judge();
  }

  function judge() {
    if (!ranks?.size) return;
    const outliers = ranks.worst(WORST_MAX, stragglers);
    worst = outliers.rows.map(({ rank }) => rank);
    const isAll = outliers.rows.length === outliers.rowsCount;
    setText(caption, outliers.ranksCount
      ? `${count(outliers.ranksCount, "rank")} ${outliers.ranksCount === 1 ? "stands" : "stand"} out${isAll ? "" : `; the first ${outliers.rows.length} rows`}`
      : "No rank stands out");
    keyed(body, outliers.rows, ({ rank, count: ofHost }) => `${rank} ${ofHost}`, row, fillRow);
    const counted = ranks.counted(mode);
    const looks = look(mode, ranks.states);
    const items = looks.map((entry, at) => ({ ...entry, at, count: counted[at] }))
      .filter((entry) => entry.count || (mode !== "state" && entry.at < LAGS.length));
    if (stragglers.size) items.push({ at: "slow", sign: "•", title: "slow", count: stragglers.size, colour: "transparent", ink: color("--text") });
    keyed(legend, items, (entry) => `${mode}${entry.at}`, (entry) => h("li", { "data-class": entry.at },
      h("span", { class: "rank-swatch" }, entry.sign), h("span"), " ", h("b")), (item, entry) => {
      item.firstChild.style.background = entry.colour;
      item.firstChild.style.color = entry.ink;
      setText(item.children[1], entry.title);
      setText(item.children[2], number(entry.count));
    });
    setText(unit, { state: "", lag: "Steps behind", silence: "Silent for" }[mode]);
    canvas.mark(stragglers);
  }

  function row({ rank, count: ofHost }) {
    const button = h("button", { type: "button", class: "link", onclick: () => choose(rank) }, ofHost > 1 ? `${rank}–${rank + ofHost - 1}` : `${rank}`);
    return h("tr", { "data-rank": rank }, h("td", {}, button), h("td", { class: "foreign" }), h("td", {}, h("span", { class: "state" })),
      h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "number" }), h("td", { class: "foreign" }));
  }

  function fillRow(element, { rank, count: ofHost }) {
    const detail = ranks.of(rank);
    const [, host, state, step, lag, silence, scope] = element.children;
    setText(host, line(detail.name, 60));
    setText(state.firstChild, STATES[detail.state].title + (stragglers.has(rank) ? ", slow" : ""));
    setAttribute(state.firstChild, "data-state", detail.state);
    setText(step, number(detail.step));
    setText(lag, number(detail.lag));
    setText(silence, duration(detail.silenceS));
    setText(scope, detail.scope == null || ofHost > 1 ? "" : line(detail.scope, 60));
  }

  function colourBy(name) {
    mode = name;
    for (const button of modes.children) setAttribute(button, "aria-pressed", String(button.dataset.mode === name));
    canvas.colourBy(name);
    judge();
  }

  /** One line of what a rank does. */
  function said(detail) {
    return [
      `rank ${detail.rank} on ${line(detail.name, 60)}`, STATES[detail.state].title,
      detail.step == null ? null : `step ${number(detail.step)}${detail.lag ? `, ${number(detail.lag)} behind` : ""}`,
      stragglers.has(detail.rank) ? "slow" : null,
      detail.silenceS >= SILENCES_S[1] ? `silent for ${duration(detail.silenceS)}` : null,
      detail.scope == null ? null : `in ${line(detail.scope, 60)}`,
    ].filter(Boolean).join(" · ");
  }

  function point(rank, event) {
    show(tip, rank != null);
    if (rank == null) return;
    setText(tip, said(ranks.of(rank)));
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 4);
    tip.style.transform = `translate(${Math.max(0, left)}px, ${event.clientY - box.top + 18}px)`;
  }

  let saying = 0;
  function move(rank) {
    clearTimeout(saying);
    saying = setTimeout(() => context.announce(said(ranks.of(rank))), 120);
  }

  function choose(rank) {
    if (!ranks || rank >= ranks.size) return;
    context.announce(said(ranks.of(rank)));
    context.select(rank);
  }

  function chosen(rank) {
    canvas.choose(rank);
    showDetails(rank);
  }

  async function showDetails(rank) {
    detailed = rank;
    if (rank != null && !details) {
      const { RankDetails } = await import("../ranks/details.js");
      if (!details) place.replaceWith((details = new RankDetails(context)).element);
    }
    if (detailed === rank) details?.show(rank, ranks);
  }

  canvas.element.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      context.select(null);
    } else if (event.key === "n" && worst.length) {
      event.stopPropagation();
      canvas.moveTo(worst[(worst.indexOf(canvas.cursor) + 1) % worst.length]);
    }
  });
  const recolour = () => judge();
  window.addEventListener("themechange", recolour);
  const source = rankSource(context);
  const leave = source.on(take);

  return {
    update(kind, data) {
      if (kind === "ranks") source.take(data);
      else if (kind === "run") {
        const slow = data.stragglers.map((straggler) => straggler.rank);
        if (slow.length === stragglers.size && slow.every((rank) => stragglers.has(rank))) return;
        stragglers = new Set(slow);
        judge();
      } else if (kind === "select" && data !== detailed) {
        if (ranks && data < ranks.size) chosen(data);
        else wanted = data;
      }
    },
    show(rank) {
      if (!ranks?.size || rank >= ranks.size) return false;
      if (rank != null) choose(rank);
      canvas.element.focus({ preventScroll: true });
      return true;
    },
    destroy() {
      leave();
      clearTimeout(saying);
      window.removeEventListener("themechange", recolour);
      canvas.destroy();
      details?.destroy();
    },
  };
}
