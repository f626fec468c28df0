/** The parts of a run's time: their order, their names, the bar that they make. */

import { h, keyed, setAttribute } from "./dom.js";
import { duration, percent, words } from "./format.js";

// As time goes by in a round; training first, so that bars of runs can be compared.
export const PARTS = ["training", "away", "repeated", "starting", "waiting", "hanging", "interrupted", "stopping", "unknown"];

export const ABOUT_PARTS = {
  training: "trained what had not been trained before",
  away: "trained while the coordinator was not there to see it",
  repeated: "did steps once more that a restart had lost",
  starting: "from an assignment to the first progress of all ranks",
  waiting: "had no round: waited for hosts",
  hanging: "from the last progress until it was found out",
  interrupted: "between two iterations of in-process restart",
  stopping: "until the last worker of a round had ended",
  unknown: "before this was accounted for",
};

/** What a part is called. */
export function partName(part) {
  return part === "hanging" ? "no progress" : words(part);
}

/** Parts in the order of the bar. */
export function inOrder(parts) {
  return [...parts].sort((one, other) => PARTS.indexOf(one.part) - PARTS.indexOf(other.part));
}

/** Draw the parts of a run's time into `slot` as one bar. */
export function partsBar(slot, parts) {
  const whole = parts.reduce((sum, part) => sum + part.time_s, 0);
  let bar = slot.firstChild;
  if (!bar) {
    bar = h("span", { class: "bar-parts", role: "img" });
    slot.append(bar);
  }
  keyed(bar, whole ? inOrder(parts) : [], (part) => part.part,
    (part) => h("span", { class: "fill", "data-part": part.part }),
    (element, part) => {
      const share = part.time_s / whole;
      element.style.flexGrow = share;
      setAttribute(element, "title", `${partName(part.part)} ${percent(share)}, ${duration(part.time_s)}`);
    });
  setAttribute(bar, "aria-label", whole
    ? inOrder(parts).map((part) => `${partName(part.part)} ${percent(part.time_s / whole)}`).join(", ") : "nothing is known yet");
}
