// Two texts, or two models, side by side: the same map on the same scale, and what each expects next.

import { ask } from "./api.js";
import { BLUE, GREEN } from "./colour.js";
import { byId, options, plural, show, number } from "./dom.js";
import { chosenQuantity, drawNext, heatMap, spread, titleOf } from "./map.js";
import { emit, listen, request, state } from "./state.js";

let other = null; // the second answer

export function prepareCompare() {
  const { models } = state.facts;
  show("other-pick", models.length > 1);
  options(byId("other-model"), models.map((one, i) => [i, one.name]), models.length > 1 ? 1 : 0);
  byId("compare-help").textContent = models.length > 1 ? ""
    : "To compare two checkpoints, start gmt explore with both.";
}

async function compare() {
  if (!state.read) throw new Error("Read a first text, then compare it with a second.");
  const text = byId("other-text").value || state.text;
  const model = Number(byId("other-model").value);
  if (text === state.text && model === state.model) throw new Error("Write a second text to compare with.");
  const answer = await ask("/api/read", request({ text, model }), "compare", "reading the second");
  other = { answer, model, edits: JSON.stringify(state.edits) };
  byId("compare-help").textContent = "";
  drawCompare();
}

/** The second stays until the edits change or another is asked for; the first is always what the page shows. */
export function drawCompare() {
  if (other && other.edits !== JSON.stringify(state.edits)) {
    other = null;
    byId("compare-help").textContent = "The edits have changed: press Compare to read the second again.";
  }
  show("compare-views", Boolean(other && state.read));
  if (!other || !state.read) return;
  const first = state.read, second = other.answer;
  const key = chosenQuantity() in second.quantities ? chosenQuantity() : Object.keys(second.quantities)[0];
  const limits = spread([first.quantities[key] ?? [], second.quantities[key]]);
  const name = (which, read, model) => `${which}: ${titleOf(key)}, ${plural(read.tokens.length, "token")}, loss `
    + `${number(read.loss, 3)}${state.facts.models.length > 1 ? `, ${state.facts.models[model].name}` : ""}`;
  byId("left-name").textContent = name("First", first, state.model);
  byId("right-name").textContent = name("Second", second, other.model);
  if (first.quantities[key]) heatMap("left-map", first, key, limits);
  heatMap("right-map", second, key, limits);
  const most = Math.max(...first.next.map((w) => w.p), ...second.next.map((w) => w.p));
  drawNext("left-next", first.next, BLUE, most);
  drawNext("right-next", second.next, GREEN, most);
}

byId("compare-form").addEventListener("submit", (event) => {
  event.preventDefault();
  compare().catch((error) => emit("error", error));
});
listen("quantity", drawCompare);
