/** The page: who looks at it, which view, and what surrounds the views. */

import { ApiError, api, configure } from "./base/api.js";
import { showKeys } from "./base/dialog.js";
import { fill, h, setText, show } from "./base/dom.js";
import { clock, switchZone, zoneName } from "./base/format.js";
import { pushPath, reread, restoreScroll } from "./base/location.js";

// What is loaded once a view is shown; web/files.py has browsers load it with the page of that view.
const VIEWS = {
  runs: { mount: "mountRuns", load: () => import("./runs.js"), styles: ["/runs.css"] },
  run: { mount: "mountRun", load: () => import("./run.js"), styles: ["/ranks/ranks.css"] },
  host: { mount: "mountHost", load: () => import("./host.js"), styles: ["/runs.css"] },
  notifications: { mount: "mountNotifications", load: () => import("./notifications.js"), styles: ["/runs.css"] },
  job: { mount: "mountJob", load: () => import("./job.js"), styles: ["/runs.css"] },
};
const main = document.getElementById("main");
const announcer = document.getElementById("announcer");
const connection = document.getElementById("connection");
const outage = document.getElementById("outage");

let me = null;
let view = null; // {destroy}
let shown = null; // its route

/** Say something to those who hear the page. */
function announce(text) {
  announcer.textContent = "";
  requestAnimationFrame(() => setText(announcer, text));
}

/** Show how the live stream of the present view is. */
function connected({ isOpen, since, reason, isOver }) {
  const state = isOpen ? "live" : isOver ? "ended" : since ? "broken" : "connecting";
  if (connection.dataset.state === "broken" && isOpen) announce("connected again");
  connection.dataset.state = state;
  setText(connection, { live: "live", broken: "offline", ended: "ended", connecting: "connecting" }[state]);
  show(outage, state === "broken");
  if (state === "broken") {
    setText(outage, `No connection to the coordinator since ${clock(since)}: ${reason}. `
      + "Showing old data; reconnecting …");
  }
}

/** Where the location points to: the list, one run, one host, or what is wrong. */
function route() {
  if (location.pathname === "/notifications") return { name: "notifications" };
  const match = /^\/(runs|hosts)\/([^/]+)\/?$/.exec(location.pathname);
  if (!match) return location.pathname === "/" ? { name: "runs" } : { name: "nowhere" };
  let runId;
  try {
    runId = decodeURIComponent(match[2]);
  } catch {
    return { name: "nowhere" };
  }
  if (match[1] === "hosts") return { name: "host", host: runId };
  const query = new URLSearchParams(location.search);
  return { name: query.has("job") ? "job" : "run", runId, generation: Number(query.get("generation")) || null };
}

function leave() {
  view?.destroy();
  view = null;
  shown = null;
}

function render() {
  const { name, ...options } = route();
  const key = JSON.stringify([name, options]);
  if (key === shown && view) {
    reread();
    restoreScroll();
    return;
  }
  leave();
  shown = key;
  const of = options.runId ?? options.host ?? (name === "notifications" && "Notifications");
  crumbs(...(of ? [["Runs", "/"], [of]] : [["Runs"]]));
  if (VIEWS[name]) view = load(VIEWS[name], options);
  else view = notice("There is no such page", "", h("a", { href: "/", "data-link": true }, "All runs"));
}

/** Show a view once its module and its styles are here. */
function load({ mount, load, styles }, options) {
  let inner = null;
  let isLeft = false;
  const frame = { me, announce, connected, go, crumbs, isJob };
  Promise.all([load(), ...styles.map(styled)]).then(([module]) => {
    if (!isLeft) inner = module[mount](main, frame, options);
  }, (error) => isLeft || unreachable({ reason: `This view was not loaded: ${error.message}` }));
  return { destroy: () => { isLeft = true; inner?.destroy(); }, key: (event) => inner?.key?.(event) };
}

/** Add styles, unless they are there. */
function styled(href) {
  return document.querySelector(`link[href="${href}"]`) || new Promise((done, failed) => {
    document.head.append(h("link", { rel: "stylesheet", href, onload: done, onerror: () => failed(new Error(href)) }));
  });
}

/** Show a job where a run was looked for. */
function isJob() {
  history.replaceState(null, "", `${location.pathname}?job=1`);
  render();
}

/** Show another path of the page. */
function go(path) {
  pushPath(path);
  window.scrollTo(0, 0);
  render();
  main.focus({ preventScroll: true });
}

function crumbs(...steps) {
  document.title = [...steps.map(([text]) => text).reverse(), "drumbeat"].join(" · ");
  fill(document.getElementById("crumbs"), steps.map(([text, href]) => h("li", {},
    href ? h("a", { href, "data-link": true }, text)
      : h("span", { class: "foreign", "aria-current": "page" }, text))));
}

