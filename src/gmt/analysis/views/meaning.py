"""What the busiest slots and moves of a text mean, as words that they promote and suppress."""

import torch

from gmt.analysis.meaning import Meaning, arrival, busiest_moves, busiest_slots, meanings, move
from gmt.analysis.tell import shown
from gmt.analysis.trace import Trace
from gmt.analysis.view import View
from gmt.analysis.views.drawing import file_safe, plural
from gmt.hf.load import Loaded


def slot_meaning(loaded: Loaded, trace: Trace, block: int, scale: float, count: int = 12) -> View:
    """Coming to a slot from the middle of the memory."""
    slots = busiest_slots(trace, block, count).tolist()
    vectors = torch.stack([arrival(loaded.lm, block, slot) for slot in slots])
    found = meanings(loaded.lm, vectors, scale, loaded.words)
    used = trace.counts(block)
    rows = [
        [slot, int(used[slot].sum()), int(used[:, slot].sum()), *_words(meaning)]
        for slot, meaning in zip(slots, found, strict=True)
    ]
    first = found[0].promoted[0]
    caption = (
        f"Coming to slot {slots[0]}, the busiest of block {block}, raises the logit of “{shown(first[0])}” most, by "
        f"{first[1]:.2f}. Direct effect, through the final norm and the output embedding."
    )
    header = ["slot", "tokens from it", "tokens to it", "promotes", "suppresses"]
    title = f"{trace.name}, block {block}: what coming to a slot promotes"
    return View(file_safe("slot-meaning", trace.name, "block", block), title, caption, header, rows, None)


def edge_meaning(loaded: Loaded, trace: Trace, block: int, scale: float, count: int = 12) -> View | None:
    """Going from one slot to another; None where every token stays in its own."""
    moves = busiest_moves(trace, block, count)
    if not moves:
        return None
    vectors = torch.stack([move(loaded.lm, block, i, j) for i, j, _ in moves])
    found = meanings(loaded.lm, vectors, scale, loaded.words)
    rows = [
        [f"{i} → {j}", tokens, float(trace.transition[block, i, j]), *_words(meaning)]
        for (i, j, tokens), meaning in zip(moves, found, strict=True)
    ]
    (i, j, tokens), best = moves[0], found[0].promoted[0]
    caption = (
        f"The busiest move of block {block}, slot {i} to slot {j}, is that of {plural(tokens, 'token')}; it "
        f"raises the logit of “{shown(best[0])}” most, by {best[1]:.2f}. P is the learned edge."
    )
    title = f"{trace.name}, block {block}: what a move promotes"
    header = ["move", "tokens", "P", "promotes", "suppresses"]
    return View(file_safe("edge-meaning", trace.name, "block", block), title, caption, header, rows, None)


def _words(meaning: Meaning) -> list[str]:
    return [
        ", ".join(f"“{shown(word)}” {value:+.2f}" for word, value in words)
        for words in (meaning.promoted, meaning.suppressed)
    ]
