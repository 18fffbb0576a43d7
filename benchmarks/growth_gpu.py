"""How the time of a memory cell, forward and backward, grows with tokens and with slots.

    python benchmarks/growth_gpu.py [--out growth.json]

Batches of 1,024 tokens: 8, 32, 128 and 256 of them, at 128 slots; then 128, 256 and 512 slots at batch 32. Everything
is timed in turns in one process. Over 256 slots the plain cell is compiled.
"""

import argparse
import json

import torch

from gmt.bench.cases import layer
from gmt.bench.timing import in_turns
from gmt.config import GMTConfig
from gmt.kernels.available import use_fused

BATCHES, SLOTS, CONTEXT = (8, 32, 128, 256), (256, 512), 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda")
    cases = [(batch, 128) for batch in BATCHES] + [(32, slots) for slots in SLOTS]
    works, fused = {}, {}
    for batch, slots in cases:
        torch._dynamo.reset()
        cfg = GMTConfig.preset("gmt-v7-base", f"memory.slots={slots}")
        probe = torch.empty(1, 1, cfg.model.hidden, device=device, dtype=torch.bfloat16)
        fused[batch, slots] = use_fused(cfg, probe)
        works[f"{batch} {slots}"] = layer(cfg, batch, device, "bf16", compiled=True)
    times = in_turns(works, device, args.rounds)
    rows = []
    for batch, slots in cases:
        found = times[f"{batch} {slots}"]
        row = {"tokens": batch * CONTEXT, "slots": slots, "fused": fused[batch, slots], "ms": found.median * 1e3}
        rows.append(row | {"ns_per_token": found.median * 1e9 / row["tokens"]})
        print(row | {"ns_per_token": rows[-1]["ns_per_token"]}, flush=True)
    if args.out:
        result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
