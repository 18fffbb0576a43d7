"""What a model does with a text: every block's routing, movement and share in the prediction, in one small file.

All views read a `Trace` and nothing else of the forward pass. A forward pass changes nothing, so tracing cannot
either. The file is safetensors; its header holds the facts (model, hash, text, tokens) as JSON.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from torch import Tensor

from gmt.errors import GMTError, first_line
from gmt.hf.load import Loaded, open_model
from gmt.memory.cell import Route
from gmt.memory.losses import entropy
from gmt.model.language_model import GraphMemoryLM

VERSION = 1
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trace:
    """L blocks, T tokens, F slots, H channels. `facts` is plain JSON; `arrays` are named below.

    ids, window [T]; surprise [T] -log p of the token itself (NaN where nothing comes before it); predicted [T] the
    likeliest next token, and predicted_logit [T], which is the sum of its parts: logit_embedding [T], logit_bias [T],
    logit_attention [L, T] and logit_update [L, T], the second sublayer's; final_scale [T] is the factor that the final
    norm multiplies by. attention_norm, update_norm, residual_norm
    [L, T]. With memory also source, target [L, T, F] and displacement [L, T, H] as float16; source_entropy,
    target_entropy, source_slot, target_slot [L, T]; top_source, top_target [L, T, 5] the likeliest slots; shift_norm
    [L, T] the length of (w_tgt - w_src) C~, before LN_disp makes all lengths nearly alike; and the memory: centroids,
    states [L, F, H], transition [L, F, F], usage, age [L, F], gate, momentum [L] (both after the sigmoid).
    """

    facts: dict[str, Any]
    arrays: dict[str, Array]

    def __getattr__(self, name: str) -> Array:
        arrays = self.__dict__.get("arrays", {})  # while it is being copied there are none yet
        if name not in arrays:
            raise AttributeError(f"this trace has no {name}")
        return arrays[name]

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def text(self) -> str:
        return self.facts["text"]

    @property
    def loss(self) -> float:
        """Mean surprise in nats per token; NaN where no token has a predecessor."""
        scored = self.surprise[~np.isnan(self.surprise)]
        return float(scored.mean()) if len(scored) else float("nan")

    @property
    def tokens(self) -> list[str]:
        """Each token as it stands in the text."""
        return self.facts["tokens"]

    @property
    def has_memory(self) -> bool:
        return "source" in self.arrays

    @property
    def blocks(self) -> int:
        return len(self.arrays["attention_norm"])

    @property
    def slots(self) -> int:
        return self.arrays["source"].shape[-1]

    @property
    def self_route(self) -> Array:
        """[L, T] whether a token's likeliest target is the slot it stands in."""
        return self.source_slot == self.target_slot

    def counts(self, block: int) -> Array:
        """[F, F] tokens by likeliest source and target."""
        found = np.zeros((self.slots, self.slots), dtype=np.int64)
        np.add.at(found, (self.source_slot[block], self.target_slot[block]), 1)
        return found

    def save(self, path: Path) -> None:
        arrays = {name: np.ascontiguousarray(value) for name, value in self.arrays.items()}
        save_file(arrays, path, {"gmt_trace": json.dumps({"version": VERSION, **self.facts})})


