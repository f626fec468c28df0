/** A timeline as SVG. What is drawn is given as a scale, {from, to, width, x(at), at(x)}, and a model. */

import { fill, h, keyed, setAttribute, setText, svg } from "../base/dom.js";
import { PARTS, partName } from "../base/parts.js";
import { clustered, ticksOf, titleOf } from "./model.js";

export const LANES = { axis: 14, parts: [24, 36], rounds: [68, 22], iterations: [93, 14], marks: 108 };
const HEIGHT = 126;
const ITERATIONS = 18; // lower are the marks where there are iterations
const CHARACTER = 7.2; // width, at most
const MARK_WIDTH = 16;
const MARK_NEAR = 10;
const TICK_WIDTH = 92;
const THIN = 2;
const SHAPES = {
  failure: "M-6.5-4-4-6.5 0-2.5 4-6.5 6.5-4 2.5 0 6.5 4 4 6.5 0 2.5-4 6.5-6.5 4-2.5 0Z",
  asked: "M-5.5 5 0-5.5 5.5 5Z",
  notice: "M-4-4h8v8h-8Z",
  slow: "M-5.5-5h11L0 5.5Z",
  end: "M-5-5h10v10h-10Z",
  change: "M0-6v12",
  agent: "M0-4v8",
};
const SIGNS = { failure: "failure", asked: "asked by an operator", slow: "slow rank, or a hang", notice: "notice to save" };
const PATTERNS = {
  repeated: ["M0 6 6 0M-1 1 1-1M5 7 7 5", 6],
  starting: ["M1 0v6", 6],
  waiting: ["M2 2h1.5", 5],
  hanging: ["M0 0 5 5M5 0 0 5", 5],
  interrupted: ["M0 1h5", 5],
  stopping: ["M0 0 8 8M-2 6 2 10M6-2 10 2", 8],
  away: ["M0 0 9 9", 9],
};

/** The patterns that tell parts from each other without colour. */
export function patterns() {
  return svg("defs", {}, Object.entries(PATTERNS).map(([part, [path, size]]) => svg("pattern",
    { id: `hatch-${part}`, width: size, height: size, patternUnits: "userSpaceOnUse" },
    svg("path", { class: "hatch", d: path }))));
}

/** What parts and signs are called. */
export function legend() {
  const item = (name, sign, text) => h("li", { "data-legend": name, hidden: true }, sign, text);
  return h("ul", { class: "legend" },
    PARTS.map((part) => item(part, h("span", { class: "swatch fill", "data-part": part }), partName(part))),
    Object.entries(SIGNS).map(([sign, text]) => item(sign,
      svg("svg", { class: "sign", viewBox: "-8 -8 16 16", "data-sign": sign }, svg("path", { d: SHAPES[sign] })), text)));
}

export function heightOf(model) {
  return HEIGHT + (model.iterations.length ? ITERATIONS : 0);
}

export function marksY(model) {
  return LANES.marks + (model.iterations.length ? ITERATIONS : 0);
}

/** Draw all that cannot be pressed. */
export function drawStill(group, scale, model) {
  fill(group, axis(scale, heightOf(model) - 4), bands(scale, model.segments),
    boxes(scale, model.rounds, "rounds", (round) => `round ${round.round_id}`),
    boxes(scale, model.iterations, "iterations", (iteration) => `${iteration.iteration}`));
}

function axis(scale, bottom) {
  return ticksOf(scale.from, scale.to, Math.max(2, scale.width / TICK_WIDTH)).map(({ at, text }) => {
    const x = scale.x(at);
    const anchor = x < 24 ? "start" : x > scale.width - 24 ? "end" : "middle";
    return svg("g", { class: "tick" }, svg("line", { x1: x, x2: x, y1: 19, y2: bottom }),
      svg("text", { x, y: LANES.axis, "text-anchor": anchor }, text));
  });
}

/** The parts of the time as a band. */
export function bands(scale, segments) {
  const [y, height] = LANES.parts;
  const elements = [];
  let drawnTo = -1;
  for (const { part, start, end } of segments) {
    const [left, right] = cut(scale, start, end);
    if (right <= 0 || left >= scale.width) continue;
    // What was lost is seen however short it was; what is below a pixel is drawn once.
    const width = Math.max(right - left, part === "training" || part === "away" ? 0 : 1.5);
    if (left + width < drawnTo + 0.7) continue;
    drawnTo = left + width;
    elements.push(svg("rect", { class: "part", "data-part": part, x: left, y, width, height }));
    if (PATTERNS[part] && width > 3) elements.push(svg("rect", { x: left, y, width, height, fill: `url(#hatch-${part})` }));
    const room = partName(part).length * CHARACTER;
    if (width < room + 10) continue;
    const middle = left + width / 2;
    const plate = { x: middle - room / 2 - 2, y: y + 9, width: room + 4, height: 18, rx: 3 };
    if (PATTERNS[part]) elements.push(svg("rect", { class: "part", "data-part": part, ...plate }));
    elements.push(svg("text", { class: "on-part", x: middle, y: y + 22, "text-anchor": "middle" }, partName(part)));
  }
  return elements;
}

