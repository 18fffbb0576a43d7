// The page's conductor: it hears what a person did, changes the state, and has it read and drawn.

import { ask, Stale } from "./api.js";
import { onSchemeChange } from "./colour.js";
import { prepareCompare } from "./compare.js";
import { byId, fill, h, options, plural, range, show, wholeNumber } from "./dom.js";
import { change, drawEdits, offerEdge } from "./edits.js";
import { pickSlot, read, readBlock, readToken } from "./reading.js";
import { complain, doing, go } from "./say.js";
import { emit, fromHash, listen, model, state, toHash, writeHash } from "./state.js";

/** Reads what stands in the box; where that fails, the page goes on with the text it had. */
async function readTyped() {
  const text = byId("text").value, { text: before, place } = state, limit = state.facts.limits.text;
  if (!text.trim()) throw new Error("There is no text to read: write one, or take an example.");
  if (text.length > limit) throw new Error(`The text has ${text.length} characters; at most ${limit} are read.`);
  if (text !== before) state.place = null;
  state.text = text;
  await read().catch((error) => {
    if (!(error instanceof Stale)) Object.assign(state, { text: before, place });
    throw error;
  });
}

/** Reads again with the new edits; where the server refuses them, they are taken back. */
async function tryEdits(takeBack) {
  drawEdits();
  writeHash();
  if (!state.text) return;
  await read().catch(async (error) => {
    if (!(error instanceof Stale)) {
      takeBack();
      drawEdits();
      writeHash();
      await read().catch(() => {}); // an edit before this one may have been dropped unread
    }
    throw error;
  });
}

/** The page as its address says. */
async function restore() {
  let mistake = null;
  try {
    fromHash(location.hash);
  } catch (error) {
    mistake = error;
  }
  byId("text").value = state.text;
  byId("model").value = state.model;
  prepareModel();
  if (state.text) await read();
  if (mistake) complain(mistake); // after the reading, which begins by closing what was said before
}

/** What depends on the chosen model's size. */
function prepareModel() {
  const { name, step, blocks, slots, hidden, parameters, has_memory: memory } = model();
  const millions = (parameters / 1e6).toFixed(parameters < 1e7 ? 2 : 0);
  const facts = [name, step === null ? null : `step ${step}`, plural(blocks, "block"),
    memory ? `${slots} slots each` : "no memory", `${hidden} channels`, `${millions} M parameters`];
  byId("facts").textContent = facts.filter(Boolean).join(" · ");
  document.title = `gmt explore: ${name}`;
  options(byId("block-pick"), range(blocks).map((b) => [b, b]), state.block);
  for (const id of ["slot-number", "edge-source", "edge-target", "edge-to"]) byId(id).max = Math.max(slots - 1, 0);
  drawEdits();
}

function prepare() {
  const { models, texts, limits } = state.facts;
  show("model-pick", models.length > 1);
  options(byId("model"), models.map((one, i) => [i, one.name]));
  byId("continue-count").max = limits.tokens;
  const take = (text) => doing(async () => {
    byId("text").value = text;
    await readTyped();
  });
  const example = ([name, text]) => h("button", { type: "button", onclick: take(text) }, name);
  fill("examples", Object.entries(texts).map(example));
  prepareCompare();
}

/** Another model reads the text; where it cannot, with these edits say, the page stays with the one it had. */
async function pickModel() {
  const { model: before, block, slot } = state;
  state.model = Number(byId("model").value);
  state.block = Math.min(state.block, model().blocks - 1);
  state.slot = null;
  prepareModel();
  if (!state.text) return;
  await read().catch((error) => {
    if (!(error instanceof Stale)) {
      Object.assign(state, { model: before, block, slot });
      byId("model").value = before;
      prepareModel();
    }
    throw error;
  });
}

async function copyLink() {
  writeHash();
  await navigator.clipboard.writeText(location.href);
  byId("share").textContent = "Copied";
  setTimeout(() => { byId("share").textContent = "Copy link"; }, 1500);
}

listen("token", doing((place) => {
  state.place = place;
  return readToken();
}));
listen("block", doing(async (block) => {
  state.block = block;
  await readBlock();
  go("block");
}));
listen("slot", doing(pickSlot));
listen("slot-number", doing(async () => {
  const slot = wholeNumber(byId("slot-number"), model().slots);
  if (slot !== null) await pickSlot({ slot });
}));
listen("edge", offerEdge);
listen("edit", (edit) => change([...state.edits, edit]));
listen("edits", doing(tryEdits));

byId("slot-number").addEventListener("input", (event) => event.target.setCustomValidity(""));
byId("read-form").addEventListener("submit", (event) => {
  event.preventDefault();
  doing(readTyped)();
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("read-form").requestSubmit();
});
byId("block-pick").addEventListener("change", doing(async (event) => {
  state.block = Number(event.target.value);
  if (state.read) await readBlock();
}));
byId("model").addEventListener("change", doing(pickModel));
byId("share").addEventListener("click", doing(copyLink));
for (const button of document.querySelectorAll("[data-go]")) {
  button.addEventListener("click", () => go(button.dataset.go));
}
window.addEventListener("hashchange", doing(async () => {
  if (location.hash.slice(1) !== toHash()) await restore();
}));
onSchemeChange(() => emit("scheme"));

doing(async () => {
  state.facts = await ask("/api/model", undefined, "model", "asking");
  prepare();
  await restore();
})();
