/** Keeps a conversation in the browser, so that it is there after a reload. */

import { Answer } from "./answer.js";

/**
 * @typedef {object} Turn
 * @property {string} question
 * @property {Answer} answer
 * @property {string} remark why the answer is not complete; "" if it is
 * @property {object} body of the request
 */

export class SavedConversation {
  #name;

  /** @param {string} model servers at one address may serve different ones in turn */
  constructor(model) {
    this.#name = `outpace-conversation ${model}`;
  }

  /** @returns {Turn[]} none if nothing, or nothing of this version, was saved */
  load() {
    try {
      const turns = JSON.parse(localStorage.getItem(this.#name) ?? "[]");
      return turns.map((turn) => ({ ...turn, answer: Answer.from(turn.answer) }));
    } catch {
      this.clear();
      return [];
    }
  }

  /**
   * Keep these turns, and the draft trees of the last.
   *
   * @param {Turn[]} turns
   * @returns {boolean} false: they are longer than the browser keeps, and nothing is kept
   */
  save(turns) {
    const kept = turns.map(({ question, answer, remark, body }, index) => {
      const isLast = index === turns.length - 1;
      return { question, remark, answer: isLast ? answer : { ...answer.toJSON(), steps: [] }, body: isLast ? body : null };
    });
    try {
      localStorage.setItem(this.#name, JSON.stringify(kept));
      return true;
    } catch {
      this.clear();
      return false;
    }
  }

  clear() {
    localStorage.removeItem(this.#name);
  }
}