function boxes(scale, items, lane, textOf) {
  const [y, height] = LANES[lane];
  return items.flatMap((item) => {
    const [left, right] = cut(scale, item.start, item.end);
    if (right <= 0 || left >= scale.width) return [];
    const width = Math.max(1, right - left - 1);
    const text = textOf(item);
    const middle = { x: left + width / 2, y: y + height / 2 + 4, "text-anchor": "middle" };
    return [
      svg("rect", { class: "box", "data-lane": lane, x: left, y, width, height, rx: 3 }),
      width > text.length * CHARACTER + 6 && svg("text", { class: "box-text", ...middle }, text),
    ];
  });
}

function cut(scale, start, end) {
  return [Math.max(-4, scale.x(start)), Math.min(scale.width + 4, scale.x(end))];
}

/** Draw the marks, those that would cover each other as one; returns what was drawn. */
export function drawMarks(group, scale, model, current) {
  const shown = model.marks.filter(({ at }) => Math.abs(placed(scale, at) - scale.x(at)) < MARK_WIDTH);
  // Small ones never hide behind large ones, nor the other way round.
  const clusters = [
    ...clustered(shown.filter((mark) => !isLarge(mark)), scale.x, 4),
    ...clustered(shown.filter(isLarge), scale.x, MARK_WIDTH),
  ];
  const y = marksY(model);
  keyed(group, clusters, ({ sign, marks }) => `${sign}${marks[0].event.sequence}`, mark, (element, cluster) => {
    setAttribute(element, "transform", `translate(${placed(scale, cluster.at).toFixed(1)} ${y})`);
    const same = cluster.marks.filter(({ sign }) => sign === cluster.sign).length;
    setText(element.lastChild, same > 1 && isLarge(cluster) ? `${same}` : "");
    setAttribute(element, "class", cluster.marks.some(({ event }) => event.sequence === current) ? "current" : null);
    if (cluster.sign === "failure") setAttribute(element, "aria-label", cluster.marks.map(titleOf).slice(0, 3).join("; "));
  });
  return clusters;
}

function mark({ sign, marks }) {
  const pressed = sign === "failure" ? { role: "button", tabindex: "-1", "data-failure": marks[0].event.sequence } : {};
  return svg("g", { "data-sign": sign, ...pressed }, svg("path", { d: SHAPES[sign] }),
    svg("text", { class: "amount", x: 9, y: 4 }));
}

function isLarge({ sign }) {
  return sign !== "agent" && sign !== "change";
}

/** Where a mark is drawn: whole, also at the edges. */
function placed(scale, at) {
  return Math.min(scale.width - 7, Math.max(7, scale.x(at)));
}

/** The marks at a place, failures before others. */
export function clusterAt(clusters, scale, model, x, y) {
  if (Math.abs(y - marksY(model)) > MARK_NEAR + 3) return null;
  const near = clusters.map((cluster) => ({ cluster, away: Math.abs(placed(scale, cluster.at) - x) }))
    .filter(({ away }) => away <= MARK_NEAR);
  near.sort((one, other) => (other.cluster.sign === "failure") - (one.cluster.sign === "failure") || one.away - other.away);
  return near[0]?.cluster ?? null;
}

/** The lane at a height, and what of the model is there: {segment}, {round}, {iteration} or {}. */
export function itemAt(scale, model, x, y) {
  const at = scale.at(x);
  const isIn = (lane) => y >= LANES[lane][0] && y < LANES[lane][0] + LANES[lane][1];
  const isHere = (item) => item.start <= at && at < item.end;
  if (isIn("rounds")) return { round: model.rounds.find(isHere) };
  if (isIn("iterations")) return { iteration: model.iterations.find(isHere) };
  if (!isIn("parts")) return {};
  // One that is drawn wider than it is comes before its neighbours.
  const isThin = ({ part, start, end }) => part !== "training" && Math.abs(scale.x(start) - x) < THIN
    && scale.x(end) - scale.x(start) < THIN;
  return { segment: model.segments.find(isThin) ?? model.segments.find(isHere) };
}
