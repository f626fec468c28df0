/**
 * What a view shows, kept in the query of the location, so that a link, a reload and Back show it again.
 *
 *   const place = openPlace({ q: "", only: [], page: 1, rank: null }, (state) => paint(state));
 *   place.state.page;                         // 1, unless the query has another one
 *   place.set({ q: "mt5" });                  // replaces the entry of the history: while one types or drags
 *   place.set({ page: 2 }, { isStep: true }); // adds an entry, which Back takes away
 *   place.close();                            // as the view is left
 *
 * A value is a text, a number or a list of texts, as its default is; of the default null it is a text or null.
 * A default is not written. Several places may be open if their names differ, and other names stay as they are.
 * The callback is for Back, Forward and links within the view; `set` does not call it.
 */

const SAVE_MS = 300; // browsers allow some three changes a second
const places = new Set();
let query = null; // that is to be written
let timer = 0;
let wantedY = history.state?.y ?? null; // where to scroll once the view is there

history.scrollRestoration = "manual"; // views are filled later than browsers wait
window.addEventListener("scroll", () => { if (wantedY == null) saveSoon(); }, { passive: true });
window.addEventListener("pagehide", save);
window.addEventListener("popstate", () => {
  forget();
  wantedY = history.state?.y ?? 0;
});

function saveSoon() {
  timer ||= setTimeout(save, SAVE_MS);
}

function save() {
  history.replaceState({ y: wantedY ?? window.scrollY }, "", query ? pathWith(query) : undefined);
  forget();
}

function forget() {
  clearTimeout(timer);
  timer = 0;
  query = null;
}

const pathWith = (search) => `${location.pathname}${search.size ? `?${search}` : ""}${location.hash}`;

/** Add an entry to the history. The one before keeps how far it was scrolled. */
export function pushPath(path) {
  save();
  history.pushState(null, "", path);
  wantedY = null;
}

/** Scroll to where the reader was. A view calls it once what it showed then is there again. */
export function restoreScroll() {
  if (wantedY != null) window.scrollTo(0, wantedY);
  wantedY = null;
}

/** Have all places show what the query has now. */
export function reread() {
  for (const place of places) place.reread();
}

/** See above. */
export function openPlace(defaults, onBack) {
  const place = {
    state: read(defaults),
    set(changes, { isStep = false } = {}) {
      Object.assign(place.state, changes);
      const search = new URLSearchParams(query ?? location.search);
      for (const [name, usual] of Object.entries(defaults)) {
        search.delete(name);
        const value = place.state[name];
        if (String(value) !== String(usual)) for (const part of [value].flat()) search.append(name, part ?? "");
      }
      if (isStep) return pushPath(pathWith(search));
      query = search;
      saveSoon();
    },
    reread() {
      place.state = read(defaults);
      onBack(place.state);
    },
    close: () => places.delete(place),
  };
  places.add(place);
  return place;
}

function read(defaults) {
  const search = new URLSearchParams(location.search);
  return Object.fromEntries(Object.entries(defaults).map(([name, usual]) => {
    const value = search.get(name);
    if (value == null) return [name, usual];
    if (Array.isArray(usual)) return [name, search.getAll(name).filter(Boolean)];
    return [name, typeof usual !== "number" ? value : Number.isFinite(Number(value)) ? Number(value) : usual];
  }));
}
