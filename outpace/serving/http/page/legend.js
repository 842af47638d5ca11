/** The legend: what wrote the tokens of the last answer, and how many. */

import { element } from "./elements.js";

export class Legend {
  #list;
  #sources;
  #drafters = new Set(); // sources of the conversation's answers besides the target

  /**
   * @param {HTMLElement} list
   * @param {import("./sources.js").Sources} sources
   */
  constructor(list, sources) {
    this.#list = list;
    this.#sources = sources;
  }

  /** Forget the sources of earlier answers. */
  clear() {
    this.#drafters.clear();
  }

  /**
   * Show the counts of an answer, also for sources of earlier answers, whose colours are still on the page.
   *
   * @param {import("./answer.js").Answer} answer
   */
  draw(answer) {
    for (const source of answer.numBySource.keys()) {
      if (source !== null) this.#drafters.add(source);
    }
    this.#list.replaceChildren(...[...this.#drafters, null].map((source) => this.#row(source, answer)));
  }

  #row(source, answer) {
    const row = element("li");
    row.append(
      element("span", { className: `swatch ${this.#sources.className(source)}` }),
      element("span", { text: this.#sources.words(source) }),
      element("span", { className: "count", text: String(answer.numBySource.get(source) ?? 0) }),
    );
    return row;
  }
}
