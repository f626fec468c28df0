/** One run: its sections, each of which is told what the live stream tells. */

import { api } from "./base/api.js";
import { openStream } from "./base/live.js";
import { fill, h, show } from "./base/dom.js";
import { rankSource } from "./ranks/source.js";

// What each section is called, where its module is, and whether it has the whole width.
// One that is missing shows nothing.
const SECTIONS = [
  { name: "timeline", title: "Timeline", isWide: true, key: "t" },
  { name: "report", title: "Failure", isWide: true, key: "f", isHidden: true },
  { name: "grid", title: "Ranks", isWide: true, key: "r" },
  { name: "step-times", title: "Step times", isWide: true },
  { name: "hosts", title: "Hosts", isWide: true },
  { name: "goodput", title: "Goodput" },
  { name: "events", title: "Events", key: "e" },
  { name: "stacks", title: "Stacks", isWide: true },
  { name: "logs", title: "Logs", isWide: true, key: "l" },
];
// Loaded while it is found out who looks at the page.
const MODULES = new Map(["headline", "actions", ...SECTIONS.map(({ name }) => name)]
  .map((name) => [name, import(`./run/${name.replace("-", "_")}.js`)]));
for (const module of MODULES.values()) module.catch(() => {}); // `load` says so
const EVENTS_MAX = 5_000;
const KINDS = ["run", "events", "goodput", "ranks"];

/** Show a run in `main` until `destroy()`. */
export function mountRun(main, frame, { runId, generation }) {
  const base = `/api/runs/${encodeURIComponent(runId)}`;
  const sections = new Map();
  const latest = new Map(); // of each kind, for sections that come later
  let isGone = false;

  const context = {
    runId,
    generation,
    canAct: frame.me?.role === "admin" && generation == null,
    announce: frame.announce,
    shared: {}, // what sections have in common
    /** A path without a slash is one of this run. */
    api(path, options = {}) {
      if (path.startsWith("/")) return api(path, options);
      return api(path ? `${base}/${path}` : base, { ...options, query: { generation, ...options.query } });
    },
    /** Where a stream of this run is. */
    path: (name) => `${base}/${name}`,
    select: (rank) => tell("select", rank),
    /** Ask whether to do an action of actions.js, e.g. `act("drain", host)`. */
    act: (action, name) => sections.get("actions")?.section.open?.(action, name),
    /** Go to a section, and have it show something: `show(what)` of its module. */
    reveal(name, what) {
      const place = sections.get(name);
      if (!place || place.card.hidden) return false;
      place.card.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      if (!place.section.show?.(what)) place.card.querySelector("h2").focus({ preventScroll: true });
      return true;
    },
  };

  function tell(kind, data) {
    latest.set(kind, data);
    for (const { section } of sections.values()) updated(section, kind, data);
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
  const problem = h("p", { class: "error foreign", role: "alert", hidden: true });
  const cards = h("div", { class: "cards" });
  const body = h("div", { hidden: true }, contents, cards);
  fill(main, h("div", { "data-view": "run", "data-run": runId }, h("div", { class: "run-head" }, head, actions), problem, body));

  function card({ name, title, isWide, isHidden }) {
    const root = h("div", { class: "section-body" });
    const tools = h("span", { class: "buttons tools" });
    const element = h("section", {
      class: isWide ? "card wide" : "card", id: name, "data-section": name,
      "aria-labelledby": `${name}-title`, hidden: isHidden,
    },
      h("header", {}, h("h2", { id: `${name}-title`, tabindex: "-1" }, title), tools), root);
    return { element, root, tools };
  }

  async function load(of, place) {
    let module;
    try {
      module = await MODULES.get(of.name);
    } catch (error) {
      console.info(`there is no section ${of.name}: ${error.message}`);
      place.element.remove();
      return;
    }
    if (isGone) return;
    const link = h("li", { hidden: of.isHidden }, h("a", { href: `#${of.name}`, "data-contents": of.name }, of.title));
    place.link.replaceWith(link);
    const showCard = (isShown) => { show(place.element, isShown); show(link, isShown); };
    const section = module.mount(place.root, { ...context, tools: place.tools, showCard });
    sections.set(of.name, { section, card: place.element });
    for (const [kind, data] of latest) updated(section, kind, data);
  }

  for (const of of SECTIONS) {
    const place = card(of);
    place.link = h("li", { hidden: true });
    cards.append(place.element);
    contents.firstChild.append(place.link);
    load(of, place);
  }
  for (const [name, root] of [["headline", head], ["actions", actions]]) {
    load({ name }, { element: root, root, link: h("li") });
  }

  let events = null;
  let isWhole = true; // what comes next: each connection begins with all events
  rankSource(context); // what takes longest begins first
  const stream = openStream(`${base}/live`, {
    query: { generation },
    onState(state) {
      frame.connected(state);
      if (state.isOpen) isWhole = true;
      if (!state.isFinal) return;
      problem.textContent = state.status === 404 ? `There is no run “${runId}”. ${state.reason}` : state.reason;
      show(problem, true);
    },
  });
  context.live = stream;
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

  return {
    destroy() {
      isGone = true;
      stream.close();
      for (const { section } of sections.values()) section.destroy();
    },
    key(event) {
      const of = SECTIONS.find(({ key }) => key === event.key);
      if (of) context.reveal(of.name);
      else for (const { section } of sections.values()) section.key?.(event);
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
