/** Requests to the coordinator that served this page. */

/** What was answered in place of what was asked for; status 0: nothing was. */
export class ApiError extends Error {
  constructor(status, reason, hint = "") {
    super(reason);
    this.status = status;
    this.reason = reason;
    this.hint = hint;
  }
}

let csrf = "";
let expired = () => {};

/** Set the CSRF value, and what to do when access ends. */
export function configure(options) {
  csrf = options.csrf ?? csrf;
  expired = options.expired ?? expired;
}

/**
 * Ask and return the JSON of the answer.
 * @param {string} path from the root, e.g. "/api/runs"
 * @param {{method?: string, body?: object, query?: object, signal?: AbortSignal}} options
 */
export async function api(path, options = {}) {
  const response = await request(path, options);
  try {
    return await response.json();
  } catch {
    throw new ApiError(0, "the coordinator's answer is cut off");
  }
}

/** Ask and return the response; throws an `ApiError` unless it is a success. */
export async function request(path, { method = "GET", body, query, signal } = {}) {
  const chosen = Object.entries(query ?? {}).filter(([, value]) => value != null && value !== "");
  const search = chosen.length ? `?${new URLSearchParams(chosen)}` : "";
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-Drumbeat-CSRF"] = csrf;
  let response;
  try {
    response = await fetch(path + search, {
      method, headers, signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin", cache: "no-store", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the coordinator does not answer");
  }
  if (response.ok) return response;
  if (response.status === 401 && path !== "/api/enter") expired();
  let problem = {};
  try {
    problem = (await response.json()).error ?? {};
  } catch {
    // It is no answer of a coordinator: of a proxy before it, say.
  }
  const reason = problem.reason ?? `the answer was ${response.status} ${response.statusText}`;
  throw new ApiError(response.status, reason, problem.hint ?? "");
}
