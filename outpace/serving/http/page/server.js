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

/**
 * The served model.
 *
 * @param {string | null} key API key
 * @returns {Promise<{id: string, methods: string[], max_model_len: number}>}
 * @throws {ServerError}
 */
export async function servedModel(key) {
  const response = await call("v1/models", key, {});
  return (await response.json()).data[0];
}

/**
 * The chunks of a chat completion.
 *
 * @param {object} body of the request, without `stream`
 * @param {string | null} key API key
 * @param {AbortSignal} signal by which the request is stopped; AbortError is thrown then
 * @throws {ServerError}
 */
export async function* chat(body, key, signal) {
  const response = await call("v1/chat/completions", key, {
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
  const found = await response.json().catch(() => null); // a proxy's error may be no JSON
  throw new ServerError(found?.error?.message ?? `the server answered with status ${response.status}`, response.status);
}

function sentence(error) {
  return error instanceof TypeError ? "the connection broke off: send the message again" : error.message;
}
