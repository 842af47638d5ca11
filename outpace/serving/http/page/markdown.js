/** The blocks of a Markdown text: those that language models write, not all of CommonMark. HTML is text. */

/**
 * Text of a block without the marks at the beginning of its lines: `at` has the offset of each character in the
 * source.
 *
 * @typedef {{text: string, at: number[]}} Text
 */

/**
 * `from` and `to` are the offsets of a block in the source, by lines.
 *
 * @typedef {{from: number, to: number} & (
 *   {name: "p" | "h3" | "h4" | "h5" | "h6" | "line", content: Text}
 *   | {name: "pre", language: string, content: Text}
 *   | {name: "ul" | "ol", start: number, items: Block[][]}
 *   | {name: "blockquote", blocks: Block[]}
 *   | {name: "table", rows: Text[][]}
 *   | {name: "hr"})} Block
 */

const MAX_DEPTH = 12; // of lists and quotations in one another
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^( {0,3}(#{1,6})\s+)\S/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const DELIMITER = /^:?-+:?$/;

/** @returns {Block[]} */
export function blocksOf(source) {
  return parse(linesOf(source), 0);
}

/** The lines of a text that is not Markdown, with their ends. @returns {Block[]} */
export function plainBlocks(source) {
  const lines = [...source.matchAll(/[^\n]*\n|[^\n]+$/g)].map(({ 0: text, index: start }) => ({ text, start }));
  return lines.map((line) => block("line", [line], { content: textOf([line]) }));
}

/** {text, start}: a line, or what is left of it, and its offset in the source. */
function linesOf(source) {
  let start = 0;
  return source.split("\n").map((text) => {
    const line = { text, start };
    start += text.length + 1;
    return line;
  });
}

function block(name, lines, fields) {
  const last = lines.at(-1);
  return { name, from: lines[0].start, to: last.start + last.text.length, ...fields };
}

/** @returns {Text} */
function textOf(lines) {
  const at = lines.flatMap(({ text, start }) => Array.from({ length: text.length + 1 }, (_, index) => start + index));
  return { text: lines.map((line) => line.text).join("\n"), at };
}

function cut(line, length) {
  return { text: line.text.slice(length), start: line.start + Math.min(length, line.text.length) };
}

function isBlank(line) {
  return !line.text.trim();
}

function indentation(line) {
  return line.text.length - line.text.trimStart().length;
}

function parse(lines, depth) {
  const blocks = [];
  const readers = depth < MAX_DEPTH ? [fenced, heading, rule, quotation, list, table] : [fenced];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    let found = null; // {block, end}: with the index of the line behind it
    for (const read of readers) found ??= read(lines, i, depth);
    found ??= paragraph(lines, i, readers, depth);
    blocks.push(found.block);
    i = found.end;
  }
  return blocks;
}

function paragraph(lines, first, readers, depth) {
  let end = first + 1;
  const begins = (i) => readers.some((read) => (read === list ? interrupts(lines[i]) : read(lines, i, depth)));
  while (end < lines.length && !isBlank(lines[end]) && !begins(end)) end++;
  const own = lines.slice(first, end);
  return { block: block("p", own, { content: textOf(own) }), end };
}

/** Whether a line in a paragraph begins a list: not if a number happens to be at its beginning. */
function interrupts(line) {
  const found = ITEM.exec(line.text);
  return found && found[0].length < line.text.length && /^([-*+]|1[.)])$/.test(found[2]);
}

/** Code between fences, or from a fence to the end while it is written. */
function fenced(lines, first) {
  const found = FENCE.exec(lines[first].text);
  if (!found) return null;
  const indent = indentation(lines[first]);
  const closing = new RegExp(`^ {0,3}\\${found[1][0]}{${found[1].length},}\\s*$`);
  let end = first + 1;
  while (end < lines.length && !closing.test(lines[end].text)) end++;
  const code = lines.slice(first + 1, end).map((line) => cut(line, Math.min(indent, indentation(line))));
  const own = lines.slice(first, end + 1);
  const fields = { language: found[2].trim().split(/\s/)[0], content: textOf(code) };
  return { block: block("pre", own, fields), end: end + 1 };
}

