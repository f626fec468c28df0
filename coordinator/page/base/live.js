/** A live stream that reconnects. */

import { ApiError, request } from "./api.js";

// The server says something at least every 15 s.
const SILENCE_MAX_MS = 40_000;
const PAUSE_FIRST_MS = 500;
const PAUSE_MAX_MS = 10_000;
// A hidden page gives its connection to visible ones: a browser has six to a host.
const HIDDEN_MAX_MS = 5_000;
// These are not tried again: the stream is not there, or not for this caller.
const FINAL = new Set([400, 401, 403, 404]);

/**
 * Read a stream of server-sent events.
 *
 * `onState` is told {isOpen, since, reason}: `since` is when it broke. Every connection begins with
 * the whole, so that nothing of what was missed is needed.
 * @param {string} path
 * @param {{query?: object | (() => object), onState?: Function, isEnding?: boolean, hiddenMs?: number}} options
 *   `isEnding`: the server ends the stream when all is told; `hiddenMs`: for how long it stays open
 *   while the page is not looked at
 */
export function openStream(path, { query, onState = () => {}, isEnding = false, hiddenMs = HIDDEN_MAX_MS } = {}) {
  const handlers = new Map();
  let connection = null; // of the present attempt
  let pauseMs = PAUSE_FIRST_MS;
  let timer = 0;
  let hiddenTimer = 0;
  let brokenSince = null;
  let endedBy = null; // what the server said as it ended the stream
  let isClosed = false;

  async function connect() {
    clearTimeout(timer);
    connection?.abort();
    const mine = new AbortController();
    connection = mine;
    try {
      endedBy = null;
      const response = await request(path, { query: typeof query === "function" ? query() : query, signal: mine.signal });
      await read(response.body.getReader(), mine);
      if (isEnding && !endedBy && connection === mine) {
        close();
        onState({ isOpen: false, isOver: true });
        return;
      }
      retry(mine, endedBy ?? "the coordinator ended the stream");
    } catch (error) {
      if (error instanceof ApiError && FINAL.has(error.status)) {
        close();
        onState({ isOpen: false, isFinal: true, reason: error.reason, status: error.status });
        return;
      }
      retry(mine, error instanceof ApiError ? error.reason : "the connection broke");
    }
  }

  async function read(reader, mine) {
    const decoder = new TextDecoder();
    let rest = "";
    let isFirst = true;
    for (;;) {
      const silence = setTimeout(() => mine.abort(), SILENCE_MAX_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (connection !== mine || done) return;
      if (isFirst) {
        isFirst = false;
        pauseMs = PAUSE_FIRST_MS;
        brokenSince = null;
        onState({ isOpen: true });
      }
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) tell(block);
    }
  }

  function tell(block) {
    let kind = "message";
    const data = [];
    for (const row of block.split(/\r?\n/)) {
      const [, field, value] = /^([^:]*):? ?(.*)$/s.exec(row);
      if (field === "event") kind = value;
      else if (field === "data") data.push(value);
    }
    if (!data.length) return;
    const content = JSON.parse(data.join("\n"));
    if (kind === "ended") endedBy = content.error?.reason;
    for (const handler of handlers.get(kind) ?? []) {
      try {
        handler(content);
      } catch (error) {
        reportError(error); // a section that fails takes no other with it
      }
    }
  }

  function retry(mine, reason) {
    if (isClosed || connection !== mine) return;
    brokenSince ??= Date.now();
    onState({ isOpen: false, since: brokenSince, reason });
    if (document.hidden) return; // `wake` goes on
    // Not all pages at the same instant.
    timer = setTimeout(connect, pauseMs * (0.5 + Math.random()));
    pauseMs = Math.min(pauseMs * 2, PAUSE_MAX_MS);
  }

  function wake() {
    clearTimeout(hiddenTimer);
    if (document.hidden) {
      hiddenTimer = setTimeout(() => {
        const mine = connection;
        connection = null;
        mine?.abort();
        clearTimeout(timer);
      }, hiddenMs);
    } else if (!connection || brokenSince) {
      pauseMs = PAUSE_FIRST_MS;
      connect();
    }
  }

  function close() {
    isClosed = true;
    const mine = connection;
    connection = null;
    mine?.abort();
    clearTimeout(timer);
    clearTimeout(hiddenTimer);
    document.removeEventListener("visibilitychange", wake);
    window.removeEventListener("online", wake);
  }

  document.addEventListener("visibilitychange", wake);
  window.addEventListener("online", wake);
  if (!document.hidden) connect();
  return {
    /** Have `handler` called with each document of this kind; the answer takes it away again. */
    on(kind, handler) {
      if (!handlers.has(kind)) handlers.set(kind, new Set());
      handlers.get(kind).add(handler);
      return () => handlers.get(kind).delete(handler);
    },
    close,
  };
}
