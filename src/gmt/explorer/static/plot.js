// Plotly, in one style: no logo, no paper, ink from the page. What was drawn is remembered for downloads and for a
// change between light and dark.

import { css, onSchemeChange } from "./colour.js";
import { byId, percent } from "./dom.js";
import { offer } from "./download.js";

const drawn = new Map(); // id -> a function that draws it again

const CONFIG = { displaylogo: false, responsive: true, displayModeBar: "hover",
  modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "autoScale2d"] };

function axis(own = {}) {
  return { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true, ...own };
}

/** Draws what `make` returns: { traces, layout, table: { header, rows } }. Calls `clicked` with a point. */
export function plot(id, make, clicked) {
  drawn.set(id, () => plot(id, make, clicked));
  const { traces, layout = {}, table } = make();
  const { xaxis, yaxis, ...rest } = layout;
  const style = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 10, r: 10, t: 10, b: 10 },
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: css("--ink") },
    hoverlabel: { bgcolor: css("--wash"), bordercolor: css("--line"), font: { color: css("--ink") }, align: "left" },
    showlegend: false, xaxis: axis(xaxis), yaxis: axis(yaxis), ...rest,
  };
  const node = byId(id);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", `${node.closest("figure").querySelector("h3").textContent}: the CSV has its numbers`);
  Plotly.react(node, traces, style, CONFIG);
  node.removeAllListeners?.("plotly_click");
  if (clicked) node.on("plotly_click", (event) => clicked(event.points[0]));
  offer(id, table, node);
}

/** Bars of the likeliest words, the likeliest on top; `most` makes two figures comparable. */
export function wordBars(id, words, colour, most = null, count = 12) {
  const some = words.slice(0, count);
  plot(id, () => ({
    traces: [{
      type: "bar", orientation: "h", x: some.map((w) => w.p), y: some.map((_, i) => i), marker: { color: colour },
      text: some.map((w) => percent(w.p)), textposition: "outside", cliponaxis: false,
      customdata: some.map((w) => plain(w.shown)), hovertemplate: "%{customdata}: %{x:.4f}<extra></extra>",
    }],
    layout: {
      xaxis: { range: [0, 1.2 * (most ?? Math.max(...some.map((w) => w.p), 1e-6))], visible: false, fixedrange: true },
      yaxis: { tickvals: some.map((_, i) => i), ticktext: some.map((w) => plain(w.shown)), autorange: "reversed",
        showgrid: false, zeroline: false, fixedrange: true,
        tickfont: { family: "ui-monospace, Menlo, Consolas, monospace" } },
      bargap: 0.25,
    },
    table: { header: ["word", "probability"], rows: words.map((w) => [w.word, w.p]) },
  }));
}

/** Plotly reads a few HTML tags in its labels: a token that looks like one is shown as it is. */
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

onSchemeChange(() => drawn.forEach((again, id) => byId(id).offsetParent && again()));