function heading(lines, first) {
  const found = HEADING.exec(lines[first].text);
  if (!found) return null;
  const content = textOf([cut(lines[first], found[1].length)]);
  const name = `h${Math.min(6, found[2].length + 2)}`; // below those of the page
  return { block: block(name, [lines[first]], { content }), end: first + 1 };
}

function rule(lines, first) {
  return RULE.test(lines[first].text) ? { block: block("hr", [lines[first]]), end: first + 1 } : null;
}

function quotation(lines, first, depth) {
  let end = first;
  while (end < lines.length && QUOTE.test(lines[end].text)) end++;
  if (end === first) return null;
  const own = lines.slice(first, end);
  const inner = own.map((line) => cut(line, QUOTE.exec(line.text)[0].length));
  return { block: block("blockquote", own, { blocks: parse(inner, depth + 1) }), end };
}

/** A list; lines that are indented, and lines that go on with a paragraph, belong to the item before. */
function list(lines, first, depth) {
  const found = ITEM.exec(lines[first].text);
  if (!found) return null;
  const [, { length: indent }, marker] = found;
  const kind = (text) => text.at(-1) + (/\d/.test(text) ? "1" : "");
  const items = [];
  let end = first;
  let afterBlank = false;
  for (let i = first; i < lines.length; i++) {
    const line = lines[i];
    const item = ITEM.exec(line.text);
    if (isBlank(line)) {
      afterBlank = true;
      items.at(-1).push(line);
      continue;
    }
    if (item && item[1].length <= indent + 1 && !RULE.test(line.text)) {
      if (kind(item[2]) !== kind(marker) || item[1].length < indent) break;
      items.push([cut(line, item[0].length)]);
    } else if (indentation(line) >= indent + 2) {
      items.at(-1).push(cut(line, Math.min(indentation(line), indent + found[0].trim().length + 1)));
    } else if (afterBlank || FENCE.test(line.text) || HEADING.test(line.text) || RULE.test(line.text)) {
      break;
    } else {
      items.at(-1).push(line);
    }
    afterBlank = false;
    end = i + 1;
  }
  const isNumbered = /\d/.test(marker);
  const fields = { start: isNumbered ? parseInt(marker, 10) : 1, items: items.map((each) => parse(each, depth + 1)) };
  return { block: block(isNumbered ? "ol" : "ul", lines.slice(first, end), fields), end };
}

function table(lines, first) {
  const [head, delimiters] = [lines[first], lines[first + 1]];
  if (!head.text.includes("|") || !delimiters?.text.includes("|")) return null;
  if (!cellsOf(delimiters).every((cell) => DELIMITER.test(cell.text))) return null;
  let end = first + 2;
  while (end < lines.length && lines[end].text.includes("|")) end++;
  const rows = [head, ...lines.slice(first + 2, end)].map(cellsOf);
  return { block: block("table", lines.slice(first, end), { rows }), end };
}

/** @returns {Text[]} */
function cellsOf({ text, start }) {
  const bars = [...text.matchAll(/(?<!\\)\|/g)].map((found) => found.index);
  const ends = [...bars, text.length];
  const cells = ends.map((end, index) => ({ from: index ? ends[index - 1] + 1 : 0, end }));
  const isOutside = ({ from, end }) => !text.slice(from, end).trim();
  if (isOutside(cells[0])) cells.shift();
  if (cells.length && isOutside(cells.at(-1))) cells.pop();
  return cells.map(({ from, end }) => {
    const cell = text.slice(from, end);
    return textOf([{ text: cell.trim(), start: start + from + indentation({ text: cell }) }]);
  });
}
