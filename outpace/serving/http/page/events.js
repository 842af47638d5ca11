/** Server-sent events: the JSON values in the body of a response. */

/**
 * The values, up to the event `[DONE]`. Lines and characters may be split anywhere between two reads.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<any>}
 * @throws {Error} if the body ends before `[DONE]`
 */
export async function* events(body) {
  let data = [];
  for await (const line of lines(body)) {
    if (line.startsWith("data:")) {
      data.push(line.slice("data:".length).trimStart());
    } else if (line === "" && data.length) {
      const text = data.join("\n");
      data = [];
      if (text === "[DONE]") return;
      yield JSON.parse(text);
    } // other lines are comments, by which a server keeps a connection open, or fields that are not used here
  }
  throw new Error("the connection ended before the answer was complete: send the message again");
}

/** The complete lines of a body, without their ends. */
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const found = (rest + value).split("\n");
      rest = found.pop();
      for (const line of found) yield line.replace(/\r$/, "");
    }
  } finally {
    await reader.cancel();
  }
}
