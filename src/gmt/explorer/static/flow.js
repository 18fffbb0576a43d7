// The block's moves as a flow, class -> source slot -> target slot, and its edges as a matrix.

import { classColour, css, ORANGE, rgba } from "./colour.js";
import { fill, plural, range } from "./dom.js";
import { plot } from "./plot.js";
import { emit, state } from "./state.js";

const BUSIEST = 10;

/** The keys with the largest sums, as a set. */
function busiest(moves, key) {
  const sums = new Map();
  for (const move of moves) sums.set(move[key], (sums.get(move[key]) ?? 0) + move.count);
  return new Set([...sums].sort((a, b) => b[1] - a[1]).slice(0, BUSIEST).map(([value]) => value));
}

const total = (moves) => moves.reduce((sum, move) => sum + move.count, 0);

export function drawFlow() {
  const { moves } = state.memory;
  const sources = busiest(moves, "source"), targets = busiest(moves, "target"), classes = busiest(moves, "class");
  const some = moves.filter((m) => sources.has(m.source) && targets.has(m.target) && classes.has(m.class));
  fill("flow-facts", `Class of word → slot it stands in → slot it goes to: the ${plural(total(some), "token")} of `,
    `${total(moves)} that use the busiest. Click a slot for its card.`);
  plot("flow", () => ({
    traces: [sankey(some)], layout: { margin: { l: 6, r: 6, t: 14, b: 14 } },
    table: { header: ["class", "source", "target", "count", "examples"],
      rows: moves.map((m) => [m.class, m.source, m.target, m.count, m.examples.join(" | ")]) },
  }), (point) => point.customdata?.slot !== undefined && emit("slot", { slot: point.customdata.slot }));
}

function sankey(moves) {
  const nodes = [], places = new Map();
  const node = (key, label, color, slot) => {
    if (!places.has(key)) {
      places.set(key, nodes.length);
      nodes.push({ label, color, slot });
    }
    return places.get(key);
  };
  const links = new Map(); // links of the same ends and class are one
  const link = (source, target, name, value) => {
    const key = `${source} ${target} ${name}`;
    const found = links.get(key) ?? { source, target, value: 0, color: rgba(name ? classColour(name) : ORANGE, 0.45) };
    found.value += value;
    links.set(key, found);
  };
  for (const move of [...moves].sort((a, b) => b.count - a.count)) {
    const from = node(`s${move.source}`, `from ${move.source}`, css("--soft"), move.source);
    const to = node(`t${move.target}`, `to ${move.target}`, css("--soft"), move.target);
    if (move.class) link(node(`c${move.class}`, move.class, classColour(move.class)), from, move.class, move.count);
    link(from, to, move.class, move.count);
  }
  const all = [...links.values()];
  const pick = (key) => all.map((one) => one[key]);
  return {
    type: "sankey", arrangement: "fixed", // a node that can be dragged cannot be clicked
    node: { label: nodes.map((n) => n.label), color: nodes.map((n) => n.color), pad: 9, thickness: 12,
      line: { width: 0 }, customdata: nodes.map(({ slot }) => ({ slot })),
      hovertemplate: "%{label}: %{value:.0f} tokens<extra></extra>" },
    link: { source: pick("source"), target: pick("target"), value: pick("value"), color: pick("color"),
      hovertemplate: "%{source.label} → %{target.label}: %{value:.0f} tokens<extra></extra>" },
  };
}

export function drawMatrix() {
  const { transition, moves } = state.memory;
  const at = moves.filter((move) => move.source !== move.target);
  const cells = transition.map((row, i) => row.map((p, j) => (i === j && p === 0 ? null : p))); // no edge to itself
  const slots = range(transition.length), last = transition.length - 0.5;
  plot("matrix", () => ({
    traces: [
      { type: "heatmap", z: cells, x: slots, y: slots, colorscale: "Cividis", hoverongaps: false, xgap: 0.3, ygap: 0.3,
        colorbar: { thickness: 10, outlinewidth: 0 }, hovertemplate: "slot %{y} → %{x}: %{z:.4f}<extra></extra>" },
      { type: "scatter", mode: "markers", x: at.map((m) => m.target), y: at.map((m) => m.source), hoverinfo: "skip",
        marker: { size: 4, color: "#ffffff", line: { color: "#000000", width: 1 } } },
    ],
    layout: { xaxis: { title: { text: "to slot" }, showgrid: false, constrain: "domain", range: [-0.5, last] },
      yaxis: { title: { text: "from slot" }, showgrid: false, scaleanchor: "x", constrain: "domain",
        range: [last, -0.5] }, hovermode: "closest" },
    table: { header: ["from", ...slots.map((j) => `to_${j}`)], rows: transition.map((row, i) => [i, ...row]) },
  }), (point) => emit("edge", { source: point.y, target: point.x }));
}
