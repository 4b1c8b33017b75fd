// Renders Markdown that arrives in pieces. Finished blocks are not rendered again: a piece costs only the open block's end.

import { button, copy, element } from "./dom.js";
import { appendInline } from "./inline.js";

const FENCE = /^( {0,3})(`{3,}(?=[^`]*$)|~{3,})(.*)$/s;  // s: lines may end in \r\n
const HEADING = /^ {0,3}(#{1,6})(?:\s(.*))?$/s;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/;
const SPACE = /[\s\u3000-\u9fff\uac00-\ud7af]/;
const MAX_DEPTH = 10;       // of nested quotes and lists
const MAX_OPEN_CHARS = 600;   // of a paragraph that are rendered again for a piece
const SURE_CHARS = 160;     // of a line's beginning, after which its kind is certain, except for these lines:
// of marks only (a rule, or the rule of a table), a heading, and the beginning of fenced code.
const NEVER_SURE = /^(?:[\s>*_|:+-]|\d{1,9}[.)])*(?:$|#{1,6}\s|`{3}|~{3})/;

/** The text of a paragraph, heading or cell. Its end is open; the part before it is fixed at a space now and then. */
class TextLeaf {
  constructor(parent, kind) {
    Object.assign(this, { parent, kind, text: "", fixed: parent.childNodes.length });
  }
  set(text) {
    this.text = text;
    while (this.parent.childNodes.length > this.fixed) this.parent.lastChild.remove();
    appendInline(this.parent, text);
  }
  fix() {
    if (this.text.length <= MAX_OPEN_CHARS) return;
    const end = fixableEnd(this.text), rest = this.text.slice(end);
    if (end === 0) return;
    this.set(this.text.slice(0, end));
    this.fixed = this.parent.childNodes.length;
    this.set(rest);
  }
}

/** The position after the last space (or character of a script without spaces) outside of marks, else after any space. */
function fixableEnd(text) {
  const open = new Map([["`", 0], ["*", 0], ["_", 0], ["~", 0], ["[", 0]]);
  let closed = 0, any = 0;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at] === "]" ? "[" : text[at];
    if (open.has(letter)) open.set(letter, 1 - open.get(letter));
    else if (SPACE.test(letter)) {
      any = at + 1;
      if (![...open.values()].includes(1)) closed = any;
    }
  }
  return closed || any || (text.length > 2 * MAX_OPEN_CHARS ? text.length : 0);
}

export class Markdown {
  /** Writes into `root`, which must not be changed by other code. */
  constructor(root) {
    Object.assign(this, { root, stack: [], leaf: null, line: "", inside: false, undo: [] });
  }

  push(text) {
    const lines = text.split("\n");
    this.takeBack();
    for (let index = 0; index < lines.length; index++) {
      const isLast = index === lines.length - 1;
      if (this.inside) this.extend(lines[index]);
      else this.line += lines[index];
      if (isLast) break;
      if (this.inside) this.endExtended();
      else this.read(this.line, false);
      this.line = "";
      this.inside = false;
    }
    if (!this.inside) this.preview();
  }

  /** Reads the last line as complete. */
  finish() {
    this.takeBack();
    if (!this.inside && this.line) this.read(this.line, false, false);
    this.line = "";
    this.inside = false;
  }

