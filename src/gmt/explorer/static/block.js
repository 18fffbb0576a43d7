// A block's slots as a graph: laid out by the geometry of the centroids, with this text's moves over learned edges.

import { classColour, css, ORANGE } from "./colour.js";
import { byId, fill, number, percent, plural, range, shown } from "./dom.js";
import { plain, plot } from "./plot.js";
import { emit, state } from "./state.js";

const sizeBy = byId("size-by");
const BEND = 0.16; // how far a move bends to its left, as a share of its length

export function drawGraph() {
  const memory = state.memory;
  fill("block-facts", `Block ${state.block}: gate ${number(memory.gate)}, momentum ${number(memory.momentum)}, `,
    `${plural(busy(memory), "slot")} of ${memory.places.length} take part in this text. `,
    `The picture holds ${percent(memory.share)} of the variance of the slots' directions.`);
  plot("graph", () => ({
    traces: [edgeTrace(memory), ...moveTraces(memory), slotTrace(memory)],
    layout: { xaxis: { visible: false, range: [-0.06, 1.06] }, yaxis: { visible: false, range: [-0.06, 1.06] },
      dragmode: "pan", hovermode: "closest", showlegend: memory.moves.some((move) => move.class),
      legend: { orientation: "h", y: -0.02, itemsizing: "constant" } },
    table: { header: ["slot", "x", "y", "leaving", "entering", "usage", "age"], rows: memory.places.map(([x, y], i) =>
      [i, x, y, memory.leaving[i], memory.entering[i], memory.usage[i], memory.age[i]]) },
  }), clicked);
}

const busy = (memory) => memory.leaving.filter((count, i) => count + memory.entering[i] > 0).length;

function clicked(point) {
  const found = point.customdata;
  if (found?.slot !== undefined) emit("slot", { slot: found.slot });
  else if (found?.source !== undefined) emit("edge", found);
}

/** The strongest learned edges, two a slot on average, as one thin grey trace. */
function edgeTrace(memory) {
  const edges = strongest(memory.transition, 2 * memory.places.length);
  const x = [], y = [];
  for (const { source, target } of edges) {
    x.push(memory.places[source][0], memory.places[target][0], null);
    y.push(memory.places[source][1], memory.places[target][1], null);
  }
  const line = { color: css("--quiet"), width: 1 };
  return { type: "scatter", mode: "lines", x, y, line, hoverinfo: "skip", showlegend: false };
}

export function strongest(transition, count) {
  const all = transition.flatMap((row, source) => row.map((p, target) => ({ source, target, p })));
  return all.filter((edge) => edge.source !== edge.target).sort((a, b) => b.p - a.p).slice(0, count);
}

/** One trace for each class and width, since a Plotly line has one width; what one points at is the arrow. */
function moveTraces(memory) {
  const groups = new Map();
  for (const move of sideBySide(memory.moves.filter((m) => m.source !== m.target))) {
    const width = Math.min(1 + Math.floor(Math.log2(move.count)), 5);
    const key = `${move.class ?? ""} ${width}`;
    if (!groups.has(key)) groups.set(key, { name: move.class, width, moves: [] });
    groups.get(key).moves.push(move);
  }
  const named = new Set();
  return [...groups.values()].flatMap((group) => {
    const first = !named.has(group.name);
    named.add(group.name);
    return [lines(memory, group, first), arrows(memory, group)];
  });
}

/** Moves along the same edge, of several classes, get bends of their own. */
function sideBySide(moves) {
  const seen = new Map();
  return [...moves].sort((a, b) => b.count - a.count).map((move) => {
    const key = `${move.source} ${move.target}`;
    const rank = seen.get(key) ?? 0;
    seen.set(key, rank + 1);
    return { ...move, bend: BEND + 0.035 * rank };
  });
}

const colourOf = (group) => (group.name ? classColour(group.name) : ORANGE);

function curve(memory, { source, target, bend: most }, share) {
  const [ax, ay] = memory.places[source], [bx, by] = memory.places[target];
  const bend = 4 * most * share * (1 - share);
  return [ax + (bx - ax) * share - (by - ay) * bend, ay + (by - ay) * share + (bx - ax) * bend];
}

function lines(memory, group, first) {
  const points = group.moves.flatMap((move) => [...range(13).map((i) => curve(memory, move, i / 12)), [null, null]]);
  return { type: "scatter", mode: "lines", x: points.map((p) => p[0]), y: points.map((p) => p[1]), opacity: 0.75,
    line: { color: colourOf(group), width: group.width }, hoverinfo: "skip", name: group.name ?? "moves",
    legendgroup: group.name ?? "moves", showlegend: first };
}

function arrows(memory, group) {
  const at = group.moves.map((move) => curve(memory, move, 0.55));
  const angles = group.moves.map(({ source, target }) => {
    const [ax, ay] = memory.places[source], [bx, by] = memory.places[target];
    return (Math.atan2(bx - ax, by - ay) * 180) / Math.PI; // clockwise from up, as Plotly turns a marker
  });
  return { type: "scatter", mode: "markers", x: at.map((p) => p[0]), y: at.map((p) => p[1]), showlegend: false,
    legendgroup: group.name ?? "moves",
    marker: { symbol: "triangle-up", angle: angles, size: 7 + group.width, color: colourOf(group) },
    customdata: group.moves.map(({ source, target }) => ({ source, target })), hovertext: group.moves.map(told),
    hovertemplate: "%{hovertext}<extra></extra>" };
}

function told(move) {
  const words = move.examples.map((token) => plain(shown(token))).join(", ");
  const kind = move.class ? `, ${move.class}` : "";
  return `slot ${move.source} → ${move.target}<br>${plural(move.count, "token")}${kind}: ${words}`;
}

function slotTrace(memory) {
  const stay = memory.leaving.map(() => 0);
  for (const move of memory.moves) if (move.source === move.target) stay[move.source] += move.count;
  const uses = sizeBy.value === "usage" ? memory.usage : memory.leaving.map((n, i) => n + memory.entering[i]);
  const most = Math.max(...uses, 1e-9);
  const few = memory.places.length <= 64; // more numbers than that hide each other: those of idle slots are left out
  const sizes = uses.map((use) => (few || use > 0 ? 13 : 7) + 25 * Math.sqrt(use / most));
  return { type: "scatter", mode: "markers+text", x: memory.places.map((p) => p[0]), y: memory.places.map((p) => p[1]),
    showlegend: false, text: sizes.map((size, i) => (few || size >= 17 ? i : "")),
    textfont: { size: 10, color: css("--ink") },
    marker: { size: sizes, opacity: 1, color: uses.map((use) => (use > 0 ? css("--paper") : css("--wash"))),
      line: { width: stay.map((n, i) => (i === state.slot ? 4 : n ? 3 : 1)),
        color: stay.map((n, i) => (i === state.slot ? css("--accent") : n ? css("--ink") : css("--soft"))) } },
    customdata: memory.places.map((_, slot) => ({ slot })),
    hovertext: memory.places.map((_, i) => `slot ${i}<br>${memory.leaving[i]} leave, ${memory.entering[i]} enter, `
      + `${stay[i]} of them stay<br>use in training ${number(memory.usage[i], 4)}, age ${number(memory.age[i], 0)}`),
    hovertemplate: "%{hovertext}<extra></extra>" };
}

sizeBy.addEventListener("change", () => state.memory && drawGraph());
