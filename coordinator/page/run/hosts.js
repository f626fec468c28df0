/** The hosts of a run: those where failures began, what all do and have, and those that wait or were drained. */

import { coalesced, fill, h, headRow, keyed, line, setAttribute, setText, show, unseen } from "../base/dom.js";
import { ago, count, duration, number } from "../base/format.js";
import { STATES } from "../ranks/columns.js";
import { rankSource } from "../ranks/source.js";

const ROWS = 20;
const OTHERS_MAX = 500; // standbys and drained ones that are listed
const WHO_COMES = /agent|round|drain|run_/;
const ORDER = ["failed", "lost", "away", "silent", "unknown", "drained", "standby", "stopping", "waiting", "starting", "running", "succeeded", "gone"];
const TITLES = { standby: "standing by", drained: "drained", gone: "ended with the run" };
const titleOf = (state) => TITLES[state] ?? STATES[state].title;

export function mount(root, context) {
  let ranks = null;
  let outside = []; // agents without a rank, and drains without an agent
  const failed = new Map(); // what failed there, by the names of agents
  let groups = [];
  let lastHosts = []; // of the last round, once the run has ended
  let rootCauses = []; // of the end
  let isOver = false;
  let rows = []; // those shown by state and filter: a place in the round, or one of `others`
  let state = null; // chosen
  let first = 0;
  const known = new Map(); // what agents say of themselves, by place in the round
  let knownOf = null; // the names of that round
  let isGone = false;
  let reading = null;

  const filter = h("input", { type: "search", placeholder: "Find a host", "aria-label": "Find a host by its name", "data-hosts": "filter", oninput: () => { first = 0; choose(); } });
  const chips = h("span", { class: "chips", role: "group", "aria-label": "Hosts in state" });
  const body = h("tbody", { role: "rowgroup" });
  const columns = ["Host", "State", "Devices", "Ranks", "Heard", "Labels", ...(context.canAct ? [unseen("Action")] : [])];
  const table = h("table", { class: "hosts", role: "table", "data-hosts": "table" }, h("caption", { class: "unseen" }, "Hosts of the run"),
    headRow(columns), body);
  const where = h("span", { class: "muted", role: "status" });
  const previous = h("button", { type: "button", onclick: () => turn(-ROWS) }, "Previous");
  const next = h("button", { type: "button", onclick: () => turn(ROWS) }, "Next");
  const pager = h("div", { class: "buttons", hidden: true }, previous, next, where);
  const note = h("p", { class: "empty", "data-hosts": "note" }, "Loading…");
  const scroll = h("div", { class: "scroll", hidden: true }, table);
  fill(context.tools, filter);
  root.append(chips, note, scroll, pager);

  const stateOf = (row) => (typeof row === "number" ? ranks.stateOf(row) : isOver && row.state === "standby" ? "gone" : row.state);
  const nameOf = (row) => (typeof row === "number" ? ranks.names[row] : row.name);
  const hostOf = (row) => (typeof row === "number" ? ranks.hosts[row] ?? ranks.names[row] : row.host ?? row.name);

  /** Choose the rows to show from all there are. */
  function choose() {
    const counted = {};
    const wanted = filter.value.trim().toLowerCase();
    const matching = [];
    const take = (row) => {
      const is = stateOf(row);
      counted[is] = (counted[is] ?? 0) + 1;
      if (state && is !== state) return;
      if (wanted && !nameOf(row).toLowerCase().includes(wanted) && !hostOf(row).toLowerCase().includes(wanted)) return;
      matching.push(row);
    };
    for (let host = 0; host < (ranks?.names.length ?? 0); host += 1) take(host);
    outside.forEach(take);
    for (const name of new Set([...failed.keys(), ...lastHosts])) {
      if (ranks?.names.includes(name) || outside.some((row) => row.name === name)) continue;
      take({ name, state: failed.has(name) ? "failed" : "gone", isGone: true });
    }
    // Those that one should look at first; all others in order of their ranks.
    const place = Object.fromEntries(ORDER.map((name, at) => [name, at]));
    rows = matching.map((row) => [failed.has(nameOf(row)) ? -1 : place[stateOf(row)] ?? 0, row]).sort(([one], [other]) => one - other).map(([, row]) => row);
    if (state && !counted[state]) counted[state] = 0;
    const total = Object.values(counted).reduce((sum, size) => sum + size, 0);
    keyed(chips, [[null, total], ...ORDER.filter((name) => name in counted).map((name) => [name, counted[name]])], ([name]) => name ?? "all",
      ([name]) => h("button", { type: "button", "data-hosts-state": name ?? "all", onclick: () => { state = name; first = 0; choose(); } }),
      (chip, [name, size]) => {
        setText(chip, `${name ? titleOf(name) : "All"} ${number(size)}`);
        setAttribute(chip, "aria-pressed", String(state === name));
      });
    first = Math.max(0, Math.min(first, Math.floor(Math.max(0, rows.length - 1) / ROWS) * ROWS));
    show(scroll, rows.length);
    show(note, !rows.length);
    if (!rows.length && ranks) setText(note, total ? "No host is like that." : "No host is there.");
    show(pager, rows.length > ROWS);
    previous.disabled = first === 0;
    next.disabled = first + ROWS >= rows.length;
    setText(where, `${number(first + 1)} – ${number(Math.min(rows.length, first + ROWS))} of ${count(rows.length, "host")}`);
    list();
  }
  const chooseSoon = coalesced(choose);

  function blame() {
    failed.clear();
    for (const { cause, count: times, names } of [...groups].reverse()) {
      for (const name of names) failed.set(name, `failed: ${cause}, ${count(times, "time")}`);
    }
    for (const { name, host, rank } of isOver ? rootCauses : []) failed.set(name || host, `root cause: rank ${rank} failed here`);
    chooseSoon();
  }

  function turn(by) {
    first += by;
    choose();
  }

  function list() {
    const shown = rows.slice(first, first + ROWS);
    keyed(body, shown, (row) => (typeof row === "number" ? `${row} ${ranks.names[row]}` : `${row.state} ${row.name}`), made, filled);
    read(shown.filter((row) => typeof row === "number" && !known.has(row)));
  }

  function made(row) {
    const link = h("button", { type: "button", class: "link", onclick: () => goTo(element.row) });
    const cell = (properties, ...content) => h("td", { role: "cell", ...properties }, ...content); // also where rows are no table
    const action = context.canAct && cell({}, h("button", { type: "button", class: "quiet", onclick: () => act(element.row) }));
    const element = h("tr", { role: "row", "data-host": nameOf(row) }, h("th", { role: "rowheader", scope: "row", class: "foreign" }, h("span"), h("small")),
      cell({}, h("span", { class: "state" })), cell({ class: "foreign" }), cell({}, link, h("span")), cell({}), cell({ class: "foreign labels" }), action);
    return element;
  }

  function filled(element, row) {
    element.row = row;
    const [name, is, devices, ofRanks, heard, labels, action] = element.children;
    const [shown, about] = name.children;
    const agent = typeof row === "number" ? known.get(row) : row;
    const other = hostOf(row) === nameOf(row) ? "" : `on ${line(hostOf(row), 80)}`;
    setText(shown, line(nameOf(row), 80));
    const failure = failed.get(nameOf(row));
    setAttribute(element, "data-failed", failure != null);
    setText(about, [failure && line(failure), other, agent?.waiting_reason && line(agent.waiting_reason)].filter(Boolean).join("; "));
    setText(is.firstChild, titleOf(stateOf(row)));
    setAttribute(is.firstChild, "data-state", stateOf(row));
    setText(devices, agent?.devices ? line(agent.devices, 80) : "–");
    setText(labels, Object.entries(agent?.labels ?? {}).map(([key, value]) => `${line(key, 63)}=${line(value, 63)}`).join("  "));
    const [link, none] = ofRanks.children;
    const isSeated = typeof row === "number";
    show(link, isSeated);
    show(none, !isSeated);
    setText(none, "–");
    if (isSeated) {
      const [low, high] = [ranks.first[row], ranks.first[row + 1] - 1];
      setText(link, low === high ? `${low}` : `${low}–${high}`);
      setText(heard, ranks.hostSilence[row] > 65_534 ? "–" : ago(ranks.hostSilence[row] / 10));
    } else {
      setText(heard, row.silence_s == null ? (row.age_s == null ? "–" : `drained for ${duration(row.age_s)}`) : ago(row.silence_s));
    }
    if (!action) return;
    show(action.firstChild, !isOver && !row.isGone);
    const isDrained = stateOf(row) === "drained";
    setText(action.firstChild, isDrained ? "Undrain…" : "Drain…");
    setAttribute(action.firstChild, "aria-label", `${isDrained ? "Undrain" : "Drain"} ${line(nameOf(row), 80)}`);
  }

  function goTo(row) {
    if (!context.reveal("grid", ranks.first[row])) context.select(ranks.first[row]);
  }

  function act(row) {
    context.act(stateOf(row) === "drained" ? "undrain" : "drain", row.drain ?? nameOf(row));
  }

  /** Read what agents say of themselves, those that stand beside each other at once. */
  async function read(wanted) {
    const names = knownOf;
    const sorted = [...wanted].sort((one, other) => one - other);
    while (sorted.length && !isGone && names === knownOf) {
      const begin = sorted.shift();
      let end = begin + 1;
      while (sorted.length && sorted[0] < begin + ROWS) end = sorted.shift() + 1;
      for (let at = begin; at < end; at += 1) if (!known.has(at)) known.set(at, null); // asked for
      try {
        const { agents } = await context.api("agents", { query: { first: begin, page_size: end - begin } });
        if (isGone || names !== knownOf) return;
        for (const agent of agents) if (agent.group_rank != null) known.set(agent.group_rank, agent);
        chooseSoon();
      } catch {
        known.delete(begin);
        return; // the next look asks again
      }
    }
  }

  /** Read who has no rank: agents that stand by or wait outside, and drains that hold. */
  async function readOthers() {
    if (reading) {
      reading.again = true;
      return;
    }
    const mine = { again: false };
    reading = mine;
    try {
      const agents = [];
      let token = null;
      do {
        const page = await context.api("agents", { query: token ? { page_token: token } : { first: "standby" } });
        agents.push(...page.agents.filter((agent) => agent.group_rank == null));
        token = page.next_page_token;
      } while (token && agents.length < OTHERS_MAX);
      const { drains } = await context.api("drains");
      if (isGone) return;
      const held = agents.map((agent) => ({ ...agent, state: agent.is_drained ? "drained" : "standby" }));
      for (const drain of drains) {
        const of = held.filter((agent) => agent.is_drained && [agent.name, agent.host].includes(drain.name));
        for (const agent of of) agent.drain = drain.name;
        if (of.length) continue;
        held.push({ name: drain.name, state: "drained", age_s: drain.age_s, waiting_reason: `${drain.run_id ? "" : "in all runs, "}by ${drain.caller || "an operator"}: ${drain.reason || "no reason is given"}` });
      }
      outside = held;
      choose();
    } catch {
      // What was there stays; the next event asks again.
    } finally {
      reading = null;
      if (mine.again && !isGone) readOthers();
    }
  }

  const source = rankSource(context);
  const leave = source.on((latest) => {
    if (!latest) return;
    ranks = latest;
    if (knownOf !== ranks.names) {
      knownOf = ranks.names;
      known.clear();
      readOthers();
    }
    chooseSoon();
  });
  readOthers();

  return {
    update(kind, data) {
      if (kind === "ranks") source.take(data);
      if (kind === "run") {
        isOver = data.phase === "ended";
        groups = data.failure_groups;
        lastHosts = data.last_hosts;
        blame();
      }
      if (kind === "report") {
        rootCauses = data.root_causes;
        blame();
      }
      if (kind === "events" && data.added.some((event) => WHO_COMES.test(event.kind))) readOthers();
    },
    destroy() {
      isGone = true;
      chooseSoon.cancel();
      leave();
    },
  };
}
