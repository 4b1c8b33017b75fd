// The server's API: models, its description, and a streamed answer. Every failure becomes a ServerError with the server's message.

export class ServerError extends Error {
  /** `status`: 0 if there is none, because the connection failed or an event of the stream reports the error. */
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

// Paths are relative to the page's path, so that the page works behind a proxy's prefix.
async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached.");
  }
  if (!response.ok) throw new ServerError(await messageOf(response), response.status);
  return response;
}

async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}: ${text.slice(0, 300)}`;  // from a proxy, not from this server
  }
}

export async function listModels(key) {
  return (await (await ask("v1/models", { headers: headers(key) })).json()).data;
}

/** The server's OpenAPI document. */
export async function readDocument(key) {
  return (await ask("openapi.json", { headers: headers(key) })).json();
}

/** The chunks of an answer. Throws AbortError, or ServerError for a refusal, an error event or a broken stream. */
export async function* streamAnswer(body, key, signal) {
  const options = { method: "POST", headers: headers(key), body: JSON.stringify(body), signal };
  const response = await ask("v1/chat/completions", options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    yield* chunks(reader);
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke before the end of the answer.");
  }
}

async function* chunks(reader) {
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ServerError("The stream ended before the answer did.");
    const frames = (held + value).split("\n\n");
    held = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (!data) continue;  // a ping
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code);
      yield chunk;
    }
  }
}
