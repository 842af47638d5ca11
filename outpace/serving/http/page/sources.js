/** Names and colours of what wrote a token: the target, a method's draft, or a predicted answer. */

const PREDICTION = "prediction";
const NUM_COLOURS = 5; // of methods, in page.css

export class Sources {
  #methods;

  /** @param {string[]} methods of the server */
  constructor(methods) {
    this.#methods = methods;
  }

  /** @param {string | null} source null: the target */
  className(source) {
    if (source === null) return "source target";
    if (source === PREDICTION) return "source prediction";
    return `source method-${Math.max(0, this.#methods.indexOf(source)) % NUM_COLOURS}`;
  }

  /** @param {string | null} source null: the target */
  words(source) {
    if (source === null) return "written by the target";
    if (source === PREDICTION) return "accepted, from the predicted answer";
    return `accepted, drafted by ${source}`;
  }
}
