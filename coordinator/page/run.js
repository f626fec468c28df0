/** One run: its sections, each of which is told what the live stream tells. */

import { api } from "./base/api.js";
import { openStream } from "./base/live.js";
import { fill, h, show } from "./base/dom.js";
import { openPlace, restoreScroll } from "./base/location.js";
import { rankSource } from "./ranks/source.js";

const isLive = (run) => run.phase !== "ended" && run.round_id != null;

// What each section is called, where its module is, whether it has the whole width, and of which runs
// it is shown. One that is missing shows nothing.
const SECTIONS = [
  { name: "join", title: "Join", isWide: true, when: (run) => run.phase === "gathering" },
  { name: "timeline", title: "Timeline", isWide: true, key: "t" },
  { name: "report", title: "Failure", isWide: true, key: "f", when: (run) => run.phase === "ended" },
  { name: "grid", title: "Ranks", isWide: true, key: "r", when: isLive },
  { name: "step-times", title: "Step times", isWide: true, when: isLive },
  { name: "hosts", title: "Hosts", isWide: true },
  { name: "goodput", title: "Goodput" },
  { name: "events", title: "Events", key: "e" },
  { name: "stacks", title: "Stacks", isWide: true, when: isLive },
  { name: "logs", title: "Logs", isWide: true, key: "l", when: (run) => run.round_id != null },
];
const moduleOf = (name) => import(`./run/${name.replace("-", "_")}.js`);
// Loaded while it is found out who looks at the page; the others once a run needs them.
for (const { name, when } of [{ name: "headline" }, { name: "actions" }, ...SECTIONS]) {
  if (!when) moduleOf(name).catch(() => {}); // `load` says so
}
const EVENTS_MAX = 5_000;
const STILL_MS = 150; // after its last change a view is there
const SETTLED_MS = 3_000;
const KINDS = ["run", "events", "goodput", "ranks"];
// What is chosen, as the location has it: a section, a rank, an event, and the times of the timeline.
const CHOICES = { section: "", rank: null, event: 0, from: 0, to: 0 };

