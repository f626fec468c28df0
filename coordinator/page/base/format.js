/** Durations, shares and names as they are read, the same as on the command line. */

const UNITS = [["d", 86_400], ["h", 3_600], ["m", 60]];

/** A duration in its two largest units: "3d4h", "1m05s", "90ms". */
export function duration(seconds) {
  if (seconds == null || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.0005) return "0s";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)}ms`;
  if (seconds < 9.95) return `${trimmed(seconds.toFixed(1))}s`;
  const whole = Math.round(seconds);
  const at = UNITS.findIndex(([, size]) => whole >= size);
  if (at < 0) return `${whole}s`;
  const [unit, size] = UNITS[at];
  const [nextUnit, nextSize] = UNITS[at + 1] ?? ["s", 1];
  const count = Math.floor(whole / size);
  const rest = Math.floor((whole % size) / nextSize);
  return rest ? `${count}${unit}${String(rest).padStart(2, "0")}${nextUnit}` : `${count}${unit}`;
}

function trimmed(number) {
  return number.replace(/\.0$/, "");
}

/** How long ago, in one unit, so that it changes seldom: "12s ago", "3m ago". */
export function ago(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1) return "now";
  const [unit, size] = UNITS.find(([, limit]) => seconds >= limit) ?? ["s", 1];
  return `${Math.floor(seconds / size)}${unit} ago`;
}

/** A share as "83.1%"; "–" if it is not known. */
export function percent(share) {
  return share == null ? "–" : `${(100 * share).toFixed(1)}%`;
}

/** A number with thin spaces between thousands: "80 000". */
export function number(value) {
  return value == null ? "–" : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A size of memory: "1.5 GiB", "300.0 MiB". */
export function size(bytes) {
  if (bytes == null) return "–";
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** "1 agent", "2 agents". */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

const kept = (act) => { try { return act(localStorage); } catch { return null; } }; // storage may be forbidden
let isUtc = kept((storage) => storage.getItem("drumbeat-zone")) === "UTC";
/** How far the clock of readers is ahead of UTC at an instant. */
export const aheadMinutes = (instantMs) => (isUtc ? 0 : -new Date(instantMs).getTimezoneOffset());

/** Show local time in place of UTC, or the other way round, from now on; views hear "zonechange". */
export function switchZone() {
  isUtc = !isUtc;
  kept((storage) => storage.setItem("drumbeat-zone", isUtc ? "UTC" : "local"));
  window.dispatchEvent(new Event("zonechange"));
}

/** The zone of all times that are shown: "UTC", "UTC+05:30". */
export function zoneName() {
  const ahead = aheadMinutes(Date.now());
  return isUtc ? "UTC" : `UTC${ahead < 0 ? "−" : "+"}${new Date(60_000 * Math.abs(ahead)).toISOString().slice(11, 16)}`;
}

/** An instant in the chosen zone: "14:03:22", with the day if it was not today. */
export function clock(instantMs, { withDay = false } = {}) {
  const [instant, now] = [instantMs, Date.now()].map((at) => new Date(at + 60_000 * aheadMinutes(at)).toISOString());
  const time = instant.slice(11, 19);
  return !withDay && instant.slice(0, 10) === now.slice(0, 10) ? time : `${instant.slice(5, 10)} ${time}`;
}

/** Whole numbers in short: "0-3,7". */
export function ranges(numbers) {
  const spans = [];
  for (const value of [...numbers].sort((one, other) => one - other)) {
    const last = spans.at(-1);
    if (last && value === last[1] + 1) last[1] = value;
    else spans.push([value, value]);
  }
  return spans.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(",");
}

/** The numbers of "0-3,7" in order; throws an Error that says what is wrong. */
export function parseRanges(text, most = 1_000) {
  const ranks = new Set();
  for (const part of text.split(",").map((part) => part.trim()).filter(Boolean)) {
    const match = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part);
    if (!match) throw new Error(`“${part}” is no rank: write 17 or 0-3,7`);
    const [low, high] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (high < low) throw new Error(`“${part}”: the first rank is above the last`);
    if (ranks.size + high - low >= most) throw new Error(`at most ${number(most)} ranks at once`);
    for (let rank = low; rank <= high; rank += 1) ranks.add(rank);
  }
  return [...ranks].sort((one, other) => one - other);
}

/** A word of the protocol as it is read: "worker_failed" is "worker failed". */
export function words(name) {
  return name == null ? "–" : String(name).replaceAll("_", " ");
}

/** A run by its id, and its generation if that is not the first. */
export function runName(run) {
  return run.generation > 1 ? `${run.run_id} (generation ${run.generation})` : run.run_id;
}

const FAILED = new Set(["worker_failed", "start_impossible", "agents_missing", "port_missing", "internal", "groups_missing"]);

/** The phase of a run as one looks at it: how it ended, once it has. */
export function phaseOf(run) {
  if (run.phase !== "ended") return run.phase;
  return FAILED.has(run.cause) ? "failed" : run.cause ?? "ended";
}
