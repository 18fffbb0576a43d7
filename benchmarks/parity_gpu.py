"""The fused operators on a GPU against a float64 reference, over a table of sizes: random input, outputs full of NaN.

    python benchmarks/parity_gpu.py [--out parity.json] [--only INDEX/COUNT]

Prints for each size the largest ‖fused - float64‖ / ‖float64‖ among the displacement, the sums and the gradients, and
exits with 1 where one is over the bound of `gmt bench`, or where four passes do not give the same bits. Beside it
stands what plain PyTorch is off in the same type: of five tokens among three slots one may be so ill-conditioned that
no 16-bit arithmetic meets a bound. Kernels compile anew for each size: several processes, each with its share of the
sizes (`--only`), take a minute together. With TRITON_PTXAS_PATH at torch's ptxas they are assembled by it. The sha256
of a pass over tokens that are always the same tells whether two processes computed the same bits.
"""

import argparse
import json
import sys

import torch

from gmt.config import GMTConfig
from gmt.kernels.cell import fused_forward
from gmt.model.bits import hash_of
from gmt.model.device import autocast
from gmt.model.parity import MOST, cell_passes, distance, make_cell, make_norm, repeat_distances, sum_distances

SIZES = [  # slots, hidden, tokens
    (3, 64, 5), (16, 768, 1), (5, 24, 37), (32, 128, 1000), (100, 768, 333), (128, 768, 17), (128, 768, 4096),
    (128, 1024, 999), (129, 96, 50), (200, 768, 1000), (256, 768, 2048), (256, 1024, 777), (64, 1000, 100),
    (128, 768, 16500),  # over WIDER_MOVE's: another tile
]  # fmt: skip


def compare(slots: int, hidden: int, tokens: int, precision: str, on: str = "cuda") -> dict[str, tuple[float, float]]:
    """How far the fused operators are from float64, and how far plain PyTorch is."""
    device, cfg = torch.device(on), sized(slots, hidden)
    cell, norm = make_cell(cfg, device), make_norm(hidden, device)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    x = torch.randn(1, tokens, hidden, device=device, requires_grad=True)
    narrow = torch.bfloat16 if precision == "bf16" else torch.float32
    update, probe = torch.randn(1, tokens, hidden, device=device).to(narrow), torch.randn_like(x)
    tau, found = torch.tensor(0.5, device=device), {}
    for kind in ("fused", "plain", "float64"):
        if kind == "float64":
            cell, norm = cell.double(), norm.double()
            x, update, tau = x.detach().double().requires_grad_(), update.double(), tau.double()
        with autocast(device, precision if kind != "float64" else "fp64"):
            if kind == "fused":
                out, seen = fused_forward(cell, norm, x, update, tau)
            else:
                out, _, seen = cell(x + update, norm(x + update), tau)
        objective = (out * probe.to(out.dtype)).mean() + seen.track + (seen.usage_sum / tokens).square().sum()
        leaves = {"x": x, **dict(norm.named_parameters()), **{f"cell.{n}": p for n, p in cell.named_parameters()}}
        grads = dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))
        grads["x"] = grads["x"] - probe / probe.numel()
        found[kind] = {"displacement": out - (x + update), "usage": seen.usage_sum, "track": seen.track, **grads}
    scale = (probe * found["fused"]["displacement"]).detach().abs().mean()
    fused, plain = (_distances(found[kind], found["float64"], scale) for kind in ("fused", "plain"))
    fused |= sum_distances(cfg, device, precision, tokens)
    return {name: (value, plain.get(name, 0.0)) for name, value in fused.items()}


def digest(slots: int, hidden: int, tokens: int, precision: str, on: str = "cuda") -> str:
    """Of a pass over tokens that are always the same: two processes, or two assemblers, can be compared by it."""
    device = torch.device(on)
    with torch.random.fork_rng([device] if on == "cuda" else []):
        torch.manual_seed(0)
        found, _ = cell_passes(sized(slots, hidden), device, precision, tokens)("fused")
    return hash_of(found[name] for name in sorted(found))


def sized(slots: int, hidden: int) -> GMTConfig:
    return GMTConfig.preset("gmt-v7-base", f"memory.slots={slots}", f"model.hidden={hidden}", "model.heads=1")


def _distances(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], scale: torch.Tensor) -> dict[str, float]:
    # a bias that shifts all slots alike moves nothing; in the gate's gradient, one number, most cancels
    apart = {"cell.norm_centroids.bias", "cell.gate"}
    result = {name: distance(found[name], value) for name, value in exact.items() if name not in apart}
    result["cell.gate"] = float((found["cell.gate"] - exact["cell.gate"]).abs() / scale)
    return result


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
        slots, hidden, tokens = size
        repeats = not any(repeat_distances(sized(slots, hidden), torch.device("cuda"), precision, tokens).values())
        worst = max(found, key=lambda name: found[name][0] if found[name][0] == found[name][0] else float("inf"))
        right = repeats and all(value <= MOST[precision] for value, _ in found.values())
        off, plain = found[worst]
        good &= right
        row = {"slots": slots, "hidden": hidden, "tokens": tokens, "precision": precision, "worst": worst}
        row |= {"distance": off, "plain": plain, "right": right, "repeats": repeats}
        rows.append(row | {"sha256": digest(*size, precision)})
        print(f"F {slots:>4} H {hidden:>5} N {tokens:>5} {precision}  {off:.1e}, plain {plain:.1e} ({worst})"
              + ("" if repeats else "  DOES NOT REPEAT") + ("" if right else "  WRONG"), flush=True)  # fmt: skip
    if args.out:
        with open(args.out, "w") as file:
            json.dump(rows, file, indent=1)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
