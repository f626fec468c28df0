/** The ranks of a run for all sections that show them: read once, then as they change. */

import { Ranks } from "./columns.js";

const RETRY_MS = 2_000;

/** The one of a run. `context.shared` is the same for all of its sections. */
export function rankSource(context) {
  context.shared.ranks ??= new RankSource(context);
  return context.shared.ranks;
}

class RankSource {
  constructor(context) {
    this.context = context;
    this.listeners = new Set();
    this.ranks = null;
    this.problem = null;
    this.#load();
  }

  /** Have `listener(ranks, problem)` called now and whenever they change; the answer ends it. */
  on(listener) {
    this.listeners.add(listener);
    if (this.ranks || this.problem) listener(this.ranks, this.problem);
    return () => {
      this.listeners.delete(listener);
      if (!this.listeners.size) clearTimeout(this.timer);
    };
  }

  /** Take what the live stream tells in; the hosts of another round are read first. */
  take(columns) {
    if (columns === this.latest) return; // another section was told as well
    this.latest = columns;
    const { ranks } = this;
    const isSame = ranks && ranks.roundId === columns.round_id && (ranks.names.length === 0) === !columns.host_state;
    if (isSame) this.#tell(new Ranks(columns, ranks));
    else this.#load();
  }

  async #load() {
    if (this.isLoading) return;
    this.isLoading = true;
    clearTimeout(this.timer);
    const before = this.latest;
    try {
      const whole = await this.context.api("ranks");
      this.isLoading = false;
      this.problem = null;
      this.#tell(new Ranks(whole));
      const { latest } = this;
      if (latest && latest !== before && latest.round_id > whole.round_id) this.#load();
    } catch (error) {
      this.isLoading = false;
      this.problem = error;
      if (!this.ranks) this.#tell(null);
      if (error.status !== 404 && this.listeners.size) this.timer = setTimeout(() => this.#load(), RETRY_MS);
    }
  }

  #tell(ranks) {
    this.ranks = ranks;
    for (const listener of this.listeners) {
      try {
        listener(ranks, this.problem);
      } catch (error) {
        reportError(error); // the other sections go on
      }
    }
  }
}
