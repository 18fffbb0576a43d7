"""What the parts of a model say about the next token, and how it meets the text."""

from typing import Any

import numpy as np

from gmt import plot
from gmt.analysis import diagnostics
from gmt.analysis.trace import Trace
from gmt.analysis.view import View
from gmt.analysis.views import drawing
from gmt.analysis.views.drawing import file_safe, plural, quoted, readable

MOST_TOKENS = 80
MOST_SURPRISES = 120


def logit_parts(trace: Trace) -> dict[str, float]:
    """The mean logit of the predicted tokens, taken apart; the parts add up to `logit`."""
    return {
        "logit": float(trace.predicted_logit.mean()),
        "update": float(trace.logit_update.sum(0).mean()),
        "attention": float(trace.logit_attention.sum(0).mean()),
        "embedding": float(trace.logit_embedding.mean()),
        "bias": float(trace.logit_bias.mean()),
    }


def second_sublayer(trace: Trace) -> str:
    return "memory" if trace.has_memory else "the second sublayer"


def predicted_word(trace: Trace, place: int) -> str:
    words = trace.facts.get("predicted_words")
    return quoted(words[place]) if words else f"token id {trace.predicted[place]}"


def unexplained(trace: Trace) -> float:
    """The largest distance between a predicted logit and the sum of its parts."""
    blocks = trace.logit_attention.sum(0, dtype=np.float64) + trace.logit_update.sum(0, dtype=np.float64)
    return float(np.abs(blocks + trace.logit_embedding + trace.logit_bias - trace.predicted_logit).max())


def logit_share(trace: Trace) -> View:
    """How much each block's second sublayer and attention add to the logit of the token that is predicted."""
    parts, second = logit_parts(trace), second_sublayer(trace)
    both = np.stack([trace.logit_update, trace.logit_attention])  # [2, L, T]
    which, block, place = (int(n) for n in np.unravel_index(np.abs(both).argmax(), both.shape))
    caption = (
        f"The predicted token's logit is {parts['logit']:.2f} in the mean, the sum of mean signed parts in logits: "
        f"{second} {parts['update']:+.2f}, attention {parts['attention']:+.2f}, embeddings {parts['embedding']:+.2f}, "
        f"the last norm's bias {parts['bias']:+.2f}. The largest single part is {both[which, block, place]:+.2f}, by "
        f"{(second, 'attention')[which]} in block {block} at {quoted(trace.tokens[place])} (place {place}) for "
        f"{predicted_word(trace, place)}. A logit and the sum of its parts differ by at most {unexplained(trace):.1e}. "
        f"Each of the two has its own colour scale."
    )
    name_of = f"Parts of the predicted token's logit, {trace.name}"
    return View(
        file_safe("logit-share", trace.name),
        name_of,
        caption + drawing.shown_of(len(trace.tokens), MOST_TOKENS),
        ["place", "token", "predicted_id", "predicted", "block", "logit_update", "logit_attention"],
        [
            [place, readable(token), int(trace.predicted[place]), predicted, block, *map(float, both[:, block, place])]
            for place, (token, predicted) in enumerate(zip(trace.tokens, _predicted(trace), strict=True))
            for block in range(trace.blocks)
        ],
        lambda: _draw_logits(trace, second, name_of),
    )


def _predicted(trace: Trace) -> list[str]:
    """For the table; empty where a trace has only ids."""
    return [readable(word) for word in trace.facts.get("predicted_words", [""] * len(trace.tokens))]


def _draw_logits(trace: Trace, second: str, name_of: str) -> Any:
    parts = drawing.strips(trace.tokens, MOST_TOKENS)
    width = drawing.strip_width(parts)
    height = 0.6 + len(parts) * (1.9 + 0.26 * trace.blocks)
    figure, axes = plot.subplots(2 * len(parts), 1, 2 + 0.21 * width, height)
    drawing.heading(figure, name_of)
    kinds = [(second, trace.logit_update[:, :MOST_TOKENS]), ("attention", trace.logit_attention[:, :MOST_TOKENS])]
    for index, part in enumerate(parts):
        pair = axes[2 * index : 2 * index + 2, 0]
        for axis, (name, values) in zip(pair, kinds, strict=True):
            limit = max(float(np.abs(values).max()), 1e-6)  # a scale of its own: the larger would make the other pale
            image = drawing.heat(axis, values[:, part], cmap=plot.DIVERGING, vmin=-limit, vmax=limit)
            drawing.token_axis(axis, trace.tokens, part, width)
            drawing.title(axis, name)
            drawing.ticks(axis, "y", range(trace.blocks), most=9)
            axis.set_ylabel("block", fontsize=9)
            drawing.colour_bar(figure, image, axis, "logits", ticks=[-limit, 0, limit], format="%.2g")
        pair[0].set_xticks([])  # the names stand below the second
    return figure


def surprise(trace: Trace) -> View:
    """How unexpected each token was."""
    found, values = diagnostics.surprise(trace), trace.surprise
    if found["scored"]:
        most, least = int(np.nanargmax(values)), int(np.nanargmin(values))
        caption = (
            f"Over {plural(found['scored'], 'token')} of {trace.name} the mean surprise is {found['loss']:.2f} nats "
            f"(perplexity {found['perplexity']:.1f}). Most surprising is {quoted(trace.tokens[most])} at place {most} "
            f"({values[most]:.2f}), least {quoted(trace.tokens[least])} at place {least} ({values[least]:.2f})."
        )
    else:
        caption = f"{trace.name} has {plural(found['tokens'], 'token')} and nothing comes before: 0 are scored."
    name_of = f"Surprise token by token, {trace.name}"
    return View(
        file_safe("surprise", trace.name),
        name_of,
        caption + drawing.shown_of(len(trace.tokens), MOST_SURPRISES),
        ["place", "token", "surprise"],
        [
            [place, readable(token), "" if np.isnan(values[place]) else float(values[place])]
            for place, token in enumerate(trace.tokens)
        ],
        lambda: _draw_surprise(trace, name_of),
    )


def _draw_surprise(trace: Trace, name_of: str) -> Any:
    parts = drawing.strips(trace.tokens, MOST_SURPRISES)
    width = drawing.strip_width(parts)
    figure, axes = plot.subplots(len(parts), 1, 2 + 0.21 * width, 0.7 + 1.9 * len(parts), sharey=True)
    drawing.heading(figure, name_of)
    known = trace.surprise[~np.isnan(trace.surprise)]
    for axis, part in zip(axes.flat, parts, strict=True):
        heights = np.nan_to_num(trace.surprise[part])  # nothing is known of a first token: no bar
        axis.bar(range(len(part)), heights, 0.8, color=plot.OKABE_ITO[0])
        if len(known):
            axis.axhline(known.mean(), color=plot.OKABE_ITO[1], linewidth=1, linestyle="--", label="mean")
        drawing.token_axis(axis, trace.tokens, part, width)
        axis.set_ylabel("−log p (nats)", fontsize=9)
    axes[0, 0].set_ylim(0, 1.08 * float(known.max()) if len(known) else 1.0)
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawing.legend_below(figure, handles, names)
    return figure
