// How the page speaks: mistakes in a region that screen readers hear, and what it is busy with.

import { Stale, watchBusy } from "./api.js";
import { byId, fill, h, show } from "./dom.js";
import { listen } from "./state.js";

export function complain(error) {
  if (error instanceof Stale) return;
  const words = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  fill("error", words, " ", h("button", { type: "button", class: "small", onclick: quiet }, "close"));
  show("error", true);
}

export const quiet = () => show("error", false);

/** What a person does may fail; the page says so and stays as it was. */
export const doing = (action) => async (...given) => {
  try {
    await action(...given);
  } catch (error) {
    complain(error);
  }
};

/** Scrolls a part of the page into view; the address is taken by the state, so links cannot. */
export function go(id) {
  const smooth = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId(id).scrollIntoView({ behavior: smooth ? "smooth" : "auto", block: "start" });
}

listen("error", complain);
watchBusy((waiting) => {
  byId("busy").textContent = waiting.size ? `${[...waiting].at(-1).what}…` : "";
  document.querySelector("main").setAttribute("aria-busy", waiting.size > 0);
});
