"""Generation with the cache on a CPU: the memory model beside the dense one, token by token.

The models decode the same prompt, ten tokens each in turns, so that a slow moment of the machine strikes all.
Bound: the memory model takes at most 0.9 of dense-1050's time per token.

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

from gmt import GMTConfig, GraphMemoryLM
from gmt.hf.cache import RoomyCache

BOUND = 0.9
STRETCH = 10  # tokens of a turn
MODELS = ("gmt-v7-base", "dense-1050", "dense-205")


class Decoder:
    """One model in the middle of a text."""

    def __init__(self, preset: str, prompt: int) -> None:
        torch.manual_seed(0)
        self.lm = GraphMemoryLM(GMTConfig.preset(preset)).eval()
        self.cache = RoomyCache()
        ids = torch.randint(self.lm.cfg.model.vocab, (1, prompt), generator=torch.Generator().manual_seed(1))
        self.prompt, self.next = ids, self.step(ids)

    @torch.inference_mode()
    def step(self, ids: torch.Tensor) -> torch.Tensor:
        self.logits = self.lm(ids, observe=False, cache=self.cache, logits_to_keep=1).logits[:, -1]
        return self.logits.argmax(-1, keepdim=True)

    @torch.inference_mode()
    def check(self, name: str) -> None:
        """A decoder that is not the model is not timed: a token with the cache, against the whole text without."""
        text = torch.cat([self.prompt, self.next], dim=1)
        whole = self.lm(text, observe=False, logits_to_keep=1).logits[:, -1]
        self.next, seen = self.step(self.next), self.logits
        if not torch.allclose(seen, whole, rtol=1e-3, atol=1e-3):
            raise SystemExit(f"{name}: the logits with the cache are not those without: {(seen - whole).abs().max()}")

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
    for name, decoder in decoders.items():
        decoder.check(name)
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for turn in range(args.tokens // STRETCH + 1):
        for name, decoder in decoders.items():
            taken = [decoder.timed() for _ in range(STRETCH)]
            if turn:  # the first ones warm up
                seconds[name] += taken
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
    raise SystemExit(ratio > BOUND)


if __name__ == "__main__":
    main()
