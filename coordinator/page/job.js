/** One job with replica groups, live: a line for each group, with its timeline. */

import { openStream } from "./base/live.js";
import { fill, h, headRow, keyed, setAttribute, setText, svg } from "./base/dom.js";
import { percent, words } from "./base/format.js";
import { COLUMNS, row, updateRow } from "./list/columns.js";
import { LANES, bands, patterns } from "./timeline/drawing.js";
import { segmentsOf } from "./timeline/model.js";

const [TOP, HEIGHT] = LANES.parts;
const SHOWN = COLUMNS.filter(([name]) => !["started", "duration", "owner"].includes(name));

/** Show the job in `main` until `destroy()`. */
export function mountJob(main, frame, { runId }) {
  const state = h("span", { class: "state big" });
  const reason = h("p", { class: "reason foreign" });
  const body = h("tbody");
  fill(main, h("section", { "data-view": "job" }, svg("svg", { width: 0, height: 0 }, patterns()),
    h("div", { class: "headline" }, h("div", { class: "title" }, h("h1", { class: "foreign" }, runId), state), reason),
    h("div", { class: "card wide" }, h("div", { class: "scroll", tabindex: 0 },
      h("table", { class: "runs groups" }, headRow([...SHOWN.map(([, title, isNumber]) => [title, isNumber && "number"]), "Timeline"]), body)))));

  const stream = openStream(`/api/runs/${encodeURIComponent(runId)}/live`, { onState: frame.connected });
  stream.on("job", (job) => {
    const now = Date.now();
    setText(state, words(job.health));
    setAttribute(state, "data-state", job.health);
    setText(reason, `${job.health_reason}; at least ${job.groups_min} needed; trained ${percent(job.goodput.effective_ratio)} of the hosts' time`);
    for (const group of job.groups) group.segments = segmentsOf(group.goodput, now);
    const from = Math.min(now, ...job.groups.map(({ segments }) => segments[0]?.start ?? now));
    const to = Math.max(from + 1_000, now - (job.ended_age_s ?? 0) * 1_000);
    keyed(body, job.groups, (group) => group.index, groupRow, (element, group) => {
      updateRow(element, group, { columns: SHOWN });
      const drawing = element.lastChild.firstChild;
      const width = Math.max(120, element.lastChild.clientWidth);
      setAttribute(drawing, "viewBox", `0 ${TOP} ${width} ${HEIGHT}`);
      fill(drawing, bands({ width, x: (at) => ((at - from) / (to - from)) * width }, group.segments));
    });
  });
  return { destroy: () => stream.close() };
}

function groupRow(group) {
  const element = row(group, SHOWN);
  element.append(
    h("td", {}, svg("svg", { class: "timeline", role: "img", height: HEIGHT, "aria-label": `Timeline of ${group.run_id}` })));
  return element;
}
