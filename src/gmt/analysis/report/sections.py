"""What a report shows, in which order. Each line is one kind of view; the page puts a kind's texts side by side."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gmt.analysis import views
from gmt.analysis.diagnostics import LEAST, block_diagnostics, role_switching, surprise
from gmt.analysis.meaning import typical_scale
from gmt.analysis.tell import destinations, displacement_examples, routing_trace
from gmt.analysis.trace import Array, Trace
from gmt.analysis.view import View
from gmt.analysis.views.meaning import edge_meaning, slot_meaning
from gmt.evaluate.validation import Validation
from gmt.hf.load import Loaded


@dataclass(frozen=True)
class Reading:
    """A model, and what it did with some texts."""

    loaded: Loaded
    traces: list[Trace]
    classes: dict[str, list[str] | None]  # by text: the word class of each token
    validation: Validation | None = None

    @property
    def has_memory(self) -> bool:
        return self.traces[0].has_memory

    @property
    def validation_windows(self) -> int:
        return 0 if self.validation is None else self.validation.tokens // self.loaded.lm.cfg.model.context


@dataclass(frozen=True)
class Group:
    """Views that belong side by side."""

    title: str
    views: list[View]


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    about: str
    groups: list[Group]


def sections(reading: Reading, chosen: list[int], run: Path | None) -> list[Section]:
    found = [_glance(reading), _depth(reading)]
    if reading.has_memory:
        found += [_memory(reading, chosen), _routing(reading, chosen)]
    found += [_words(reading, chosen), _prediction(reading)]
    if reading.has_memory:
        found += [_meaning(reading, chosen), _by_token(reading, chosen)]
    curves = views.training_curves(run) if run is not None else None
    about = "Every number that the run recorded, over its steps."
    return [*found, Section("training", "How it was trained", about, [_group("", [curves])])]


def by_depth(total: int, count: int) -> list[int]:
    """`count` blocks spread over the depth, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, total - 1, min(count, total)).tolist()})


def _group(title: str, found: Iterable[View | None]) -> Group:
    return Group(title, [view for view in found if view is not None])


def _glance(reading: Reading) -> Section:
    rows = []
    for trace in reading.traces:
        told = surprise(trace)
        rows.append([trace.name, told["tokens"], trace.facts["windows"], told["loss"], told["perplexity"]])
    header = ["text", "tokens", "windows", "loss", "perplexity"]
    scored = [row for row in rows if row[3] == row[3]]
    caption = "No text has a token that something comes before."
    if scored:
        best = min(scored, key=lambda row: row[3])
        caption = f"The loss is lowest on “{best[0]}”: {best[3]:.2f} nats per token."
        if reading.validation is not None:
            caption += (
                f" These are losses of single texts; the validation loss is {reading.validation.loss:.4f} nats "
                f"over {reading.validation_windows} windows."
            )
    cut = [row[0] for row in rows if row[2] > 1]
    if cut:
        context = reading.traces[0].facts["context"]
        caption += (
            f" Texts longer than the context of {context} tokens are read in independent windows: {', '.join(cut)}."
        )
    texts = View("texts", "The texts", caption, header, rows, None)
    about = "What was read, and the numbers of every block over all texts."
    return Section("glance", "At a glance", about, [_group("", [texts, _blocks(reading)])])


def block_means(reading: Reading) -> dict[str, Array]:
    """Each diagnostic by block, a mean over texts."""
    each = [block_diagnostics(trace) for trace in reading.traces]
    return {key: np.array([[row[key] for row in of] for of in each]).mean(0) for key in each[0][0]}


def _blocks(reading: Reading) -> View:
    found = block_means(reading)
    header = list(found)
    rows = [[block, *(float(found[key][block]) for key in header)] for block in range(reading.traces[0].blocks)]
    caption = "Lengths are means over tokens."
    if reading.has_memory:
        soft, hard, longer = (
            [row[1 + header.index(key)] for row in rows] for key in ("n_eff", "n_eff_hard", "update_to_attention")
        )
        caption = (
            f"Of {reading.traces[0].slots} slots a block uses between {min(hard):.1f} and {max(hard):.1f} effectively "
            f"when each token counts in its likeliest slot (hard N_eff, as the paper's probes), between "
            f"{min(soft):.1f} and {max(soft):.1f} by mean probability (N_eff of the training objective). What memory "
            f"adds is {np.mean(longer):.2f} times as long as what attention adds, over all blocks."
        )
    return View("blocks", "Block by block", caption, ["block", *(key.replace("_", " ") for key in header)], rows, None)


