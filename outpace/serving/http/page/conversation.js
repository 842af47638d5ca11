/** A conversation with the model: one request at a time, and what is shown of it. */

import { Answer } from "./answer.js";
import { byId } from "./elements.js";
import { clearFailure, showFailure } from "./failure.js";
import { Legend } from "./legend.js";
import { clearSpeedup, showFigures, showSpeedup } from "./measurements.js";
import { SavedConversation } from "./saved.js";
import { answers } from "./server.js";
import { apiKey, requestBody, withoutDrafts } from "./settings.js";
import { Sources } from "./sources.js";
import { Steps } from "./steps.js";
import { Transcript } from "./transcript.js";

const NO_ANSWER = new Answer();

export class Conversation {
  #model;
  #turns = []; // {question, answer, remark, body, view}, see saved.js
  #running = null; // AbortController of the request that is being answered
  #frameIsDue = false; // the next frame draws
  #saved;
  #transcript;
  #legend;
  #steps;

  /** @param {import("./server.js").Model} model */
  constructor(model) {
    const sources = new Sources(model.methods);
    const titles = model.chat ? ["You", "Model"] : ["Text", "Continuation"];
    this.#model = model;
    this.#saved = new SavedConversation(model.id);
    this.#legend = new Legend(byId("legend"), sources);
    this.#transcript = new Transcript(byId("conversation"), sources, titles, () => this.#regenerate());
    this.#steps = new Steps(sources, (index) => this.#last?.view.mark(index));
    this.#begin();
    this.#restore();
  }

  get isBusy() {
    return this.#running !== null;
  }

  get #last() {
    return this.#turns.at(-1);
  }

  /** Begin a new conversation, and forget the one before. */
  restart() {
    this.#saved.clear();
    this.#begin();
  }

  /** End the request that is being answered. */
  stop() {
    this.#running?.abort();
  }

  /** Show the answers' Markdown formatted, or as it is. */
  format(isFormatted) {
    this.#transcript.format(isFormatted);
  }

  /**
   * Generate the answer to a message, or the continuation of a text, and show it.
   *
   * @param {string} question
   * @returns {Promise<boolean>} false: there was no answer, and the conversation is as before
   */
  async send(question) {
    const [body, answer] = [requestBody(this.#turns, question, this.#model.chat), new Answer()];
    this.#last?.view.mark(null);
    const turn = { question, body, answer, remark: "", view: this.#transcript.add(question, answer) };
    this.#turns.push(turn);
    clearSpeedup();
    turn.remark = await this.#receive(body, "The model is answering.", answer, () => this.#drawInNextFrame(turn));
    const isAnswered = answer.steps.length > 0;
    if (isAnswered) {
      this.#transcript.draw(turn.view);
      turn.view.end(turn.remark);
      if (!this.#saved.save(this.#turns)) {
        showFailure(new Error("the conversation is too long for this browser to keep: a reload will lose it"));
      }
    } else {
      this.#turns.pop();
      this.#transcript.remove(turn.view);
    }
    this.#drawLast();
    return isAnswered;
  }

  /** Generate as many tokens as in the last answer again, without drafts, and compare the speeds. */
  async compare() {
    const { answer, body } = this.#last;
    const plain = new Answer();
    await this.#receive(withoutDrafts(body, answer.numTokens), "Measuring plain decoding.", plain, () => {
      byId("plain").textContent = `plain decoding: ${plain.numTokens} of ${answer.numTokens} tokens`;
    });
    if (plain.numTokens === answer.numTokens && plain.tokensPerSecond !== null) showSpeedup(answer, plain);
    else clearSpeedup();
    this.#showState();
  }

  /** Generate the last answer again, with the settings as they are now. */
  async #regenerate() {
    if (this.isBusy) return;
    const before = this.#turns.pop();
    this.#transcript.remove(before.view);
    byId("message").focus();
    if (await this.send(before.question)) return;
    this.#turns.push(before);
    this.#transcript.put(before.view);
    this.#drawLast();
  }

  #begin() {
    this.#turns = [];
    this.#transcript.clear();
    this.#legend.clear();
    clearSpeedup();
    clearFailure();
    this.#drawLast();
  }

  /** Show the conversation that was saved. */
  #restore() {
    for (const turn of this.#saved.load()) {
      const view = this.#transcript.add(turn.question, turn.answer);
      view.end(turn.remark);
      this.#turns.push({ ...turn, view });
      this.#legend.draw(turn.answer);
    }
    this.#drawLast();
  }

  /**
   * Run a request until its end, an error or `stop`.
   *
   * @returns {Promise<string>} why the answer is not complete; "" if it is
   */
  async #receive(body, words, answer, onChunk) {
    this.#running = new AbortController();
    const { signal } = this.#running;
    clearFailure();
    this.#showState(words);
    let reason = null;
    try {
      for await (const chunk of answers(body, apiKey(), signal)) {
        answer.add(chunk, performance.now());
        onChunk();
        reason = chunk.choices[0]?.finish_reason ?? reason;
      }
      return reason === "length" ? "The limit on tokens was reached." : "";
    } catch (error) {
      if (!signal.aborted) showFailure(error);
      return signal.aborted ? "Stopped." : "The answer is not complete.";
    } finally {
      this.#running = null;
    }
  }

  /** Draw at most once per frame: there may be more steps than frames. */
  #drawInNextFrame({ answer, view }) {
    if (this.#frameIsDue) return;
    this.#frameIsDue = true;
    requestAnimationFrame(() => {
      this.#frameIsDue = false;
      if (!this.isBusy) return;
      this.#transcript.draw(view);
      this.#draw(answer);
    });
  }

  #drawLast() {
    this.#draw(this.#last?.answer ?? NO_ANSWER);
    this.#showState();
  }

  #draw(answer) {
    showFigures(answer);
    this.#legend.draw(answer);
    this.#steps.follow(answer);
  }

  /** Show what the page does, or else what the last answer took, and let the controls fit. */
  #showState(words = this.#last?.answer.summary ?? "") {
    byId("status").textContent = words;
    const [old, next] = this.isBusy ? ["send", "stop"] : ["stop", "send"];
    const hasFocus = document.activeElement === byId(old);
    byId(next).hidden = false;
    byId(old).hidden = true;
    if (hasFocus) byId(next).focus();
    byId("restart").disabled = this.isBusy;
    byId("compare").disabled = this.isBusy || !this.#last?.answer.tokensPerSecond;
    byId("conversation").setAttribute("aria-busy", String(this.isBusy)); // read aloud when it is complete
  }
}
