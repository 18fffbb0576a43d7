"""The fused operators on a GPU against a float64 reference, over a table of sizes: random input, outputs full of NaN.

    python benchmarks/parity_gpu.py [--out parity.json] [--only INDEX/COUNT]

Prints for each size the largest ‖fused - float64‖ / ‖float64‖ among the displacement, the sums and the gradients, and
exits with 1 where one is over the bound of `gmt bench`. Kernels compile anew for each size: several processes, each
with its share of the sizes (`--only`), take a minute together.
"""

import argparse
import json
import sys

import torch

from gmt.config import GMTConfig
from gmt.kernels.cell import fused_forward
from gmt.model.device import autocast
from gmt.model.parity import MOST, distance, make_cell, make_norm, sum_distances

SIZES = [  # slots, hidden, tokens
    (3, 64, 5), (16, 768, 1), (5, 24, 37), (32, 128, 1000), (100, 768, 333), (128, 768, 17), (128, 768, 4096),
    (128, 1024, 999), (129, 96, 50), (200, 768, 1000), (256, 768, 2048), (256, 1024, 777), (64, 1000, 100),
]  # fmt: skip


def compare(slots: int, hidden: int, tokens: int, precision: str) -> dict[str, float]:
    device = torch.device("cuda")
    cfg = GMTConfig.preset("gmt-v7-base", f"memory.slots={slots}", f"model.hidden={hidden}", "model.heads=1")
    cell, norm = make_cell(cfg, device), make_norm(hidden, device)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    x = torch.randn(1, tokens, hidden, device=device, requires_grad=True)
    narrow = torch.bfloat16 if precision == "bf16" else torch.float32
    update, probe = torch.randn(1, tokens, hidden, device=device).to(narrow), torch.randn_like(x)
    tau, found = torch.tensor(0.5, device=device), {}
    for kind in ("fused", "float64"):
        if kind == "fused":
            leaf = x
            with autocast(device, precision):
                out, seen = fused_forward(cell, norm, x, update, tau)
        else:
            cell, norm, leaf, update = (
                cell.double(),
                norm.double(),
                x.detach().double().requires_grad_(),
                update.double(),
            )
            out, _, seen = cell(leaf + update, norm(leaf + update), tau.double())
        objective = (out * probe.to(out.dtype)).mean() + seen.track + (seen.usage_sum / tokens).square().sum()
        leaves = {"x": leaf, **dict(norm.named_parameters()), **{f"cell.{n}": p for n, p in cell.named_parameters()}}
        grads = dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))
        grads["x"] = grads["x"] - probe / probe.numel()
        found[kind] = {"displacement": out - (leaf + update), "usage": seen.usage_sum, "track": seen.track, **grads}
    # a bias that shifts all slots alike moves nothing; in the gate's gradient, one number, most cancels
    apart = {"cell.norm_centroids.bias", "cell.gate"}
    result = {n: distance(found["fused"][n], v) for n, v in found["float64"].items() if n not in apart}
    scale = (probe * found["fused"]["displacement"]).detach().abs().mean()
    result["cell.gate"] = float((found["fused"]["cell.gate"] - found["float64"]["cell.gate"]).abs() / scale)
    return result | sum_distances(cfg, device, precision, tokens)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--only", default="0/1")
    args = parser.parse_args()
    index, count = map(int, args.only.split("/"))
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what is not written with NaN
    torch.manual_seed(torch.seed() % 2**31)
    rows, good = [], True
    cases = [
        (size, precision) for size in SIZES for precision in ("bf16", "fp32") if precision == "bf16" or size[0] <= 128
    ]
    for size, precision in cases[index::count]:
        found = compare(*size, precision)
        worst = max(found, key=lambda name: found[name] if found[name] == found[name] else float("inf"))
        right = all(value <= MOST[precision] for value in found.values())
        good &= right
        rows.append({"slots": size[0], "hidden": size[1], "tokens": size[2], "precision": precision, "worst": worst,
                     "distance": found[worst], "right": right})  # fmt: skip
        print(f"F {size[0]:>4} H {size[1]:>5} N {size[2]:>5} {precision}  {found[worst]:.1e} ({worst})"
              + ("" if right else "  WRONG"), flush=True)  # fmt: skip
    if args.out:
        with open(args.out, "w") as file:
            json.dump(rows, file, indent=1)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
