// Any view as SVG, PNG or CSV. A table is kept for each view; the pictures are Plotly's.

import { css } from "./colour.js";
import { fill, h } from "./dom.js";
import { emit } from "./state.js";

/** Buttons for the view `id`: CSV of `table`, and pictures where `node` is a plot. */
export function offer(id, table, node = null) {
  const place = document.querySelector(`[data-downloads="${id}"]`);
  if (!place) return;
  const button = (kind, action) => h("button", { type: "button", class: "small",
    "aria-label": `Download ${id} as ${kind}`, onclick: () => action().catch((error) => emit("error", error)) }, kind);
  const pictures = node ? ["svg", "png"] : [];
  fill(place, pictures.map((format) => button(format.toUpperCase(), () => picture(id, node, format))),
    button("CSV", async () => save(`${id}.csv`, csv(table), "text/csv")));
}

export function csv({ header, rows }) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [header, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function save(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function picture(id, node, format) {
  const { width, height } = node.getBoundingClientRect();
  const figure = { data: node.data, layout: { ...node.layout, paper_bgcolor: css("--paper") } };
  const scale = format === "png" ? 2 : 1;
  const address = await Plotly.toImage(figure, { format, width: Math.round(width), height: Math.round(height), scale });
  save(`${id}.${format}`, blobOf(address));
}

/** Plotly answers with a data address; reading it by hand needs no permission to fetch one. */
function blobOf(address) {
  const comma = address.indexOf(",");
  const head = address.slice(5, comma), body = address.slice(comma + 1);
  if (!head.endsWith(";base64")) return new Blob([decodeURIComponent(body)], { type: head });
  const bytes = Uint8Array.from(atob(body), (sign) => sign.charCodeAt(0));
  return new Blob([bytes], { type: head.replace(";base64", "") });
}
