/** Elements of the document. All text is inserted as text, never as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A new HTML element. */
export function element(name, { className = "", text = "" } = {}) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** A new SVG element with these attributes. */
export function svgElement(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
