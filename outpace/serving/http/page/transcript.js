/** The conversation on the page: questions, and answers in runs of one source. */

import { element } from "./elements.js";

const NEAR_THE_END = 80; // px: who has scrolled up further than that is not scrolled down again

export class Transcript {
  #box;
  #sources;

  /**
   * @param {HTMLElement} box
   * @param {import("./sources.js").Sources} sources
   */
  constructor(box, sources) {
    this.#box = box;
    this.#sources = sources;
  }

  /** Show a question and an empty answer; returns its view. */
  add(question) {
    const turn = element("article");
    turn.append(message("You", "question", question));
    const answer = message("Model", "answer waiting", "");
    turn.append(answer);
    this.#box.append(turn);
    this.#scroll();
    return new AnswerView(turn, answer.querySelector(".text"), this.#sources, (add) => this.#keepAtEnd(add));
  }

  /** Remove all messages. */
  clear() {
    for (const turn of this.#box.querySelectorAll("article")) turn.remove();
  }

  #keepAtEnd(add) {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
    add();
    if (isAtEnd) this.#scroll();
  }

  #scroll() {
    this.#box.scrollTop = this.#box.scrollHeight;
  }
}

class AnswerView {
  #turn;
  #text;
  #sources;
  #keepAtEnd;

  constructor(turn, text, sources, keepAtEnd) {
    this.#turn = turn;
    this.#text = text;
    this.#sources = sources;
    this.#keepAtEnd = keepAtEnd;
  }

  /** @param {import("./answer.js").Run[]} runs */
  append(runs) {
    this.#keepAtEnd(() => {
      for (const { text, source, step } of runs) {
        const run = element("span", { className: this.#sources.className(source), text });
        run.dataset.step = step;
        run.title = `step ${step + 1}: ${this.#sources.words(source)}`;
        this.#text.append(run);
      }
    });
  }

  /** Mark what a step generated; null: nothing. */
  mark(step) {
    for (const run of this.#text.children) run.classList.toggle("marked", run.dataset.step === String(step));
  }

  /** Show that the answer has ended; `remark` says why it ended early, if it did. */
  end(remark = "") {
    this.#text.parentElement.classList.remove("waiting");
    if (remark) this.#keepAtEnd(() => this.#text.parentElement.append(element("p", { className: "note", text: remark })));
  }

  /** Remove question and answer. */
  remove() {
    this.#turn.remove();
  }
}

function message(author, className, text) {
  const box = element("div", { className });
  box.append(element("h2", { text: author }), element("div", { className: "text", text }));
  return box;
}
