/** How long steps took in the last minutes: the slow ranks, beside the median of all. */

import { color, coalesced, fill, h, headRow, keyed, line, setAttribute, setText, show, unseen } from "../base/dom.js";
import { count, duration } from "../base/format.js";
import { csv, exportButtons } from "./export.js";

const HEIGHT = 260;
const PAUSE_MS = 5_000; // between two looks, however often the run tells something
const BAND = 1.5; // times the median: within it ranks are as their peers
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];
const NO_ROUND = "No round runs: there are no step times now.";
const COLUMNS = ["rank", "name", "host", "age_s", "step_time_s", "busy_s", "median_s", "median_busy_s"];
const GIVEN_UP = new Set([400, 404]);

export function mount(root, context) {
  let stepTimes = null; // the latest document
  let chosen = null; // a rank that was selected elsewhere, with its row
  let isBusy = false; // show the time of ranks' own work
  let isChosenKind = false; // by the reader; else as stragglers were found
  let askedAt = -Infinity;
  let timer = 0;
  let isGone = false;
  let isSeen = false;
  let isRunning = false; // else there is nothing to ask for
  let at = null; // the column under the pointer

  const note = h("p", { class: "empty", "data-step-times": "note" }, "Loading…");
  const named = h("p", { class: "slow-ranks foreign", role: "status", "data-step-times": "stragglers" });
  const canvas = h("canvas", { class: "step-times", role: "img", "data-step-times": "canvas" });
  const tip = h("div", { class: "rank-tip", hidden: true });
  const body = h("tbody");
  const table = h("div", { class: "scroll" }, h("table", { class: "step-table", "data-step-times": "table" },
    h("caption", { class: "unseen" }, "Step times by rank"),
    headRow([unseen("Line"), "Rank", "Host", ["Now", "number"], ["× median", "number"]]), body));
  const plot = h("div", { class: "step-plot" }, canvas, tip);
  const shown = h("div", { hidden: true, class: "step-body" }, plot, table);
  const kinds = h("span", { class: "segments", role: "group", "aria-label": "Time of", hidden: true }, [["Whole steps", false], ["Own work", true]].map(([title, is]) => h("button", {
    type: "button", "data-busy": String(is), onclick: () => { isBusy = is; isChosenKind = true; drawn(); },
  }, title)));
  const hint = h("span", { class: "hint" });
  fill(context.tools, kinds, hint, exportButtons("step times", `${context.runId}-step-times.csv`,
    async () => csv(COLUMNS, rowsOf(await context.api("step-times")))));
  root.append(named, note, shown);

  /** What is drawn: rows with a look each, of equal columns. */
  function lines() {
    const rows = [...stepTimes.ranks];
    if (chosen?.row && !rows.some((row) => row.rank === chosen.rank)) rows.push(chosen.row);
    const slow = new Set(stepTimes.stragglers.map((straggler) => straggler.rank));
    return rows.map((row, index) => ({
      ...row, isSlow: slow.has(row.rank), isChosen: row.rank === chosen?.rank,
      values: (isBusy ? row.busy_s : row.step_time_s) ?? [],
      dash: DASHES[index % DASHES.length],
      colour: color(slow.has(row.rank) ? "--rank-failed" : row.rank === chosen?.rank ? "--text" : `--line-${index % 4}`),
    }));
  }

  const median = () => (isBusy ? stepTimes.median_busy_s : stepTimes.median_s) ?? [];
  const last = (values) => values.findLast((value) => value != null) ?? null;

  function drawn() {
    if (!stepTimes) return;
    const hasBusy = Boolean(stepTimes.median_busy_s);
    if (!isChosenKind) isBusy = stepTimes.stragglers.some((straggler) => straggler.is_busy_time);
    if (!hasBusy) isBusy = false;
    show(kinds, hasBusy);
    for (const button of kinds.children) setAttribute(button, "aria-pressed", String(button.dataset.busy === String(isBusy)));
    const rows = lines();
    const isEmpty = !rows.length || last(median()) == null;
    show(shown, !isEmpty);
    show(note, isEmpty);
    if (isEmpty) setText(note, "No rank tells how long its steps take: worker_sdk.heartbeat(step=…) does.");
    const middle = last(median());
    setText(hint, isEmpty ? "" : `median ${duration(middle)} a step; the slowest of ${count(stepTimes.world_size, "rank")}`);
    setAttribute(canvas, "aria-label", `Step times of ${count(rows.length, "rank")} in the last ${duration(stepTimes.ages_s[0] ?? 0)}, median ${duration(middle)}; the table has the latest`);
    keyed(body, [...rows].sort((one, other) => (last(other.values) ?? 0) - (last(one.values) ?? 0)), (row) => row.rank, made, filled);
    body.middle = middle;
    paintSoon();
  }

  function made({ rank }) {
    return h("tr", { "data-rank": rank }, h("td", {}, h("canvas", { width: 44, height: 10, "aria-hidden": "true" })),
      h("td", {}, h("button", { type: "button", class: "link", onclick: () => context.select(rank) }, `${rank}`)), h("td", { class: "foreign" }, h("span"), " ", h("b")), h("td", { class: "number" }), h("td", { class: "number" }));
  }

  function filled(element, row) {
    const [sample, , host, now, ratio] = element.children;
    const pen = sample.firstChild.getContext("2d");
    pen.clearRect(0, 0, 44, 10);
    stroke(pen, row, 2);
    pen.beginPath();
    pen.moveTo(2, 5);
    pen.lineTo(42, 5);
    pen.stroke();
    setText(host.firstChild, line(row.name || row.host, 60));
    setText(host.lastChild, row.isSlow ? "straggler" : "");
    const value = last(row.values);
    const middle = last(median());
    setText(now, duration(value));
    setText(ratio, value == null || !middle ? "–" : `${(value / middle).toFixed(2)}`);
  }

  function name(stragglers) {
    setText(named, stragglers.length
      ? `${stragglers.length === 1 ? "Straggler" : "Stragglers"}: ${stragglers.slice(0, 8).map((straggler) => `rank ${straggler.rank} on ${line(straggler.name || straggler.host, 60)}, ${duration(straggler.step_time_s)}${straggler.is_busy_time ? " of own work" : ""} a step against ${duration(straggler.median_s)}`).join("; ")}`
      : "");
    show(named, stragglers.length);
  }

  // Painting.

  const paintSoon = coalesced(paint);

  function stroke(pen, row, width) {
    pen.strokeStyle = row.colour;
    pen.lineWidth = row.isSlow || row.isChosen ? width * 1.4 : width;
    pen.setLineDash(row.dash);
  }

  function scales() {
    const width = plot.clientWidth;
    const isNarrow = width < 520;
    const box = { left: 52, right: width - (isNarrow ? 58 : 84), top: 10, bottom: HEIGHT - 26 };
    const ages = stepTimes.ages_s;
    const oldest = Math.max(...ages, 1);
    const values = [...median().map((value) => (value ?? 0) * BAND), ...lines().flatMap((row) => row.values.map((value) => value ?? 0))];
    const highest = Math.max(...values, 1e-3) * 1.06;
    return {
      box, width, oldest, highest, ages,
      x: (age) => box.right - ((box.right - box.left) * age) / oldest,
      y: (value) => box.bottom - ((box.bottom - box.top) * value) / highest,
    };
  }

  function paint() {
    if (!stepTimes || shown.hidden || !plot.clientWidth) return;
    const { box, width, oldest, highest, ages, x, y } = scales();
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${HEIGHT}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = `11.5px ${getComputedStyle(root).fontFamily}`;
    pen.textBaseline = "middle";
    pen.fillStyle = color("--muted");
    pen.strokeStyle = color("--border");
    pen.lineWidth = 1;
    for (const value of ticks(highest, 4)) {
      const level = Math.round(y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(box.left, level);
      pen.lineTo(box.right, level);
      pen.stroke();
      pen.textAlign = "right";
      pen.fillText(duration(value), box.left - 7, level);
    }
    pen.textAlign = "center";
    for (const age of ticks(oldest, 4)) pen.fillText(age ? `${duration(age)} ago` : "now", Math.max(x(age), box.left + 22), HEIGHT - 10);
    const middle = median();
    pen.fillStyle = color("--rank-scale-0");
    for (const part of parts(middle)) {
      pen.beginPath();
      for (const i of part) pen.lineTo(x(ages[i]), y(middle[i] * BAND));
      for (const i of [...part].reverse()) pen.lineTo(x(ages[i]), y(middle[i]));
      pen.fill();
    }
    const labels = [];
    const draw = (row) => {
      stroke(pen, row, 1.5);
      for (const part of parts(row.values)) {
        pen.beginPath();
        for (const i of part) pen.lineTo(x(ages[i]), y(row.values[i]));
        pen.stroke();
        if (part.length > 1) continue;
        pen.fillStyle = row.colour;
        pen.fillRect(x(ages[part[0]]) - 1.5, y(row.values[part[0]]) - 1.5, 3, 3);
      }
      const value = last(row.values);
      if (value != null) labels.push({ text: row.label ?? `rank ${row.rank}`, at: y(value), colour: row.colour, weight: row.isSlow ? 650 : 400 });
    };
    lines().sort((one, other) => one.isSlow - other.isSlow).forEach(draw);
    draw({ values: middle, label: "median", colour: color("--good"), dash: [], isChosen: true });
    spread(labels, box.top + 4, box.bottom);
    pen.textAlign = "left";
    for (const { text, at: level, colour, weight } of labels) {
      pen.font = `${weight} 11.5px ${getComputedStyle(root).fontFamily}`;
      pen.fillStyle = colour;
      pen.fillText(text, box.right + 7, level);
    }
    if (at == null || at >= ages.length) return;
    pen.setLineDash([]);
    pen.lineWidth = 1;
    pen.strokeStyle = color("--control");
    pen.beginPath();
    pen.moveTo(Math.round(x(ages[at])) + 0.5, box.top);
    pen.lineTo(Math.round(x(ages[at])) + 0.5, box.bottom);
    pen.stroke();
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!stepTimes) return;
    const { x, ages, width } = scales();
    const left = event.clientX - canvas.getBoundingClientRect().left;
    at = ages.reduce((best, age, i) => (Math.abs(x(age) - left) < Math.abs(x(ages[best]) - left) ? i : best), 0);
    const values = [["median", median()[at]], ...lines().map((row) => [`rank ${row.rank}`, row.values[at]])].filter(([, value]) => value != null);
    fill(tip, h("b", {}, `${duration(ages[at])} ago`), values.sort(([, one], [, other]) => other - one).map(([who, value]) => h("div", {}, `${who}  ${duration(value)}`)));
    show(tip, values.length);
    tip.style.transform = `translate(${Math.max(0, Math.min(left + 14, width - tip.offsetWidth - 4))}px, 14px)`;
    paintSoon();
  });
  canvas.addEventListener("pointerleave", () => { at = null; show(tip, false); paintSoon(); });

  // Reading.

  async function read() {
    clearTimeout(timer);
    timer = 0;
    askedAt = performance.now();
    try {
      const latest = await context.api("step-times");
      if (isGone) return;
      if (latest.round_id == null) return leaveOut(NO_ROUND);
      stepTimes = latest;
      if (chosen && !latest.ranks.some(({ rank }) => rank === chosen.rank)) {
        const { rank } = chosen;
        const more = await context.api("step-times", { query: { ranks: rank } }).catch(() => null);
        if (isGone) return;
        if (more && chosen.rank === rank) chosen.row = more.round_id === stepTimes.round_id && more.ages_s.length === stepTimes.ages_s.length ? more.ranks[0] : null;
      }
      drawn();
    } catch (error) {
      if (isGone || error.name === "AbortError") return;
      if (GIVEN_UP.has(error.status)) leaveOut(NO_ROUND);
      else if (!stepTimes) leaveOut(`Step times could not be read: ${error.reason ?? error.message}.`);
    }
  }

  function leaveOut(why) {
    stepTimes = null;
    show(shown, false);
    show(note, true);
    setText(hint, "");
    setText(note, why);
  }

  /** Look again, but not too often, and only if it is seen. */
  function readSoon(delayMs = PAUSE_MS) {
    if (timer || !isSeen || !isRunning || isGone) return;
    timer = setTimeout(read, Math.max(0, askedAt + delayMs - performance.now()));
  }

  const observer = new IntersectionObserver((entries) => {
    isSeen = entries.at(-1).isIntersecting; // the latest: on a busy host several come at once
    readSoon();
  }, { rootMargin: "300px" });
  observer.observe(root);
  const resize = new ResizeObserver(paintSoon);
  resize.observe(plot);
  window.addEventListener("themechange", drawn);

  return {
    update(kind, data) {
      if (kind === "run") {
        isRunning = data.phase === "running";
        if (isRunning) readSoon();
        else leaveOut(NO_ROUND);
        name(data.stragglers);
      }
      if (kind === "select" && (chosen?.rank ?? null) !== data) {
        chosen = data == null ? null : { rank: data, row: null };
        drawn();
        readSoon(0);
      }
    },
    destroy() {
      isGone = true;
      clearTimeout(timer);
      paintSoon.cancel();
      observer.disconnect();
      resize.disconnect();
      window.removeEventListener("themechange", drawn);
    },
  };
}

