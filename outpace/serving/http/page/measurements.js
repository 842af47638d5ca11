/** The figures of an answer, and its speedup over plain decoding. */

import { byId } from "./elements.js";

const UNKNOWN = "–";

/** @param {import("./answer.js").Answer} answer */
export function showFigures(answer) {
  const { acceptanceLength, acceptanceRate, tokensPerSecond } = answer;
  byId("length").textContent = fixed(acceptanceLength, 2);
  byId("rate").textContent = acceptanceRate === null ? UNKNOWN : `${(100 * acceptanceRate).toFixed(0)} %`;
  const counts = answer.numDrafted ? `${answer.numAccepted} of ${answer.numDrafted}` : "of";
  byId("drafted").textContent = `${counts} draft tokens`;
  byId("speed").textContent = fixed(tokensPerSecond, 1);
}

/** Show that no speedup was measured. */
export function clearSpeedup() {
  byId("speedup").textContent = UNKNOWN;
  byId("plain").textContent = "not measured";
}

/**
 * @param {import("./answer.js").Answer} answer
 * @param {import("./answer.js").Answer} plain the same request without drafts
 */
export function showSpeedup(answer, plain) {
  byId("speedup").textContent = `${fixed(answer.tokensPerSecond / plain.tokensPerSecond, 2)}×`;
  const text = answer.content.text === plain.content.text ? "same text" : "another text";
  byId("plain").textContent = `plain: ${fixed(plain.tokensPerSecond, 1)} tokens/s, ${text}`;
}

function fixed(value, digits) {
  return value === null ? UNKNOWN : value.toFixed(digits);
}
