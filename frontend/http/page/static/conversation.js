// The data of a conversation, and the part of it that is sent to the server.

/** A message: {role: "user", content} or an answer: {role: "assistant", content, reasoning, calls, state, ...}. */
export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", calls: [], state: "running", error: "", warnings: [], usage: null };
}

export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", model: "", messages: [], changed: Date.now() };
}

/** Adds one delta of the stream to an answer. */
export function addDelta(answer, delta) {
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
  for (const piece of callPieces(delta)) {
    const call = (answer.calls[piece.index ?? answer.calls.length] ??= { id: "", name: "", arguments: "", result: "" });
    call.id = piece.id ?? call.id;
    call.name += piece.name;
    call.arguments += piece.text;
    if (piece.isCustom) call.isCustom = true;
  }
}

/** The pieces of calls in a delta. The text of a call is its arguments in JSON, or the input of a custom tool. */
export function callPieces(delta) {
  const pieces = delta.tool_calls ?? (delta.function_call ? [{ index: 0, function: delta.function_call }] : []);
  return pieces.map(({ index, id, function: called, custom }) => ({
    index, id, isCustom: Boolean(custom), name: (called ?? custom)?.name ?? "", text: called?.arguments ?? custom?.input ?? "",
  }));
}

/** Joins consecutive deltas that have only content; `parts`: pairs of a delta and its logprobs or null. */
export function joined(parts) {
  const all = [];
  for (const [delta, logprobs] of parts) {
    const last = all.at(-1), isPlain = Object.keys(delta).every(name => name === "content") && !logprobs;
    if (isPlain && last?.isPlain) last[0] = { content: (last[0].content ?? "") + (delta.content ?? "") };
    else all.push(Object.assign([delta, logprobs], { isPlain }));
  }
  return all;
}

const hasOutput = answer => Boolean(answer.content || answer.reasoning || answer.calls.length);

/** Whether an answer belongs to the conversation: not if it failed or was stopped before its first token. */
export function counts(answer) {
  return answer.state === "done" || (answer.state === "stopped" && hasOutput(answer));
}

/** The messages before the answer at `end`, in the form of the API. A failed answer is left out with its question. */
export function history(messages, end, system) {
  const sent = system ? [{ role: "system", content: system }] : [];
  for (let index = 0; index < end; index++) {
    const message = messages[index], next = messages[index + 1];
    if (message.role === "user") {
      if (index + 1 === end || !next || next.role === "user" || counts(next)) sent.push({ role: "user", content: message.content });
    } else if (counts(message)) {
      sent.push(...asSent(message));
    }
  }
  return sent;
}

function asSent(answer) {
  const sent = { role: "assistant", content: answer.content };
  if (answer.reasoning) sent.reasoning = answer.reasoning;
  const calls = answer.calls.filter(call => call?.name);
  if (!calls.length) return [sent];
  sent.tool_calls = calls.map((call, index) => ({ id: call.id || `call-${index}`, ...called(call) }));
  const results = calls.map((call, index) => ({ role: "tool", tool_call_id: call.id || `call-${index}`, content: call.result }));
  return [sent, ...results.filter(result => result.content)];
}

function called({ name, arguments: text, isCustom }) {
  return isCustom ? { type: "custom", custom: { name, input: text } } : { type: "function", function: { name, arguments: text } };
}

/** Throws if the value is not a conversation. */
export function checkConversation(given) {
  const isText = value => typeof value === "string";
  const isCall = call => isText(call?.id) && isText(call.name) && isText(call.arguments) && isText(call.result);
  const isMessage = message => isText(message?.content) && (message.role === "user" || (message.role === "assistant"
    && isText(message.reasoning) && isText(message.error) && ["done", "stopped", "failed"].includes(message.state)
    && Array.isArray(message.calls) && message.calls.every(isCall)
    && Array.isArray(message.warnings) && message.warnings.every(isText)));
  if (!isText(given?.id) || !isText(given.title) || !Array.isArray(given.messages) || !given.messages.every(isMessage)) {
    throw new Error("It contains a conversation in another format.");
  }
  return { ...newConversation(), ...given };
}