  preview() {
    if (!this.line) return;
    const inCode = this.leaf?.kind === "code" && this.walk(this.line)[0] === this.stack.length;
    const isLong = this.line.length > SURE_CHARS && this.leaf?.kind !== "table" && !NEVER_SURE.test(this.line);
    const sure = inCode ? /[^\s`~>]/.test(this.line) : isLong;
    if (inCode && !sure) return;  // it may end the fenced code
    if (!sure) {
      if (!/^[\s>]*(?:[-*+_#|`~]{0,3}|\d{1,9}[.)]?)$/.test(this.line.trimEnd())) this.read(this.line, true);
      return;
    }
    this.read(this.line, false, false);
    this.line = "";
    this.inside = this.leaf !== null;
  }

  takeBack() {
    while (this.undo.length) this.undo.pop()();
  }

  /** Adds text to a line whose beginning has been read. */
  extend(text) {
    if (!text) return;
    if (this.leaf.kind === "code") return this.leaf.node.appendData(text);
    this.leaf.set(this.leaf.text + text);
    this.leaf.fix();
  }

  endExtended() {
    if (this.leaf.kind === "code") this.leaf.node.appendData("\n");
  }

  /** `tentative`: the rest of the line may change its kind; `whole`: the line is complete. */
  read(line, tentative, whole = true) {
    const keep = tentative ? { stack: [...this.stack], leaf: this.leaf } : null;
    if (tentative) this.undo.push(() => Object.assign(this, keep));
    this.tentative = tentative;
    const [depth, rest] = this.walk(line);
    if (this.leaf?.kind === "code" && depth === this.stack.length) return this.readCode(rest, whole);
    if (depth < this.stack.length && this.leaf?.kind === "text" && this.continues(rest)) return this.readText(rest);
    if (depth < this.stack.length) {
      this.stack.length = depth;
      this.leaf = null;
    }
    this.open(rest);
  }

  /** The number of open quotes and items that contain the line, and the rest of the line after their marks. */
  walk(line) {
    let depth = 0, rest = line;
    for (; depth < this.stack.length; depth++) {
      const { kind, indent } = this.stack[depth];
      if (kind === "quote") {
        if (!QUOTE.test(rest)) break;
        rest = rest.replace(QUOTE, "");
      } else if (!rest.trim()) {
        rest = "";
      } else {
        const spaces = rest.search(/\S/);
        if (spaces < indent) break;
        rest = rest.slice(indent);
      }
    }
    return [depth, rest];
  }

  get container() { return this.stack.at(-1)?.node ?? this.root; }

  continues(rest) {
    return rest.trim() && ![FENCE, HEADING, RULE, ITEM, QUOTE].some(start => start.test(rest));
  }

  add(node, parent = this.container) {
    parent.append(node);
    if (this.tentative) this.undo.push(() => node.remove());
    return node;
  }

  open(rest) {
    for (; this.stack.length < MAX_DEPTH; this.leaf = null) {
      if (QUOTE.test(rest)) {
        rest = rest.replace(QUOTE, "");
        this.stack = [...this.stack, { kind: "quote", indent: 0, node: this.add(element("blockquote")) }];
      } else if (ITEM.test(rest) && !RULE.test(rest)) rest = this.openItem(rest);
      else break;
    }
    this.openBlock(rest);
  }

  openItem(rest) {
    const [mark, spaces, sign, gap] = ITEM.exec(rest);
    const number = parseInt(sign), name = Number.isNaN(number) ? "UL" : "OL";
    let list = this.container.lastElementChild;
    if (list?.tagName !== name) list = this.add(element(name, name === "OL" && number !== 1 ? { start: number } : {}));
    const node = this.add(element("li"), list);
    const indent = spaces.length + sign.length + (gap.length > 4 || !gap ? 1 : gap.length);
    // Nested items are often indented by two spaces, whatever the width of the outer mark.
    this.stack = [...this.stack, { kind: "item", indent: Math.min(indent, spaces.length + 2), node }];
    return rest.slice(Math.min(indent, mark.length)).replace(/^ (?=\S)/, "");
  }

  openBlock(rest) {
    let match;
    if (!rest.trim()) this.leaf = null;
    else if ((match = FENCE.exec(rest))) this.openCode(match);
    else if ((match = HEADING.exec(rest))) {
      appendInline(this.add(element(`h${match[1].length}`)), (match[2] ?? "").trim().replace(/(?:^|\s)#+$/, ""));
      this.leaf = null;
    } else if (this.leaf?.kind === "text" && this.isTableHead(rest)) this.openTable(rest);
    else if (RULE.test(rest)) { this.add(element("hr")); this.leaf = null; }
    else if (this.leaf?.kind === "table" && rest.includes("|")) this.readRow(rest);
    else this.readText(rest);
  }

  readText(rest) {
    const text = rest.replace(/^\s+/, "");
    if (this.leaf?.kind !== "text") {
      this.leaf = new TextLeaf(this.add(element("p")), "text");
      return this.leaf.set(text);
    }
    const leaf = this.leaf, before = leaf.text;
    if (this.tentative) this.undo.push(() => leaf.set(before));
    leaf.set(`${before.endsWith("\\") ? before.slice(0, -1) : before.trimEnd()}\n${text}`);
    if (!this.tentative) leaf.fix();
  }

  openCode([, indent, fence, information]) {
    const [language] = information.trim().split(/\s/);
    const node = document.createTextNode("");
    const copies = button("Copy", () => copy(node.data.replace(/\n$/, ""), copies));
    const head = element("div", { className: "code-head" }, element("span", {}, language), copies);
    this.add(element("div", { className: "code" }, head, element("pre", {}, element("code", {}, node))));
    this.leaf = { kind: "code", node, fence, indent: indent.length };
  }

  readCode(rest, whole) {
    const { node, fence, indent } = this.leaf, end = rest.trim();
    if (end.length >= fence.length && end === fence[0].repeat(end.length)) return void (this.leaf = null);
    let from = 0;
    while (from < indent && rest[from] === " ") from++;
    node.appendData(rest.slice(from) + (whole ? "\n" : ""));
  }

  isTableHead(rest) {
    const head = this.leaf.text.split("\n").at(-1);
    return rest.includes("-") && TABLE_RULE.test(rest.trim()) && head.includes("|") && cells(rest).length === cells(head).length;
  }

  /** Makes the last line of the paragraph the head of a table; the lines before it stay a paragraph. */
  openTable(rest) {
    const leaf = this.leaf, { parent, text } = leaf, sides = cells(rest).map(side), body = element("tbody");
    const before = text.split("\n"), row = tableRow("th", cells(before.pop()), sides);
    const table = element("div", { className: "table" }, element("table", {}, element("thead", {}, row), body));
    parent.after(table);
    leaf.set(before.join("\n"));
    if (!parent.hasChildNodes()) parent.remove();
    if (this.tentative) this.undo.push(() => { table.replaceWith(parent); leaf.set(text); });
    this.leaf = { kind: "table", body, sides };
  }

  readRow(rest) {
    this.add(tableRow("td", cells(rest), this.leaf.sides), this.leaf.body);
  }
}

function tableRow(name, texts, sides) {
  return element("tr", {}, ...sides.map((className, index) => {
    const cell = element(name, { className });
    appendInline(cell, texts[index] ?? "");
    return cell;
  }));
}

function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map(text => text.trim().replaceAll("\\|", "|"));
}

const side = rule => (rule.endsWith(":") ? (rule.startsWith(":") ? "middle" : "right") : "");

/** Renders a whole text. */
export function renderMarkdown(root, text) {
  const writer = new Markdown(root);
  writer.push(text);
  writer.finish();
}
