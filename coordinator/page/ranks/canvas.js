/** Ranks as cells, grouped by host, on a canvas as large as what can be seen of them. */

import { color, coalesced, h } from "../base/dom.js";

// Sides of a cell in pixels; the largest with which all fit is taken.
const SIDES = [34, 30, 26, 22, 18, 15, 12, 10, 8, 6, 5, 4, 3, 2];
const HEIGHT_MAX = 440; // more is scrolled
const PADDING = 3; // around all cells, for the rings of those at the edge
const LABEL_HEIGHT = 17;
const TEXT_FROM = 11; // smaller cells have no signs
const LINES_FROM = 14; // smaller cells make a tile of their host
const LABEL_FROM = 56; // narrower blocks have no names

/** Where cells are, in pixels of the device. */
export class Layout {
  constructor(widthCss, ranks, scale) {
    this.ranks = ranks;
    this.scale = scale;
    const most = ranks.countMost;
    const width = Math.floor(widthCss * scale);
    for (const side of SIDES) {
      this.side = Math.max(1, Math.round(side * scale));
      this.gap = Math.round((side >= 10 ? 2 : side >= 5 ? 1 : 0) * scale);
      const square = 2 ** Math.ceil(Math.log2(Math.sqrt(most)));
      this.columns = side < LINES_FROM ? square : Math.min(most, most <= 8 ? 8 : 16);
      while (this.columns > square && this.columns * (this.side + this.gap) > width) this.columns >>= 1;
      this.rows = Math.ceil(most / this.columns);
      const between = Math.max(1, Math.round((most === 1 ? (side >= 10 ? 2 : 1) : side >= 15 ? 14 : side >= 8 ? 8 : side >= 4 ? 4 : side - 1) * scale));
      this.cell = this.side + this.gap;
      const inner = this.columns * this.cell - this.gap;
      this.hasLabels = side >= TEXT_FROM && inner >= LABEL_FROM * scale && ranks.names.length <= 400;
      this.label = this.hasLabels ? Math.round(LABEL_HEIGHT * scale) : 0;
      this.blockWidth = inner + between;
      this.blockHeight = this.label + this.rows * this.cell - this.gap + between;
      this.perRow = Math.max(1, Math.floor((width + between) / this.blockWidth));
      this.height = Math.ceil(ranks.names.length / this.perRow) * this.blockHeight;
      this.sideCss = side;
      if (this.height <= HEIGHT_MAX * scale && inner <= width) break;
    }
  }

  /** The left upper corner of a rank's cell. */
  at(rank) {
    const host = this.ranks.hostOf(rank);
    const local = rank - this.ranks.first[host];
    return [
      (host % this.perRow) * this.blockWidth + (local % this.columns) * this.cell,
      Math.floor(host / this.perRow) * this.blockHeight + this.label + Math.floor(local / this.columns) * this.cell,
    ];
  }

  /** The rank whose cell is there, null if none is. */
  rankAt(x, y) {
    const column = Math.floor(x / this.blockWidth);
    const host = Math.floor(y / this.blockHeight) * this.perRow + column;
    if (x < 0 || y < 0 || column >= this.perRow || host >= this.ranks.names.length) return null;
    const inX = Math.floor((x - column * this.blockWidth) / this.cell);
    const inY = Math.floor((y % this.blockHeight - this.label) / this.cell);
    const local = inY * this.columns + inX;
    if (inX < 0 || inX >= this.columns || inY < 0 || local >= this.ranks.counts[host]) return null;
    return this.ranks.first[host] + local;
  }
}

