// The view of one message. An answer is rendered as it arrives; finished parts are not rendered again.

import { callPieces } from "./conversation.js";
import { button, copy, element } from "./dom.js";
import { Markdown, renderMarkdown } from "./markdown.js";

const GRADES = [0.9, 0.6, 0.3, 0.1, 0];  // lowest probabilities of the colours p0 … p4

/** `actions`: edit(message, text), and for an answer regenerate(message) and giveResults(message). */
export function questionView(message, actions) {
  const text = element("div", { className: "text" }, message.content);
  const edits = button("Edit", () => edit(view, text, message, actions));
  const copies = button("Copy", () => copy(message.content, copies));
  const view = element("article", { className: "turn user" }, text, element("div", { className: "actions" }, copies, edits));
  view.dataset.role = "user";
  return view;
}

function edit(view, shown, message, actions) {
  if (view.querySelector(".editor")) return;
  const text = element("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1) });
  text.setAttribute("aria-label", "Edit message");
  const leave = () => { editor.remove(); shown.hidden = false; };
  const save = () => { leave(); actions.edit(message, text.value); };
  const editor = element("div", { className: "editor" }, text, element("div", { className: "actions shown" },
    button("Cancel", leave), button(message.role === "user" ? "Send" : "Save", save, { className: "main" })));
  text.onkeydown = event => {
    if (event.key === "Escape") { event.stopPropagation(); leave(); }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
  };
  shown.hidden = true;
  shown.after(editor);
  text.focus();
}

export class AnswerView {
  constructor(answer, actions) {
    Object.assign(this, { answer, actions, calls: [], reasoning: null, tokens: null, decoder: new TextDecoder() });
    this.text = element("div", { className: "text markdown" });
    this.body = element("div", { className: "body" }, this.text);
    this.foot = element("p", { className: "foot" });
    this.error = element("p", { className: "error", hidden: true });
    this.buttons = element("div", { className: "actions" });
    this.node = element("article", { className: "turn assistant" }, this.body, this.error, this.foot, this.buttons);
    this.node.dataset.role = "assistant";
    this.writer = new Markdown(this.text);
    if (answer.state !== "running") this.showWhole();
    else this.node.classList.add("running");
  }

  showWhole() {
    const { answer } = this;
    if (answer.reasoning) this.addReasoning(answer.reasoning);
    answer.calls.forEach((call, index) => this.addCall({ index, name: call.name, text: call.arguments }));
    if (answer.tokens) this.addTokens(answer.tokens);
    else renderMarkdown(this.text, answer.content);
    this.end();
  }

  /** Adds one delta of the stream, with the chunk's logprobs if any. */
  add(delta, logprobs) {
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    if (reasoning) this.addReasoning(reasoning);
    for (const piece of callPieces(delta)) this.addCall(piece);
    if (logprobs?.content) this.addTokens(logprobs.content);
    else if (delta.content && !this.tokens) this.writer.push(delta.content);
  }

  addReasoning(text) {
    if (!this.reasoning) {
      this.reasoning = document.createTextNode("");
      const shown = element("div", { className: "folded" }, this.reasoning);
      this.text.before(element("details", { className: "reasoning" }, element("summary", {}, "Reasoning"), shown));
    }
    this.reasoning.appendData(text);
  }

  addCall(piece) {
    const index = piece.index ?? this.calls.length;
    const view = (this.calls[index] ??= this.newCall(index));
    view.name.appendData(piece.name);
    view.arguments.appendData(piece.text);
  }

  newCall(index) {
    const name = document.createTextNode(""), given = document.createTextNode(""), { answer } = this;
    const result = element("textarea", { rows: 2, placeholder: "The tool's result" });
    result.setAttribute("aria-label", "The tool's result");
    result.value = answer.calls[index]?.result ?? "";
    result.oninput = () => { answer.calls[index].result = result.value; };
    const sends = button("Continue with the results", () => this.actions.giveResults(answer));
    const summary = element("summary", {}, "Call to ", element("code", {}, name));
    this.foot.before(element("details", { className: "call" }, summary, element("pre", {}, given), result,
      element("div", { className: "row" }, sends)));
    return { name, arguments: given };
  }

  addTokens(entries) {
    if (!this.tokens) {
      this.text.replaceChildren();
      this.tokens = element("div", { className: "tokens" });
      this.text.append(this.tokens);
    }
    this.tokens.append(...entries.map(entry => {
      const probability = Math.exp(entry.logprob), grade = GRADES.findIndex(least => probability >= least);
      const others = (entry.top_logprobs ?? []).map(({ token, logprob }) => `${JSON.stringify(token)} ${percent(Math.exp(logprob))}`);
      // A token may be a part of a character, whose bytes come from several tokens.
      const text = entry.bytes ? this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token;
      return element("span", { className: `p${grade}`, title: [percent(probability), ...others].join("\n") }, text);
    }));
  }

  /** Called when the answer has ended, for whatever reason. */
  end() {
    const { answer, actions } = this;
    this.node.classList.remove("running");
    if (!this.tokens) this.writer.finish();
    this.error.hidden = answer.state !== "failed";
    this.error.textContent = answer.error;
    this.foot.textContent = [...answer.warnings, footText(answer)].filter(Boolean).join("\n");
    const copies = button("Copy", () => copy(answer.content, copies));
    this.buttons.replaceChildren(copies, button("Edit", () => edit(this.node, this.body, answer, actions)),
      button(answer.state === "failed" ? "Try again" : "Regenerate", () => actions.regenerate(answer)));
  }

  showSpeed() {
    this.foot.textContent = footText(this.answer);
  }
}

const percent = share => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

function footText({ usage, firstMs, lastMs, state, reason }) {
  const parts = [];
  if (usage) {
    parts.push(`${usage.completion_tokens} tokens`);
    const seconds = (lastMs - firstMs) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0.02) parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (firstMs) parts.push(`first token after ${(firstMs / 1000).toFixed(2)} s`);
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${usage.prompt_tokens} tokens${cached ? `, ${cached} of them cached` : ""}`);
  }
  if (state === "stopped") parts.push("stopped");
  else if (reason === "length") parts.push("cut off: the most tokens are reached");
  return parts.join(" · ");
}
