"""Whether training steps give the same bits: again in one process, as a CUDA graph, and in another process.

    python benchmarks/same_bits.py --out bits.json [--against OTHER.json] [PRESET [SETTING=VALUE ...]]

A few steps over tokens that are always the same, forward and backward several times from the same state, then the
commit and AdamW; on a GPU one more pass as a CUDA graph. OUT has a hash of the loss, of the sums that each block's
memory is written with and of every gradient, by step; what the optimizer made of them shows in the next. Prints what
differs, where something does, about in the order in which it is computed (the last block's gradients first), and exits
with 1.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmt.config import GMTConfig
from gmt.model.bits import hash_of
from gmt.model.device import autocast, compile_whole, pick_device
from gmt.train.graph import Graphed
from gmt.train.optimizer import make_optimizer
from gmt.train.start import build

Hashes = dict[str, str]


class Passes:
    """Forward and backward of one model, as often as wanted from the same state."""

    def __init__(self, cfg: GMTConfig, device: torch.device) -> None:
        self.cfg, self.device = cfg, device
        self.lm = build(cfg, device).train()
        self.model: Any = compile_whole(self.lm, cfg) if cfg.train.compile else self.lm

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Few tokens often and most rarely, as in text."""
        shape, generator = self.cfg.model, torch.Generator().manual_seed(step)
        drawn = torch.rand(self.cfg.train.micro_batch, shape.context + 1, generator=generator, dtype=torch.float64)
        ids = (shape.vocab**drawn).long().clamp_max(shape.vocab - 1).to(self.device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self, ids: Tensor, labels: Tensor) -> Any:
        self.lm.zero_grad()
        with autocast(self.device, self.cfg.train.precision):
            out = self.model(ids, labels, return_logits=False)
        out.loss.backward()
        # what is kept for a backward would tie the parameters to the stream of this pass, and a recording has its own
        writes = out.writes and out.writes._replace(usage_sum=out.writes.usage_sum.detach())
        return out.task_loss.detach(), writes

    def once(self, step: int) -> tuple[Hashes, Any]:
        torch.manual_seed(step)  # of dropout
        task, writes = self.run(*self.batch(step))
        return self.hashes(task, writes), writes

    def as_graph(self, step: int) -> Hashes:
        ids, labels = self.batch(step)
        graph = Graphed(self.run, self.lm, ids, labels)
        torch.manual_seed(step)
        return self.hashes(*graph(ids, labels))

    def hashes(self, task: Tensor, writes: Any) -> Hashes:
        found = {"the loss": hash_of([task])}
        for block in range(len(self.lm.cells)):
            parts = (writes.slot_sum[block], writes.slot_count[block], writes.usage_sum[block])
            found[f"block {block}: what memory is written with"] = hash_of(parts)
        named = [(name, p.grad) for name, p in self.lm.named_parameters() if p.grad is not None]
        for name, grad in sorted(named, key=lambda pair: -_depth(pair[0], len(self.lm.blocks))):
            found[f"gradient of {name}"] = hash_of([grad])
        return found


def _depth(name: str, blocks: int) -> int:
    """A parameter's block; the last norm's gradient is ready before all, the embeddings' after."""
    block = re.search(r"blocks\.(\d+)\.", name)
    return int(block[1]) if block else blocks if "norm" in name else -1


def differing(a: Hashes, b: Hashes) -> list[str]:
    return [name for name in {**a, **b} if a.get(name) != b.get(name)]


def tell(what: str, names: list[str]) -> bool:
    """Whether nothing differs."""
    print(f"{what}: " + (f"{len(names)} differ, {'; '.join(names[:6])}" if names else "the same bits"), flush=True)
    return not names


def train(passes: Passes, steps: int, times: int) -> tuple[list[Hashes], bool]:
    """Each step's hashes, and whether all its passes had them."""
    optimizer, found, good = make_optimizer(passes.lm, passes.cfg), [], True
    for step in range(steps):
        first, writes = passes.once(step)
        for number in range(2, times + 1):
            good &= tell(f"step {step + 1}, pass {number}", differing(first, passes.once(step)[0]))
        passes.lm.commit(writes)
        optimizer.step()
        found.append(first)
    return found, good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", default=["gmt-v7-base", "train.micro_batch=8"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--times", type=int, default=4, help="passes a step")
    args = parser.parse_intermixed_args()
    other = json.loads(args.against.read_text("utf-8")) if args.against else None
    if other and (other["settings"] != args.settings or len(other["steps"]) != args.steps):
        sys.exit(
            f"{args.against} is of {len(other['steps'])} steps of {' '.join(other['settings'])}: nothing to compare"
        )
    preset, *settings = args.settings
    cfg = GMTConfig.preset(preset, "train.compile=true", *settings)
    passes = Passes(cfg, pick_device(cfg.train.device))
    found, good = train(passes, args.steps, args.times)
    if passes.device.type == "cuda":
        first, _ = passes.once(args.steps)
        good &= tell("as a CUDA graph", differing(first, passes.as_graph(args.steps)))
    facts = {"settings": args.settings, "torch": torch.__version__, "device": str(passes.device)}
    args.out.write_text(json.dumps({**facts, "steps": found}, indent=1), "utf-8")
    for step, (mine, others) in enumerate(zip(found, other["steps"] if other else [], strict=False), 1):
        good &= tell(f"step {step}, against {args.against}", differing(mine, others))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
