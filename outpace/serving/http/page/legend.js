/** The legend: what wrote the tokens of an answer, and how many. */

import { element } from "./elements.js";

/**
 * @param {HTMLElement} list
 * @param {import("./answer.js").Answer} answer
 * @param {import("./sources.js").Sources} sources
 */
export function drawLegend(list, answer, sources) {
  const known = [...answer.numBySource.keys()].filter((source) => source !== null);
  list.replaceChildren(
    ...[...known, null].map((source) => {
      const row = element("li");
      const swatch = element("span", { className: `swatch ${sources.className(source)}` });
      const words = element("span", { text: sources.words(source) });
      const count = element("span", { className: "count", text: String(answer.numBySource.get(source) ?? 0) });
      row.append(swatch, words, count);
      return row;
    }),
  );
}
