/** Elements, made and changed so that foreign text is only ever text. */

const COLOUR = /\x1b\[[0-9;:]*m/g;
// Control characters, what turns the direction of text around, and what cannot be seen.
const UNSAFE =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]/gu;

/** Foreign text as it may be shown: what would act is written out. Lines and tabs stay. */
export function visible(text) {
  return String(text ?? "").replace(COLOUR, "").replace(UNSAFE, escaped);
}

function escaped(character) {
  const code = character.codePointAt(0);
  const digits = code.toString(16);
  return code < 0x100 ? `\\x${digits.padStart(2, "0")}` : `\\u${digits.padStart(4, "0")}`;
}

/** The same on one line, cut if it is longer. */
export function line(text, charactersMax = 300) {
  const shown = visible(String(text ?? "").trim().replace(/\r?\n/g, " ⏎ ")).replace(/\t/g, " ");
  return shown.length <= charactersMax ? shown : `${shown.slice(0, charactersMax - 1)}…`;
}

/**
 * Make an element. Properties: `class`, `on…` for handlers, `data-…`, `aria-…` and any other
 * attribute; null and false leave it out, true sets it empty. Children: elements or text.
 */
export function h(tag, properties = {}, ...children) {
  return built(document.createElement(tag), properties, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** The same of SVG. */
export function svg(tag, properties = {}, ...children) {
  return built(document.createElementNS(SVG, tag), properties, children);
}

function built(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else setAttribute(element, name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false)
    .map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** The head of a table: a title for each column, or [title, class]. */
export function headRow(columns) {
  return h("thead", {}, h("tr", {}, columns.map((column) => {
    const [title, kind] = [column].flat();
    return h("th", { scope: "col", class: kind || null }, title);
  })));
}

/** Text that is heard and not seen. */
export const unseen = (text) => h("span", { class: "unseen" }, text);

/** Set an attribute, if it is another one; null and false remove it. */
export function setAttribute(element, name, value) {
  if (value == null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  // Foreign text stands in titles and labels too.
  const text = value === true ? "" : visible(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Set the text of an element, if it is another one: selections and focus stay. */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Show or hide an element. */
export function show(element, isShown) {
  if (element.hidden === Boolean(isShown)) element.hidden = !isShown;
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child != null && child !== false)
    .map((child) => (child instanceof Node ? child : visible(child))));
}

/**
 * Give `parent` a child for each item, in order, in place: children of the same key are kept and
 * updated, so that focus, selection and scroll survive.
 */
export function keyed(parent, items, keyOf, create, update = () => {}) {
  const known = parent.keyedChildren ?? new Map();
  const next = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const child = known.get(key) ?? create(item);
    known.delete(key);
    next.set(key, child);
    update(child, item);
    if (child === at) at = at.nextSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of known.values()) child.remove();
  parent.keyedChildren = next;
}

const probe = h("span", { hidden: true });

/** A colour of the present theme, e.g. `color("--state-running")`, for a canvas. */
export function color(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Call `paint` once before the next frame, however often it is asked for. */
export function coalesced(paint) {
  let asked = 0;
  const ask = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      paint();
    });
  };
  ask.cancel = () => {
    cancelAnimationFrame(asked);
    asked = 0;
  };
  return ask;
}
