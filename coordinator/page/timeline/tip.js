/** What is at a place of the timeline, in words. */

import { line } from "../base/dom.js";
import { clock, duration, words } from "../base/format.js";
import { partName } from "../base/parts.js";
import { titleOf } from "./model.js";

const MARKS_SHOWN = 5;

/** Lines of [head, text] for the tip; null: there is nothing. */
export function linesOf({ cluster, segment, round, iteration }) {
  if (cluster) return ofMarks(cluster);
  if (segment) return ofSegment(segment);
  if (round) {
    const lines = [
      [`round ${round.round_id}`, `${lasted(round)}, from ${clock(round.start)}`],
      ["", round.reason],
      ["ended", round.ended],
    ];
    return lines.filter(([, text]) => text);
  }
  if (iteration) return [[`round ${iteration.round_id}, iteration ${iteration.iteration}`, lasted(iteration)]];
  return null;
}

function ofMarks({ sign, marks }) {
  const lines = marks.slice(0, MARKS_SHOWN).map((mark) => [clock(mark.at), titleOf(mark)]);
  if (marks.length > MARKS_SHOWN) lines.push(["", `and ${marks.length - MARKS_SHOWN} more`]);
  if (sign === "failure") lines.push(["", "click to see it"]);
  return lines;
}

function ofSegment(segment) {
  const where = [
    segment.round_id == null ? null : `round ${segment.round_id}`,
    segment.iteration == null ? null : `iteration ${segment.iteration}`,
  ];
  const lines = [
    [partName(segment.part), lasted(segment)],
    ["", `${clock(segment.start)} – ${clock(segment.end)}`],
    ["", where.filter(Boolean).join(", ")],
    ["lost for", segment.cause && `${words(segment.cause)}${segment.host ? ` of ${line(segment.host, 60)}` : ""}`],
  ];
  return lines.filter(([, text]) => text);
}

function lasted({ start, end }) {
  return duration((end - start) / 1_000);
}
