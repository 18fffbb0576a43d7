"""Text from a model, token by token: streamed, sampled from a seed, with memory frozen or adaptive, and traced.

Sampling itself is `transformers`'; a hook on the forward pass sees what it returns, and so can commit its writes
and keep its routes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from gmt.data.tokenizer import end_of_text, find_end_of_text
from gmt.errors import GMTError, first_line
from gmt.hf.cache import RoomyCache
from gmt.hf.load import Loaded
from gmt.memory.cell import Route
from gmt.model.memory_state import restore, snapshot
from gmt.utils.io import partial_of
from gmt.utils.outputs import check_file

Listener = Callable[[int, str], None]  # sample, piece of text


@dataclass(frozen=True)
class Sampling:
    tokens: int = 100
    temperature: float = 1.0  # 0 takes the likeliest token
    top_k: int = 0  # 0 for all
    top_p: float = 1.0
    seed: int = 0
    samples: int = 1

    def __post_init__(self) -> None:
        ranges = {"tokens": 1, "temperature": 0.0, "top_k": 0, "seed": 0, "samples": 1}
        for name, least in ranges.items():
            if getattr(self, name) < least:
                raise GMTError(f"{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if 0 < self.temperature < 1e-4:
            raise GMTError(
                f"temperature must be 0, for the likeliest token, or at least 0.0001, not {self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise GMTError(f"top-p must be over 0 and at most 1, not {self.top_p}")


class Sample:
    """One text in the making, and what the forward passes saw on the way."""

    def __init__(self) -> None:
        self.text, self.ids = "", torch.empty(0, dtype=torch.long)
        self.routes: list[tuple[Route, ...]] = []

    def traced(self) -> dict[str, Tensor]:
        """Per block source, target [T, F] and displacement [T, H] of every token that was read."""
        tensors: dict[str, Tensor] = {"ids": self.ids}
        for block in range(len(self.routes[0]) if self.routes else 0):
            for name in Route._fields:
                parts = [getattr(step[block], name)[0] for step in self.routes]
                tensors[f"block.{block}.{name}"] = torch.cat(parts).float().cpu().contiguous()
        return tensors


class _Pieces(BaseStreamer):
    """Text as soon as it is certain: a character of several tokens waits for its last one."""

    def __init__(self, words: Tokenizer, told: Callable[[str], None]) -> None:
        self.words, self.told = words, told
        self.prompt, self.ids, self.said = True, [], ""

    def put(self, value: Tensor) -> None:
        if self.prompt:  # comes first, and is known
            self.prompt = False
            return
        self.ids += value.flatten().tolist()
        self._say(self.words.decode(self.ids).rstrip("\ufffd"))

    def end(self) -> None:
        self._say(self.words.decode(self.ids))

    def _say(self, text: str) -> None:
        piece, self.said = text[len(self.said) :], text
        if piece:
            self.told(piece)


def generate(
    loaded: Loaded,
    prompt: str,
    sampling: Sampling,
    *,
    adaptive: bool = False,
    trace: Path | None = None,
    tell: Listener = lambda sample, piece: None,
) -> list[str]:
    """The continuations. Sample i is seeded with seed + i; each starts from the memory as it is, and leaves it so."""
    ids, room = encode_prompt(loaded, prompt), room_after(loaded, prompt)
    if adaptive and not loaded.lm.cells:
        raise GMTError(f"{loaded.name} has no memory to adapt")
    if trace is not None and not loaded.lm.cells:
        raise GMTError(f"{loaded.name} has no memory, and so no routes to trace")
    if trace is not None and (trace.is_dir() or not trace.parent.is_dir()):
        why = "it is a folder" if trace.is_dir() else f"there is no folder {trace.parent}"
        raise GMTError(f"cannot write the trace to {trace}: {why}")
    if trace is not None:
        check_file(trace, "generate", is_trace)
    samples = []
    for index in range(sampling.samples):
        with _watched(loaded, adaptive, trace is not None) as sample:
            _one(loaded, ids, sampling, min(sampling.tokens, room), index, sample, adaptive, trace is not None, tell)
        samples.append(sample)
    if trace is not None:
        save_trace(trace, loaded, prompt, sampling, adaptive, samples)
    return [sample.text for sample in samples]


def room_after(loaded: Loaded, prompt: str) -> int:
    """Tokens that still fit the context; at least one."""
    length, context = encode_prompt(loaded, prompt).shape[1], loaded.lm.cfg.model.context
    if length >= context:
        raise GMTError(f"the prompt has {length} tokens; this model's context of {context} has no room left")
    return context - length


def encode_prompt(loaded: Loaded, prompt: str) -> Tensor:
    """An empty prompt is the end of the text before."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        raise GMTError("the prompt is not UTF-8 text") from None
    ids = loaded.words.encode(prompt, add_special_tokens=False).ids or [end_of_text(loaded.words)]
    return torch.tensor([ids], device=loaded.lm.tau.device)


def _one(
    loaded: Loaded,
    ids: Tensor,
    sampling: Sampling,
    tokens: int,
    index: int,
    sample: Sample,
    adaptive: bool,
    routes: bool,
    tell: Listener,
) -> None:
    def told(piece: str) -> None:
        sample.text += piece
        tell(index, piece)

    end = find_end_of_text(loaded.words)
    settings: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        settings = {"do_sample": True, "temperature": sampling.temperature}
        settings |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    gpus = [ids.device] if ids.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus), torch.no_grad():
        torch.manual_seed(sampling.seed + index)
        model: Any = loaded.model
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            eos_token_id=end,
            pad_token_id=end,
            past_key_values=RoomyCache(),
            streamer=_Pieces(loaded.words, told),
            observe=adaptive,
            output_routes=routes,
            **settings,
        )
    sample.ids = out[0].cpu()


@contextmanager
def _watched(loaded: Loaded, adaptive: bool, routes: bool) -> Iterator[Sample]:
    """Commits writes and keeps routes while text is generated; memory is restored, whatever happens."""
    sample, before = Sample(), snapshot(loaded.lm) if adaptive else None

    def after(module: Any, args: Any, output: Any) -> None:
        if adaptive:
            loaded.lm.commit(output.writes)
        if routes:
            sample.routes.append(output.routes)

    hook = loaded.model.register_forward_hook(after)
    try:
        yield sample
    finally:
        hook.remove()
        restore(loaded.lm, before)


def save_trace(
    path: Path, loaded: Loaded, prompt: str, sampling: Sampling, adaptive: bool, samples: list[Sample]
) -> None:
    """safetensors: `sample.S.ids` and `sample.S.block.B.{source,target,displacement}`; facts in its metadata."""
    tensors = {f"sample.{n}.{name}": t for n, sample in enumerate(samples) for name, t in sample.traced().items()}
    facts = {
        "model": loaded.name,
        "sha256": loaded.sha256,
        "prompt": prompt,
        "tau": f"{float(loaded.lm.tau):g}",
        "memory": "adaptive" if adaptive else "frozen",
        **{name: str(value) for name, value in asdict(sampling).items()},
        **{f"text.{n}": sample.text for n, sample in enumerate(samples)},
    }
    try:
        save_file(tensors, partial_of(path), metadata=facts)
        partial_of(path).replace(path)
    except (OSError, SafetensorError) as error:
        raise GMTError(f"cannot write the trace to {path}: {first_line(error)}") from None


def is_trace(path: Path) -> bool:
    """Return whether `save_trace` wrote a file."""
    try:
        with safe_open(path, "pt") as file:
            return {"model", "prompt", "temperature"} <= (file.metadata() or {}).keys()
    except (OSError, SafetensorError):
        return False
