// Data stored in the browser: conversations, one entry each, settings, and the key. The server stores none of it.

import { checkConversation } from "./conversation.js";

// Of this server: others may have other paths on the same host.
const PREFIX = `paged-serve:${new URL(".", location.href).pathname}:`;
const CHAT = `${PREFIX}chat:`;

function read(storage, name) {
  const text = storage.getItem(PREFIX + name);
  return text === null ? null : JSON.parse(text);
}

/** Throws if the browser has no room left. */
export function saveConversation(conversation) {
  const kept = (name, value) => {
    if (name === "tokens") return undefined;  // probabilities would fill the storage
    return name === "state" && value === "running" ? "stopped" : value;  // the page is being closed
  };
  localStorage.setItem(CHAT + conversation.id, JSON.stringify(conversation, kept));
}

export function removeConversation(id) {
  localStorage.removeItem(CHAT + id);
}

/** All conversations, the most recently changed first. */
export function loadConversations() {
  const names = Object.keys(localStorage).filter(name => name.startsWith(CHAT));
  const all = names.map(name => JSON.parse(localStorage.getItem(name)));
  return all.sort((one, other) => other.changed - one.changed);
}

export const loadSettings = () => read(localStorage, "settings") ?? {};
export const saveSettings = settings => localStorage.setItem(`${PREFIX}settings`, JSON.stringify(settings));

export const loadTheme = () => read(localStorage, "theme") ?? "";
export const saveTheme = theme => localStorage.setItem(`${PREFIX}theme`, JSON.stringify(theme));

export const loadKey = () => read(sessionStorage, "key") ?? read(localStorage, "key") ?? "";

export function saveKey(key, keep) {
  for (const [storage, holds] of [[sessionStorage, !keep], [localStorage, keep]]) {
    if (key && holds) storage.setItem(`${PREFIX}key`, JSON.stringify(key));
    else storage.removeItem(`${PREFIX}key`);
  }
}

export const keepsKey = () => localStorage.getItem(`${PREFIX}key`) !== null;

export function exportedText() {
  return JSON.stringify({ format: "paged-serve conversations", version: 1, conversations: loadConversations() }, null, 1);
}

/** Imports conversations, replacing those with the same id; returns their number. Throws for an invalid file. */
export function importText(text) {
  const given = JSON.parse(text);
  if (given?.format !== "paged-serve conversations" || !Array.isArray(given.conversations)) {
    throw new Error("It is not an export of this page.");
  }
  const checked = given.conversations.map(checkConversation);
  checked.forEach(saveConversation);
  return checked.length;
}
