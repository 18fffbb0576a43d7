// The text as chips, coloured by surprise, class or slot, with a legend. One tab stop; arrow keys move within.

import { classColour, faint, ORANGE, slotColour } from "./colour.js";
import { byId, fill, h, number, options, plural, range, shown } from "./dom.js";
import { offer } from "./download.js";
import { emit, listen, model, state } from "./state.js";

const box = byId("tokens"), by = byId("colour-by"), of = byId("colour-block");
const MOST = 8; // nats at which the colour is full

const COLOURINGS = {
  surprise: { title: "surprise", style: (i) => background(ORANGE, 0.7 * strength(state.read.surprise[i])),
    legend: ramp },
  class: { title: "class of word", style: (i) => marked(classColour(state.read.classes[i])), legend: classLegend },
  source: { title: "slot it stands in", style: (i) => marked(slotColour(slots("source")[i])),
    legend: () => slotLegend("source") },
  target: { title: "slot it goes to", style: (i) => marked(slotColour(slots("target")[i])),
    legend: () => slotLegend("target") },
};

const slots = (role) => state.read[`${role}_slot`][Number(of.value)];
const strength = (surprise) => Math.min((surprise ?? 0) / MOST, 1);
const background = (colour, share) => ({ backgroundColor: faint(colour, share), borderBottomColor: "transparent" });
const marked = (colour) => ({ backgroundColor: faint(colour, 0.18), borderBottomColor: colour });

/** A chip's text keeps its blanks; a line end is shown and then done. */
export const chipText = (token) => token.replaceAll("\n", "↵\n") || "∅";

export function drawTokens() {
  const { classes, source_slot: source } = state.read;
  const kinds = ["surprise", ...(classes ? ["class"] : []), ...(source?.length ? ["source", "target"] : [])];
  options(by, kinds.map((kind) => [kind, COLOURINGS[kind].title]));
  options(of, range(model().blocks).map((b) => [b, b]));
  fill(box, state.read.tokens.map((token, i) => h("span", { class: "chip", role: "option", id: `t${i}`, "data-place": i,
    title: tip(token, i) }, chipText(token))));
  markToken();
  colour();
  offer("tokens", table());
}

function tip(token, i) {
  const { surprise, classes, predicted } = state.read;
  const parts = [`“${shown(token)}”, token ${i}`, classes && classes[i], `surprise ${number(surprise[i])}`];
  if (i) parts.push(`expected “${shown(predicted[i - 1])}”`);
  return parts.filter(Boolean).join(" · ");
}

function colour() {
  const chosen = COLOURINGS[by.value];
  [...box.children].forEach((chip, i) => Object.assign(chip.style, chosen.style(i)));
  fill("legend", chosen.legend());
  byId("colour-block-label").hidden = !["source", "target"].includes(by.value);
}

const entry = (colour, name) => h("span", {}, h("i", { style: { background: colour } }), name);

function ramp() {
  const gradient = `linear-gradient(90deg, ${faint(ORANGE, 0)}, ${faint(ORANGE, 0.7)})`;
  return ["surprise in nats: 0", h("i", { class: "ramp", style: { background: gradient } }), `${MOST} and more`];
}

function classLegend() {
  return counted(state.read.classes).map(([name, count]) => entry(classColour(name), `${name} ${count}`));
}

function slotLegend(role) {
  const found = counted(slots(role));
  const rest = found.length > 12 ? [h("span", {}, `and ${plural(found.length - 12, "more slot")}`)] : [];
  return [...found.slice(0, 12).map(([slot, count]) => entry(slotColour(slot), `slot ${slot}: ${count}`)), ...rest];
}

/** [value, count] pairs, commonest first. */
export function counted(values) {
  const found = new Map();
  for (const value of values) found.set(value, (found.get(value) ?? 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]);
}

function table() {
  const { tokens, classes, surprise, predicted, source_slot: source = [], target_slot: target = [] } = state.read;
  const header = ["place", "token", "class", "surprise", "predicted_next",
    ...source.flatMap((_, b) => [`source_${b}`, `target_${b}`])];
  const rows = tokens.map((token, i) => [i, token, classes?.[i], surprise[i], predicted[i],
    ...source.flatMap((row, b) => [row[i], target[b][i]])]);
  return { header, rows };
}

export function markToken() {
  const chosen = state.place ?? 0;
  [...box.children].forEach((chip, i) => {
    chip.tabIndex = i === chosen ? 0 : -1;
    chip.setAttribute("aria-selected", i === state.place);
  });
}

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity };

const between = (place) => Math.max(0, Math.min(place, box.children.length - 1));

box.addEventListener("keydown", (event) => {
  const here = Number(event.target.dataset.place);
  if (event.key === "Enter" || event.key === " ") emit("token", here);
  else if (event.key in STEPS) box.children[between(here + STEPS[event.key])].focus();
  else return;
  event.preventDefault();
});
box.addEventListener("click", ({ target }) => target.dataset.place && emit("token", Number(target.dataset.place)));
for (const select of [by, of]) select.addEventListener("change", colour);
listen("scheme", () => state.read && colour());
