// Tokens x blocks: any quantity as a heat map, and what comes after the text.

import { BLUE } from "./colour.js";
import { byId, options, shown } from "./dom.js";
import { plain, plot, wordBars } from "./plot.js";
import { emit, state } from "./state.js";

const pick = byId("quantity");

export const titleOf = (key) => state.facts.quantities.find((quantity) => quantity.key === key)?.title ?? key;

export function drawMap() {
  const keys = Object.keys(state.read.quantities);
  options(pick, keys.map((key) => [key, titleOf(key)]));
  heatMap("map", state.read, pick.value, null, (place) => emit("token", place));
}

export const chosenQuantity = () => pick.value;

/** One text's map; `limits` [low, high] makes two of them comparable. */
export function heatMap(id, read, key, limits, picked) {
  const values = read.quantities[key];
  const names = read.tokens.map((token) => plain(shown(token)));
  const few = names.length * 11 <= byId(id).clientWidth - 130; // room to write each token under its column
  // a quantity with both signs has its middle at nothing
  const [low, high] = limits ?? spread([values]);
  const signed = low < 0 && high > 0;
  const most = Math.max(-low, high);
  plot(id, () => ({
    traces: [{
      type: "heatmap", z: values, x: names.map((_, i) => i), y: values.map((_, b) => b), text: values.map(() => names),
      colorscale: signed ? "PuOr" : "Cividis", zmin: signed ? -most : low, zmax: signed ? most : high,
      colorbar: { thickness: 10, outlinewidth: 0, len: 1 },
      hovertemplate: "“%{text}” (%{x}), block %{y}: %{z:.3f}<extra></extra>",
    }],
    layout: {
      xaxis: { tickvals: few ? names.map((_, i) => i) : undefined, ticktext: few ? names : undefined,
        tickangle: few ? -90 : 0, showgrid: false, title: few ? undefined : { text: "token" } },
      yaxis: { title: { text: "block" }, autorange: "reversed", showgrid: false, dtick: Math.ceil(values.length / 12) },
    },
    table: { header: ["place", "token", ...values.map((_, b) => `block_${b}`)],
      rows: read.tokens.map((token, i) => [i, token, ...values.map((row) => row[i])]) },
  }), picked && ((point) => picked(point.x)));
}

/** [lowest, highest] of some maps' values. */
export function spread(maps) {
  const all = maps.flat(2).filter(Number.isFinite);
  return all.length ? [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))] : [0, 1];
}

export function drawNext(id, next, colour = BLUE, most = null) {
  wordBars(id, next.map((entry) => ({ ...entry, shown: shown(entry.word) })), colour, most);
}

pick.addEventListener("change", () => {
  drawMap();
  emit("quantity");
});
