"""A trace in words: where every token went, and what the slots of a block were used for."""

import numpy as np

from gmt.analysis.diagnostics import commonest
from gmt.analysis.meaning import busiest_slots
from gmt.analysis.trace import Trace
from gmt.analysis.view import View


def shown(token: str) -> str:
    """A token as it can be read on one line: blanks at its ends as dots, line ends as arrows, what cannot be
    seen by its number."""
    text = token.replace("\n", "↵").replace("\t", "⇥")
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    bare = text.strip(" ")
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "·" * left + bare + "·" * right if bare else "·" * len(text)


def routing_trace(trace: Trace, classes: list[str] | None, blocks: list[int]) -> View:
    """Token by token: source and target slot with their probabilities, and how far it is moved before LN_disp."""
    header = ["place", "token", "class", "surprise"]
    for block in blocks:
        header += [f"block {block}", f"p source {block}", f"p target {block}", f"move {block}"]
    rows = []
    for place, token in enumerate(trace.tokens):
        row = [place, shown(token), classes[place] if classes else "", float(trace.surprise[place])]
        for block in blocks:
            i, j = int(trace.source_slot[block, place]), int(trace.target_slot[block, place])
            row += [f"{i} → {j}", float(trace.source[block, place, i]), float(trace.target[block, place, j])]
            row += [float(trace.shift_norm[block, place])]
        rows.append(row)
    same = trace.self_route[blocks].mean()
    caption = (
        f"Each token through block {', '.join(map(str, blocks))}: likeliest source and target slot, their "
        f"probabilities, and the length of the move before LN_disp. There {same:.0%} of the tokens stay in their slot."
    )
    return View(f"routing-trace-{trace.name}", f"{trace.name}, token by token", caption, header, rows, None)


def displacement_examples(trace: Trace, block: int, count: int = 6, examples: int = 6) -> View:
    """A slot, its tokens, where they go, and what else goes there."""
    header = ["slot", "tokens there", "examples", "goes to", "share", "what else goes there"]
    rows, source, target = [], trace.source_slot[block], trace.target_slot[block]
    for slot in busiest_slots(trace, block, trace.slots).tolist():
        here = np.flatnonzero(source == slot)
        if not len(here) or len(rows) == count:
            continue
        goal, taken = commonest(target[here].tolist())[0]
        others = [place for place in np.flatnonzero(target == goal).tolist() if source[place] != slot]
        rows.append([slot, len(here), _some(trace, here.tolist(), examples), goal, taken / len(here)])
        rows[-1].append(_some(trace, others, examples))
    caption = "No token of this text has a slot in this block."
    if rows:
        slot, there, told, goal, share, _ = rows[0]
        caption = (
            f"In block {block} slot {slot} is the source of {there} tokens, such as {told}; {share:.0%} of them go to "
            f"slot {goal}."
        )
    title = f"{trace.name}, block {block}: slots by example"
    return View(f"displacement-examples-{trace.name}-block-{block}", title, caption, header, rows, None)


def _some(trace: Trace, places: list[int], count: int) -> str:
    """The commonest tokens of these places, each once."""
    found = commonest(shown(trace.tokens[place]) for place in places)[:count]
    return ", ".join(f"“{token}”" + (f" ×{times}" if times > 1 else "") for token, times in found)


def destinations(trace: Trace, block: int, count: int = 3, sources: int = 6, examples: int = 6) -> View:
    """The slots that most tokens go to: from where, and which tokens."""
    header = ["target", "share of the text", "from slot", "tokens", "examples"]
    rows, target, source = [], trace.target_slot[block], trace.source_slot[block]
    for goal, total in commonest(target.tolist())[:count]:
        for start, tokens in commonest(source[target == goal].tolist())[:sources]:
            places = np.flatnonzero((target == goal) & (source == start)).tolist()
            rows.append([goal, total / len(target), start, tokens, _some(trace, places, examples)])
    goal, total = commonest(target.tolist())[0]
    starts = len(set(source[target == goal].tolist()))
    caption = (
        f"In block {block} slot {goal} is the target of {total / len(target):.0%} of the tokens of {trace.name}; they "
        f"come from {'one slot' if starts == 1 else f'{starts} different slots'}."
    )
    title = f"{trace.name}, block {block}: where most tokens go"
    return View(f"destinations-{trace.name}-block-{block}", title, caption, header, rows, None)
