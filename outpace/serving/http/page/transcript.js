/** The conversation on the page: questions and answers. */

import { copyButton } from "./copying.js";
import { element } from "./elements.js";
import { PassageView } from "./passage_view.js";

const NEAR_THE_END = 80; // px: who has scrolled up further than that is not scrolled down again

export class Transcript {
  #box;
  #sources;
  #titles; // of question and answer
  #onRegenerate;
  #views = new Set();
  #isFormatted = false;

  /**
   * @param {HTMLElement} box
   * @param {import("./sources.js").Sources} sources
   * @param {[string, string]} titles of questions and answers
   * @param {() => void} onRegenerate called when the last answer is to be generated again
   */
  constructor(box, sources, titles, onRegenerate) {
    this.#box = box;
    this.#sources = sources;
    this.#titles = titles;
    this.#onRegenerate = onRegenerate;
  }

  /**
   * Show a question and its answer, of which more may come; returns its view.
   *
   * @param {string} question
   * @param {import("./answer.js").Answer} answer
   */
  add(question, answer) {
    const view = new TurnView(question, answer, this.#sources, this.#titles, this.#onRegenerate);
    this.put(view);
    return view;
  }

  /** Show a view at the end. */
  put(view) {
    this.#views.add(view);
    this.#box.append(view.turn);
    view.draw(this.#isFormatted);
    this.#scroll();
  }

  /** Show what the answer of a view has by now. */
  draw(view) {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
    view.draw(this.#isFormatted);
    if (isAtEnd) this.#scroll();
  }

  /** Show the answers' Markdown formatted, or as it is. */
  format(isFormatted) {
    this.#isFormatted = isFormatted;
    for (const view of this.#views) this.draw(view);
  }

  /** Remove a view. */
  remove(view) {
    this.#views.delete(view);
    view.turn.remove();
  }

  /** Remove all messages. */
  clear() {
    for (const view of this.#views) this.remove(view);
  }

  #scroll() {
    this.#box.scrollTop = this.#box.scrollHeight;
  }
}

class TurnView {
  turn = element("article");
  #answer;
  #box = element("div", { className: "answer waiting" });
  #thoughts = element("details", { className: "reasoning" });
  #passages;

  constructor(question, answer, sources, [questionTitle, answerTitle], onRegenerate) {
    this.#answer = answer;
    const asked = element("div", { className: "question" });
    asked.append(element("h2", { text: questionTitle }), element("div", { className: "text", text: question }));
    const reasoning = element("div", { className: "text" });
    const content = element("div", { className: "text content" });
    this.#thoughts.append(element("summary", { text: "Reasoning" }), reasoning);
    this.#box.append(element("h2", { text: answerTitle }), this.#thoughts, content);
    this.#passages = [
      new PassageView(reasoning, answer.reasoning, sources),
      new PassageView(content, answer.content, sources),
    ];
    const actions = element("div", { className: "actions" });
    const again = element("button", { className: "small regenerate", text: "Regenerate" });
    again.type = "button";
    again.addEventListener("click", onRegenerate);
    actions.append(copyButton("Copy the answer", () => answer.content.text), again);
    this.#box.append(actions);
    this.turn.append(asked, this.#box);
  }

  draw(isFormatted) {
    const [reasoning, content] = this.#passages;
    this.#thoughts.hidden = !this.#answer.reasoning.text;
    this.#box.classList.toggle("thinking", !this.#answer.content.text && !this.#thoughts.hidden);
    this.#box.classList.toggle("formatted", isFormatted);
    reasoning.draw(false);
    content.draw(isFormatted);
  }

  /** Mark what a step generated; null: nothing. */
  mark(step) {
    for (const each of this.#passages) each.mark(step);
  }

  /** Show that the answer has ended; `remark` says why it ended early, if it did. */
  end(remark) {
    this.#box.classList.remove("waiting");
    if (remark) this.#box.querySelector(".actions").before(element("p", { className: "note", text: remark }));
  }
}
