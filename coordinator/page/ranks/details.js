/** One rank: where it runs, what it does, and its stacks on demand. */

import { fill, h, line, setText, show } from "../base/dom.js";
import { duration, number, size } from "../base/format.js";
import { STATES } from "./columns.js";

const FACTS = [
  ["host", "Host"], ["pid", "Process"], ["state", "State"], ["step", "Step"], ["step-time", "Step time"],
  ["scope", "In"], ["silence", "Silent"], ["memory", "Memory"],
];

export class RankDetails {
  constructor(context) {
    this.context = context;
    this.rank = null;
    this.title = h("h3", { tabindex: "-1" });
    this.facts = new Map(FACTS.map(([name]) => [name, h("dd", { class: "foreign" })]));
    this.button = h("button", { type: "button", "data-ranks": "ask-stacks", onclick: () => this.#ask() }, "Show its stacks");
    this.close = h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => context.select(null) }, "✕");
    this.stacks = h("div", { class: "rank-stacks", "aria-live": "polite" });
    this.element = h("section", { class: "rank-details", "aria-label": "Chosen rank", "data-ranks": "details", hidden: true },
      h("header", {}, this.title, this.close),
      h("dl", { class: "rank-facts" }, FACTS.map(([name, title]) => h("div", { "data-fact": name }, h("dt", {}, title), this.facts.get(name)))),
      h("div", { class: "buttons" }, this.button), this.stacks);
  }

  /** Show a rank, or none. */
  show(rank, ranks = null) {
    this.rank = rank;
    this.worker = this.limit = null;
    this.asking?.abort();
    show(this.element, rank != null);
    if (rank == null) return;
    fill(this.stacks);
    this.button.disabled = false;
    this.refresh(ranks);
    this.#read(ranks.of(rank).at);
  }

  /** Show what the latest columns say. */
  refresh(ranks) {
    if (this.rank == null || this.rank >= ranks.size) return;
    const detail = ranks.of(this.rank);
    const { worker } = this;
    setText(this.title, `Rank ${detail.rank}`);
    this.#fact("host", detail.name === detail.host ? line(detail.name) : `${line(detail.name)} on ${line(detail.host)}`);
    this.#fact("pid", worker?.pid == null ? "–" : String(worker.pid));
    this.#fact("state", STATES[detail.state].title);
    this.#fact("step", detail.step == null ? "–" : `${number(detail.step)}${detail.lag ? `, ${number(detail.lag)} behind` : ""}`);
    this.#fact("step-time", duration(worker?.step_time_s));
    const since = worker?.scope === detail.scope && worker?.scope_age_s != null ? ` for ${duration(worker.scope_age_s)}` : "";
    this.#fact("scope", detail.scope == null ? "–" : line(detail.scope) + since);
    this.#fact("silence", duration(detail.silenceS));
    this.#fact("memory", memory(worker, this.limit));
    this.ranks = ranks;
  }

  destroy() { this.asking?.abort(); }

  #fact(name, text) { setText(this.facts.get(name), text); }

  /** Ask for what the columns do not have: its process, since when it is where it is. */
  async #read(at) {
    this.asking = new AbortController();
    const { rank } = this;
    try {
      const { agents } = await this.context.api("agents", { query: { first: at, page_size: 1 }, signal: this.asking.signal });
      if (this.rank !== rank) return;
      const agent = agents.find(({ workers }) => workers.some((worker) => worker.rank === rank));
      this.worker = agent?.workers.find((worker) => worker.rank === rank) ?? null;
      this.limit = agent?.memory ?? null;
      this.refresh(this.ranks);
    } catch (error) {
      if (error.name !== "AbortError") this.#fact("pid", "–");
    }
  }

  async #ask() {
    const { rank } = this;
    this.button.disabled = true;
    fill(this.stacks, h("p", { class: "muted" }, "Asking its agent…"));
    try {
      const answer = await this.context.api("stacks", { query: { ranks: rank } });
      if (this.rank !== rank) return;
      fill(this.stacks, shownStacks(answer));
    } catch (error) {
      if (this.rank === rank) fill(this.stacks, h("p", { class: "error foreign" }, error.reason ?? error.message));
    } finally {
      if (this.rank === rank) this.button.disabled = false;
    }
  }
}

/** What a rank's process uses, by how much that grows, and how full its cgroup or host is. */
function memory(worker, limit) {
  if (worker?.memory_bytes == null) return "–";
  const grows = worker.memory_growth_bytes ? `, ${size(worker.memory_growth_bytes)} more a minute` : "";
  const whole = limit?.limit_bytes && limit.used_bytes != null
    ? `; ${limit.is_cgroup ? "cgroup" : "host"} at ${size(limit.used_bytes)} of ${size(limit.limit_bytes)}` : "";
  return size(worker.memory_bytes) + grows + whole;
}

/** The stacks of one rank: where it is, then all its calls. */
function shownStacks({ groups, unanswered }) {
  const elements = groups.flatMap((group) => [
    h("p", { class: "foreign" }, "In ", h("b", {}, line(group.place))),
    h("pre", { class: "foreign", "data-ranks": "stacks", tabindex: "0", "aria-label": "Stacks" }, group.stacks.trim()),
  ]);
  elements.push(...unanswered.map((worker) => h("p", { class: "foreign" }, `It gave no stacks: ${line(worker.reason)}`)));
  return elements.length ? elements : h("p", { class: "muted" }, "The round has no such rank any more.");
}
