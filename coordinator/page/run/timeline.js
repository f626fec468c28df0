/** Rounds, iterations, failures and lost time on one axis. */

import { coalesced, fill, h, line, setAttribute, setText, show, svg } from "../base/dom.js";
import { clock, duration } from "../base/format.js";
import { clusterAt, drawMarks, drawStill, heightOf, itemAt, legend, marksY, patterns } from "../timeline/drawing.js";
import { iterationsOf, marksOf, roundsOf, segmentsOf, summaryOf, titleOf } from "../timeline/model.js";
import { linesOf } from "../timeline/tip.js";

const SPAN_MIN_MS = 2_000;
const WIDTH_MIN = 120;
// A wheel that scrolls the page goes on doing so when it comes across the timeline.
const SCROLL_MS = 350;
const WHEEL_NOTCH = 240;
const DRAG_MIN = 3;
const REFRESH_MS = 10_000; // of segments, which the stream does not bring
const REFRESH_SOON_MS = 1_000;

export function mount(root, context) {
  return new Timeline(root, context);
}

class Timeline {
  constructor(root, context) {
    this.context = context;
    this.width = 600;
    this.events = [];
    this.segments = [];
    this.goodput = null;
    this.isRunning = true;
    this.model = { start: 0, end: 0, segments: [], rounds: [], iterations: [], marks: [] };
    this.clusters = [];
    this.view = null; // {from, to}; null: all there is
    this.current = null; // sequence of the failure that keys are at
    this.refreshAt = Infinity;
    this.paint = coalesced(() => this.painted());
    this.build(root);
    this.listen();
  }

  build(root) {
    this.tip = h("div", { class: "tip foreign", hidden: true, "data-tip": true });
    this.still = svg("g");
    this.now = svg("line", { class: "now", y1: 20 });
    this.marks = svg("g", { class: "marks" });
    this.drawing = svg("svg", { class: "timeline", tabindex: "0", role: "application", "data-timeline": true, "aria-label": "Timeline" },
      patterns(), this.still, this.now, this.marks);
    this.frame = h("div", { class: "timeline-frame" }, this.drawing, this.tip);
    this.legend = legend();
    this.range = h("span", { class: "hint", "data-range": true });
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    fill(this.context.tools, this.range,
      button("−", "Zoom out (−)", () => this.zoom(2)), button("+", "Zoom in (+)", () => this.zoom(0.5)),
      button("All", "All of it (0)", () => this.all()),
      button("‹ failure", "Failure before (b)", () => this.step(-1)), button("failure ›", "Next failure (n)", () => this.step(1)));
    fill(root, this.frame, this.legend);
  }

  /** What is looked at, and where on the drawing it is. */
  get scale() {
    const { from, to } = this.view ?? { from: this.model.start, to: this.model.end };
    const span = Math.max(1, to - from);
    return {
      from, to, width: this.width,
      x: (at) => ((at - from) / span) * this.width,
      at: (x) => from + (x / this.width) * span,
    };
  }

  /** Make the model anew; returns whether anything is known. */
  remodel() {
    const { events, segments, isRunning } = this;
    const start = Math.min(segments[0]?.start ?? Infinity, events[0]?.at ?? Infinity);
    if (!Number.isFinite(start)) return false;
    const known = isRunning ? Date.now() : Math.max(segments.at(-1)?.end ?? 0, events.at(-1)?.at ?? 0);
    if (isRunning && segments.length) segments.at(-1).end = Math.max(segments.at(-1).end, known);
    const end = Math.max(known, start + SPAN_MIN_MS);
    this.model = {
      start, end, segments,
      rounds: roundsOf(events, segments, end),
      iterations: iterationsOf(segments),
      marks: marksOf(events),
    };
    return true;
  }

  painted() {
    if (!this.remodel()) return;
    const { model, scale, drawing, now } = this;
    const height = heightOf(model);
    setAttribute(drawing, "viewBox", `0 0 ${this.width} ${height}`);
    setAttribute(drawing, "height", height);
    setAttribute(drawing, "aria-label", summaryOf(model.rounds, this.goodput?.failures_count ?? 0));
    drawStill(this.still, scale, model);
    for (const name of ["x1", "x2"]) setAttribute(now, name, scale.x(model.end));
    setAttribute(now, "y2", height - 4);
    setAttribute(now, "visibility", this.isRunning ? null : "hidden");
    this.clusters = drawMarks(this.marks, scale, model, this.current);
    const until = this.isRunning && scale.to >= model.end ? "now" : clock(scale.to);
    setText(this.range, `${clock(scale.from)} – ${until}, ${duration((scale.to - scale.from) / 1_000)}`);
    const shown = new Set([...model.segments.map(({ part }) => part), ...model.marks.map(({ sign }) => sign)]);
    for (const item of this.legend.children) show(item, shown.has(item.dataset.legend));
  }

