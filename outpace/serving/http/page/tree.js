/** Draws the draft tree of a step: the generated tokens in the top row, rejected branches below. */

import { svgElement } from "./elements.js";

const MAX_NODES = 256; // that are drawn; nodes come after their parents, so any first ones are a tree
const MAX_LETTERS = 12; // of a token
const LETTER = 7.3; // width of a monospaced letter, in px as the rest
const PADDING = 7;
const HEIGHT = 24;
const ROW = 31;
const GAP = 18; // between columns
const MARGIN = 2;

/**
 * A node of the drawing: a draft token, the root, or the bonus token.
 *
 * @typedef {object} Node
 * @property {string} token
 * @property {"root" | "accepted" | "rejected" | "bonus"} kind
 * @property {Node | null} parent
 * @property {Node[]} children generated ones first
 * @property {number} depth
 * @property {number} row
 */

/**
 * @param {HTMLElement} box
 * @param {import("./answer.js").Step} step
 * @param {string} root text of the token before the step
 * @param {string} className of accepted tokens
 */
export function drawTree(box, step, root, className) {
  const nodes = treeOf(step, root);
  const left = columns(nodes);
  const width = left.at(-1) - GAP + MARGIN;
  const height = (Math.max(...nodes.map((node) => node.row)) + 1) * ROW - (ROW - HEIGHT) + 2 * MARGIN;
  const drawing = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  drawing.setAttribute("aria-label", describe(step));
  const isRejected = ({ kind }) => kind === "rejected"; // these edges lie below the others
  const edges = [...nodes.filter(isRejected), ...nodes.filter((node) => node.parent && !isRejected(node))];
  for (const node of edges) drawing.append(edge(node, left));
  for (const node of nodes) drawing.append(boxOf(node, left, className));
  box.replaceChildren(drawing);
}

/** What a step drafted and accepted, in words. */
export function describe(step) {
  const shown = step.draft.length > MAX_NODES ? ` (${MAX_NODES} shown)` : "";
  const drafted = step.method ? `${step.draft.length} tokens drafted by ${step.method}${shown}` : "nothing drafted";
  return `${drafted}, ${step.accepted.length} accepted, ${step.tokens.length} generated`;
}

/** @returns {Node[]} the root first, parents before their children */
function treeOf(step, token) {
  const root = { token, kind: "root", parent: null, children: [], depth: 0, row: 0 };
  const accepted = new Set(step.accepted);
  const drafts = [];
  step.draft.slice(0, MAX_NODES).forEach(({ token, parent }, index) => {
    const kind = accepted.has(index) ? "accepted" : "rejected";
    drafts.push(attach(token, kind, parent === null ? root : drafts[parent]));
  });
  const bonus = [];
  if (step.tokens.length > step.accepted.length) {
    const last = step.accepted.length ? drafts[step.accepted.at(-1)] : root;
    if (last) bonus.push(attach(step.tokens.at(-1), "bonus", last));
  }
  const nodes = [root, ...drafts, ...bonus];
  placeRows(root);
  return nodes;
}

function attach(token, kind, parent) {
  const node = { token, kind, parent, children: [], depth: parent.depth + 1, row: 0 };
  if (kind === "rejected") parent.children.push(node);
  else parent.children.unshift(node);
  return node;
}

/** A first child is in its parent's row, each further one in the next free row. */
function placeRows(root) {
  let free = 1;
  const waiting = [root];
  while (waiting.length) {
    const node = waiting.pop();
    if (node.parent) node.row = node.parent.children[0] === node ? node.parent.row : free++;
    waiting.push(...node.children.toReversed());
  }
}

/** Left edge of each column, and of the one after the last. */
function columns(nodes) {
  const widths = [];
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, widthOf(node));
  const left = [MARGIN];
  for (const width of widths) left.push(left.at(-1) + width + GAP);
  return left;
}

function edge(node, left) {
  const { parent } = node;
  const bend = left[node.depth] - GAP / 2;
  const path = `M${left[parent.depth] + widthOf(parent)} ${middle(parent)}H${bend}V${middle(node)}H${left[node.depth]}`;
  return svgElement("path", { d: path, class: `edge ${node.kind}` });
}

function boxOf(node, left, className) {
  const group = svgElement("g", { class: `node ${node.kind} ${node.kind === "accepted" ? className : ""}` });
  const [x, y, width] = [left[node.depth], middle(node) - HEIGHT / 2, widthOf(node)];
  group.append(
    svgElement("rect", { x, y, width, height: HEIGHT, rx: 6 }),
    svgElement("text", { x: x + width / 2, y: y + HEIGHT / 2 }, label(node)),
    svgElement("title", {}, `${JSON.stringify(node.token)}, ${node.kind}`),
  );
  return group;
}

function middle(node) {
  return MARGIN + node.row * ROW + HEIGHT / 2;
}

function widthOf(node) {
  return Math.round([...label(node)].length * LETTER) + 2 * PADDING;
}

/** A token with its blanks made visible. */
function label(node) {
  if (!node.token) return node.kind === "root" ? "prompt" : "∅";
  const letters = [...node.token.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥")];
  return letters.length > MAX_LETTERS ? `${letters.slice(0, MAX_LETTERS - 1).join("")}…` : letters.join("");
}
