/** Rounds, iterations, failures and lost time on one axis. */

import { coalesced, fill, h, keyed, line, setAttribute, setText, show, svg } from "../base/dom.js";
import { clock, duration, words } from "../base/format.js";
import { PARTS } from "./goodput.js";
import { clustered, iterationsOf, marksOf, roundsOf, segmentsOf, summaryOf, ticksOf, titleOf } from "./timeline_model.js";

const LANES = { axis: 14, parts: [24, 36], rounds: [68, 22], iterations: [93, 14], marks: 108 };
const WITH_ITERATIONS = 18; // lower are the marks then
const HEIGHT = 126;
const SPAN_MIN_MS = 2_000;
const CHARACTER = 7.2; // width, at most
const MARK_WIDTH = 16;
const TICK_WIDTH = 92;
// A wheel that scrolls the page goes on doing so when it comes across the timeline.
const SCROLL_MS = 350;
const REFRESH_MS = 10_000; // of segments, where the stream brings none
const SHAPES = {
  failure: "M-6.5-4-4-6.5 0-2.5 4-6.5 6.5-4 2.5 0 6.5 4 4 6.5 0 2.5-4 6.5-6.5 4-2.5 0Z",
  asked: "M-5.5 5 0-5.5 5.5 5Z",
  notice: "M-4-4h8v8h-8Z",
  straggler: "M-5.5-5h11L0 5.5Z",
  end: "M-5-5h10v10h-10Z",
  change: "M0-6v12",
  agent: "M0-4v8",
};
const PATTERNS = {
  repeated: ["M0 6 6 0M-1 1 1-1M5 7 7 5", 6], starting: ["M1 0v6", 6], waiting: ["M2 2h1.5", 5],
  hanging: ["M0 0 5 5M5 0 0 5", 5], interrupted: ["M0 1h5", 5], stopping: ["M0 0 8 8M-2 6 2 10M6-2 10 2", 8],
  away: ["M0 0 9 9", 9],
};

