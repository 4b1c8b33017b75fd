// The dialogs: the settings sent with each request, and the API key.

import { byId } from "./dom.js";
import { keepsKey, loadKey, loadSettings, saveKey, saveSettings } from "./store.js";

const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
  "max_tokens", "min_tokens",
];
const NUM_ALTERNATIVES = 3;  // tokens shown in addition to the sampled one

let settings = loadSettings();

export const systemPrompt = () => (settings.system ?? "").trim();
export const coloursTokens = () => Boolean(settings.logprobs);
export const hasSeed = () => Boolean(settings.seed);

/** The request fields of the settings. */
export function requestFields() {
  const fields = {};
  for (const name of NUMBERS) if (settings[name]) fields[name] = Number(settings[name]);
  const stop = (settings.stop ?? "").split("\n").filter(line => line !== "");
  if (stop.length) fields.stop = stop;
  if (settings.logprobs) Object.assign(fields, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
  return { ...fields, ...further(settings.more ?? "") };
}

function further(text) {
  if (!text.trim()) return {};
  const given = JSON.parse(text);
  if (given === null || typeof given !== "object" || Array.isArray(given)) throw new Error("It must be an object: {…}");
  return given;
}

/** `keyEntered` is called after a key was entered in place of another. */
export function prepareSettings(keyEntered) {
  const form = byId("settings-form"), dialog = byId("settings");
  byId("open-settings").onclick = () => { show(form); dialog.showModal(); };
  byId("reset-settings").onclick = () => { form.reset(); form.oninput(); };
  byId("enter-key").onclick = async () => { dialog.close(); if (await askForKey("")) keyEntered(); };
  form.oninput = () => { if (check(form)) { settings = taken(form); saveSettings(settings); } };
  form.onsubmit = event => { if (!check(form)) event.preventDefault(); };
}

function show(form) {
  form.reset();
  for (const [name, value] of Object.entries(settings)) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) field.value = value;
  }
  check(form);
}

function taken(form) {
  const fields = [...form.elements].filter(field => field.name);
  return Object.fromEntries(fields.map(field => [field.name, field.type === "checkbox" ? field.checked : field.value]));
}

/** Whether the JSON is valid; otherwise the dialog shows the reason. */
function check(form) {
  const error = byId("settings-error");
  try {
    further(form.elements.more.value);
    error.hidden = true;
  } catch (reason) {
    error.textContent = `Other request fields: ${reason.message}`;
    error.hidden = false;
  }
  return error.hidden;
}

/** Resolves to true once a key was entered, to false if the dialog was closed. */
export function askForKey(reason) {
  const dialog = byId("key-dialog");
  byId("key-reason").textContent = reason || "It is sent with each request to this server.";
  byId("key").value = loadKey();
  byId("keep-key").checked = keepsKey();
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise(resolve => {
    byId("key-form").onsubmit = () => saveKey(byId("key").value.trim(), byId("keep-key").checked);
    byId("key-form").querySelector("button").value = "entered";
    dialog.onclose = () => resolve(dialog.returnValue === "entered");
  });
}
