"""Whether training steps give the same bits: again in one process, as a CUDA graph, and in another process.

    python benchmarks/same_bits.py --out bits.json [--against OTHER.json] [--steps 3] [--times 4] [PRESET ...]

Steps over tokens that are always the same, forward and backward `times` times each and once as a CUDA graph where there
is one, then the commit and AdamW. OUT has a sha256 for every number and tensor of a step: the loss, the sums that
memory is written with, the gradients, block by block. Prints what differs first, where something does, in the order in
which it is computed, and exits with 1.
"""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmt.config import GMTConfig
from gmt.model.device import autocast, compile_whole, pick_device
from gmt.train.graph import Graphed
from gmt.train.optimizer import make_optimizer
from gmt.train.start import build

Digests = dict[str, str]


class Step:
    """Forward and backward of one model on given tokens, as often as wanted from the same state."""

    def __init__(self, cfg: GMTConfig, device: torch.device) -> None:
        self.cfg, self.device = cfg, device
        self.lm = build(cfg, device).train()
        self.model: Any = compile_whole(self.lm, cfg) if cfg.train.compile else self.lm
        self.graph: Graphed | None = None

    def work(self, ids: Tensor, labels: Tensor) -> Any:
        self.lm.zero_grad()
        with autocast(self.device, self.cfg.train.precision):
            out = self.model(ids, labels, return_logits=False)
        out.loss.backward()
        # what is kept of the graph would tie its leaves to the stream of this pass, and a recording is on another
        return out.task_loss.detach(), out.writes._replace(usage_sum=out.writes.usage_sum.detach())

    def __call__(self, ids: Tensor, labels: Tensor, seed: int, as_graph: bool = False) -> tuple[Digests, Any]:
        if as_graph and self.graph is None:
            self.graph = Graphed(self.work, self.lm, ids, labels)
        torch.manual_seed(seed)  # of dropout
        task, writes = self.graph(ids, labels) if as_graph and self.graph is not None else self.work(ids, labels)
        found = {"the loss": digest(task)}
        for block in range(len(self.lm.cells)):
            parts = (writes.slot_sum[block], writes.slot_count[block], writes.usage_sum[block])
            found[f"block {block}: what memory is written with"] = digest(*parts)
        named = [(name, p.grad) for name, p in self.lm.named_parameters() if p.grad is not None]
        for name, grad in sorted(named, key=lambda pair: -block_of(pair[0])):  # backward: the last block first
            found[f"gradient of {name}"] = digest(grad)
        return found, writes


def block_of(name: str) -> int:
    """-1 for the embeddings, whose gradient is ready last."""
    number = re.search(r"blocks\.(\d+)\.", name)
    return int(number[1]) if number else 10_000 if "norm" in name else -1


def digest(*tensors: Tensor) -> str:
    parts = (t.detach().float().contiguous().cpu().numpy().tobytes() for t in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def differing(a: Digests, b: Digests) -> list[str]:
    return [name for name, value in a.items() if b[name] != value]


def told(names: list[str]) -> str:
    return f"{len(names)} differ, {'; '.join(names[:6])}" if names else "the same bits"


def batch(cfg: GMTConfig, device: torch.device, step: int) -> tuple[Tensor, Tensor]:
    """Few tokens often and most rarely, as in text."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.rand(cfg.train.micro_batch, cfg.model.context + 1, generator=generator, dtype=torch.float64)
    ids = (cfg.model.vocab**drawn).long().clamp_max(cfg.model.vocab - 1).to(device)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=["gmt-v7-base", "train.micro_batch=8"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--times", type=int, default=4)
    args = parser.parse_intermixed_args()
    preset, *settings = args.settings
    cfg = GMTConfig.preset(preset, "train.compile=true", *settings)
    device = pick_device(cfg.train.device)
    once, good, steps = Step(cfg, device), True, []
    optimizer = make_optimizer(once.lm, cfg)
    for step in range(args.steps):
        ids, labels = batch(cfg, device, step)
        first, writes = once(ids, labels, step)
        for time in range(1, args.times):
            names = differing(first, once(ids, labels, step)[0])
            good &= not names
            print(f"step {step}, pass {time}: {told(names)}", flush=True)
        once.lm.commit(writes)
        optimizer.step()
        steps.append(first)
    if device.type == "cuda":  # last: what it leaves in gradients is not trained with
        first, _ = once(*batch(cfg, device, args.steps), args.steps)
        names = differing(first, once(*batch(cfg, device, args.steps), args.steps, as_graph=True)[0])
        good &= not names
        print(f"as a CUDA graph: {told(names)}")
    args.out.write_text(json.dumps(steps, indent=1), "utf-8")
    if args.against:
        for step, (mine, other) in enumerate(zip(steps, json.loads(args.against.read_text("utf-8")), strict=True)):
            names = differing(mine, other)
            good &= not names
            print(f"step {step}, against {args.against.name}: {told(names)}")
            if names:
                break  # from there on everything does
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
