// The list of edits and the ways to make them. Each is the JSON object that `gmt intervene --edits` reads.

import { byId, fill, h, number, percent, wholeNumber } from "./dom.js";
import { save } from "./download.js";
import { canUndo, editsFrom, emit, model, setEdits, state, undoEdit } from "./state.js";

const alpha = byId("alpha"), scope = byId("alpha-scope");
const inputs = { source: byId("edge-source"), target: byId("edge-target"), to: byId("edge-to") };

/** An edit in words. */
export function told(edit) {
  const where = edit.block === undefined ? "all blocks" : `block ${edit.block}`;
  const what = {
    "set-edge": () => (edit.share ? `edge ${edit.source} → ${edit.target} set to ${edit.share}`
      : `edge ${edit.source} → ${edit.target} cut`),
    redirect: () => `edge ${edit.source} → ${edit.target} redirected to ${edit.to}`,
    ablate: () => `slot ${edit.slot ?? 0} silenced as ${edit.role ?? "source"}`,
    pin: () => `every token pinned to slot ${edit.slot ?? 0} as ${edit.role ?? "source"}`,
    scale: () => `memory × ${edit.alpha}${edit.slot === undefined ? "" : ` for tokens in slot ${edit.slot}`}`,
    edges: () => `all edges ${edit.form}`,
    "move-centroid": () => `centroid ${edit.slot} moved toward ${edit.toward}`,
    "swap-centroids": () => `centroids ${edit.slot} and ${edit.other} swapped`,
  }[edit.kind];
  return `${what ? what() : edit.kind}, ${where}`;
}

function firedNote(count) {
  if (count === undefined) return null;
  if (count) return h("span", { class: "note" }, `fired ${count} ${count === 1 ? "time" : "times"}`);
  return h("span", { class: "note never" }, "fired 0 times: no token of this text is one it is meant for");
}

export function drawEdits() {
  const fired = state.read?.fired ?? [];
  fill("edit-list", state.edits.map((edit, i) => h("li", {}, told(edit), " ",
    h("button", { type: "button", class: "small", "aria-label": `Remove: ${told(edit)}`, onclick: () => remove(i) },
      "remove"),
    firedNote(fired[i]))));
  byId("edit-empty").hidden = state.edits.length > 0;
  byId("edit-empty").textContent = model().has_memory ? "None: the model is as it was trained."
    : "This model has no memory, and so nothing to edit.";
  byId("alpha-card").hidden = byId("edge-form").hidden = !model().has_memory;
  byId("undo").disabled = !canUndo();
  byId("reset").disabled = byId("save-edits").disabled = !state.edits.length;
  drawAlpha();
  drawEdge();
}

export function drawLoss(text) {
  byId("edit-facts").textContent = text;
}

const isKnob = (edit) => edit.kind === "scale" && !("slot" in edit || "ids" in edit || "positions" in edit);
const scoped = (edit) => isKnob(edit) && edit.block === (scope.value === "all" ? undefined : state.block);

/** The knob stands where its edit says. */
export function drawAlpha() {
  alpha.value = state.edits.find(scoped)?.alpha ?? 1;
  byId("alpha-value").textContent = number(Number(alpha.value));
}

function turn() {
  const rest = state.edits.filter((edit) => !scoped(edit));
  const value = Number(alpha.value);
  const where = scope.value === "all" ? {} : { block: state.block };
  change(value === 1 ? rest : [...rest, { kind: "scale", ...where, alpha: value }]); // times one is no edit
}

export function change(edits) {
  if (JSON.stringify(edits) === JSON.stringify(state.edits)) return;
  if (edits.length > state.facts.limits.edits) {
    emit("error", new Error(`At most ${state.facts.limits.edits} edits fit into one list: remove some first.`));
    return;
  }
  emit("edits", setEdits(edits));
}

const remove = (place) => change(state.edits.filter((_, i) => i !== place));

/** The edge that the buttons work on; called where a person points at one. */
export function offerEdge({ source, target }) {
  inputs.source.value = source;
  inputs.target.value = target;
  drawEdge();
  byId("edge-form").scrollIntoView({ block: "nearest" });
  byId("cut").focus({ preventScroll: true });
}

export function drawEdge() {
  byId("edge-block").textContent = `of block ${state.block}`;
  const p = state.memory?.transition[inputs.source.value]?.[inputs.target.value];
  byId("edge-facts").textContent = p === undefined ? "Click a cell or an arrow, or write two slots."
    : `${percent(p)} of what leaves slot ${inputs.source.value} goes to slot ${inputs.target.value}.`;
}

function edgeEdit(kind) {
  const names = kind === "redirect" ? ["source", "target", "to"] : ["source", "target"];
  const edit = { kind, block: state.block };
  for (const name of names) {
    edit[name] = wholeNumber(inputs[name], model().slots);
    if (edit[name] === null) return;
  }
  change([...state.edits, kind === "set-edge" ? { ...edit, share: 0 } : edit]);
}

byId("edge-form").addEventListener("submit", (event) => {
  event.preventDefault();
  edgeEdit("set-edge");
});
byId("redirect").addEventListener("click", () => edgeEdit("redirect"));
for (const input of Object.values(inputs)) {
  input.addEventListener("input", () => {
    input.setCustomValidity("");
    drawEdge();
  });
}
alpha.addEventListener("input", () => { byId("alpha-value").textContent = number(Number(alpha.value)); });
alpha.addEventListener("change", turn);
scope.addEventListener("change", drawAlpha);
byId("undo").addEventListener("click", () => emit("edits", undoEdit()));
byId("reset").addEventListener("click", () => change([]));
byId("save-edits").addEventListener("click", () =>
  save("edits.json", `${JSON.stringify(state.edits, null, 2)}\n`, "application/json"));
byId("load-edits").addEventListener("click", () => byId("edits-file").click());
byId("edits-file").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = ""; // so that the same file can be loaded again
  if (!file) return;
  try {
    change(editsFrom(await file.text()));
  } catch (error) {
    emit("error", error);
  }
});
