/** Which runs of a list are shown, and in which order. */

import { COLUMNS, endedAgo, urgency } from "./columns.js";

export const keyOf = (run) => `${run.run_id}:${run.generation}`;
const wordsOf = (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

/** The latest run of each id with those before it as `earlier`; a job in place of its groups. */
export function latestOf(runs, jobs) {
  const byId = new Map();
  const groups = new Map();
  for (const run of runs) {
    run.earlier = null;
    const [of, id] = run.job ? [groups, run.job] : [byId, run.run_id];
    if (of.has(id)) of.get(id).push(run);
    else of.set(id, [run]);
  }
  const latest = [...byId.values()].map((all) => {
    all.sort((one, other) => other.generation - one.generation);
    all[0].earlier = all.slice(1);
    return all[0];
  });
  return [...latest, ...jobs.map((job) => ({ labels: groups.get(job.run_id)?.[0].labels, ...job, generation: 1, earlier: [] }))];
}

/** Runs that have all words of a text, or what they begin with, in name, reason or labels. */
export function matching(runs, text) {
  const wanted = wordsOf(text);
  if (!wanted.length) return runs;
  return runs.filter((run) => {
    run.words ??= wordsOf([run.run_id, run.health_reason, ...Object.entries(run.labels ?? {}).flat()].join(" "));
    return wanted.every((start) => run.words.some((word) => word.startsWith(start)));
  });
}

/**
 * What brings runs in order. By health first, then the name; or by a column. Runs change places only if their
 * health changes, one comes or goes, or another order is chosen: so no row moves under a hand.
 */
export function ordering() {
  let sorted = null;
  let places = new Map();
  return (runs, sort) => {
    const known = [sort, ...runs.map((run) => keyOf(run) + urgency(run) + run.health)].join("\n");
    if (known !== sorted) {
      const inOrder = [...runs].sort(comparing(sort));
      places = new Map(inOrder.map((run, at) => [keyOf(run), at]));
      sorted = known;
    }
    return [...runs].sort((one, other) => places.get(keyOf(one)) - places.get(keyOf(other)));
  };
}

function comparing(sort) {
  const [, , , valueOf] = COLUMNS.find(([name]) => name === sort.replace("-", "")) ?? [];
  const sign = sort.startsWith("-") ? -1 : 1;
  return (one, other) => (valueOf ? sign * compared(valueOf(one), valueOf(other), sign) : urgency(one) - urgency(other))
    || (valueOf ? 0 : endedAgo(one) - endedAgo(other))
    || compared(one.run_id, other.run_id);
}

/** What is not known comes last, whatever the sign. */
function compared(one, other, sign = 1) {
  if (one == null || other == null) return sign * ((one == null) - (other == null));
  return one < other ? -1 : Number(one > other);
}
