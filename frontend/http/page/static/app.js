// The page: the list of conversations, the open conversation, and the answer that is being generated.

import { ServerError, listModels, streamAnswer } from "./client.js";
import { addDelta, callPieces, history, joined, newAnswer, newConversation } from "./conversation.js";
import { button, byId, element } from "./dom.js";
import { Follower } from "./scroll.js";
import { askForKey, coloursTokens, hasSeed, prepareSettings, requestFields, systemPrompt } from "./settings.js";
import * as store from "./store.js";
import { AnswerView, questionView } from "./turns.js";

const MAX_TITLE_CHARS = 60;
const MAX_SEED = 2 ** 31;
let conversation = newConversation();
let running = null;  // {abort: AbortController, answer, conversation, isRemoved} of the answer that is being generated
const follower = new Follower(byId("log"), byId("latest"));
const actions = { edit: editMessage, regenerate, giveResults };

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function save(which) {
  if (!which.messages.length) return;
  try {
    store.saveConversation(which);
  } catch (error) {
    notice(`The browser could not store this conversation: ${error.message}. Export conversations and delete some.`);
  }
  showList();
}

function showList() {
  byId("conversations").replaceChildren(...store.loadConversations().map(each => {
    const name = button(each.title || "New chat", () => open(each.id), { className: "name", title: each.title });
    if (each.id === conversation.id) name.setAttribute("aria-current", "true");
    const removes = button("✕", () => remove(each), { className: "remove" });
    removes.setAttribute("aria-label", `Delete ${each.title}`);
    return element("div", { className: "entry" }, name, removes);
  }));
}

function remove(which) {
  if (!confirm(`Delete “${which.title}” from this browser?`)) return;
  if (running?.conversation.id === which.id) {
    running.isRemoved = true;
    stop();
  }
  store.removeConversation(which.id);
  if (which.id === conversation.id) show(newConversation());
  else showList();
}

function open(id) {
  if (id === conversation.id) return void document.body.classList.remove("drawer");
  stop();
  show(store.loadConversations().find(each => each.id === id) ?? newConversation());
}

function show(which) {
  conversation = which;
  chooseModel(which.model);
  byId("turns").replaceChildren(...which.messages.map(viewOf));
  document.body.classList.remove("drawer");
  notice("");
  showList();
  follower.toEnd();
}

function viewOf(message) {
  return message.role === "user" ? questionView(message, actions) : new AnswerView(message, actions).node;
}

/** Drops all messages from `index` on. */
function cut(index) {
  conversation.messages.length = index;
  const nodes = [...byId("turns").children];
  nodes.slice(index).forEach(node => node.remove());
}

function say(text) {
  const question = { role: "user", content: text };
  conversation.title ||= text.trim().slice(0, MAX_TITLE_CHARS);
  conversation.messages.push(question);
  byId("turns").append(questionView(question, actions));
  return generate();
}

function editMessage(message, text) {
  const index = conversation.messages.indexOf(message);
  if (message.role === "user") {
    stop();
    cut(index);
    return say(text);
  }
  message.content = text;
  delete message.tokens;
  byId("turns").children[index].replaceWith(viewOf(message));
  return save(conversation);
}

function regenerate(answer) {
  stop();
  cut(conversation.messages.indexOf(answer));
  // The server derives the seed from the request: without a new seed, an equal request gets the same answer.
  return generate(hasSeed() ? {} : { seed: crypto.getRandomValues(new Uint32Array(1))[0] % MAX_SEED });
}

function giveResults(answer) {
  stop();
  cut(conversation.messages.indexOf(answer) + 1);
  return generate();
}

function requestBody(which, more) {
  const messages = history(which.messages, which.messages.length, systemPrompt());
  const options = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  const model = byId("model").value;
  return { ...(model ? { model } : {}), messages, ...more, ...requestFields(), ...options };
}

async function generate(more = {}) {
  stop();
  notice("");
  const body = requestBody(conversation, more), answer = newAnswer(), view = new AnswerView(answer, actions);
  const mine = { abort: new AbortController(), answer, conversation, isRemoved: false };
  mine.conversation.messages.push(answer);
  mine.conversation.changed = Date.now();
  mine.conversation.model = byId("model").value;
  byId("turns").append(view.node);
  running = mine;
  showRunning();
  follower.toEnd();
  save(mine.conversation);
  try {
    await write(body, answer, view, mine.abort.signal);
    answer.state = "done";
  } catch (error) {
    answer.state = error.name === "AbortError" ? "stopped" : "failed";
    answer.error = error.message;
    if (error instanceof ServerError === false && error.name !== "AbortError") console.error(error);
  }
  view.end();
  follower.grown();
  if (running === mine) running = null;
  showRunning();
  if (!mine.isRemoved) save(mine.conversation);
  if (answer.state === "failed" && answer.needsKey) await enterKeyAndRetry(answer);
}

