// One token's way down all blocks, and what each block adds to the prediction made at its place.

import { BLUE, GREEN, ORANGE } from "./colour.js";
import { byId, fill, h, number, percent, show, shown } from "./dom.js";
import { offer } from "./download.js";
import { drawNext } from "./map.js";
import { plot } from "./plot.js";
import { emit, state } from "./state.js";

export function drawToken(found) {
  show("token-empty", !found);
  show("token-views", Boolean(found));
  if (!found) return;
  const surprise = found.surprise === null ? "nothing comes before it" : `surprise ${number(found.surprise)} nats`;
  fill("token-facts", `Token ${state.place}, `, h("strong", { class: "word" }, shown(found.token)),
    found.class ? `, ${found.class}` : "", `, ${surprise}. After it the model expects `,
    h("strong", { class: "word" }, shown(found.predicted)), `, with a logit of ${number(found.logit)}.`);
  drawWay(found.blocks);
  drawParts(found);
  drawNext("token-next", found.next, BLUE);
}

const routed = (block) => block.source?.length > 0;

function drawWay(blocks) {
  const memory = blocks.some(routed);
  const heads = ["Block", ...(memory ? ["Stands in", "Goes to", "Move"] : []), "Memory adds", "Attention adds"];
  const rows = blocks.map((block) => h("tr", {},
    h("td", {}, h("span", { class: "slots" }, h("button", { type: "button", onclick: () => emit("block", block.block),
      "aria-label": `Open block ${block.block}` }, block.block))),
    memory ? [h("td", {}, slotList(block, block.source)), h("td", {}, slotList(block, block.target)),
      h("td", {}, number(block.shift))] : [],
    h("td", {}, number(block.update_norm)), h("td", {}, number(block.attention_norm))));
  fill("way", h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))), h("tbody", {}, rows));
  const first = (slots) => [slots?.[0]?.slot, slots?.[0]?.p];
  offer("way", {
    header: ["block", "source", "source_p", "target", "target_p", "shift", "update_norm", "attention_norm"],
    rows: blocks.map((b) => [b.block, ...first(b.source), ...first(b.target), b.shift, b.update_norm,
      b.attention_norm]),
  });
}

/** The likeliest slots, each a way to its card; those with next to no share are left out. */
function slotList(block, slots) {
  const some = slots.filter((entry, i) => i === 0 || entry.p >= 0.005);
  return h("span", { class: "slots" }, some.map((entry, i) => h("button", {
    type: "button", class: i ? "" : "first", "aria-label": `Open slot ${entry.slot} of block ${block.block}`,
    onclick: () => emit("slot", { block: block.block, slot: entry.slot }) }, `${entry.slot} (${percent(entry.p)})`)));
}

function drawParts(found) {
  const { blocks, embedding, bias, logit } = found;
  byId("parts-title").textContent = `What makes up the logit of “${shown(found.predicted)}”`;
  const memory = state.facts.models[state.model].has_memory ? "memory" : "second sublayer";
  const names = ["embedding", ...blocks.map((b) => String(b.block)), "bias"];
  const bars = (name, values, color) => ({ type: "bar", name, x: names, y: values, marker: { color },
    hovertemplate: `%{x}, ${name}: %{y:.3f}<extra></extra>` });
  plot("parts", () => ({
    traces: [
      bars(memory, [null, ...blocks.map((b) => b.logit_update), null], ORANGE),
      bars("attention", [null, ...blocks.map((b) => b.logit_attention), null], BLUE),
      bars("other", [embedding, ...blocks.map(() => null), bias], GREEN),
    ],
    layout: { barmode: "relative", showlegend: true, legend: { orientation: "h", y: 1.12 }, bargap: 0.3,
      yaxis: { title: { text: "logit" } }, xaxis: { type: "category", title: { text: "block" } } },
    table: { header: ["part", "memory", "attention", "other"], rows: [["embedding", null, null, embedding],
      ...blocks.map((b) => [`block ${b.block}`, b.logit_update, b.logit_attention, null]), ["bias", null, null, bias],
      ["sum", null, null, logit]] },
  }));
}
