/** The draft tree of one step of an answer: the last one while it is generated, then any that the user chooses. */

import { byId } from "./elements.js";
import { describe, drawTree } from "./tree.js";

export class Steps {
  #answer = null;
  #sources;
  #slider = byId("step");

  /**
   * @param {import("./sources.js").Sources} sources
   * @param {(index: number) => void} onChoice called when the user chooses a step
   */
  constructor(sources, onChoice) {
    this.#sources = sources;
    this.#slider.addEventListener("input", () => {
      const index = this.#slider.valueAsNumber - 1;
      this.#show(index);
      onChoice(index);
    });
  }

  /**
   * Show the last step of an answer, if it has any.
   *
   * @param {import("./answer.js").Answer} answer
   */
  follow(answer) {
    this.#answer = answer;
    this.#slider.max = String(Math.max(1, answer.steps.length));
    this.#slider.disabled = answer.steps.length < 2;
    if (answer.steps.length) {
      this.#show(answer.steps.length - 1);
    } else {
      byId("step-words").textContent = "The tree of each step appears here.";
      byId("tree").replaceChildren();
    }
  }

  #show(index) {
    const step = this.#answer.steps[index];
    this.#slider.value = String(index + 1);
    this.#slider.setAttribute("aria-valuetext", `step ${index + 1}: ${describe(step)}`);
    byId("step-words").textContent = `Step ${index + 1} of ${this.#answer.steps.length}: ${describe(step)}.`;
    drawTree(byId("tree"), step, this.#answer.rootOf(index), this.#sources.className(step.method));
  }
}
