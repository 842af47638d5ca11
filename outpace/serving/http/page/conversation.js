/** A conversation with the model: one request at a time, and what is shown of it. */

import { Answer } from "./answer.js";
import { byId } from "./elements.js";
import { clearFailure, showFailure } from "./failure.js";
import { Legend } from "./legend.js";
import { clearSpeedup, showFigures, showSpeedup } from "./measurements.js";
import { chat } from "./server.js";
import { apiKey, requestBody, withoutDrafts } from "./settings.js";
import { Steps } from "./steps.js";
import { Transcript } from "./transcript.js";

const NO_ANSWER = new Answer();

export class Conversation {
  #messages = []; // without a system prompt
  #last = null; // the last answer, its request and its view
  #running = null; // AbortController of the request that is being answered
  #frameIsDue = false; // the next frame draws
  #transcript;
  #legend;
  #steps;

  /** @param {import("./sources.js").Sources} sources */
  constructor(sources) {
    this.#legend = new Legend(byId("legend"), sources);
    this.#transcript = new Transcript(byId("conversation"), sources);
    this.#steps = new Steps(sources, (index) => this.#last?.view.mark(index));
    this.restart();
  }

  get isBusy() {
    return this.#running !== null;
  }

  /** Begin a new conversation. */
  restart() {
    this.#messages = [];
    this.#last = null;
    this.#transcript.clear();
    this.#legend.clear();
    this.#draw(NO_ANSWER);
    clearSpeedup();
    clearFailure();
    this.#showState();
  }

  /** End the request that is being answered. */
  stop() {
    this.#running?.abort();
  }

  /**
   * Generate the answer to a message and show it.
   *
   * @param {string} text
   * @returns {Promise<boolean>} false: there was no answer, and the conversation is as before
   */
  async send(text) {
    const messages = [...this.#messages, { role: "user", content: text }];
    const [body, answer, view] = [requestBody(messages), new Answer(), this.#transcript.add(text)];
    const previous = this.#last;
    previous?.view.mark(null);
    this.#last = { body, answer, view };
    clearSpeedup();
    const remark = await this.#receive(body, "The model is answering.", answer, (runs) => {
      view.append(runs);
      this.#drawInNextFrame(answer);
    });
    const isAnswered = answer.steps.length > 0;
    if (isAnswered) {
      view.end(remark);
      this.#messages = [...messages, { role: "assistant", content: answer.text }];
    } else {
      view.remove();
      this.#last = previous;
    }
    this.#draw(this.#last?.answer ?? NO_ANSWER);
    this.#showState();
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

  /**
   * Run a request until its end, an error or `stop`.
   *
   * @returns {Promise<string>} why the answer is not complete; "" if it is
   */
  async #receive(body, words, answer, onRuns) {
    this.#running = new AbortController();
    const { signal } = this.#running;
    clearFailure();
    this.#showState(words);
    let reason = null;
    try {
      for await (const chunk of chat(body, apiKey(), signal)) {
        onRuns(answer.add(chunk, performance.now()));
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
  #drawInNextFrame(answer) {
    if (this.#frameIsDue) return;
    this.#frameIsDue = true;
    requestAnimationFrame(() => {
      this.#frameIsDue = false;
      if (this.isBusy) this.#draw(answer);
    });
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
