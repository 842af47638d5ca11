/** The server's API: its model, and answers as streams of chunks. */

import { events } from "./events.js";

export const UNAUTHORIZED = 401;

/** A request that the server refused or could not complete; the message is a sentence for the user. */
export class ServerError extends Error {
  /**
   * @param {string} message
   * @param {number} [status] of HTTP, if there was a response
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** @typedef {{id: string, methods: string[], chat: boolean}} Model `chat`: it answers messages, not only texts */

/**
 * The served model.
 *
 * @param {string | null} key API key
 * @returns {Promise<Model>}
 * @throws {ServerError}
 */
export async function servedModel(key) {
  const response = await call("v1/models", key, {});
  return (await response.json()).data[0];
}

/**
 * The chunks of the answer to messages, or of the continuation of a text.
 *
 * @param {object} body of the request, with `messages` or `prompt` and without `stream`
 * @param {string | null} key API key
 * @param {AbortSignal} signal by which the request is stopped; AbortError is thrown then
 * @throws {ServerError}
 */
export async function* answers(body, key, signal) {
  const response = await call("messages" in body ? "v1/chat/completions" : "v1/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  try {
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new ServerError(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    throw signal.aborted || error instanceof ServerError ? error : new ServerError(sentence(error));
  }
}

async function call(path, key, options) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError("the server cannot be reached: check that it runs, then send the message again");
  }
  if (response.ok) return response;
  if (response.status === UNAUTHORIZED) {
    throw new ServerError(key ? "Wrong key: enter another." : "This server asks for an API key.", UNAUTHORIZED);
  }
  const found = await response.json().catch(() => null); // a proxy's error may be no JSON
  throw new ServerError(found?.error?.message ?? `the server answered with status ${response.status}`, response.status);
}

function sentence(error) {
  return error instanceof TypeError ? "the connection broke off: send the message again" : error.message;
}
