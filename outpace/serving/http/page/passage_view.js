/** Shows a passage that is being generated: its Markdown or its lines, with each token's source. */

import { copyButton } from "./copying.js";
import { element } from "./elements.js";
import { partsOf } from "./inline.js";
import { blocksOf, plainBlocks } from "./markdown.js";

const COVER = { p: "p", line: "span", h3: "h3", h4: "h4", h5: "h5", h6: "h6" }; // elements of blocks with one text

export class PassageView {
  #box;
  #passage;
  #sources;
  #shown = []; // blocks whose elements are in the box
  #isFormatted = false;
  #marked = null; // index of the step that is marked

  /**
   * @param {HTMLElement} box
   * @param {import("./answer.js").Passage} passage
   * @param {import("./sources.js").Sources} sources
   */
  constructor(box, passage, sources) {
    this.#box = box;
    this.#passage = passage;
    this.#sources = sources;
  }

  /** Show what the passage has by now. Blocks that did not change keep their elements, and what is selected there. */
  draw(isFormatted) {
    if (isFormatted !== this.#isFormatted) this.#shown = [];
    this.#isFormatted = isFormatted;
    const blocks = (isFormatted ? blocksOf : plainBlocks)(this.#passage.text);
    const isSame = (block, index) => {
      const shown = this.#shown[index];
      return shown && shown.name === block.name && shown.from === block.from && shown.to === block.to;
    };
    const first = blocks.findIndex((block, index) => !isSame(block, index));
    const kept = first < 0 ? blocks.length : first;
    while (this.#box.children.length > kept) this.#box.lastChild.remove();
    this.#box.append(...blocks.slice(kept).map((block) => this.#element(block)));
    this.#shown = blocks;
  }

  /** Mark what a step generated; null: nothing. */
  mark(step) {
    this.#marked = step;
    for (const run of this.#box.querySelectorAll(".source")) {
      run.classList.toggle("marked", run.dataset.step === String(step));
    }
  }

  /** @param {import("./markdown.js").Block} block */
  #element(block) {
    const { name } = block;
    if (name in COVER) {
      const made = element(COVER[name]);
      if (name === "line") this.#write(made, block.content, 0, block.content.text.length);
      else this.#writeParts(made, block.content, partsOf(block.content.text));
      return made;
    }
    if (name === "pre") return this.#code(block);
    if (name === "table") return this.#table(block);
    const made = element(name);
    if (name === "ol") made.start = block.start;
    if (name === "blockquote") made.append(...block.blocks.map((each) => this.#element(each)));
    for (const item of block.items ?? []) {
      const entry = element("li");
      entry.append(...item.map((each) => this.#element(each)));
      made.append(entry);
    }
    return made;
  }

  #code({ language, content }) {
    const [made, bar, code] = [element("div", { className: "code" }), element("div"), element("pre")];
    bar.append(element("span", { text: language }), copyButton("Copy the code", () => content.text));
    code.tabIndex = 0; // it may be wider than the page: scrolled by keyboard
    this.#write(code, content, 0, content.text.length);
    made.append(bar, code);
    return made;
  }

  #table({ rows }) {
    const [made, table] = [element("div", { className: "wide" }), element("table")];
    made.tabIndex = 0;
    rows.forEach((cells, index) => {
      const row = element("tr");
      for (const content of cells) {
        const cell = element(index ? "td" : "th");
        this.#writeParts(cell, content, partsOf(content.text));
        row.append(cell);
      }
      table.append(row);
    });
    made.append(table);
    return made;
  }

  /** @param {import("./inline.js").Part[]} parts */
  #writeParts(box, content, parts) {
    for (const part of parts) {
      if (part.name === "text") {
        this.#write(box, content, part.from, part.to);
        continue;
      }
      const made = element(part.name);
      if (part.name === "code") this.#write(made, content, part.from, part.to);
      else this.#writeParts(made, content, part.parts);
      if (part.name === "a") {
        made.href = part.href; // http, https or mailto
        made.target = "_blank";
        made.rel = "noopener noreferrer";
      }
      box.append(made);
    }
  }

  /** Append a part of a text, an element for each run of one source. */
  #write(box, { at }, from, to) {
    const { text, runs } = this.#passage;
    let index = from < to ? firstRunBehind(runs, at[from]) : 0;
    while (from < to) {
      const { end, source, step } = runs[index] ?? { end: Infinity, source: null };
      let next = from + 1;
      while (next < to && at[next] < end && at[next] === at[next - 1] + 1) next++;
      const run = element("span", {
        className: this.#sources.className(source),
        text: text.slice(at[from], at[next - 1] + 1),
      });
      run.dataset.step = step;
      run.classList.toggle("marked", step === this.#marked);
      run.title = `step ${step + 1}: ${this.#sources.words(source)}`;
      box.append(run);
      from = next;
      while (runs[index] && runs[index].end <= at[from]) index++;
    }
  }
}

/** Index of the run that has the character at this offset. */
function firstRunBehind(runs, offset) {
  let [low, high] = [0, runs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (runs[middle].end <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}
