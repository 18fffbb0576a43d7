// What the page shows, in one object; its shareable part lives in the address. Views say what happened by `emit`,
// and main.js alone answers, so that no view needs to know another.

export const state = {
  model: 0, text: "", block: 0, edits: [], place: null, slot: null, // the shareable part
  facts: null, // the server's /api/model
  read: null, plain: null, // answers with the edits, and without
  memory: null, // the chosen block's answer
};

const undoable = [];
const bus = new EventTarget();

export const listen = (name, callback) => bus.addEventListener(name, (event) => callback(event.detail));
export const emit = (name, detail) => bus.dispatchEvent(new CustomEvent(name, { detail }));

export const model = () => state.facts.models[state.model];
export const request = (more = {}) => ({ text: state.text, model: state.model, edits: state.edits, ...more });

/** Both give back a function that takes the change back, for edits that the server refuses. */
export function setEdits(edits) {
  undoable.push(state.edits);
  state.edits = edits;
  return () => { state.edits = undoable.pop(); };
}

export function undoEdit() {
  const before = state.edits;
  state.edits = undoable.pop();
  return () => {
    undoable.push(state.edits);
    state.edits = before;
  };
}

export const canUndo = () => undoable.length > 0;

/** The address without its first sign; only what differs from the beginning is written. */
export function toHash() {
  const found = new URLSearchParams();
  if (state.text) found.set("text", state.text);
  for (const key of ["model", "block"]) if (state[key]) found.set(key, state[key]);
  for (const key of ["place", "slot"]) if (state[key] !== null) found.set(key, state[key]);
  if (state.edits.length) found.set("edits", JSON.stringify(state.edits));
  return found.toString();
}

/** An address may come from anywhere: what does not fit is left at its beginning. The server checks the edits. */
export function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (key, limit, otherwise) => {
    const value = given.has(key) && given.get(key) !== "" ? Number(given.get(key)) : NaN;
    return Number.isInteger(value) && value >= 0 && value < limit ? value : otherwise;
  };
  state.edits = [];
  state.text = given.get("text") ?? "";
  state.model = whole("model", state.facts.models.length, 0);
  state.block = whole("block", model().blocks, 0);
  state.place = whole("place", 1e6, null);
  state.slot = whole("slot", model().slots ?? 0, null);
  state.edits = editsFrom(given.get("edits") ?? "[]");
}

/** The edits of a JSON text; raises in plain words. */
export function editsFrom(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("The edits are not JSON.");
  }
  if (!Array.isArray(found) || found.some((edit) => typeof edit?.kind !== "string")) {
    throw new Error("The edits are not a list of objects, each with its kind.");
  }
  return found;
}

/** The address says what the page shows; the browser's Back still leaves the page. */
export function writeHash() {
  const hash = toHash();
  const address = hash ? `#${hash}` : location.pathname + location.search;
  if (location.hash.slice(1) !== hash) history.replaceState(null, "", address);
}