/** Reads the stream into the answer. All deltas that arrive between two screen frames are shown together. */
async function write(body, answer, view, signal) {
  const begun = performance.now(), colours = coloursTokens();  // the setting may change during the answer
  let waiting = [], frame = 0;
  const flush = () => {
    frame = 0;
    const merged = waiting;
    waiting = [];
    for (const [delta, logprobs] of joined(merged)) view.add(delta, logprobs);
    if (merged.length) view.showSpeed();
    follower.grown();
  };
  try {
    for await (const chunk of streamAnswer(body, store.loadKey(), signal)) {
      // Only the first of several choices (`n`) is shown.
      const choice = chunk.choices.find(each => each.index === 0), now = performance.now() - begun;
      answer.usage = chunk.usage ?? answer.usage;
      answer.warnings.push(...(chunk.warnings ?? []));
      if (!choice) continue;
      answer.reason = choice.finish_reason ?? answer.reason;
      const { content, reasoning, reasoning_content } = choice.delta;
      if (content || reasoning || reasoning_content || callPieces(choice.delta).length) {
        answer.firstMs ??= now;
        answer.lastMs = now;
      }
      addDelta(answer, choice.delta);
      if (colours && choice.logprobs?.content) (answer.tokens ??= []).push(...choice.logprobs.content);
      waiting.push([choice.delta, colours ? choice.logprobs : null]);
      if (!frame) frame = document.hidden ? setTimeout(flush, 200) : requestAnimationFrame(flush);
    }
  } catch (error) {
    answer.needsKey = error.status === 401;
    throw error;
  } finally {
    flush();
  }
}

async function enterKeyAndRetry(answer) {
  const place = conversation;
  if (await askForKey(answer.error) && conversation === place && place.messages.at(-1) === answer) {
    await loadModels();
    regenerate(answer);
  }
}

function stop() {
  if (running) {
    running.answer.state = "stopped";  // at once, because the history of a next request may begin with it
    running.abort.abort();
  }
  running = null;
  showRunning();
}

function showRunning() {
  byId("send").textContent = running ? "Stop" : "Send";
}

function chooseModel(name) {
  if ([...byId("model").options].some(option => option.value === name)) byId("model").value = name;
}

async function loadModels() {
  try {
    const models = await listModels(store.loadKey()), chosen = byId("model").value || conversation.model;
    byId("model").replaceChildren(...models.map(each => element("option", { value: each.id, title: each.max_model_len
      ? `${each.max_model_len} tokens of context` : "" }, each.id)));
    chooseModel(chosen);
    notice("");
  } catch (error) {
    if (error.status === 401) {
      if (await askForKey(error.message)) await loadModels();
    } else notice(error.message);
  }
}

function exportAll() {
  const url = URL.createObjectURL(new Blob([store.exportedText()], { type: "application/json" }));
  const link = element("a", { href: url, download: "conversations.json" });
  link.click();
  URL.revokeObjectURL(url);
}

async function importFile(file) {
  try {
    const count = store.importText(await file.text());
    showList();
    notice(`${count} conversation${count === 1 ? "" : "s"} imported.`);
  } catch (error) {
    notice(`${file.name} was not imported. ${error.message}`);
  }
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").title = `Colours: ${theme || "system default"}`;
}

function fitText() {
  const text = byId("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

byId("form").onsubmit = event => {
  event.preventDefault();
  if (running) return stop();
  const text = byId("text").value;
  if (!text.trim()) return;
  byId("text").value = "";
  fitText();
  say(text);
};
byId("text").oninput = fitText;
byId("text").onkeydown = event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!running) byId("form").requestSubmit();
  }
};
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
});
byId("new").onclick = () => { stop(); show(newConversation()); byId("text").focus(); };
byId("menu").onclick = () => document.body.classList.toggle("drawer");
byId("shade").onclick = () => document.body.classList.remove("drawer");
byId("export").onclick = exportAll;
byId("import").onclick = () => byId("import-file").click();
byId("import-file").onchange = event => { importFile(event.target.files[0]); event.target.value = ""; };
byId("theme").onclick = () => {
  const order = ["", "dark", "light"], next = order[(order.indexOf(store.loadTheme()) + 1) % 3];
  store.saveTheme(next);
  showTheme(next);
};
addEventListener("pagehide", () => { if (running) save(running.conversation); });
showTheme(store.loadTheme());
prepareSettings(loadModels);
show(newConversation());
loadModels();