def load_trace(path: Path) -> Trace:
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {}).get("gmt_trace", "null"))
            if header is None:
                raise GMTError(f"{path} is not a trace")
            if header.pop("version") != VERSION:
                raise GMTError(f"{path} is a trace of another version of gmt: trace the text again")
            return Trace(header, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118  it is no dict
    except (OSError, SafetensorError, ValueError) as error:
        raise GMTError(f"{path} cannot be read as a trace: {first_line(error)}") from None


@torch.no_grad()
def trace(model: Loaded | str | Path, text: str, name: str = "text") -> Trace:
    """`text` through `model` (a loaded one, a model directory or a run); in windows where the context is shorter."""
    loaded = open_model(model) if isinstance(model, str | Path) else model
    lm = loaded.lm
    encoded = loaded.words.encode(text, add_special_tokens=False)
    if not encoded.ids:
        raise GMTError(f"the text {name!r} is empty: there is nothing to trace")
    context, memory = lm.cfg.model.context, _memory(lm)
    parts = [
        _window(lm, encoded.ids[start : start + context], memory.get("states"))
        for start in range(0, len(encoded.ids), context)
    ]
    arrays = {key: np.concatenate([part[key] for part in parts], axis=_time_axis(parts[0][key])) for key in parts[0]}
    arrays["ids"] = np.array(encoded.ids, dtype=np.int32)
    arrays["window"] = _windows([len(part["predicted"]) for part in parts])
    facts = {
        "name": name,
        "text": text,
        "tokens": _pieces(text, encoded.offsets),
        "predicted_words": [word(loaded.words, index) for index in arrays["predicted"].tolist()],
        "spans": [list(span) for span in encoded.offsets],
        "model": loaded.name,
        "sha256": loaded.sha256,
        "step": loaded.step,
        "tau": float(lm.tau),
        "context": context,
        "windows": len(parts),
        "dead_below": lm.cfg.dead_below,
        "sublayer": lm.cfg.model.sublayer,
    }
    return Trace(facts, arrays | memory)


PIECES = "¹²³⁴⁵⁶⁷⁸⁹"


def _pieces(text: str, spans: list[tuple[int, int]]) -> list[str]:
    """Each token as it stands in the text. Tokens that share one character, byte by byte, are numbered: 天¹ 天² 天³."""
    found, run = [], 0
    for place, (start, end) in enumerate(spans):
        alike = end - start == 1
        before = alike and place > 0 and tuple(spans[place - 1]) == (start, end)
        after = alike and place + 1 < len(spans) and tuple(spans[place + 1]) == (start, end)
        run = run + 1 if before else 0
        found.append(text[start:end] + (PIECES[min(run, 8)] if before or after else ""))
    return found


def word(words: Tokenizer, index: int) -> str:
    """A token as it would stand in a text; one that is part of a character, as its name in the vocabulary."""
    text = words.decode([index], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else words.id_to_token(index) or f"#{index}"


def _windows(lengths: list[int]) -> Array:
    """The number of each token's window."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def _time_axis(array: Array) -> int:
    return 0 if array.ndim == 1 else 1


class _Seen:
    """What hooks saw of one forward pass: the parts whose sum the final norm reads."""

    def __init__(self) -> None:
        self.embedding = self.final = torch.empty(0)
        self.attention: list[Tensor] = []
        self.dense: list[Tensor] = []
        self.out: list[Tensor] = []


@contextmanager
def _watched(lm: GraphMemoryLM) -> Iterator[_Seen]:
    seen, handles = _Seen(), []

    def keep(where: list[Tensor]) -> Any:
        return lambda module, args, result: where.append(result[0] if isinstance(result, tuple) else result)

    def keep_input(name: str) -> Any:
        return lambda module, args: setattr(seen, name, args[0])

    try:
        for block in cast(Any, lm.blocks):
            handles.append(block.attention.register_forward_hook(keep(seen.attention)))
            handles.append(block.register_forward_hook(keep(seen.out)))
            if block.dense is not None:
                handles.append(block.dense.register_forward_hook(keep(seen.dense)))
        handles.append(lm.blocks[0].register_forward_pre_hook(keep_input("embedding")))
        handles.append(lm.norm_final.register_forward_pre_hook(keep_input("final")))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _window(lm: GraphMemoryLM, ids: list[int], states: Array | None) -> dict[str, Array]:
    device = lm.tau.device
    rows = torch.tensor([ids], device=device)
    with _watched(lm) as seen:
        out = lm(rows, return_routes=bool(lm.cells), observe=False)
    assert out.logits is not None
    logits, routes = out.logits[0].float(), out.routes or ()
    updates = [route.displacement for route in routes] or seen.dense
    attention = torch.cat(seen.attention).float()  # [L, T, H]
    update = torch.cat(updates).float() if updates else torch.zeros_like(attention)
    found = {
        "attention_norm": attention.norm(dim=-1),
        "update_norm": update.norm(dim=-1),
        "residual_norm": torch.cat(seen.out).float().norm(dim=-1),
        **_prediction(logits, rows[0]),
        **_parts(lm, logits, seen, attention, update),
        **_routing(routes, states),
    }
    return {name: value.cpu().numpy() for name, value in found.items()}


def _prediction(logits: Tensor, ids: Tensor) -> dict[str, Tensor]:
    surprise = logits.new_full((len(ids),), torch.nan)
    surprise[1:] = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none")
    return {"surprise": surprise, "predicted": logits.argmax(-1).int(), "predicted_logit": logits.max(-1).values}


def _parts(lm: GraphMemoryLM, logits: Tensor, seen: _Seen, attention: Tensor, update: Tensor) -> dict[str, Tensor]:
    """The likeliest token's logit as a sum over what was added to the residual stream.

    The final norm divides by one number a token and takes a mean out: given that number it is linear, so each part's
    share is its product with one direction, the token's output embedding seen through the norm.
    """
    norm, final = lm.norm_final, seen.final[0].float()
    words = lm.token_embedding.weight[logits.argmax(-1)].float()  # [T, H]
    scale = (final.var(-1, correction=0) + norm.eps).rsqrt()
    toward = words * norm.weight.float()
    toward = (toward - toward.mean(-1, keepdim=True)) * scale[:, None]
    return {
        "final_scale": scale,
        "logit_embedding": (seen.embedding[0].float() * toward).sum(-1),
        "logit_bias": words @ norm.bias.float(),
        "logit_attention": torch.einsum("lth,th->lt", attention, toward),
        "logit_update": torch.einsum("lth,th->lt", update, toward),
    }


def _routing(routes: tuple[Route, ...], states: Array | None) -> dict[str, Tensor]:
    if states is None:
        return {}
    source, target = (torch.cat([getattr(route, name) for route in routes]).float() for name in ("source", "target"))
    return {
        "source": source.half(),
        "target": target.half(),
        "displacement": torch.cat([route.displacement for route in routes]).half(),
        "source_entropy": entropy(source),
        "target_entropy": entropy(target),
        "shift_norm": ((target - source) @ torch.from_numpy(states).to(source.device)).norm(dim=-1),
        "top_source": source.topk(min(5, source.shape[-1])).indices.int(),
        "top_target": target.topk(min(5, target.shape[-1])).indices.int(),
        "source_slot": source.argmax(-1).int(),
        "target_slot": target.argmax(-1).int(),
    }


def _memory(lm: GraphMemoryLM) -> dict[str, Array]:
    cells = lm.cells
    if not cells:
        return {}
    tables = [cell.tables(torch.float32) for cell in cells]
    found = {
        "centroids": torch.stack([cell.centroids for cell in cells]),
        "states": torch.stack([table.states for table in tables]),
        "transition": torch.stack([table.transition for table in tables]),
        "usage": torch.stack([cell.usage for cell in cells]),
        "age": torch.stack([cell.age for cell in cells]),
        "gate": torch.stack([cell.gate.float().sigmoid() for cell in cells]),
        "momentum": torch.stack([cell.momentum.float().sigmoid() for cell in cells]),
    }
    return {name: value.float().cpu().numpy() for name, value in found.items()}