export function mount(root, context) {
  const tip = h("div", { class: "tip foreign", hidden: true, "data-tip": true });
  const marksGroup = svg("g", { class: "marks" });
  const still = svg("g");
  const now = svg("line", { class: "now", y1: 20 });
  const drawing = svg("svg", { class: "timeline", tabindex: "0", role: "application", "data-timeline": true, "aria-label": "Timeline" },
    svg("defs", {}, Object.entries(PATTERNS).map(([part, [path, size]]) => svg("pattern", { id: `hatch-${part}`, width: size, height: size, patternUnits: "userSpaceOnUse" }, svg("path", { class: "hatch", d: path })))),
    still, now, marksGroup);
  const frame = h("div", { class: "timeline-frame" }, drawing, tip);
  const legend = h("ul", { class: "legend" }, PARTS.map((part) => h("li", { "data-legend": part, hidden: true }, h("span", { class: "swatch fill", "data-part": part }), words(part))),
    [["failure", "failure"], ["asked", "asked by an operator"], ["straggler", "straggler"], ["notice", "notice to save"]].map(([sign, text]) => h("li", { "data-legend": sign, hidden: true }, svg("svg", { class: "sign", viewBox: "-8 -8 16 16", "data-sign": sign }, svg("path", { d: SHAPES[sign] })), text)));
  const range = h("span", { class: "hint", "data-range": true });
  const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  fill(context.tools, range,
    button("−", "Zoom out (−)", () => zoom(2)), button("+", "Zoom in (+)", () => zoom(0.5)),
    button("All", "All of it (0)", all),
    button("‹ failure", "Failure before (b)", () => step(-1)), button("failure ›", "Next failure (n)", () => step(1)));
  fill(root, frame, legend);

  let width = 600;
  let events = [];
  let goodput = null;
  let segments = [];
  let isRunning = true;
  let model = { start: 0, end: 0, rounds: [], iterations: [], marks: [], clusters: [] };
  let view = null; // {from, to}; null: all
  let current = null; // sequence of the failure that keys are at
  let scrolledAt = 0;

  const more = () => (model.iterations.length ? WITH_ITERATIONS : 0);
  const marksY = () => LANES.marks + more();
  const height = () => HEIGHT + more();
  const bounds = () => view ?? { from: model.start, to: model.end };
  const xOf = (at) => { const { from, to } = bounds(); return ((at - from) / Math.max(1, to - from)) * width; };
  const atX = (x) => { const { from, to } = bounds(); return from + (x / width) * (to - from); };

  function remodel() {
    const known = isRunning ? Date.now() : Math.max(segments.at(-1)?.end ?? 0, events.at(-1)?.at ?? 0);
    const start = Math.min(segments[0]?.start ?? Infinity, events[0]?.at ?? Infinity);
    if (isRunning && segments.length) segments.at(-1).end = Math.max(segments.at(-1).end, known);
    const end = Math.max(known, start + SPAN_MIN_MS);
    if (!Number.isFinite(start)) return false;
    const rounds = roundsOf(events, segments, end);
    model = { ...model, start, end, rounds, iterations: iterationsOf(segments), marks: marksOf(events, segments) };
    return true;
  }

  const paint = coalesced(() => {
    if (!remodel()) return;
    setAttribute(drawing, "viewBox", `0 0 ${width} ${height()}`);
    setAttribute(drawing, "height", height());
    setAttribute(drawing, "aria-label", summaryOf(model.rounds, model.marks));
    fill(still, axis(), bands(), boxes(model.rounds, "rounds", (each) => `round ${each.round_id}`),
      boxes(model.iterations, "iterations", (each) => `${each.iteration}`));
    setAttribute(now, "x1", xOf(model.end));
    setAttribute(now, "x2", xOf(model.end));
    setAttribute(now, "y2", height() - 4);
    show(now, isRunning);
    paintMarks();
    const { from, to } = bounds();
    setText(range, `${clock(from)} – ${isRunning && to >= model.end ? "now" : clock(to)}, ${duration((to - from) / 1_000)}`);
    const shown = new Set([...segments.map((each) => each.part), ...model.marks.map((each) => each.sign)]);
    for (const item of legend.children) show(item, shown.has(item.dataset.legend));
  });

  function axis() {
    const { from, to } = bounds();
    return ticksOf(from, to, Math.max(2, width / TICK_WIDTH)).map(({ at, text }) => {
      const x = xOf(at);
      const anchor = x < 24 ? "start" : x > width - 24 ? "end" : "middle";
      return svg("g", { class: "tick" }, svg("line", { x1: x, x2: x, y1: 19, y2: height() - 4 }), svg("text", { x, y: LANES.axis, "text-anchor": anchor }, text));
    });
  }

  function bands() {
    const [y, tall] = LANES.parts;
    const found = [];
    let drawnTo = -1;
    for (const each of segments) {
      const [left, right] = cutTo(each);
      if (right <= 0 || left >= width) continue;
      // What was lost is seen however short it was; what is below a pixel is drawn once.
      const isLost = each.part !== "training" && each.part !== "away";
      const wide = Math.max(right - left, isLost ? 1.5 : 0);
      if (left + wide < drawnTo + 0.7) continue;
      drawnTo = left + wide;
      const place = { x: left, y, width: wide, height: tall };
      found.push(svg("rect", { ...place, class: "part", "data-part": each.part }));
      if (PATTERNS[each.part] && wide > 3) found.push(svg("rect", { ...place, fill: `url(#hatch-${each.part})` }));
      if (wide > words(each.part).length * CHARACTER + 10) {
        const middle = left + wide / 2;
        if (PATTERNS[each.part]) found.push(svg("rect", { class: "part", "data-part": each.part, x: middle - words(each.part).length * CHARACTER / 2 - 2, y: y + 9, width: words(each.part).length * CHARACTER + 4, height: 18, rx: 3 }));
        found.push(svg("text", { class: "on-part", x: middle, y: y + 22, "text-anchor": "middle" }, words(each.part)));
      }
    }
    return found;
  }

  function boxes(items, lane, textOf) {
    const [y, tall] = LANES[lane];
    return items.flatMap((each) => {
      const [left, right] = cutTo(each);
      if (right <= 0 || left >= width) return [];
      const text = textOf(each);
      const wide = Math.max(1, right - left - 1);
      return [
        svg("rect", { class: "box", "data-lane": lane, x: left, y, width: wide, height: tall, rx: 3 }),
        wide > text.length * CHARACTER + 6 && svg("text", { class: "box-text", x: left + wide / 2, y: y + tall / 2 + 4, "text-anchor": "middle" }, text),
      ];
    });
  }

  function cutTo(each) {
    return [Math.max(-4, xOf(each.start)), Math.min(width + 4, xOf(each.end))];
  }

  function paintMarks() {
    const margin = MARK_WIDTH;
    const shown = model.marks.filter(({ at }) => xOf(at) > -margin && xOf(at) < width + margin);
    const isLarge = ({ sign }) => sign !== "agent" && sign !== "change";
    // Small ones never hide behind large ones, nor the other way round.
    model.clusters = [...clustered(shown.filter((each) => !isLarge(each)), xOf, 4), ...clustered(shown.filter(isLarge), xOf, MARK_WIDTH)];
    keyed(marksGroup, model.clusters, ({ sign, marks }) => `${sign}${marks[0].event.sequence}`, (cluster) => {
      const element = svg("g", { "data-sign": cluster.sign }, svg("path", { d: SHAPES[cluster.sign] }), svg("text", { class: "amount", x: 9, y: 4 }));
      if (cluster.sign === "failure") {
        setAttribute(element, "role", "button");
        setAttribute(element, "tabindex", "-1");
        setAttribute(element, "data-failure", cluster.marks[0].event.sequence);
      }
      return element;
    }, (element, cluster) => {
      const x = Math.min(width - 7, Math.max(7, xOf(cluster.at)));
      setAttribute(element, "transform", `translate(${x.toFixed(1)} ${marksY()})`);
      const same = cluster.marks.filter(({ sign }) => sign === cluster.sign).length;
      setText(element.lastChild, same > 1 && isLarge(cluster) ? `${same}` : "");
      setAttribute(element, "class", cluster.marks.some(({ event }) => event.sequence === current) ? "current" : null);
      if (cluster.sign === "failure") setAttribute(element, "aria-label", cluster.marks.map(titleOf).slice(0, 3).join("; "));
    });
  }

  /** Look at another stretch of time, within all there is. */
  function look(from, to) {
    const whole = model.end - model.start;
    const span = Math.min(Math.max(to - from, SPAN_MIN_MS), whole);
    if (span >= whole * 0.999) view = null;
    else {
      const left = Math.min(Math.max(from, model.start), model.end - span);
      view = { from: left, to: left + span };
    }
    hideTip();
    paint();
  }

  function all() { look(model.start, model.end); }

  function zoom(factor, around) {
    const { from, to } = bounds();
    const center = around ?? (from + to) / 2;
    look(center - (center - from) * factor, center + (to - center) * factor);
  }

  function pan(share) {
    const { from, to } = bounds();
    const by = (to - from) * share;
    const within = Math.min(Math.max(by, model.start - from), model.end - to);
    look(from + within, to + within);
  }

  /** Go to the next failure, or the one before. */
  function step(direction) {
    const failures = model.marks.filter(({ sign }) => sign === "failure");
    if (!failures.length) return;
    const at = failures.findIndex(({ event }) => event.sequence === current);
    const next = at < 0 ? (direction > 0 ? 0 : failures.length - 1) : Math.min(failures.length - 1, Math.max(0, at + direction));
    const mark = failures[next];
    current = mark.event.sequence;
    const { from, to } = bounds();
    if (mark.at < from || mark.at > to) look(mark.at - (to - from) / 2, mark.at + (to - from) / 2);
    paint();
    requestAnimationFrame(() => showTip(xOf(mark.at), marksY(), [[`failure ${next + 1} of ${failures.length}`, titleOf(mark)], ["", `${clock(mark.at)} – Enter leads to it`]]));
    context.announce(titleOf(mark));
  }

  function open(mark) {
    const isLast = ["run_failing", "run_failed"].includes(mark.event.kind);
    if (isLast && context.reveal("report")) return;
    context.reveal("events", mark.event.sequence);
  }

  function clusterAt(x, y) {
    if (y < marksY() - 13 || y > marksY() + 13) return null;
    const near = model.clusters.map((each) => ({ each, away: Math.abs(Math.min(width - 7, Math.max(7, xOf(each.at))) - x) })).filter(({ away }) => away <= 10);
    near.sort((one, other) => (other.each.sign === "failure") - (one.each.sign === "failure") || one.away - other.away);
    return near[0]?.each ?? null;
  }

  /** What is there, as lines for the tip. */
  function describe(x, y) {
    const at = atX(x);
    const cluster = clusterAt(x, y);
    if (cluster) {
      const lines = cluster.marks.slice(0, 5).map((mark) => [clock(mark.at), titleOf(mark)]);
      if (cluster.marks.length > 5) lines.push(["", `and ${cluster.marks.length - 5} more`]);
      if (cluster.sign === "failure") lines.push(["", "click to see it"]);
      return lines;
    }
    const within = (lane) => y >= LANES[lane][0] && y < LANES[lane][0] + LANES[lane][1];
    const here = (each) => each.start <= at && at < each.end;
    if (within("parts")) {
      // A short one is as wide as it is drawn.
      const segment = segments.find((each) => here(each)) ?? null;
      const thin = segments.find((each) => each.part !== "training" && Math.abs(xOf(each.start) - x) < 2 && xOf(each.end) - xOf(each.start) < 2);
      return segment && ofSegment(thin ?? segment);
    }
    if (within("rounds")) {
      const round = model.rounds.find(here);
      return round && [[`round ${round.round_id}`, `${duration((round.end - round.start) / 1_000)}, from ${clock(round.start)}`], ["", round.reason], ["ended", round.ended]].filter(([, text]) => text);
    }
    if (within("iterations")) {
      const iteration = model.iterations.find(here);
      return iteration && [[`round ${iteration.round_id}, iteration ${iteration.iteration}`, duration((iteration.end - iteration.start) / 1_000)]];
    }
    return null;
  }

  function ofSegment(each) {
    const where = [each.round_id == null ? null : `round ${each.round_id}`, each.iteration == null ? null : `iteration ${each.iteration}`].filter(Boolean).join(", ");
    const lost = each.cause ? `${words(each.cause)}${each.host ? ` of ${line(each.host, 60)}` : ""}` : null;
    return [[words(each.part), duration((each.end - each.start) / 1_000)], ["", `${clock(each.start)} – ${clock(each.end)}`], ["", where], ["lost for", lost]].filter(([, text]) => text);
  }

  function showTip(x, y, lines) {
    fill(tip, lines.map(([head, text]) => h("p", {}, head && h("strong", {}, head), head && " ", line(text, 220))));
    show(tip, true);
    const room = frame.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, x - tip.offsetWidth / 2))}px`;
    tip.style.top = `${y + 18}px`;
  }

  function hideTip() { show(tip, false); }

  const place = (event) => {
    const box = drawing.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let drag = null;
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, from: bounds().from, to: bounds().to, isMoved: false };
    drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag && Math.abs(event.clientX - drag.x) > 3) drag.isMoved = true;
    if (drag?.isMoved) {
      const by = ((drag.x - event.clientX) / width) * (drag.to - drag.from);
      const within = Math.min(Math.max(by, model.start - drag.from), model.end - drag.to);
      look(drag.from + within, drag.to + within);
      return;
    }
    const lines = describe(x, y);
    drawing.classList.toggle("can-click", clusterAt(x, y)?.sign === "failure");
    if (lines) showTip(x, y, lines);
    else hideTip();
  });
  drawing.addEventListener("pointerup", (event) => {
    const wasMoved = drag?.isMoved;
    drag = null;
    if (wasMoved) return;
    const cluster = clusterAt(...place(event));
    if (!cluster) return;
    const failures = cluster.marks.filter(({ sign }) => sign === "failure");
    if (failures.length === 1 || (failures.length && bounds().to - bounds().from <= SPAN_MIN_MS * 2)) open(failures[0]);
    else if (failures.length) look(failures[0].at - 5_000, Math.max(failures.at(-1).at, failures[0].at) + 5_000);
  });
  drawing.addEventListener("pointercancel", () => { drag = null; });
  drawing.addEventListener("pointerleave", () => { if (!drag) hideTip(); });
  const scrolled = (event) => { if (event.target === document) scrolledAt = performance.now(); };
  document.addEventListener("scroll", scrolled, { passive: true });
  drawing.addEventListener("wheel", (event) => {
    if (performance.now() - scrolledAt < SCROLL_MS) { scrolledAt = performance.now(); return; }
    const isWide = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!isWide && event.deltaY > 0 && !view) return; // wider than all: the page scrolls
    event.preventDefault();
    if (isWide) pan(event.deltaX / width);
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), atX(place(event)[0]));
  }, { passive: false });
  // What a screen reader presses is a click without a place.
  drawing.addEventListener("click", (event) => {
    const sequence = Number(event.target.closest?.("[data-failure]")?.dataset.failure);
    if (event.detail === 0 && sequence) open(model.marks.find((mark) => mark.event.sequence === sequence));
  });
  const acts = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5),
    "-": () => zoom(2), 0: all, Home: () => pan(-1e9), End: () => pan(1e9), n: () => step(1), b: () => step(-1), Escape: hideTip,
    Enter: () => { const mark = model.marks.find(({ event }) => event.sequence === current); if (mark) open(mark); },
  };
  drawing.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });
  drawing.addEventListener("blur", hideTip);

  const observer = new ResizeObserver(([entry]) => {
    width = Math.max(120, Math.round(entry.contentRect.width));
    paint();
  });
  observer.observe(frame);
  const clockTimer = setInterval(() => { if (isRunning && !document.hidden) paint(); }, 1_000);

  let refresh = 0;
  let refreshAt = Infinity;
  /** Ask for segments where the stream brings none; not more often than they can matter. */
  function refreshSegments(pauseMs) {
    const at = Date.now() + pauseMs;
    if (at >= refreshAt) return;
    refreshAt = at;
    clearTimeout(refresh);
    refresh = setTimeout(async () => {
      refreshAt = Infinity;
      try {
        const found = await context.api("goodput", { query: { segments: 1 } });
        segments = segmentsOf(found, Date.now());
        paint();
      } catch {
        // The next document of the stream asks again.
      }
    }, pauseMs);
  }

  return {
    update(kind, data) {
      if (kind === "goodput") {
        isRunning = data.is_running;
        if (data.segments) segments = segmentsOf(data, Date.now());
        else refreshSegments(goodput ? REFRESH_MS : 0);
        goodput = data;
      } else if (kind === "events") {
        events = data.all;
        if (goodput && !goodput.segments) refreshSegments(1_000);
      } else return;
      paint();
    },
    key(event) {
      if (event.key !== "n" && event.key !== "b") return;
      drawing.focus();
      acts[event.key]();
    },
    show() {
      drawing.focus({ preventScroll: true });
      return true;
    },
    destroy() {
      observer.disconnect();
      paint.cancel();
      clearInterval(clockTimer);
      clearTimeout(refresh);
      document.removeEventListener("scroll", scrolled);
    },
  };
}