/** Show a run in `main` until `destroy()`. */
export function mountRun(main, frame, { runId, generation }) {
  const base = `/api/runs/${encodeURIComponent(runId)}`;
  const latest = new Map(); // of each kind, for sections that come later
  let isGone = false;
  let isRevealing = false;

  const context = {
    runId,
    generation,
    canAct: frame.me?.role === "admin" && generation == null,
    announce: frame.announce,
    coordinators: frame.me?.coordinators ?? [],
    shared: {}, // what sections have in common
    /** A path without a slash is one of this run. */
    api(path, options = {}) {
      if (path.startsWith("/")) return api(path, options);
      return api(path ? `${base}/${path}` : base, { ...options, query: { generation, ...options.query } });
    },
    /** Where a stream of this run is. */
    path: (name) => `${base}/${name}`,
    /** Choose a rank, or with null none. */
    select(rank) {
      chosen.set({ rank }, { isStep: !isRevealing });
      tell("select", rank);
    },
    /** Have the location tell which times are looked at; null: all. */
    range: (range) => chosen.set(range ?? { from: 0, to: 0 }),
    tell,
    /** Ask whether to do an action of actions.js, e.g. `act("drain", host)`. */
    act: (action, name) => places[1].section?.open?.(action, name),
    /** Go to a section, and have it show something: `show(what)` of its module. */
    reveal(name, what) {
      const { card, section } = places.find((place) => place.name === name);
      if (card.hidden) return false;
      chosen.set({ section: name, ...(name === "events" && what != null && { event: what }) }, { isStep: true });
      isRevealing = true;
      card.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      if (!section.show?.(what)) card.querySelector("h2").focus({ preventScroll: true });
      isRevealing = false;
      return true;
    },
  };

  function tell(kind, data) {
    latest.set(kind, data);
    if (kind === "run") fit(data);
    for (const { section } of places) if (section) updated(section, kind, data);
  }

  function updated(section, kind, data) {
    try {
      section.update(kind, data);
    } catch (error) {
      reportError(error); // the others go on
    }
  }

  const head = h("section", { class: "headline", "data-section": "headline", "aria-label": "Run" });
  const actions = h("div", { class: "actions", "data-section": "actions" });
  const contents = h("nav", { class: "contents", "aria-label": "Sections" }, h("ul"));
  const cards = h("div", { class: "cards" });
  const body = h("div", { hidden: true }, contents, cards);
  const view = h("div", { "data-view": "run", "data-run": runId }, h("div", { class: "run-head" }, head, actions), body);
  fill(main, view);

  /** Make the card of a section, and the link to it. */
  function placed({ name, title, isWide, when }) {
    const root = h("div", { class: "section-body" });
    const tools = h("span", { class: "buttons tools" });
    const link = h("li", { hidden: true }, h("a", { href: `?${generation ? `generation=${generation}&` : ""}section=${name}`, "data-contents": name, onclick: goTo }, title));
    function goTo(event) {
      if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      context.reveal(name);
    }
    const card = h("section", {
      class: isWide ? "card wide" : "card", id: name, "data-section": name, "aria-labelledby": `${name}-title`, hidden: true,
    },
      h("header", {}, h("h2", { id: `${name}-title`, tabindex: "-1" }, title), tools), root);
    cards.append(card);
    contents.firstChild.append(link);
    return { name, when, root, tools, shown: [card, link], card, isFitting: !when, hasContent: true };
  }

  /** Load a section, unless that has begun. */
  async function load(place) {
    if (place.isLoading) return;
    place.isLoading = true;
    let module;
    try {
      module = await moduleOf(place.name);
    } catch (error) {
      console.info(`there is no section ${place.name}: ${error.message}`);
      return;
    }
    if (isGone) return;
    const showCard = (hasContent) => { place.hasContent = hasContent; showPlace(place); };
    place.section = module.mount(place.root, { ...context, tools: place.tools, showCard });
    showPlace(place);
    for (const [kind, data] of latest) updated(place.section, kind, data);
  }

  function showPlace({ shown, section, isFitting, hasContent }) {
    for (const element of shown) show(element, section && isFitting && hasContent);
  }

  /** Show the sections that fit how the run is. */
  function fit(run) {
    for (const place of places.filter(({ when }) => when)) {
      place.isFitting = place.when(run);
      if (place.isFitting) load(place);
      showPlace(place);
    }
  }

  const places = [{ name: "headline", root: head, shown: [] }, { name: "actions", root: actions, shown: [] }, ...SECTIONS.map(placed)];
  for (const place of places) if (!place.when) load(place);

  /** Tell all sections what the location has. */
  function follow({ rank, event, from, to }) {
    tell("select", Number(rank ?? NaN) >= 0 ? Number(rank) : null);
    tell("event", event);
    tell("range", to > from ? { from, to } : null);
  }
  const rezone = () => tell("zone", null);
  window.addEventListener("zonechange", rezone);
  const chosen = openPlace(CHOICES, follow);
  follow(chosen.state);

  // Go to where the reader was, or where a link leads, once all is there and stays as large as it is.
  const before = history.state?.y;
  let settling = setTimeout(stay, SETTLED_MS);
  const growth = new ResizeObserver(() => {
    clearTimeout(settling);
    const isThere = KINDS.every((kind) => latest.has(kind)) && places.every(({ section, isFitting }) => section || !isFitting);
    settling = setTimeout(stay, isThere ? STILL_MS : SETTLED_MS);
  });
  growth.observe(view);

  function stay() {
    growth.disconnect();
    if (before != null) restoreScroll();
    else places.find(({ name }) => name === chosen.state.section)?.card?.scrollIntoView();
  }

  let events = null;
  let isWhole = true; // what comes next: each connection begins with all events
  rankSource(context); // what takes longest begins first
  const stream = openStream(`${base}/live`, {
    query: { generation },
    onState(state) {
      frame.connected(state);
      if (state.isOpen) isWhole = true;
      if (state.isFinal) leave(state);
    },
  });
  stream.on("job", frame.isJob);
  for (const kind of KINDS) {
    stream.on(kind, (data) => {
      show(body, true);
      if (kind === "events") {
        events = data = withInstants(events, data, isWhole);
        isWhole = false;
      }
      tell(kind, data);
    });
  }

  function destroy() {
    isGone = true;
    window.removeEventListener("zonechange", rezone);
    chosen.close();
    growth.disconnect();
    clearTimeout(settling);
    stream.close();
    for (const { section } of places) section?.destroy();
    show(document.getElementById("connection"), true);
  }

  /** Say that the run is not there, or not for this reader, in place of all of it. */
  async function leave(problem) {
    destroy();
    const { showNoRun } = await import("./run/no_run.js");
    if (view.isConnected) showNoRun(main, { runId, generation, ...problem });
  }

  return {
    destroy,
    key(event) {
      const wanted = SECTIONS.find(({ key }) => key === event.key);
      if (wanted) context.reveal(wanted.name);
      else for (const { section } of places) section?.key?.(event);
    },
  };
}

/** All events so far, each with the instant `at` of this browser's clock, and those that are new. */
function withInstants(known, { events, missed = 0, generation }, isWhole) {
  const now = Date.now();
  const dated = events.map((event) => ({ ...event, at: now - event.age_s * 1_000 }));
  // Those of a later run of this id begin anew.
  const last = known?.generation === generation ? known.all.at(-1)?.sequence ?? 0 : Infinity;
  const added = dated.filter(({ sequence }) => sequence > last);
  if (isWhole || last === Infinity) return { all: dated, added, missed, generation };
  return { all: [...known.all, ...added].slice(-EVENTS_MAX), added, missed: known.missed + missed, generation };
}
