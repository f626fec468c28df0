/** What concerns several runs: drains, and hosts that fail in more than one. */

import { h, fill, headRow, show } from "../base/dom.js";
import { duration } from "../base/format.js";

const hostLink = (name) => h("a", { href: `/hosts/${encodeURIComponent(name)}`, "data-link": true }, name);

/** Show them in `root`, which is hidden if there is nothing. */
export function showOutside(root, { drains, hosts }) {
  show(root, drains.length || hosts.length);
  const texts = (drain) => [drain.name, drain.run_id ?? "all runs", drain.caller ?? "–", drain.reason ?? "–",
    drain.time_left_s == null ? "until undrained" : `${duration(drain.time_left_s)} left`];
  fill(root,
    drains.length && [h("h2", {}, "Drained hosts"), h("div", { class: "scroll", tabindex: 0 }, h("table", {}, headRow(["Host", "Runs", "By", "Why", "Until"]),
      h("tbody", {}, drains.map((drain) => h("tr", { "data-drain": drain.name },
        texts(drain).map((text, at) => h("td", { class: "foreign" }, at ? text : hostLink(text))))))))],
    hosts.length && [h("h2", {}, "Hosts that failed in several runs"), h("ul", {}, hosts.map(({ name, runs }) => h("li", { class: "foreign", "data-host": name },
      hostLink(name), `: ${runs.join(", ")}`)))]);
}
