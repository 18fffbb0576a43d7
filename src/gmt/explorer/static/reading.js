// Questions to the server and the views that show their answers: a text, then the token, block and slot picked in it.

import { ask, forget } from "./api.js";
import { drawGraph } from "./block.js";
import { drawCompare } from "./compare.js";
import { byId, number, plural, show } from "./dom.js";
import { drawAlpha, drawEdge, drawEdits } from "./edits.js";
import { drawEffect } from "./effect.js";
import { drawFlow, drawMatrix } from "./flow.js";
import { drawMap, drawNext } from "./map.js";
import { go, quiet } from "./say.js";
import { drawSlot } from "./slot.js";
import { model, request, state, writeHash } from "./state.js";
import { drawToken } from "./token.js";
import { drawTokens, markToken } from "./tokens.js";

let plainOf = null; // the text and model that state.plain was read of

/** Reads the text with its edits, and without where there are some; then whatever is picked. */
export async function read() {
  quiet();
  forget("token", "block", "slot", "continue");
  writeHash();
  const of = JSON.stringify([state.model, state.text]);
  const [found, plain] = await Promise.all([
    ask("/api/read", request(), "read", "reading"),
    state.edits.length && of !== plainOf ? ask("/api/read", request({ edits: [] }), "plain", "reading") : null,
  ]);
  state.read = found;
  if (plain || !state.edits.length) {
    state.plain = plain ?? found;
    plainOf = of;
  }
  if (state.place !== null && state.place >= found.tokens.length) state.place = null;
  drawReading();
  await Promise.all([readBlock(), readToken()]);
}

function drawReading() {
  const { read: found } = state;
  show("reading-empty", false);
  show("reading-views", true);
  const windows = found.windows > 1 ? `, in ${found.windows} windows` : "";
  const loss = found.loss === null ? "" : `, loss ${number(found.loss, 3)}`;
  byId("reading-facts").textContent = plural(found.tokens.length, "token") + windows + loss;
  drawTokens();
  drawMap();
  drawNext("next", found.next);
  drawEdits();
  drawEffect();
  drawCompare();
}

export async function readToken() {
  writeHash();
  markToken();
  const asked = request({ place: state.place });
  drawToken(state.place === null ? null : await ask("/api/token", asked, "token", "following"));
}

export async function readBlock() {
  writeHash();
  byId("block-pick").value = state.block;
  if (!model().has_memory) return noMemory();
  state.memory = await ask("/api/block", request({ block: state.block }), "block", "looking at the block");
  show("block-empty", false);
  show("block-views", true);
  drawEdge();
  drawAlpha();
  drawGraph();
  const slot = readSlot(); // the server looks for it while the rest is drawn
  slot.catch(() => {}); // told below, where it is waited for: until then nobody would have caught it
  for (const draw of [drawFlow, drawMatrix]) {
    await aMoment();
    if (state.memory) draw();
  }
  await slot;
}

/** Lets the browser show what was drawn, and hear the person, before the next picture. */
const aMoment = () => new Promise((resolve) => setTimeout(resolve));

function noMemory() {
  state.memory = null;
  const words = "This model has no memory, and so no slots to look at.";
  byId("block-empty").textContent = byId("slot-empty").textContent = words;
  show("block-empty", true);
  show("block-views", false);
  drawSlot(null);
}

async function readSlot() {
  writeHash();
  const asked = request({ block: state.block, slot: state.slot });
  drawSlot(state.slot === null ? null : await ask("/api/slot", asked, "slot", "looking at the slot"));
}

export async function pickSlot({ slot, block = state.block }) {
  if (!state.read) throw new Error("Read a text first.");
  state.slot = slot;
  if (block !== state.block) {
    state.block = block;
    await readBlock();
  } else {
    await readSlot();
    setTimeout(drawGraph); // the picked slot has a ring there; its card comes first
  }
  go("slot");
}