function notice(title, ...content) {
  fill(main, h("section", { class: "notice", "data-view": "notice" }, h("h1", {}, title), content));
  connected({});
  show(connection, false);
  return { destroy: () => show(connection, true) };
}

/** Ask for a link; `text` says what became of the last one. */
function askForLink(title, text) {
  leave();
  const code = h("input", {
    id: "code", name: "code", required: true, autocomplete: "off", spellcheck: "false",
    "aria-describedby": "code-help", placeholder: "https://…/#code=…",
  });
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const form = h("form", {
    class: "enter",
    onsubmit: async (event) => {
      event.preventDefault();
      const given = /(?:#?code=)?([^#=\s]+)\s*$/.exec(code.value)?.[1] ?? "";
      const problem = await enter(given);
      setText(error, problem ?? "");
      show(error, problem);
    },
  }, h("label", { for: "code" }, "Link or code"), code, h("button", { class: "primary" }, "Open"), error);
  view = notice(title,
    h("p", {}, text),
    h("p", { id: "code-help" }, "Run ", h("code", {}, "coordinator page"), " where you have a token, ",
      "and open the link that it prints. The link works once and expires after five minutes."),
    form);
  view.isEntry = true;
}

/** Enter with a code; returns what is wrong with it. */
async function enter(code) {
  try {
    await api("/api/enter", { method: "POST", body: { code } });
  } catch (error) {
    return error.reason;
  }
  await start();
  return null;
}

/** Take a code out of the location, so that it stays in no history. */
function takeCode() {
  const code = /^#code=(.+)$/.exec(location.hash)?.[1];
  if (code) history.replaceState(null, "", location.pathname + location.search);
  return code ?? null;
}

/** Learn who looks at the page, and show the view. */
async function start() {
  const code = takeCode();
  if (code) {
    const problem = await enter(code);
    if (problem && !(await isKnown())) {
      askForLink("Your link has expired", `It opened nothing: ${problem}.`);
    } else if (problem) {
      begin();
    }
    return;
  }
  try {
    me = await api("/api/me");
  } catch (error) {
    if (error.status !== 401) unreachable(error);
    return; // `expired` was called
  }
  begin();
}

async function isKnown() {
  try {
    me = await api("/api/me");
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return false;
  }
}

function begin() {
  configure({ csrf: me.csrf });
  const caller = document.getElementById("caller");
  setText(caller, [me.name, me.role].filter(Boolean).join(" · "));
  caller.title = `You may ${me.role === "admin" ? "change runs" : "read"}; coordinator ${me.version ?? ""}`;
  leave();
  render();
}

/** Nothing was answered at all: try again until something is. */
function unreachable(error) {
  leave();
  view = notice("The coordinator does not answer",
    h("p", { class: "foreign" }, `${error.reason}. `, error.hint), h("p", {}, "It is tried again."));
  const timer = setTimeout(start, 3_000);
  const { destroy } = view;
  view = { destroy: () => { clearTimeout(timer); destroy(); } };
}

configure({
  expired() {
    if (view?.isEntry) return;
    askForLink(me ? "Your link has expired" : "Open this page by a link",
      me ? "What let this browser in has ended, or was revoked." : "This browser has no access, or has it no longer: a link lets it in.");
    me = null;
  },
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-link]");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  if (event.key === "d") window.switchTheme();
  else if (event.key === "z") switchZone();
  else if (event.key === "?") showKeys();
  else if (event.key === "u" && location.pathname !== "/") go("/");
  else view?.key?.(event);
});

function nameTheme() {
  const isDark = document.documentElement.dataset.theme === "dark";
  setText(document.getElementById("theme"), isDark ? "Light" : "Dark");
}

function nameZone() {
  const zone = document.getElementById("zone");
  setText(zone, zoneName());
  zone.title = `Times are in ${zoneName()}; press for ${zoneName() === "UTC" ? "local time" : "UTC"} (z)`;
}

document.getElementById("theme").addEventListener("click", () => window.switchTheme());
document.getElementById("keys").addEventListener("click", showKeys);
document.getElementById("zone").addEventListener("click", switchZone);
window.addEventListener("themechange", nameTheme);
window.addEventListener("zonechange", nameZone);
window.addEventListener("popstate", () => { if (me) render(); });
window.addEventListener("hashchange", () => { if (location.hash.startsWith("#code=")) start(); });
// Another tab may have entered meanwhile.
document.addEventListener("visibilitychange", () => { if (!document.hidden && !me) start(); });
nameTheme();
nameZone();
VIEWS[route().name]?.load().catch(() => {}); // while it is found out who looks at the page
start();
