// One slot's card: who comes and goes, what it means, and two ways to silence it.

import { classColour } from "./colour.js";
import { byId, fill, h, number, percent, plural, show, word } from "./dom.js";
import { offer } from "./download.js";
import { emit, state } from "./state.js";

export function drawSlot(found) {
  show("slot-empty", !found);
  show("slot-card", Boolean(found));
  if (!found) return;
  const { block, slot } = found;
  const silence = (role, words) => h("button", { type: "button", id: `silence-${role}`,
    onclick: () => emit("edit", { kind: "ablate", block, slot, role }) }, words);
  fill("slot-card",
    h("div", { class: "row" }, h("h3", {}, `Slot ${slot} of block ${block}`), pills(found),
      h("span", { class: "end", "data-downloads": "slot" })),
    h("div", { class: "row" }, silence("source", "Silence as source"), silence("target", "Silence as target"),
      h("span", { class: "soft" }, "Its share goes to the other slots.")),
    h("div", { class: "grid" }, parts(found)));
  offer("slot", table(found));
}

function pills(found) {
  const words = [`use in training ${number(found.usage, 4)}`, `age ${number(found.age, 0)}`];
  if (found.dead) words.push("dead: nobody uses it");
  if (found.switches) words.push("switches roles: other classes enter than leave");
  return words.map((text) => h("span", { class: "pill" }, text));
}

const part = (title, content, all = false) => h("div", all ? { class: "all" } : {}, h("h4", {}, title), content);
const list = (items, none, draw) => (items?.length ? h("ul", {}, items.map((item) => h("li", {}, draw(item))))
  : h("p", { class: "soft" }, none));

function parts(found) {
  const tokens = (items, none) => list(items, none, (item) => [word(item.token), ` × ${item.count}`]);
  const signed = (value) => `${value > 0 ? "+" : ""}${number(value)}`;
  const words = (items) => list(items, "None.", (item) => [word(item.word), ` ${signed(item.change)}`]);
  return [
    part("Tokens that stand in it", tokens(found.leaving, "None in this text.")),
    part("Tokens that go to it", tokens(found.entering, "None in this text.")),
    part("They go on to", slots(found, found.goes_to, (s) => plural(s.count, "token"))),
    part("They come from", slots(found, found.comes_from, (s) => plural(s.count, "token"), true)),
    part("Strongest learned edges", slots(found, found.edges, (s) => percent(s.p))),
    part("Classes that leave", classes(found.classes_leaving)),
    part("Classes that enter", classes(found.classes_entering)),
    part("Words it promotes", words(found.promotes)),
    part("Words it suppresses", words(found.suppresses)),
    part("In the background corpus", list(found.corpus,
      state.facts.corpus ? "No token of it was found in this slot so far." : "None was given to gmt explore.",
      (one) => [one.before, h("strong", {}, one.token), one.after]), true),
  ];
}

/** Each partner a way to its card, and its edge a way to the edge's edits. */
function slots(found, items, words, comes = false) {
  return list(items, "None in this text.", (item) => {
    const edge = comes ? { source: item.slot, target: found.slot } : { source: found.slot, target: item.slot };
    return h("span", { class: "slots" },
      h("button", { type: "button", onclick: () => emit("slot", { slot: item.slot }) }, `slot ${item.slot}`),
      words(item),
      edge.source === edge.target ? null : h("button", { type: "button", onclick: () => emit("edge", edge),
        "aria-label": `Change the edge from ${edge.source} to ${edge.target}` }, "edge…"));
  });
}

function classes(counts) {
  const found = Object.entries(counts ?? {}).sort((a, b) => b[1] - a[1]);
  const none = state.facts.classes ? "None in this text." : "There is no tagger here.";
  if (!found.length) return h("p", { class: "soft" }, none);
  return h("div", { class: "legend" }, found.map(([name, count]) => h("span", {},
    h("i", { style: { background: classColour(name) } }), `${name} ${count}`)));
}

function table(found) {
  const rows = [["usage", "", found.usage], ["age", "", found.age]];
  const add = (fact, items, name, value) => (items ?? []).forEach((item) => rows.push([fact, item[name], item[value]]));
  add("leaving", found.leaving, "token", "count");
  add("entering", found.entering, "token", "count");
  add("goes_to", found.goes_to, "slot", "count");
  add("comes_from", found.comes_from, "slot", "count");
  add("edge", found.edges, "slot", "p");
  add("promotes", found.promotes, "word", "change");
  add("suppresses", found.suppresses, "word", "change");
  return { header: ["fact", "name", "value"], rows };
}

byId("slot-form").addEventListener("submit", (event) => {
  event.preventDefault();
  emit("slot-number");
});
