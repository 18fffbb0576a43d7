// The one door to the server. A lane holds one question at a time: a newer one makes the older one's answer stale.

const lanes = new Map();
const waiting = new Set();
let onBusy = () => {};

/** Thrown where an answer came too late to matter; nobody shows it. */
export class Stale extends Error {}

export function watchBusy(callback) {
  onBusy = callback;
}

export async function ask(path, body, lane = path, what = "asking") {
  const mine = { stop: new AbortController(), what };
  lanes.get(lane)?.stop.abort();
  lanes.set(lane, mine);
  waiting.add(mine);
  onBusy(waiting);
  try {
    const answer = await fetched(path, body, mine.stop.signal);
    if (lanes.get(lane) !== mine) throw new Stale();
    return answer;
  } catch (error) {
    throw lanes.get(lane) !== mine || error.name === "AbortError" ? new Stale() : error;
  } finally {
    waiting.delete(mine);
    onBusy(waiting);
  }
}

async function fetched(path, body, signal) {
  const request = body === undefined ? { signal } : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  };
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is gmt explore still running?");
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (response.ok && answer !== null) return answer;
  throw new Error(answer?.error ?? `The server answered ${response.status} and gave no reason.`);
}

/** Nobody waits for these any more. */
export function forget(...names) {
  for (const lane of names) {
    lanes.get(lane)?.stop.abort();
    lanes.delete(lane);
  }
}
