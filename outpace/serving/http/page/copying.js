/** Buttons that copy a text. */

import { element } from "./elements.js";

const SHOWN = 1500; // milliseconds for which a button says that it has copied

/**
 * @param {string} label what a screen reader calls it
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const button = element("button", { className: "small", text: "Copy" });
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    button.setAttribute("aria-label", button.textContent);
    setTimeout(() => {
      button.textContent = "Copy";
      button.setAttribute("aria-label", label);
    }, SHOWN);
  });
  return button;
}

/** Copy a text; returns whether that worked. Browsers offer the clipboard to pages from this machine or over HTTPS
 * only; to others they offer to copy what is selected. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const [field, focused] = [element("textarea", { className: "unseen" }), document.activeElement];
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isCopied;
}
