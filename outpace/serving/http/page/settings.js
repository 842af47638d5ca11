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

/** Show the settings, and the words, for a model that answers messages, or for one that continues texts. */
export function fitSettings(isChat) {
  document.body.classList.toggle("continues", !isChat);
  if (isChat) return;
  byId("welcome").textContent =
    "This model has no chat template: write the beginning of a text, and it goes on with it. Drafted tokens that " +
    "the target model accepted are coloured; it wrote the others itself.";
  byId("message").placeholder = "Beginning of a text";
  byId("message-label").textContent = "Beginning of a text";
}

/**
 * The body of a request for the next message, or for the continuation of a text.
 *
 * @param {import("./saved.js").Turn[]} turns before it, of which a continuation knows nothing
 * @param {string} text
 * @param {boolean} isChat
 */
export function requestBody(turns, text, isChat) {
  const method = byId("method").value;
  return {
    ...(isChat ? chatFields(turns, text, method !== PLAIN) : { prompt: text }),
    temperature: byId("temperature").valueAsNumber,
    max_tokens: byId("max-tokens").valueAsNumber,
    seed: crypto.getRandomValues(new Uint32Array(1))[0], // known here, so that the request can be repeated
    speculation: method === PLAIN ? false : { method },
    include_steps: true,
  };
}

function chatFields(turns, text, drafts) {
  const [system, prediction] = [byId("system").value, byId("prediction").value];
  const before = turns.flatMap(({ question, answer }) => [
    { role: "user", content: question },
    { role: "assistant", content: answer.content.text },
  ]);
  return {
    messages: [
      ...(system.trim() ? [{ role: "system", content: system }] : []),
      ...before,
      { role: "user", content: text },
    ],
    ...(prediction && drafts ? { prediction: { type: "content", content: prediction } } : {}),
  };
}

/** The same request without drafts, for as many tokens as were generated. */
export function withoutDrafts(body, numTokens) {
  const { prediction, ...others } = body;
  return { ...others, speculation: false, max_tokens: numTokens };
}

/** The API key that the user entered in this tab, or null. */
export function apiKey() {
  return sessionStorage.getItem(KEY);
}

/** Keep the API key until the tab is closed. */
export function keepApiKey(key) {
  sessionStorage.setItem(KEY, key);
}
