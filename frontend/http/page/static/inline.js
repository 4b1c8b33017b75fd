// Turns inline Markdown into DOM nodes: code, emphasis, strong, strikethrough, links. HTML in the text stays text.

import { element } from "./dom.js";

const SPECIAL = /[\\`*_~[!h\n]/g;
const MAX_DEPTH = 6;
const LINK = /^\[((?:\\.|[^\[\]\\]){0,500})\]\(\s*<?([^\s<>()]{1,2000}(?:\([^\s()]{0,500}\)[^\s<>()]{0,500})?)>?(?:\s+"[^"]{0,500}")?\s*\)/;
const BARE_LINK = /^https?:\/\/[^\s<>"`]{1,2000}/;
const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];
const WORD = /[\p{L}\p{N}]/u;

/** Appends `text` to `parent`, in linear time: the end of a mark that has none is searched only once. */
export function appendInline(parent, text, depth = 0) {
  const missing = new Set();
  let plain = "", at = 0;
  const add = node => { if (plain) parent.append(plain); plain = ""; parent.append(node); };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, found);
    if (found === text.length) break;
    const special = special_at(text, found, depth, missing);
    if (special) {
      if (special.node) add(special.node);
      else plain += special.text;
      at = special.end;
    } else {
      plain += text[found];
      at = found + 1;
    }
  }
  if (plain) parent.append(plain);
}

function special_at(text, at, depth, missing) {
  switch (text[at]) {
    case "\\": return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { text: text[at + 1], end: at + 2 } : null;
    case "\n": return { node: element("br"), end: at + 1 };
    case "`": return codeAt(text, at, missing);
    case "!": return text[at + 1] === "[" ? linkAt(text, at + 1, depth, missing) : null;  // an image would be loaded from elsewhere
    case "[": return linkAt(text, at, depth, missing);
    case "h": return bareLinkAt(text, at);
    default: return emphasisAt(text, at, depth, missing);
  }
}

function codeAt(text, at, missing) {
  let end = at;
  while (text[end] === "`") end++;
  const fence = text.slice(at, end), close = closing(text, fence, end, missing, "`");
  if (close < 0) return { text: fence, end };
  const content = text.slice(end, close).replaceAll("\n", " ");
  return { node: element("code", {}, /^ .*\S.* $/.test(content) ? content.slice(1, -1) : content), end: close + fence.length };
}

/** The position of a run of exactly this mark; -1 if there is none. */
function closing(text, mark, from, missing, letter) {
  if (missing.has(mark)) return -1;
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    let end = at + mark.length;
    while (text[end] === letter) end++;
    if (end - at === mark.length) return at;
    at = end;
  }
  missing.add(mark);
  return -1;
}

function linkAt(text, at, depth, missing) {
  if (missing.has("](")) return null;
  if (text.indexOf("](", at) < 0) {
    missing.add("](");
    return null;
  }
  const match = LINK.exec(text.slice(at, at + 4000));
  if (!match) return null;
  const label = document.createDocumentFragment();
  if (depth < MAX_DEPTH) appendInline(label, match[1] || match[2], MAX_DEPTH);
  else label.append(match[1] || match[2]);
  const node = /^(https?:|mailto:)/i.test(match[2]) ? link(match[2], label) : element("span", { title: match[2] }, label);
  return { node, end: at + match[0].length };
}

function bareLinkAt(text, at) {
  if (!text.startsWith("http", at) || (at && WORD.test(text[at - 1]))) return null;
  const url = BARE_LINK.exec(text.slice(at, at + 2100))?.[0].replace(/[.,;:!?*_~'")\]]+$/, "");
  return url ? { node: link(url, url), end: at + url.length } : null;
}

function link(url, label) {
  return element("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}

function emphasisAt(text, at, depth, missing) {
  const found = MARKS.find(([mark]) => text.startsWith(mark, at));
  if (!found || depth >= MAX_DEPTH) return null;
  const [mark, name] = found, begin = at + mark.length;
  if (/\s/.test(text[begin] ?? " ")) return { text: mark, end: begin };
  if (mark[0] === "_" && at && WORD.test(text[at - 1])) return { text: mark, end: begin };
  const end = endOfEmphasis(text, mark, begin, missing);
  if (end < 0) return { text: mark, end: begin };
  const node = element(name);
  appendInline(node, text.slice(begin, end), depth + 1);
  return { node, end: end + mark.length };
}

function endOfEmphasis(text, mark, begin, missing) {
  if (missing.has(mark)) return -1;
  for (let at = text.indexOf(mark, begin + 1); at >= 0; at = text.indexOf(mark, at + 1)) {
    const inner = mark.length === 1 && text[at + 1] === mark;  // the beginning of a strong part inside
    if (inner && text[at - 1] !== mark) {
      const close = text.indexOf(mark + mark, at + 2);
      if (close > 0) at = close + 1;
      continue;
    }
    const intoWord = mark[0] === "_" && WORD.test(text[at + mark.length] ?? " ");
    if (!/\s/.test(text[at - 1]) && !intoWord) return mark.length === 2 && text[at + 2] === mark[0] ? at + 1 : at;
  }
  missing.add(mark);
  return -1;
}