  /** Look at another stretch of time, within all there is. */
  look(from, to) {
    const { start, end } = this.model;
    const span = Math.min(Math.max(to - from, SPAN_MIN_MS), end - start);
    if (span >= (end - start) * 0.999) this.view = null;
    else {
      const left = Math.min(Math.max(from, start), end - span);
      this.view = { from: left, to: left + span };
    }
    this.hideTip();
    this.paint();
    this.context.range(this.view && { from: Math.round(this.view.from), to: Math.round(this.view.to) });
  }

  all() {
    this.look(this.model.start, this.model.end);
  }

  zoom(factor, around) {
    const { from, to } = this.scale;
    const center = around ?? (from + to) / 2;
    this.look(center - (center - from) * factor, center + (to - center) * factor);
  }

  /** Move what is looked at by some ms, as far as there is something. */
  move(by, { from, to } = this.scale) {
    const within = Math.min(Math.max(by, this.model.start - from), this.model.end - to);
    this.look(from + within, to + within);
  }

  pan(share) {
    const { from, to } = this.scale;
    this.move((to - from) * share);
  }

  /** Go to the next failure, or the one before. */
  step(direction) {
    const failures = this.model.marks.filter(({ sign }) => sign === "failure");
    if (!failures.length) return;
    const at = failures.findIndex(({ event }) => event.sequence === this.current);
    const next = at < 0 ? failures.length - 1 : Math.min(failures.length - 1, Math.max(0, at + direction));
    const mark = failures[next];
    this.current = mark.event.sequence;
    const { from, to } = this.scale;
    const half = (to - from) / 2;
    if (mark.at < from || mark.at > to) this.look(mark.at - half, mark.at + half);
    this.paint();
    const lines = [[`failure ${next + 1} of ${failures.length} on the timeline`, titleOf(mark)], ["", `${clock(mark.at)} – Enter leads to it`]];
    requestAnimationFrame(() => this.showTip(this.scale.x(mark.at), marksY(this.model), lines));
    this.context.announce(titleOf(mark));
  }

  open(mark) {
    if (!mark) return;
    const isEnd = mark.event.kind === "run_failing";
    if (!isEnd || !this.context.reveal("report")) this.context.reveal("events", mark.event.sequence);
  }

  openCurrent() {
    this.open(this.model.marks.find(({ event }) => event.sequence === this.current));
  }

  /** Open the failure of a cluster, or come closer to those that are too near to each other. */
  press({ marks }) {
    const failures = marks.filter(({ sign }) => sign === "failure");
    if (!failures.length) return;
    const { from, to } = this.scale;
    if (failures.length === 1 || to - from <= 2 * SPAN_MIN_MS) this.open(failures[0]);
    else this.look(failures[0].at - 2.5 * SPAN_MIN_MS, failures.at(-1).at + 2.5 * SPAN_MIN_MS);
  }