/** The element with the canvas, and what is done on it. */
export class RankCanvas {
  /** `on`: {point(rank, x, y), choose(rank), move(rank)}; `look(mode)`: colour and sign by class. */
  constructor(on, look) {
    this.on = on;
    this.look = look;
    this.mode = "state";
    this.ranks = null;
    this.layout = null;
    this.cursor = null;
    this.marked = new Set();
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.ring = h("div", { class: "rank-ring", hidden: true });
    this.chosenRing = h("div", { class: "rank-ring chosen", hidden: true });
    this.space = h("div", { class: "rank-space" }, this.canvas, this.ring, this.chosenRing);
    this.element = h("div", {
      class: "rank-canvas", tabindex: "0", role: "application", "data-ranks": "canvas",
      "aria-roledescription": "grid of ranks",
    }, this.space);
    this.paintSoon = coalesced(() => this.paint());
    this.arrangeSoon = coalesced(() => this.arrange());
    this.observer = new ResizeObserver(() => this.arrangeSoon());
    this.observer.observe(this.element);
    this.recolour = () => { this.colours = null; this.paintSoon(); };
    window.addEventListener("themechange", this.recolour);
    this.element.addEventListener("scroll", this.paintSoon, { passive: true });
    this.element.addEventListener("pointermove", (event) => on.point(this.#under(event), event));
    this.element.addEventListener("pointerleave", () => on.point(null));
    this.element.addEventListener("click", (event) => {
      const rank = this.#under(event);
      if (rank != null) on.choose(rank);
    });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("focus", () => {
      if (!this.ranks?.size || !this.element.matches(":focus-visible")) return;
      this.moveTo(this.cursor ?? 0);
    });
    this.element.addEventListener("blur", () => { this.ring.hidden = true; });
  }

  destroy() {
    this.observer.disconnect();
    this.paintSoon.cancel();
    this.arrangeSoon.cancel();
    window.removeEventListener("themechange", this.recolour);
  }

  /** Show other ranks; cells stay where they are if the hosts are the same. */
  show(ranks) {
    const isSame = this.ranks?.names === ranks.names;
    this.ranks = ranks;
    if (isSame && this.layout) {
      this.layout.ranks = ranks;
      this.paint();
    } else {
      this.cursor = null;
      this.ring.hidden = this.chosenRing.hidden = true;
      this.arrange();
    }
  }

  colourBy(mode) {
    this.mode = mode;
    this.colours = null;
    this.paintSoon();
  }

  /** Mark slow ranks with a dot. */
  mark(marked) {
    this.marked = marked;
    this.paintSoon();
  }

  choose(rank) {
    this.chosen = rank;
    if (rank != null) this.cursor = rank;
    this.#place(this.chosenRing, rank);
  }

  moveTo(rank) {
    this.cursor = rank;
    if (!this.layout) this.arrange(); // the grid has just come into sight
    this.#place(this.ring, rank);
    this.#reveal(rank);
    this.on.move(rank);
  }

  arrange() {
    const width = this.space.clientWidth;
    if (!this.ranks || !width) return;
    this.layout = new Layout(width, this.ranks, window.devicePixelRatio || 1);
    const { scale, height } = this.layout;
    this.viewHeight = Math.min(height / scale, HEIGHT_MAX);
    this.space.style.height = `${height / scale}px`;
    this.canvas.width = Math.floor(width * scale);
    this.canvas.height = Math.ceil(this.viewHeight * scale);
    this.canvas.style.width = `${this.canvas.width / scale}px`;
    this.canvas.style.height = `${this.canvas.height / scale}px`;
    this.#place(this.chosenRing, this.chosen);
    if (!this.ring.hidden) this.#place(this.ring, this.cursor);
    this.paint();
  }

  paint() {
    const { layout, canvas } = this;
    if (!layout) return;
    const context = canvas.getContext("2d");
    const top = Math.round(Math.max(0, this.element.scrollTop - PADDING) * layout.scale);
    const rowFirst = Math.floor(top / layout.blockHeight);
    const hostFirst = rowFirst * layout.perRow;
    const rowLast = Math.ceil((top + canvas.height) / layout.blockHeight);
    const hostLast = Math.min(this.ranks.names.length, rowLast * layout.perRow);
    this.colours ??= this.look(this.mode);
    if (layout.sideCss >= TEXT_FROM) this.#draw(context, top, hostFirst, hostLast);
    else this.#fill(context, top, hostFirst, hostLast);
  }

  /** Many small cells: pixel by pixel. */
  #fill(context, top, hostFirst, hostLast) {
    const { layout, ranks } = this;
    const { width, height } = this.canvas;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const classes = ranks.classes[this.mode];
    const words = this.colours.map(({ colour }) => word(colour));
    const mark = word(color("--text"));
    for (let host = hostFirst; host < hostLast; host += 1) {
      const left = (host % layout.perRow) * layout.blockWidth;
      const upper = Math.floor(host / layout.perRow) * layout.blockHeight - top;
      for (let rank = ranks.first[host], local = 0; rank < ranks.first[host + 1]; rank += 1, local += 1) {
        const x = left + (local % layout.columns) * layout.cell;
        const y = upper + Math.floor(local / layout.columns) * layout.cell;
        const value = words[classes[rank]];
        const end = Math.min(height, y + layout.side);
        for (let row = Math.max(0, y); row < end; row += 1) pixels.fill(value, row * width + x, row * width + x + layout.side);
        if (!this.marked.size || !this.marked.has(rank)) continue;
        const dot = Math.max(1, layout.side >> 1);
        for (let row = Math.max(0, y); row < Math.min(height, y + dot); row += 1) pixels.fill(mark, row * width + x, row * width + x + dot);
      }
    }
    context.putImageData(image, 0, 0);
  }

  /** Fewer cells: with signs, ranks and the names of hosts. */
  #draw(context, top, hostFirst, hostLast) {
    const { layout, ranks, colours } = this;
    const { scale, side } = layout;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const family = getComputedStyle(this.element).fontFamily;
    const muted = color("--muted");
    const text = color("--text");
    const classes = ranks.classes[this.mode];
    const sign = `600 ${Math.round(Math.min(side * 0.6, 15 * scale))}px ${family}`;
    const number = `${Math.round(Math.min(side * 0.36, 11 * scale))}px ${family}`;
    for (let host = hostFirst; host < hostLast; host += 1) {
      const left = (host % layout.perRow) * layout.blockWidth;
      const upper = Math.floor(host / layout.perRow) * layout.blockHeight - top;
      if (layout.hasLabels) {
        context.font = `${Math.round(11.5 * scale)}px ${family}`;
        context.textAlign = "left";
        context.textBaseline = "alphabetic";
        context.fillStyle = muted;
        const room = layout.blockWidth - 8 * scale;
        context.fillText(fitted(context, this.on.name(ranks.names[host]), room), left, upper + 12 * scale);
      }
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let rank = ranks.first[host], local = 0; rank < ranks.first[host + 1]; rank += 1, local += 1) {
        const x = left + (local % layout.columns) * layout.cell;
        const y = upper + layout.label + Math.floor(local / layout.columns) * layout.cell;
        const look = colours[classes[rank]];
        context.fillStyle = look.colour;
        context.beginPath();
        context.roundRect(x, y, side, side, Math.min(4 * scale, side / 5));
        context.fill();
        context.fillStyle = look.ink;
        if (look.sign) {
          context.font = sign;
          context.fillText(look.sign, x + side / 2, y + side / 2 + scale * 0.5);
        } else if (layout.sideCss >= 22) {
          context.font = number;
          context.fillText(rank, x + side / 2, y + side / 2 + scale * 0.5);
        }
        if (this.marked.has(rank)) {
          context.fillStyle = text;
          context.beginPath();
          context.arc(x + side - 4 * scale, y + 4 * scale, 2.2 * scale, 0, 2 * Math.PI);
          context.fill();
        }
      }
    }
  }

  #place(ring, rank) {
    ring.hidden = rank == null || !this.layout || rank >= this.ranks.size;
    if (ring.hidden) return;
    const { scale, side } = this.layout;
    const [x, y] = this.layout.at(rank);
    const most = Math.max(side / scale, 6); // so that it is seen around the smallest
    const shift = (most - side / scale) / 2;
    ring.style.transform = `translate(${x / scale - shift}px, ${y / scale - shift}px)`;
    ring.style.width = ring.style.height = `${most}px`;
  }

  #reveal(rank) {
    const { scale, side } = this.layout;
    const y = this.layout.at(rank)[1] / scale;
    const { scrollTop } = this.element;
    if (y < scrollTop) this.element.scrollTop = y - 20;
    else if (y + side / scale > scrollTop + this.viewHeight) this.element.scrollTop = y - this.viewHeight + side / scale + 20;
  }

  #under(event) {
    if (!this.layout) return null;
    const box = this.space.getBoundingClientRect();
    const { scale } = this.layout;
    return this.layout.rankAt((event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
  }

  #key(event) {
    if (!this.ranks?.size || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.cursor ?? 0;
    const last = this.ranks.size - 1;
    const next = {
      ArrowLeft: () => Math.max(0, at - 1),
      ArrowRight: () => Math.min(last, at + 1),
      ArrowUp: () => this.#beside(at, -1),
      ArrowDown: () => this.#beside(at, 1),
      Home: () => 0,
      End: () => last,
      PageUp: () => this.#beside(at, -10),
      PageDown: () => this.#beside(at, 10),
    }[event.key];
    if (next) this.moveTo(next());
    else if (event.key === "Enter" || event.key === " ") this.on.choose(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The rank above or below on the canvas. */
  #beside(rank, rows) {
    const { layout } = this;
    let beside = rank;
    for (let moved = 0; moved < Math.abs(rows); moved += 1) {
      const [x, y] = layout.at(beside);
      const middle = layout.side / 2;
      const step = Math.sign(rows);
      let next = layout.rankAt(x + middle, y + middle + step * layout.cell);
      if (next == null) {
        // The cell of the block above or below, if it has one in this column.
        const host = this.ranks.hostOf(beside) + step * layout.perRow;
        if (host < 0 || host >= this.ranks.names.length) break;
        const count = this.ranks.counts[host];
        const column = (beside - this.ranks.first[this.ranks.hostOf(beside)]) % layout.columns;
        const row = step > 0 ? 0 : Math.floor((count - 1) / layout.columns);
        next = this.ranks.first[host] + Math.min(count - 1, row * layout.columns + column);
      }
      beside = next;
    }
    return beside;
  }
}

/** Cut a text to a width. */
function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length - 1;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

const known = new Map();

/** A colour as pixels have it. */
function word(colour) {
  if (!known.has(colour)) {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    known.set(colour, new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0]);
  }
  return known.get(colour);
}
