/** The settings of a request, and the API key. */

import { byId, element } from "./elements.js";

const PLAIN = "(plain)"; // value of the choice that drafts nothing; no method has such a name
const KEY = "outpace-api-key";

/** Offer the methods of the server, and plain decoding. */
export function offerMethods(methods) {
  const choices = [...methods.map((name) => [name, name]), [PLAIN, "nothing (plain decoding)"]];
  byId("method").replaceChildren(
    ...choices.map(([value, text]) => {
      const choice = element("option", { text });
      choice.value = value;
      return choice;
    }),
  );
}

/** The first control whose value is not valid, or null. */
export function invalidSetting() {
  return byId("settings").querySelector(":invalid");
}

/**
 * The body of a request for the next message.
 *
 * @param {{role: string, content: string}[]} messages without a system prompt
 */
export function requestBody(messages) {
  const [method, system, prediction] = ["method", "system", "prediction"].map((id) => byId(id).value);
  return {
    messages: system.trim() ? [{ role: "system", content: system }, ...messages] : messages,
    temperature: byId("temperature").valueAsNumber,
    max_completion_tokens: byId("max-tokens").valueAsNumber,
    seed: crypto.getRandomValues(new Uint32Array(1))[0], // known here, so that the request can be repeated
    speculation: method === PLAIN ? false : { method },
    include_steps: true,
    ...(prediction && method !== PLAIN ? { prediction: { type: "content", content: prediction } } : {}),
  };
}

/** The same request without drafts, for as many tokens as were generated. */
export function withoutDrafts(body, numTokens) {
  const { prediction, ...others } = body;
  return { ...others, speculation: false, max_completion_tokens: numTokens };
}

/** The API key that the user entered in this tab, or null. */
export function apiKey() {
  return sessionStorage.getItem(KEY);
}

/** Keep the API key until the tab is closed. */
export function keepApiKey(key) {
  sessionStorage.setItem(KEY, key);
}
