/** Markdown within a paragraph: code, emphasis and links. */

/**
 * A part of a text; offsets are into that text.
 *
 * @typedef {{name: "text" | "code", from: number, to: number}
 *   | {name: "strong" | "em" | "del", parts: Part[]}
 *   | {name: "a", href: string, parts: Part[]}} Part
 */

const MAX_DEPTH = 8; // of emphasis in emphasis
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const NAMES = { "**": "strong", "*": "em", _: "em", "~~": "del" }; // `__` is Python's, far more often than bold
const LINK = /\[((?:[^[\]\\\n]|\\.){1,300})\]\(((?:https?|mailto):[^\s()<>]{1,2000}(?:\([^\s()<>]{1,300}\)[^\s()<>]{0,300})?)\)/iy;
const ADDRESS = /https?:\/\/[^\s<>"'`*()[\]]{0,2000}[^\s<>"'`*()[\].,;:!?_~]/iy;

/**
 * @param {string} text
 * @returns {Part[]} that cover the text but for marks
 */
export function partsOf(text, from = 0, to = text.length, depth = 0, isLink = false) {
  const parts = [];
  const unclosed = new Set(); // marks without an end, for which nobody searches again
  let plain = from; // what was passed and is in no part
  const add = (part, start, end) => {
    if (start > plain) parts.push({ name: "text", from: plain, to: start });
    parts.push(part);
    plain = end;
  };
  for (let i = from; i < to; i = Math.max(i + 1, plain)) {
    const letter = text[i];
    if (letter === "\\" && i + 1 < to && PUNCTUATION.test(text[i + 1])) {
      add({ name: "text", from: i + 1, to: i + 2 }, i, i + 2);
    } else if (letter === "`") {
      const length = runLength(text, i, to);
      const end = codeEnd(text, i, to, unclosed);
      if (end) add(codePart(text, i + length, end - length), i, end);
      else i += length - 1;
    } else if (letter === "[" && !isLink) {
      const found = match(LINK, text, i, to);
      if (found) {
        const label = partsOf(text, i + 1, i + 1 + found[1].length, depth + 1, true);
        add({ name: "a", href: found[2], parts: label }, i, i + found[0].length);
      }
    } else if ((letter === "h" || letter === "H") && !isLink && !/\w/.test(text[i - 1] ?? "")) {
      const found = match(ADDRESS, text, i, to);
      if (found) {
        const end = i + found[0].length;
        add({ name: "a", href: found[0], parts: [{ name: "text", from: i, to: end }] }, i, end);
      }
    } else if ("*_~".includes(letter)) {
      const run = runLength(text, i, to);
      const mark = letter.repeat(run > 1 && letter !== "_" ? 2 : run);
      const start = i + mark.length;
      const isOpening = NAMES[mark] && depth < MAX_DEPTH && start < to && !/\s/.test(text[i + run] ?? " ");
      const isInWord = letter === "_" && /\w/.test(text[i - 1] ?? "");
      const end = isOpening && !isInWord && !unclosed.has(mark) ? emphasisEnd(text, mark, start, to) : 0;
      if (end) {
        add({ name: NAMES[mark], parts: partsOf(text, start, end, depth + 1, isLink) }, i, end + mark.length);
      } else {
        if (isOpening && !isInWord) unclosed.add(mark);
        i += run - 1;
      }
    }
  }
  if (to > plain) parts.push({ name: "text", from: plain, to });
  return parts;
}

function match(pattern, text, index, to) {
  pattern.lastIndex = index;
  const found = pattern.exec(text);
  return found && index + found[0].length <= to ? found : null;
}

function runLength(text, index, to) {
  let end = index;
  while (end < to && text[end] === text[index]) end++;
  return end - index;
}

/** Offset behind the code that begins here; 0: it does not end. */
function codeEnd(text, index, to, unclosed = new Set()) {
  const length = runLength(text, index, to);
  const mark = "`".repeat(length);
  if (unclosed.has(mark)) return 0;
  for (let i = index + length; (i = text.indexOf("`", i)) >= 0 && i < to; ) {
    const run = runLength(text, i, to);
    if (run === length) return i + run;
    i += run;
  }
  unclosed.add(mark);
  return 0;
}

/** Code without the blank at both ends that separates it from the marks. */
function codePart(text, from, to) {
  const isPadded = to - from > 2 && text[from] === " " && text[to - 1] === " ";
  return isPadded ? { name: "code", from: from + 1, to: to - 1 } : { name: "code", from, to };
}

/** Offset of the mark that ends emphasis whose text begins at `from`; 0: there is none. */
function emphasisEnd(text, mark, from, to) {
  const unclosed = new Set();
  for (let i = from; i < to; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === "`") i = (codeEnd(text, i, to, unclosed) || i + runLength(text, i, to)) - 1;
    else if (text[i] === mark[0]) {
      const run = runLength(text, i, to);
      const fits = mark.length === 2 ? run >= 2 : run % 2 === 1;
      const isInWord = mark === "_" && /\w/.test(text[i + run] ?? "");
      if (fits && i > from && !/\s/.test(text[i - 1]) && !isInWord) return i + run - mark.length;
      i += run - 1;
    }
  }
  return 0;
}