def _depth(reading: Reading) -> Section:
    traces = reading.traces
    found: list[View | None] = [views.depth_progression(traces)]
    if reading.has_memory:
        found += [views.coverage_and_diversity(traces), views.routing_consistency(traces)]
        found += [views.source_overlap_view(traces)]
    return Section(
        "depth", "Over the depth", "How the model changes from its first block to its last.", [_group("", found)]
    )


def _memory(reading: Reading, chosen: list[int]) -> Section:
    first = reading.traces[0]
    found = [views.gate_and_momentum(first), views.edge_entropy(first)]
    found += [views.edge_matrices(first, chosen), views.centroid_similarity(first, chosen)]
    about = "The memory itself, whatever the text: gates, edges, centroids."
    return Section("memory", "The memory", about, [_group("", found)])


def _routing(reading: Reading, chosen: list[int]) -> Section:
    groups = []
    for block in chosen:
        flows = [views.routing_flow(trace, block, reading.classes[trace.name]) for trace in reading.traces]
        edges = [views.active_edges(trace, block) for trace in reading.traces]
        groups += [_group(f"Block {block}: routes", flows), _group(f"Block {block}: edges in use", edges)]
    about = "Where the tokens of each text are, and where they go."
    return Section("routing", "Routes", about, groups)


def _words(reading: Reading, chosen: list[int]) -> Section:
    traces, classes = reading.traces, reading.classes
    groups = []
    if traces[0].facts["sublayer"] != "none":
        groups.append(_group("How far tokens are moved", [views.displacement_norms(trace) for trace in traces]))
        groups.append(_group("By word class", [views.displacement_by_pos(t, classes[t.name]) for t in traces]))
    if reading.has_memory:
        groups.append(_group("Routing by word class", [views.pos_routing(t, classes[t.name]) for t in traces]))
        for block in chosen:
            title = f"Block {block}: "
            groups.append(
                _group(title + "directions", [views.displacement_map(t, block, classes[t.name]) for t in traces])
            )
            groups.append(_group(title + "word classes", [views.pos_slots(t, block, classes[t.name]) for t in traces]))
            groups.append(_group(title + "slots and tokens", [views.slot_tokens(t, block) for t in traces]))
        groups.append(_group("Slots that switch roles", [_switching(reading, trace) for trace in traces]))
    tagged = any(found is not None for found in classes.values())
    about = "Movement and words." + ("" if tagged else " No tagger is installed, so that words have no classes here.")
    return Section("words", "Words", about, [group for group in groups if group.views])


def _switching(reading: Reading, trace: Trace) -> View | None:
    classes = reading.classes[trace.name]
    if classes is None:
        return None
    rows, total = [], 0
    for block in range(trace.blocks):
        found, looked = role_switching(trace, classes, block)
        total += looked
        rows += [[block, *switch[:-1], "yes" if switch.disjoint else ""] for switch in found]
    caption = (
        f"Of {total} slots that at least {LEAST} tokens leave and {LEAST} enter, over all blocks, {len(rows)} are left "
        "by one word class and entered by another, more than half of the tokens each time."
    )
    header = ["block", "slot", "left by", "share", "entered by", "share ", "leaving", "entering", "no class in common"]
    return View(f"role-switching-{trace.name}", f"{trace.name}: slots that switch roles", caption, header, rows, None)


def _prediction(reading: Reading) -> Section:
    groups = [
        _group("Surprise", [views.surprise(trace) for trace in reading.traces]),
        _group("Shares in the predicted token", [views.logit_share(trace) for trace in reading.traces]),
    ]
    about = (
        "What each block adds to the logit of the token that the model thinks comes next. The parts sum to the logit."
    )
    return Section("prediction", "Prediction", about, groups)


def _meaning(reading: Reading, chosen: list[int]) -> Section:
    scale = typical_scale(reading.traces)
    groups = []
    for block in chosen:
        groups.append(
            _group(f"Block {block}: slots", [slot_meaning(reading.loaded, t, block, scale) for t in reading.traces])
        )
        groups.append(
            _group(f"Block {block}: moves", [edge_meaning(reading.loaded, t, block, scale) for t in reading.traces])
        )
    about = (
        "The words that a move makes likelier and those that it makes less likely: its direct effect on the logits, "
        "seen through the final norm and the output embedding."
    )
    return Section("meaning", "What a move means", about, groups)


def _by_token(reading: Reading, chosen: list[int]) -> Section:
    groups = [_group("Token by token", [routing_trace(t, reading.classes[t.name], chosen) for t in reading.traces])]
    for block in chosen:
        examples = [displacement_examples(t, block) for t in reading.traces]
        groups.append(_group(f"Block {block}: slots by example", examples))
        groups.append(_group(f"Block {block}: destinations", [destinations(t, block) for t in reading.traces]))
    return Section("tokens", "Token by token", "The same as text: every token's way, and slots by example.", groups)
