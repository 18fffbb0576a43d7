// Small helpers for the page. Everything that comes from a person or the server is put in as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; strings and numbers become text nodes. */
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function fill(target, ...children) {
  const node = typeof target === "string" ? byId(target) : target;
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A select's options from [value, title] pairs; what was chosen stays chosen where it can. */
export function options(select, pairs, chosen = select.value) {
  fill(select, pairs.map(([value, title]) => h("option", { value }, title)));
  if (pairs.some(([value]) => String(value) === String(chosen))) select.value = chosen;
}

export const show = (id, visible) => { byId(id).hidden = !visible; };

/** A token as it can be read on one line: blanks at its ends as dots, line ends as arrows, as in the report. */
export function shown(token) {
  const text = token.replaceAll("\n", "↵").replaceAll("\t", "⇥");
  const bare = text.trim();
  if (!bare) return text.replaceAll(" ", "·");
  const start = text.indexOf(bare);
  return "·".repeat(start) + bare + "·".repeat(text.length - start - bare.length);
}

export const word = (token) => h("span", { class: "word" }, shown(token));

export function number(value, digits = 2) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits);
}

export function percent(p) {
  if (p >= 0.9995 || p === 0) return `${Math.round(p * 100)} %`;
  return p >= 0.001 ? `${(p * 100).toFixed(1)} %` : `${Number((p * 100).toPrecision(1))} %`;
}

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const range = (count) => Array.from({ length: count }, (_, i) => i);

/** A whole number from an input, or null with the browser's own message where it is none from 0 to below `limit`. */
export function wholeNumber(input, limit) {
  const value = input.value.trim() === "" ? NaN : Number(input.value);
  const right = Number.isInteger(value) && value >= 0 && value < limit;
  input.setCustomValidity(right ? "" : `a slot from 0 to ${limit - 1}`);
  if (!right) input.reportValidity();
  return right ? value : null;
}
