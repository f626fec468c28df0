/** How a run is, what is wrong with it and what has failed; then who is behind, and its figures. */

import { fill, h, setAttribute, setText, show } from "../base/dom.js";
import { ago, count, duration, number, percent, ranges, runName, words } from "../base/format.js";
import { exportButtons } from "./export.js";

const NAMES_SHOWN = 5;
const GROUPS_SHOWN = 3; // the others are folded

const FACTS = [
  ["round", "Round", (run) => number(run.round_id)],
  ["iteration", "Iteration", (run) => number(run.iteration)],
  ["world-size", "World size", (run) => number(run.world_size)],
  ["agents", "Hosts", (run) => number(run.agents_count)],
  ["step", "Step", ({ step, progress }) => stepText(progress?.step ?? step, progress?.steps_total)],
  ["pace", "Pace", ({ progress }) => paceText(progress?.steps_per_second)],
  ["time-left", "Time left", ({ progress }) => duration(progress?.time_left_s)],
  ["farthest", "Farthest step", ({ step, progress }) => ((progress?.step ?? step) < progress?.step_farthest ? number(progress.step_farthest) : null)],
  ["checkpoint", "Last checkpoint", ({ progress }) => (progress?.checkpoint_step == null ? null
    : `step ${number(progress.checkpoint_step)}, ${ago(progress.checkpoint_age_s)}`)],
  ["restarts", "Restarts", (run) => (run.launcher ? `counted by ${run.launcher}` : `${run.restarts_used} of ${run.restarts_max}`)],
  ["in-process", "In process", (run) => (run.restarts_in_process ? number(run.restarts_in_process) : null)],
  ["failures", "Failures", (run) => number(run.failed_count)],
  ["lost", "Hosts lost", (run) => (run.lost_count ? number(run.lost_count) : null)],
  ["repeated", "Steps repeated", (run) => (run.steps_repeated ? number(run.steps_repeated) : null)],
  ["owner", "Owner", (run) => run.labels?.owner || null],
  ["age", "Age", (run) => (run.phase === "ended" ? null : duration(run.age_s))],
  ["ended", "Ended", (run) => ago(run.ended_age_s)],
];

function stepText(step, total) {
  return number(step) + (step != null && total ? ` of ${number(total)} (${percent(step / total)})` : "");
}

/** Steps in a second, or seconds of a step: whichever is not below 1. */
function paceText(rate) {
  if (!rate) return null;
  return rate < 1 ? `${duration(1 / rate)} a step` : `${number(Number(rate.toPrecision(2)))} steps/s`;
}

/** Some of several names, and how many more. */
function listed(names, all) {
  const shown = names.slice(0, NAMES_SHOWN);
  return shown.join(", ") + (all > shown.length ? ` and ${number(all - shown.length)} more` : "");
}

/** Failures of one cause in a sentence: what failed, how often, where, and what that says. */
function groupText(group) {
  const ranks = group.ranks_count > group.ranks.length ? listed(group.ranks, group.ranks_count) : ranges(group.ranks);
  const where = [
    group.ranks_count && `rank${group.ranks_count === 1 ? "" : "s"} ${ranks}`,
    group.names_count && `on ${listed(group.names, group.names_count)}`,
  ];
  return `${group.cause}, ${count(group.count, "time")}: ${group.advice || where.filter(Boolean).join(" ")}`;
}

export function mount(root, context) {
  const name = h("h1", { class: "foreign" }, context.runId);
  const health = h("span", { class: "state big", "data-health": true });
  const phase = h("span", { class: "muted", "data-phase": true });
  const reason = h("p", { class: "reason foreign", "data-reason": true, tabindex: 0 }); // a long one scrolls
  const failure = h("p", { class: "muted foreign", "data-last-failure": true, hidden: true });
  const groups = h("ul", { class: "failure-groups" });
  const more = h("ul", { class: "failure-groups" });
  const folded = h("details", {}, h("summary"), more);
  const behind = h("p", { class: "behind foreign", "data-behind": true, hidden: true });
  const links = h("p", { "data-links": true, hidden: true });
  const facts = h("dl", { class: "facts" }, FACTS.map(([key, title]) => h("div", { "data-fact": key, hidden: true },
    h("dt", {}, title), h("dd", { class: "foreign" }))));
  fill(root, h("div", { class: "title" }, name, health, phase), reason, failure, groups, folded, behind, links, facts);
  const whole = async () => JSON.stringify(await context.api(""), null, 2);
  root.append(h("div", { class: "buttons hand-on" }, exportButtons("the run", `${context.runId}.json`, whole)));
  let latest = null;

  function paintAges() {
    if (!latest) return;
    const { run, at } = latest;
    const since = (Date.now() - at) / 1_000;
    const later = (age) => (age == null ? null : age + since);
    const progress = run.progress && { ...run.progress, checkpoint_age_s: later(run.progress.checkpoint_age_s) };
    FACTS.forEach(([, , value], place) => {
      const shown = value({ ...run, progress, age_s: later(run.age_s), ended_age_s: later(run.ended_age_s) }) ?? "–";
      show(facts.children[place], shown !== "–");
      setText(facts.children[place].lastChild, shown);
    });
    const last = run.last_failure;
    const why = last && last.reason !== run.health_reason ? `: ${last.reason}` : "";
    setText(failure, last ? `last failure ${ago(later(last.age_s))}${why}` : "");
    show(failure, last);
  }

  function paintGroups(all) {
    const row = (group) => h("li", { class: "foreign", "data-failure-group": group.cause }, groupText(group));
    const text = all.map(groupText).join("\n");
    if (groups.shown === text) return;
    groups.shown = text;
    fill(groups, all.slice(0, GROUPS_SHOWN).map(row));
    fill(more, all.slice(GROUPS_SHOWN).map(row));
    show(folded, all.length > GROUPS_SHOWN);
    setText(folded.firstChild, `${count(all.length - GROUPS_SHOWN, "other cause")} of failures`);
  }

  // Of a run that has ended nothing more is told, and its age grows.
  const timer = setInterval(paintAges, 5_000);

  return {
    update(kind, run) {
      if (kind !== "run") return;
      setText(name, runName(run));
      setText(health, words(run.health));
      setAttribute(health, "data-state", run.health);
      const end = run.cause == null || run.cause === run.health ? "" : `: ${words(run.cause)}`;
      setText(phase, words(run.phase) + end);
      setText(reason, run.health_reason);
      if (latest && latest.run.health !== run.health) context.announce(`the run is ${words(run.health)}: ${run.health_reason}`);
      paintGroups(run.failure_groups ?? []);
      setText(behind, run.behind ? `Behind: ${run.behind}` : "");
      show(behind, run.behind);
      if (links.childElementCount !== run.links.length) fill(links, run.links.flatMap((to) => [h("a", { href: to.url, rel: "noreferrer" }, to.name), " "]));
      show(links, run.links.length);
      latest = { run, at: Date.now() };
      paintAges();
    },
    destroy() { clearInterval(timer); },
  };
}