/** The API's answer as rows: of each rank one for each instant. */
function rowsOf(times) {
  const { ages_s: ages, median_s: medians, median_busy_s: busyMedians } = times;
  return times.ranks.flatMap(({ rank, name, host, step_time_s: wholes, busy_s: busy }) => ages.map((age_s, i) => ({
    rank, name, host, age_s, step_time_s: wholes[i], busy_s: busy?.[i], median_s: medians[i], median_busy_s: busyMedians?.[i],
  })));
}

/** The stretches of indexes at which there are values. */
function parts(values) {
  const stretches = [];
  values.forEach((value, i) => {
    if (value == null) return;
    if (stretches.length && stretches.at(-1).at(-1) === i - 1) stretches.at(-1).push(i);
    else stretches.push([i]);
  });
  return stretches;
}

/** Round numbers from 0 to a value, some `most` of them. */
function ticks(value, most) {
  const rough = value / most;
  const unit = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600].find((size) => rough <= size);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = rough >= 0.5 && unit ? unit : [1, 2, 5, 10].map((size) => size * power).find((size) => rough <= size);
  return Array.from({ length: Math.floor(value / step) + 1 }, (_, i) => i * step);
}

/** Move labels apart that would stand on each other. */
function spread(labels, top, bottom) {
  const least = 13;
  labels.sort((one, other) => one.at - other.at);
  labels.forEach((label, i) => { label.at = Math.max(label.at, i ? labels[i - 1].at + least : top); });
  for (let i = labels.length - 1; i >= 0; i -= 1) labels[i].at = Math.min(labels[i].at, i + 1 < labels.length ? labels[i + 1].at - least : bottom);
}