  showTip(x, y, lines) {
    const { tip, frame } = this;
    fill(tip, lines.map(([head, text]) => h("p", {}, head && h("strong", {}, head), head && " ", line(text, 220))));
    show(tip, true);
    const room = frame.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, x - tip.offsetWidth / 2))}px`;
    tip.style.top = `${y + 18}px`;
  }

  hideTip() {
    show(this.tip, false);
  }

  clusterAt(x, y) {
    return clusterAt(this.clusters, this.scale, this.model, x, y);
  }

  listen() {
    const { drawing } = this;
    this.listenToPointer(drawing);
    this.listenToWheel(drawing);
    this.acts = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), Home: () => this.pan(-1e9), End: () => this.pan(1e9),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.all(),
      n: () => this.step(1), b: () => this.step(-1), Enter: () => this.openCurrent(), Escape: () => this.hideTip(),
    };
    drawing.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.acts[event.key]) return;
      event.preventDefault();
      this.acts[event.key]();
    });
    drawing.addEventListener("blur", () => this.hideTip());
    this.observer = new ResizeObserver(([entry]) => {
      this.width = Math.max(WIDTH_MIN, Math.round(entry.contentRect.width));
      this.paint();
    });
    this.observer.observe(this.frame);
    this.timer = setInterval(() => { if (this.isRunning && !document.hidden) this.paint(); }, 1_000);
  }

  listenToPointer(drawing) {
    let drag = null;
    const place = (event) => {
      const box = drawing.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    drawing.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const { from, to } = this.scale;
      drag = { x: event.clientX, from, to, isMoved: false };
      drawing.setPointerCapture(event.pointerId);
    });
    drawing.addEventListener("pointermove", (event) => {
      if (drag && Math.abs(event.clientX - drag.x) > DRAG_MIN) drag.isMoved = true;
      if (drag?.isMoved) {
        this.move(((drag.x - event.clientX) / this.width) * (drag.to - drag.from), drag);
        return;
      }
      const [x, y] = place(event);
      const cluster = this.clusterAt(x, y);
      drawing.classList.toggle("can-click", cluster?.sign === "failure");
      const lines = linesOf(cluster ? { cluster } : itemAt(this.scale, this.model, x, y));
      if (lines) this.showTip(x, y, lines);
      else this.hideTip();
    });
    drawing.addEventListener("pointerup", (event) => {
      const isClick = drag && !drag.isMoved;
      drag = null;
      const cluster = isClick && this.clusterAt(...place(event));
      if (cluster) this.press(cluster);
    });
    drawing.addEventListener("pointercancel", () => { drag = null; });
    drawing.addEventListener("pointerleave", () => { if (!drag) this.hideTip(); });
    // What a screen reader presses is a click without a place.
    drawing.addEventListener("click", (event) => {
      const sequence = Number(event.target.closest?.("[data-failure]")?.dataset.failure);
      if (event.detail === 0 && sequence) this.open(this.model.marks.find((mark) => mark.event.sequence === sequence));
    });
  }

  listenToWheel(drawing) {
    let scrolledAt = -Infinity;
    this.scrolled = (event) => { if (event.target === document) scrolledAt = performance.now(); };
    document.addEventListener("scroll", this.scrolled, { passive: true });
    drawing.addEventListener("wheel", (event) => {
      if (performance.now() - scrolledAt < SCROLL_MS) {
        scrolledAt = performance.now();
        return;
      }
      const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!isSideways && event.deltaY > 0 && !this.view) return; // wider than all: the page scrolls
      event.preventDefault();
      if (isSideways) this.pan(event.deltaX / this.width);
      else {
        const x = event.clientX - drawing.getBoundingClientRect().left;
        this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / WHEEL_NOTCH))), this.scale.at(x));
      }
    }, { passive: false });
  }

  /** Ask for segments, not more often than they can matter. */
  refresh(pauseMs) {
    const at = Date.now() + pauseMs;
    if (at >= this.refreshAt) return;
    this.refreshAt = at;
    clearTimeout(this.refreshTimer);
    this.refreshTimer = setTimeout(async () => {
      this.refreshAt = Infinity;
      try {
        this.segments = segmentsOf(await this.context.api("goodput", { query: { segments: 1 } }), Date.now());
        this.paint();
      } catch {
        // The next document of the stream asks again.
      }
    }, pauseMs);
  }

  update(kind, data) {
    if (kind === "goodput") {
      const isFirst = !this.goodput || this.isRunning !== data.is_running;
      this.goodput = data;
      this.isRunning = data.is_running;
      this.refresh(isFirst ? 0 : REFRESH_MS);
    } else if (kind === "events") {
      this.events = data.all;
      if (this.goodput) this.refresh(REFRESH_SOON_MS);
    } else if (kind === "range") {
      this.view = data;
    } else if (kind !== "zone") return;
    this.paint();
  }

  key(event) {
    if (event.key !== "n" && event.key !== "b") return;
    this.drawing.focus();
    this.acts[event.key]();
  }

  show() {
    this.drawing.focus({ preventScroll: true });
    return true;
  }

  destroy() {
    this.observer.disconnect();
    this.paint.cancel();
    clearInterval(this.timer);
    clearTimeout(this.refreshTimer);
    document.removeEventListener("scroll", this.scrolled);
  }
}
