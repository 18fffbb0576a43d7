// What the edits change: next token, surprise and continuation, before and after.

import { BLUE, faint, ORANGE, PURPLE } from "./colour.js";
import { byId, fill, h, number, plural, show, shown } from "./dom.js";
import { ask } from "./api.js";
import { offer } from "./download.js";
import { drawLoss } from "./edits.js";
import { drawNext } from "./map.js";
import { chipText } from "./tokens.js";
import { emit, model, request, state } from "./state.js";

export function drawEffect() {
  const { read, plain, edits } = state;
  const there = Boolean(edits.length && read && plain);
  show("effect-empty", !there);
  show("effect-views", there);
  show("continue-card", Boolean(read));
  fill("continued");
  drawLoss(there ? summary() : "");
  if (!there) return;
  byId("effect-facts").textContent = `${plural(edits.length, "edit")}. ${summary()}`;
  const most = Math.max(...read.next.map((w) => w.p), ...plain.next.map((w) => w.p));
  drawNext("before", plain.next, BLUE, most);
  drawNext("after", read.next, ORANGE, most);
  drawChange();
}

function summary() {
  const { fired } = state.read;
  const never = fired.length > 0 && fired.every((count) => count === 0);
  return losses() + (never ? " Nothing fired: no token of this text is one that was meant." : "");
}

function losses() {
  const { read, plain } = state;
  if (read.loss === null || plain.loss === null) return "One token has no loss.";
  const difference = read.loss - plain.loss;
  const sign = difference > 0 ? "+" : difference < 0 ? "−" : "±";
  const changed = `${sign}${number(Math.abs(difference), 3)}`;
  return `Loss ${number(plain.loss, 3)} before, ${number(read.loss, 3)} after (${changed}).`;
}

function drawChange() {
  const { read, plain } = state;
  const differences = read.surprise.map((value, i) =>
    (value === null || plain.surprise[i] === null ? null : value - plain.surprise[i]));
  const most = Math.max(...differences.map((d) => Math.abs(d ?? 0)), 0.05);
  fill("change", read.tokens.map((token, i) => {
    const d = differences[i] ?? 0;
    const backgroundColor = faint(d > 0 ? ORANGE : PURPLE, (0.75 * Math.abs(d)) / most);
    return h("span", { class: "chip", style: { backgroundColor },
      title: `“${shown(token)}”: ${number(plain.surprise[i])} → ${number(read.surprise[i])}` }, chipText(token));
  }));
  const ramp = `linear-gradient(90deg, ${faint(PURPLE, 0.75)}, transparent, ${faint(ORANGE, 0.75)})`;
  fill("change-legend", `less surprised by ${number(most)}`, h("i", { class: "ramp", style: { background: ramp } }),
    `more surprised by ${number(most)}`);
  offer("change", { header: ["place", "token", "surprise_before", "surprise_after", "difference"],
    rows: read.tokens.map((token, i) => [i, token, plain.surprise[i], read.surprise[i], differences[i]]) });
}

async function goOn() {
  const limit = state.facts.limits.tokens;
  const tokens = Math.min(Math.max(Math.round(Number(byId("continue-count").value)) || 40, 1), limit);
  const seed = Math.max(Math.round(Number(byId("continue-seed").value)) || 0, 0);
  byId("continue-count").value = tokens;
  byId("continue-seed").value = seed;
  const { text, kept } = tail(tokens);
  const more = { text, tokens, temperature: 0.8, seed };
  const before = await ask("/api/continue", request({ ...more, edits: [] }), "continue", "writing on");
  const after = state.edits.length ? await ask("/api/continue", request(more), "continue", "writing on") : null;
  fill("continued", column(after ? "Before" : "As trained", before.text, "continued-before"),
    after && column("After", after.text, "continued-after"),
    kept && h("p", { class: "soft" }, `The model holds ${model().context} tokens: it goes on from the last ${kept}.`));
}

/** The end of the text that leaves room for what is to come; `kept` is null where that is all of it. */
function tail(room) {
  const { tokens } = state.read;
  const kept = Math.max(model().context - room, 1);
  if (tokens.length <= kept) return { text: state.text, kept: null };
  const length = tokens.slice(-kept).reduce((sum, token) => sum + letters(token), 0);
  return { text: state.text.slice(-Math.max(length, 1)), kept };
}

/** Tokens that share one character are numbered by the server, 天¹ 天²: it counts once. */
function letters(token) {
  if (!/^.[¹²³⁴⁵⁶⁷⁸⁹]$/u.test(token)) return token.length;
  return token.endsWith("¹") ? token.length - 1 : 0;
}

function column(title, text, id) {
  return h("div", {}, h("h4", {}, title), h("p", { class: "continued", id }, text || "(nothing)"));
}

byId("continue").addEventListener("click", () => goOn().catch((error) => emit("error", error)));
