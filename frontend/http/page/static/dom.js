// Makes elements from names, properties and children. A string child becomes a text node, so text is never markup.

export const byId = id => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function button(text, action, properties = {}) {
  return element("button", { type: "button", textContent: text, onclick: action, ...properties });
}

/** Copies the text, and shows on the button whether that succeeded. */
export async function copy(text, from) {
  from.dataset.label ??= from.textContent;  // a second click finds another text
  try {
    await writeClipboard(text);
    from.textContent = "Copied";
  } catch (error) {
    from.textContent = "Not copied";
    from.title = error.message;
  }
  setTimeout(() => { from.textContent = from.dataset.label; }, 1200);
}

// A page served over plain HTTP from a host other than localhost has no navigator.clipboard.
async function writeClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { value: text, className: "off-screen" });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("The browser did not allow copying");
}
