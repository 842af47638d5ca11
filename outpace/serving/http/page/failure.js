/** Shows errors, and asks for an API key where the server wants one. */

import { byId } from "./elements.js";
import { ServerError, UNAUTHORIZED } from "./server.js";

/** Show an error. */
export function showFailure(error) {
  byId("failure").textContent = error.message;
  byId("failure").hidden = false;
  if (error instanceof ServerError && error.status === UNAUTHORIZED) {
    byId("key-form").hidden = false;
    byId("key").focus();
  }
}

/** Remove the error and the question for a key. */
export function clearFailure() {
  byId("failure").hidden = true;
  byId("failure").textContent = "";
  byId("key-form").hidden = true;
}
