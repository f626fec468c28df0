/** What a timeline shows, from events and from what the time went into. Instants are ms of this browser's clock. */

import { aheadMinutes, clock, count, words } from "../base/format.js";

// Ages of events and segments are told in different messages.
const TOLERANCE_MS = 1_500;
// In which a round is; the others lie between two.
const IN_ROUND = new Set(["starting", "training", "repeated", "hanging", "interrupted", "away"]);
const ROUND_OVER = new Set(["round_ended", "run_failing", "run_stopping", "run_succeeded", "run_failed", "run_stopped"]);
const SIGNS = {
  stop_asked: "asked", restart_asked: "asked", agent_drained: "asked", agent_undrained: "asked",
  run_stopped: "end", run_succeeded: "end", run_failed: "end", notice_given: "notice", straggler_found: "slow", hang_found: "slow",
  agent_admitted: "agent", agent_removed: "agent", round_ended: "change", access_refused: "agent", fault_injected: "asked",
};

/** Segments with instants, from a time breakdown that was received at `now`. */
export function segmentsOf(breakdown, now) {
  return (breakdown.segments ?? []).map((segment) => {
    const start = now - segment.age_s * 1_000;
    return { ...segment, start, end: start + segment.time_s * 1_000 };
  }).sort((one, other) => one.start - other.start);
}

/** Rounds as {round_id, start, end, reason}; those of which no event is left come from segments. */
export function roundsOf(events, segments, end) {
  const rounds = [];
  let open = null;
  for (const event of events) {
    if (event.kind === "round_started") {
      if (open) open.end = event.at;
      open = { round_id: event.round_id, start: event.at, end, reason: event.reason };
      rounds.push(open);
    } else if (open && ROUND_OVER.has(event.kind)) {
      open.end = event.at;
      open.ended = event.reason;
      open = null;
    }
  }
  const first = rounds[0]?.start ?? Infinity;
  const before = merged(segments.filter((segment) => segment.start < first - TOLERANCE_MS && IN_ROUND.has(segment.part)), (segment) => segment.round_id);
  return [...before.filter((segment) => rounds[0]?.round_id !== segment.round_id), ...rounds];
}

/** Iterations as {round_id, iteration, start, end}; none where workers do not restart in process. */
export function iterationsOf(segments) {
  const within = segments.filter((segment) => segment.iteration != null && IN_ROUND.has(segment.part));
  return merged(within, (segment) => `${segment.round_id}:${segment.iteration}`);
}

function merged(segments, keyOf) {
  const spans = new Map();
  for (const segment of segments) {
    if (segment.round_id == null) continue;
    const known = spans.get(keyOf(segment));
    if (known) known.end = segment.end;
    else spans.set(keyOf(segment), { round_id: segment.round_id, iteration: segment.iteration, start: segment.start, end: segment.end });
  }
  return [...spans.values()];
}

/** Events with the sign that stands for each on the timeline. */
export function marksOf(events) {
  return events.flatMap((event) => {
    const sign = event.is_failure ? "failure" : SIGNS[event.kind];
    return sign ? [{ sign, at: event.at, event }] : [];
  });
}

/** Marks that would cover each other as one: {sign, at, marks}; failures stay in sight. */
export function clustered(marks, xOf, widthMin) {
  const clusters = [];
  for (const mark of marks) {
    const last = clusters.at(-1);
    if (last && xOf(mark.at) - xOf(last.at) < widthMin) {
      last.marks.push(mark);
      if (mark.sign === "failure") last.sign = "failure";
    } else clusters.push({ sign: mark.sign, at: mark.at, marks: [mark] });
  }
  return clusters;
}

const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
  172_800, 604_800, 1_209_600, 2_592_000,
];

/** Instants for the axis, on round times of the clock that is shown: {at, text}. */
export function ticksOf(from, to, most) {
  const step = 1_000 * (STEPS_S.find((step) => (to - from) / (step * 1_000) <= most) ?? STEPS_S.at(-1));
  const zone = -aheadMinutes(from) * 60_000;
  const ticks = [];
  let dayBefore = null;
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) {
    const [day, time] = clock(at, { withDay: true }).split(" ");
    const isNewDay = dayBefore !== null && dayBefore !== day;
    ticks.push({ at, text: step >= 86_400_000 || isNewDay ? day : step < 60_000 ? time : time.slice(0, -3) });
    dayBefore = day;
  }
  return ticks;
}

/** The timeline in a sentence, for those who hear it. */
export function summaryOf(rounds, failuresCount) {
  return `Timeline: ${count(rounds.length, "round")}, ${count(failuresCount, "failure")}. `
    + "Arrow keys move, plus and minus zoom, n and b go from failure to failure, Enter leads to it.";
}

/** A mark in words. */
export function titleOf({ event }) {
  return `${words(event.kind)}: ${event.reason}`;
}
