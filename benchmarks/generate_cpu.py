"""Generation with the cache on a CPU: the memory model beside the dense one, token by token.

Both models decode the same prompt; their tokens are taken in turns, so that a slow moment of the machine strikes
both. Bound: the memory model takes at most 0.9 of dense-1050's time per token.

    python benchmarks/generate_cpu.py --out docs/results/generate_cpu.json
"""

import argparse
import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers import DynamicCache

from gmt import GMTConfig, GraphMemoryLM

BOUND = 0.9
MODELS = ("gmt-v7-base", "dense-1050", "dense-205")


class Decoder:
    """One model in the middle of a text."""

    def __init__(self, preset: str, prompt: int) -> None:
        torch.manual_seed(0)
        self.lm = GraphMemoryLM(GMTConfig.preset(preset)).eval()
        self.cache = DynamicCache()
        ids = torch.randint(self.lm.cfg.model.vocab, (1, prompt), generator=torch.Generator().manual_seed(1))
        self.next = self.step(ids)

    @torch.inference_mode()
    def step(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.lm(ids, observe=False, cache=self.cache, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def timed(self) -> float:
        began = time.perf_counter()
        self.next = self.step(self.next)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    decoders = {name: Decoder(name, args.prompt) for name in MODELS}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for index in range(args.tokens + 10):
        for name, decoder in decoders.items():
            taken = decoder.timed()
            if index >= 10:  # the first ones warm up
                seconds[name].append(taken)
    dense = statistics.median(seconds["dense-1050"])
    rows = {}
    for name, series in seconds.items():
        low, middle, high = statistics.quantiles(series, n=4)
        rows[name] = {"ms_per_token": middle * 1e3, "quartiles_ms": [low * 1e3, high * 1e3], "ratio": middle / dense}
        print(
            f"{name:<14}{middle * 1e3:8.2f} ms a token  ({low * 1e3:.2f} to {high * 1e3:.2f})  "
            f"{middle / dense:.3f} of dense-1050"
        )
    ratio = rows["gmt-v7-base"]["ratio"]
    print(f"bound {BOUND}: {'held' if ratio <= BOUND else 'MISSED'}")
    if args.out:
        facts = {
            "command": f"benchmarks/generate_cpu.py --prompt {args.prompt} --tokens {args.tokens}",
            "threads": args.threads,
            "machine": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "date": datetime.now(UTC).date().isoformat(),
        }
        args.out.write_text(json.dumps(facts | {"bound": BOUND, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
