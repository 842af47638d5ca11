/** The state of one answer: its text, which tokens were drafted, and how fast it is generated. */

/**
 * A step as the server reports it, see the field `step` of chunks in docs/serving.md.
 *
 * @typedef {object} Step
 * @property {string | null} method that drafted, "prediction" for a predicted answer, null if nothing was drafted
 * @property {{token: string, parent: number | null}[]} draft nodes of the draft tree; parent null: the root
 * @property {number[]} accepted indices of the accepted nodes, from the root down
 * @property {string[]} tokens texts of the generated tokens: the accepted ones, then the bonus token
 */

/** Text that steps generated, divided by what wrote it. */
export class Passage {
  text = "";
  /**
   * Parts of the text in their order; `end` is the offset behind a part, `source` the method that drafted it or
   * null for the target, `step` the index of the step that generated it.
   *
   * @type {{end: number, source: string | null, step: number}[]}
   */
  runs = [];

  append(text, source, step) {
    this.text += text;
    const last = this.runs.at(-1);
    if (last?.source === source && last.step === step) last.end = this.text.length;
    else this.runs.push({ end: this.text.length, source, step });
  }
}

/** Collects the chunks of one answer. */
export class Answer {
  content = new Passage();
  reasoning = new Passage();
  /** @type {Step[]} */
  steps = [];
  numTokens = 0;
  numDrafted = 0;
  numAccepted = 0;
  /** number of generated tokens by source @type {Map<string | null, number>} */
  numBySource = new Map();
  firstTime = null; // of the first step, in milliseconds
  lastTime = null;
  #expected = []; // {text, source, step}: parts of the text that steps have generated and no chunk has brought

  /** The answer of which `toJSON` gave this value. */
  static from(saved) {
    const answer = Object.assign(new Answer(), saved);
    answer.content = Object.assign(new Passage(), saved.content);
    answer.reasoning = Object.assign(new Passage(), saved.reasoning);
    answer.numBySource = new Map(saved.numBySource);
    return answer;
  }

  toJSON() {
    return { ...this, numBySource: [...this.numBySource] };
  }

  /**
   * Add a chunk of the response's stream.
   *
   * @param {any} chunk
   * @param {number} now milliseconds
   */
  add(chunk, now) {
    const [choice] = chunk.choices;
    if (choice?.step) this.#addStep(choice.step, now);
    const { reasoning, content = choice?.text } = choice?.delta ?? {};
    if (reasoning) this.#take(reasoning, this.reasoning);
    if (content) this.#take(content, this.content);
  }

  /** What it took to generate the answer, in words. */
  get summary() {
    return `${this.numTokens} tokens in ${this.steps.length} forward passes of the target.`;
  }

  /** Tokens per forward of the target, bonus tokens included; null before the first step. */
  get acceptanceLength() {
    return this.steps.length ? this.numTokens / this.steps.length : null;
  }

  /** Accepted divided by drafted tokens; null if nothing was drafted. */
  get acceptanceRate() {
    return this.numDrafted ? this.numAccepted / this.numDrafted : null;
  }

  /** Tokens per second after the first step, which also reads the prompt; null before the second step. */
  get tokensPerSecond() {
    const seconds = (this.lastTime - this.firstTime) / 1000;
    return seconds > 0 ? (this.numTokens - this.steps[0].tokens.length) / seconds : null;
  }

  /** Text of the token before a step's tree, its root; for the first step it is in the prompt. */
  rootOf(index) {
    return index ? this.steps[index - 1].tokens.at(-1) : "";
  }

  #addStep(step, now) {
    this.firstTime ??= now;
    this.lastTime = now;
    step.tokens.forEach((text, index) => {
      const source = index < step.accepted.length ? step.method : null;
      this.numBySource.set(source, (this.numBySource.get(source) ?? 0) + 1);
      this.#expected.push({ text, source, step: this.steps.length });
    });
    this.steps.push(step);
    this.numTokens += step.tokens.length;
    this.numDrafted += step.draft.length;
    this.numAccepted += step.accepted.length;
  }

  /** Append new text to a passage, divided by source. It may be behind the steps' text, never ahead of it, and
   * lacks the tags around reasoning. */
  #take(text, passage) {
    this.#skip(this.#expected.map((part) => part.text).join("").indexOf(text));
    while (text && this.#expected.length) {
      const part = this.#expected[0];
      const length = Math.min(part.text.length, text.length);
      if (length) passage.append(text.slice(0, length), part.source, part.step);
      text = text.slice(length);
      part.text = part.text.slice(length);
      if (!part.text) this.#expected.shift();
    }
  }

  /** Leave out so many characters of the steps' text. */
  #skip(length) {
    while (length > 0) {
      const [part] = this.#expected;
      const some = part.text.slice(0, length);
      part.text = part.text.slice(some.length);
      length -= some.length;
      if (!part.text) this.#expected.shift();
    }
  }
}
