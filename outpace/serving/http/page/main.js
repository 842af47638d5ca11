/** The page: connects its controls with the conversation. */

import { Conversation } from "./conversation.js";
import { byId } from "./elements.js";
import { clearFailure, showFailure } from "./failure.js";
import { servedModel } from "./server.js";
import { apiKey, fitSettings, invalidSetting, keepApiKey, offerMethods } from "./settings.js";

const MAX_LINES = 8; // of the message's field

let conversation = null; // null until the served model is known

/** Ask the server for its model; returns whether it answered. */
async function connect() {
  if (conversation) return true;
  try {
    const model = await servedModel(apiKey());
    byId("model").textContent = model.id;
    document.title = `${model.id} – outpace`;
    offerMethods(model.methods);
    fitSettings(model.chat);
    conversation = new Conversation(model);
    conversation.format(model.chat && byId("formatted").checked);
  } catch (error) {
    showFailure(error);
  }
  return conversation !== null;
}

async function send() {
  const field = byId("message");
  const text = field.value;
  if (!text.trim() || conversation?.isBusy || !(await connect())) return;
  const invalid = invalidSetting();
  if (invalid) {
    showPanel(true);
    invalid.reportValidity();
    return;
  }
  writeMessage("");
  const isAnswered = await conversation.send(text);
  if (!isAnswered && !field.value) writeMessage(text); // to be sent again
}

function writeMessage(text) {
  byId("message").value = text;
  fitMessage();
}

/** Make the field as high as its message. */
function fitMessage() {
  const field = byId("message");
  field.rows = Math.min(MAX_LINES, field.value.split("\n").length);
}

/** Show the panel in place of the conversation, where the window is narrow. */
function showPanel(isShown) {
  document.body.classList.toggle("panel-shown", isShown);
  byId("show-panel").setAttribute("aria-expanded", String(isShown));
}

byId("message").addEventListener("input", fitMessage);
byId("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") conversation?.stop();
});
byId("stop").addEventListener("click", () => conversation.stop());
byId("compare").addEventListener("click", () => conversation.compare());
byId("restart").addEventListener("click", () => {
  conversation?.restart();
  byId("message").focus();
});
byId("colours").addEventListener("change", (event) => {
  document.body.classList.toggle("plain", !event.target.checked);
});
byId("formatted").addEventListener("change", (event) => conversation?.format(event.target.checked));
byId("show-panel").addEventListener("click", () => {
  showPanel(!document.body.classList.contains("panel-shown"));
});
byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  keepApiKey(byId("key").value);
  clearFailure();
  await connect();
  if (byId("failure").hidden) byId("message").focus();
});
connect();
