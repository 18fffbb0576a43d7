// Colours: Okabe and Ito's for classes, one hue a slot, and ramps for numbers.

import { state } from "./state.js";

export const BLUE = "#0072B2", ORANGE = "#D55E00", GREEN = "#009E73", PURPLE = "#7B4FA3";

const dark = matchMedia("(prefers-color-scheme: dark)");

export const onSchemeChange = (callback) => dark.addEventListener("change", callback);

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const NEAR_BLACK = new Set(["#000000", "#111111", "#555555"]);

/** A class's colour; the near-black ones are turned light on a dark page. */
export function classColour(name) {
  const found = state.facts.colours?.[name] ?? "#8a8f98";
  return dark.matches && NEAR_BLACK.has(found) ? "#c9d1d9" : found;
}

/** Each slot its own hue; the golden angle keeps neighbours apart. */
export const slotColour = (slot) => `hsl(${Math.round(slot * 137.508) % 360} 62% ${dark.matches ? 62 : 42}%)`;

/** A colour let through by a share, so that the ink on it stays readable in light and dark. */
export const faint = (colour, share) => `color-mix(in srgb, ${colour} ${Math.round(share * 100)}%, transparent)`;

/** The same for Plotly, which knows hex and rgba only. */
export function rgba(hex, share) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${share})`;
}
