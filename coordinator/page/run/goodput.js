/** What the time of a run went into: ETTR, parts, causes and hosts. */

import { fill, h, headRow, keyed, line, setText, show } from "../base/dom.js";
import { count, duration, percent, words } from "../base/format.js";
import { ABOUT_PARTS, inOrder, partName, partsBar } from "../base/parts.js";
import { csv, exportButtons } from "./export.js";

const HOSTS_SHOWN = 10;
const COLUMNS = ["kind", "name", "time_s", "host_s", "restarts", "age_s", "round_id", "iteration", "cause", "host"];

export function mount(root, context) {
  fill(context.tools, exportButtons("goodput", `${context.runId}-goodput.csv`, async () => {
    const { parts, causes, hosts, segments } = await context.api("goodput", { query: { segments: 1 } });
    const rows = (kind, entries, name) => entries.map((entry) => ({ ...entry, kind, name: entry[name] }));
    return csv(COLUMNS, [
      ...rows("part", parts, "part"), ...rows("cause", causes, "cause").map((row) => ({ ...row, cause: null })),
      ...rows("host", hosts, "name"), ...rows("segment", segments, "part"),
    ]);
  }));
  const ratio = h("span", { class: "ettr", "data-ettr": true }, "–");
  const sentence = h("p", { class: "muted", "data-goodput-sentence": true }, "Nothing is known yet.");
  const slot = h("div", { class: "bar-large" });
  const parts = table(["Part", "Time", "Share", "Host time"], "parts");
  const causes = table(["Lost for", "Time", "Share", "Host time", "Restarts"], "causes");
  const hosts = table(["Lost by host", "Time", "Share", "Host time"], "hosts");
  fill(root,
    h("div", { class: "ettr-line" }, ratio, h("span", { class: "muted" },
      "of its time trained what had not been trained before ",
      h("abbr", { title: "effective training time ratio" }, "(ETTR)"))),
    sentence, slot, h("div", { class: "tables" }, parts.scroll, causes.scroll, hosts.scroll));

  function update(kind, account) {
    if (kind !== "goodput") return;
    const whole = account.whole_s;
    const share = (row) => percent(whole ? row.time_s / whole : null);
    setText(ratio, percent(account.effective_ratio));
    const mean = account.mean_time_between_failures_s;
    setText(sentence, `${duration(whole)} ${account.is_running ? "so far" : "in all"}; ${count(account.failures_count, "failure")}`
      + (mean == null ? "" : `, one in ${duration(mean)} on average`));
    partsBar(slot, account.parts);
    const shown = inOrder(account.parts);
    const times = (entry) => [duration(entry.time_s), share(entry), duration(entry.host_s)];
    rows(parts, shown, (entry) => entry.part, (entry) => [partName(entry.part), ...times(entry)]);
    rows(causes, account.causes, (entry) => entry.cause, (entry) => [words(entry.cause), ...times(entry), String(entry.restarts)]);
    rows(hosts, account.hosts.slice(0, HOSTS_SHOWN), (entry) => entry.name ?? "",
      (entry) => [line(entry.name ?? "others", 100), ...times(entry)]);
  }

  return { update, destroy() {} };
}

function table(heads, name) {
  const body = h("tbody");
  const element = h("table", { [`data-goodput-${name}`]: true },
    headRow(heads.map((head, at) => [head, at && "number"])), body);
  return { scroll: h("div", { class: "scroll", hidden: true }, element), body, isOfParts: name === "parts" };
}

function rows(into, items, keyOf, cellsOf) {
  show(into.scroll, items.length);
  keyed(into.body, items, keyOf, (item) => h("tr", { "data-row": keyOf(item) },
    h("th", { scope: "row", class: "foreign", title: into.isOfParts ? ABOUT_PARTS[item.part] : null },
      into.isOfParts && h("span", { class: "swatch fill", "data-part": item.part }), h("span")),
    cellsOf(item).slice(1).map(() => h("td", { class: "number" }))),
  (element, item) => cellsOf(item).forEach((text, at) => setText(at ? element.children[at] : element.firstChild.lastChild, text)));
}
