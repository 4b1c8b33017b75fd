// The page /docs: the routes of the server, from its OpenAPI document.

import { readDocument } from "./client.js";
import { byId, element } from "./dom.js";
import { loadKey, saveKey } from "./store.js";

const LIMITS = ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"];
const UNAUTHORIZED = 401;

let schemas = {};

const code = text => element("code", { textContent: text });
const nameOf = reference => reference.split("/").at(-1);

/** A schema in words, such as "array of ChatMessage | null". */
function typeOf(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(each => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return schema.items ? `array of ${typeOf(schema.items)}` : "array";
  return [schema.type ?? "any"].flat().join(" | ");
}

/** The limits of a schema and of its alternatives, and its default. */
function limitsOf(schema) {
  const own = LIMITS.filter(name => name in schema).map(name => `${name} ${schema[name]}`);
  const others = [...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : [])].map(limitsOf);
  const initial = schema.default ?? null;
  return [...own, ...others, initial === null ? "" : `default ${JSON.stringify(initial)}`].filter(Boolean).join(", ");
}

/** The names of the schemas that a schema refers to. */
function references(schema) {
  if (schema.$ref) return [nameOf(schema.$ref)];
  return [...(schema.anyOf ?? []), ...(schema.items ? [schema.items] : [])].flatMap(references);
}

function row(name, schema, isRequired) {
  const limits = [isRequired ? "required" : "", limitsOf(schema), schema.description ?? ""].filter(Boolean).join("; ");
  const about = [code(typeOf(schema)), element("div", { className: "limits", textContent: limits })];
  return element("tr", {}, element("td", {}, code(name)), element("td", {}, ...about, ...references(schema).map(named)));
}

/** Closed until it is asked for, since a schema may contain itself. */
function named(name) {
  const folded = element("details", {}, element("summary", {}, code(name)));
  folded.addEventListener("toggle", () => folded.append(fields(schemas[name])), { once: true });
  return folded;
}

function fields(schema) {
  const required = new Set(schema.required ?? []), properties = Object.entries(schema.properties ?? {});
  if (!properties.length) return element("div", {}, code(typeOf(schema)), ...references(schema).map(named));
  properties.sort(([one], [other]) => required.has(other) - required.has(one));
  return element("table", {}, ...properties.map(([name, each]) => row(name, each, required.has(name))));
}

function content(title, described) {
  const parts = Object.entries(described?.content ?? {});
  if (!parts.length) return [];
  return [
    element("h2", { textContent: title }),
    ...parts.map(([type, { schema }]) => element("div", {}, code(type), " ", ...(references(schema).map(named)))),
  ];
}

function route(path, method, operation) {
  const errors = Object.entries(operation.responses).filter(([status]) => status !== "200");
  const about = element("span", { className: "about", textContent: operation.summary ?? "" });
  const made = element("details", { className: "route" }, element("summary", {},
    element("code", { className: "method", textContent: method.toUpperCase() }), " ", code(path), " ", about));
  made.addEventListener("toggle", () => made.append(
    ...parameters(operation.parameters ?? []),
    ...content("Body", operation.requestBody),
    ...content("Answer", operation.responses["200"]),
    element("h2", { textContent: "Other answers" }),
    element("table", {}, ...errors.map(([status, { description }]) =>
      element("tr", {}, element("td", {}, code(status)), element("td", { textContent: description })))),
  ), { once: true });
  made.dataset.words = [path, operation.summary, ...words(operation.requestBody)].join(" ").toLowerCase();
  return made;
}

function parameters(all) {
  if (!all.length) return [];
  const rows = all.map(each => row(each.name, { description: `in the ${each.in}`, ...each.schema }, each.required));
  return [element("h2", { textContent: "Parameters" }), element("table", {}, ...rows)];
}

/** The names of a body's fields. */
function words(body) {
  const bodies = Object.values(body?.content ?? {}).flatMap(({ schema }) => references(schema));
  return bodies.flatMap(name => Object.keys(schemas[name].properties ?? {}));
}

function show(document) {
  schemas = document.components.schemas;
  byId("title").textContent = `${document.info.title} ${document.info.version}`;
  const all = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => route(path, method, operation)));
  byId("routes").replaceChildren(...all);
  byId("search").oninput = () => {
    const wanted = byId("search").value.trim().toLowerCase();
    for (const each of all) each.hidden = !each.dataset.words.includes(wanted);
  };
}

async function load(key) {
  byId("notice").hidden = true;
  try {
    show(await readDocument(key));
    byId("key-form").hidden = true;
  } catch (error) {
    byId("notice").textContent = error.message;
    byId("notice").hidden = false;
    byId("key-form").hidden = error.status !== UNAUTHORIZED;
  }
}

byId("key-form").onsubmit = event => {
  event.preventDefault();
  saveKey(byId("key").value, false);
  load(byId("key").value);
};
load(loadKey());
