/** The ranks of a round as arrays: decoded, judged, counted. Knows nothing of the document. */

export const UNKNOWN = 65_535;
export const MOST = 65_534;

/** States in order of how much they matter: a sign for cells, and whether one should look. */
export const STATES = {
  failed: { sign: "F", is: "bad", title: "failed" },
  lost: { sign: "L", is: "bad", title: "lost" },
  away: { sign: "A", is: "bad", title: "away" },
  silent: { sign: "S", is: "bad", title: "silent" },
  unknown: { sign: "?", is: "odd", title: "not heard yet" },
  stopping: { sign: "E", is: "odd", title: "ending" },
  waiting: { sign: "W", is: "odd", title: "waiting" },
  starting: { sign: "B", is: "odd", title: "beginning" },
  running: { sign: "", is: "well", title: "running" },
  succeeded: { sign: "✓", is: "well", title: "succeeded" },
};
const SEVERITY = Object.fromEntries(Object.keys(STATES).map((name, at) => [name, 10 - at]));

// From which value each class begins; the first is that of those who are as all others are.
export const LAGS = [0, 1, 10, 100, 1_000];
export const SILENCES_S = [0, 10, 30, 120, 600];
const NOT_KNOWN = 5; // the class of what is not known

/** The bytes of a column. */
function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const decoded = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) decoded[at] = raw.charCodeAt(at);
  return decoded;
}

/** A round's ranks, from the whole document, or from what changed since one of the same round. */
export class Ranks {
  constructor(document, before = null) {
    this.roundId = document.round_id;
    this.standbys = document.standbys_count;
    if (document.names) {
      this.states = document.states;
      this.names = document.names;
      this.hosts = document.hosts;
      this.counts = new Uint16Array(bytes(document.counts).buffer);
      this.first = new Uint32Array(this.counts.length + 1);
      this.counts.forEach((count, host) => { this.first[host + 1] = this.first[host] + count; });
      this.countMost = this.counts.reduce((most, count) => Math.max(most, count), 0);
    } else {
      for (const name of ["states", "names", "hosts", "counts", "first", "countMost"]) this[name] = before[name];
    }
    this.furthest = document.furthest_step;
    this.hostState = bytes(document.host_state);
    this.hostSilence = new Uint16Array(bytes(document.host_silence).buffer);
    this.behind = new Map(document.behind); // rank to steps
    this.toldLag = new Uint16Array(bytes(document.lag).buffer);
    this.silence = new Uint16Array(bytes(document.silence).buffer);
    this.scopeIndex = bytes(document.scope_index);
    this.scopes = document.scopes;
    this.lag = this.#lags();
    this.classes = { state: this.#ofStates(), lag: this.#ofLags(), silence: this.#ofSilences() };
  }

  get size() { return this.first[this.names.length]; }

  /** The place of a rank's host among all. */
  hostOf(rank) {
    let low = 0;
    let high = this.names.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.first[middle] <= rank) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** What is known of a rank; what is not is null. */
  of(rank) {
    const host = this.hostOf(rank);
    const lag = this.toldLag[rank];
    return {
      rank, at: host, localRank: rank - this.first[host],
      name: this.names[host], host: this.hosts[host] ?? this.names[host],
      state: this.stateOf(host),
      step: lag > MOST - 1 || this.furthest == null ? null : this.furthest - lag,
      lag: this.lag[rank] === UNKNOWN ? null : this.lag[rank],
      silenceS: this.silence[rank] === UNKNOWN ? null : this.silence[rank] / 10,
      scope: this.scopes[this.scopeIndex[rank]] || null,
    };
  }

  stateOf(host) { return this.states[this.hostState[host]]; }

  /** How many ranks are in each class of a mode; the last of lag and silence: not known. */
  counted(mode) {
    const counts = new Uint32Array(mode === "state" ? this.states.length : NOT_KNOWN + 1);
    for (const index of this.classes[mode]) counts[index] += 1;
    return counts;
  }

  /**
   * Where one should look first: {rank, count} each, all ranks of a host together if it is the
   * host that stands out; and how many ranks do so at all.
   */
  worst(most, slow = new Set()) {
    const { lag, silence } = this.classes;
    const rows = []; // the worst first
    let ranksCount = 0;
    let rowsCount = 0;
    const take = (key, rank, count) => {
      ranksCount += count;
      rowsCount += 1;
      if (rows.length === most && key <= rows.at(-1).key) return;
      const place = rows.findIndex((other) => other.key < key);
      rows.splice(place < 0 ? rows.length : place, 0, { key, rank, count });
      if (rows.length > most) rows.pop();
    };
    for (let host = 0; host < this.names.length; host += 1) {
      const severity = SEVERITY[this.stateOf(host)] ?? 0;
      if (severity !== SEVERITY.running) {
        if (severity > SEVERITY.running) take(severity * 1_000, this.first[host], this.counts[host]);
        continue;
      }
      for (let rank = this.first[host]; rank < this.first[host + 1]; rank += 1) {
        const behind = this.behind.has(rank) ? Math.max(1, lag[rank] % NOT_KNOWN) : 0;
        const quiet = silence[rank] % NOT_KNOWN;
        const isSlow = slow.has(rank);
        if (behind || quiet >= 2 || isSlow) take(severity * 1_000 + behind * 100 + quiet * 10 + isSlow, rank, 1);
      }
    }
    return { rows, rowsCount, ranksCount };
  }

  /** By how many steps each is behind, as the coordinator judged it: 0 unless it is. */
  #lags() {
    const lags = this.toldLag.map((lag) => (lag === UNKNOWN ? UNKNOWN : 0));
    for (const [rank, steps] of this.behind) lags[rank] = Math.min(MOST, steps);
    return lags;
  }

  #ofStates() {
    const states = new Uint8Array(this.toldLag.length);
    this.hostState.forEach((state, host) => states.fill(state, this.first[host], this.first[host + 1]));
    return states;
  }

  #ofLags() { return this.lag.length ? classed(this.lag, LAGS) : new Uint8Array(0); }

  #ofSilences() { return classed(this.silence, SILENCES_S.map((seconds) => 10 * seconds)); }
}

function classed(values, from) {
  const classes = new Uint8Array(values.length);
  for (let at = 0; at < values.length; at += 1) {
    const value = values[at];
    let index = from.length - 1;
    while (value < from[index]) index -= 1;
    classes[at] = value === UNKNOWN ? NOT_KNOWN : index;
  }
  return classes;
}
