"""Nothing is trained with or timed that does not compute the same: the fused operators against plain PyTorch, on fresh
random input, and against themselves."""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.kernels.cell import all_tables, fused_forward
from gmt.kernels.cross_entropy import linear_cross_entropy
from gmt.kernels.operators import as_of_many_tokens
from gmt.memory.cell import MemoryCell
from gmt.memory.precision import compute_type
from gmt.model.device import autocast
from gmt.model.language_model import GraphMemoryLM

# of ‖fused - plain‖ / ‖plain‖: rounding of the operands, and what becomes of it in a gradient
MOST = {"fp32": 1e-3, "bf16": 4e-2}
GROSS = {"fp32": 1e-2, "bf16": 1e-1}  # what stops a run must be beyond the rounding of any model, and of TF32


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm().clamp_min(1e-30))


def make_cell(cfg: GMTConfig, device: torch.device) -> MemoryCell:
    cell = MemoryCell(cfg)
    cell.apply(GraphMemoryLM.init_weights)
    return cell.to(device)


def make_norm(hidden: int, device: torch.device) -> torch.nn.LayerNorm:
    """LN2 as it is after some training: with a weight and a bias that matter."""
    norm = torch.nn.LayerNorm(hidden, device=device)
    with torch.no_grad():
        norm.weight.add_(torch.randn_like(norm.weight) * 0.2)
        norm.bias.add_(torch.randn_like(norm.bias) * 0.2)
    return norm


def _type(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


def cell_passes(
    cfg: GMTConfig, device: torch.device, precision: str, tokens: int
) -> Callable[[str], tuple[dict[str, Tensor], Tensor]]:
    """Forward and backward of one cell on fresh input, as often as wanted, "fused" or "plain": the displacement, the
    sums and every gradient, and how large the terms are that the gate's gradient is a sum of."""
    cell = make_cell(cfg, device)
    with torch.no_grad():
        cell.gate.zero_()  # one that is nearly closed leaves nothing but rounding to compare
    hidden = cfg.model.hidden
    x = torch.randn(1, tokens, hidden, device=device, requires_grad=True)
    update = torch.randn(1, tokens, hidden, device=device, dtype=_type(precision), requires_grad=True)
    norm = make_norm(hidden, device)
    weights, tau = torch.randn_like(x), torch.tensor(0.5, device=device)
    learned = {name: p for name, p in cell.named_parameters() if p.requires_grad}
    leaves = {"x": x, "update": update, **dict(norm.named_parameters()), **learned}

    def once(kind: str) -> tuple[dict[str, Tensor], Tensor]:
        with autocast(device, precision):
            if kind == "fused":
                out, seen = fused_forward(cell, norm, x, update, tau)
            else:
                out, _, seen = cell(x + update, norm(x + update), tau)
        assert seen is not None
        objective = (out * weights).mean() + seen.track + (seen.usage_sum / tokens).square().sum()
        dx, *grads = torch.autograd.grad(objective + seen.ortho + seen.edge + seen.contrast, list(leaves.values()))
        grads = [dx - weights / weights.numel(), *grads]  # what goes straight through is larger than the cell's own
        found = {"displacement": out - (x + update), "usage": seen.usage_sum, "track": seen.track}
        found |= {"slot sums": seen.slot_sum, "slot counts": seen.slot_count}
        found |= {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
        return found, (weights * (out - x - update)).detach().abs().mean()

    return once


def cell_distances(cfg: GMTConfig, device: torch.device, precision: str, tokens: int = 1000) -> dict[str, float]:
    """Of the displacement, the sums and every gradient. Slots that are nearly equal may be chosen differently: sums and
    counts by slot are left to sum_distances, and to the tests, which compare them exactly in float32."""
    once = cell_passes(cfg, device, precision, tokens)
    (fused, _), (plain, scale) = once("fused"), once("plain")
    # a bias that shifts all slots alike moves nothing: its gradient is rounding in both. The gate's is one number, in
    # which most cancels: it is measured by what was added up
    apart = {"gradient of norm_centroids.bias", "gradient of gate", "slot sums", "slot counts"}
    result = {name: distance(value, plain[name]) for name, value in fused.items() if name not in apart}
    gates = (float(found["gradient of gate"]) for found in (fused, plain))
    return result | {"gradient of gate": abs(next(gates) - next(gates)) / float(scale)}


def repeat_distances(
    cfg: GMTConfig, device: torch.device, precision: str, tokens: int = 1000, times: int = 4
) -> dict[str, float]:
    """Nothing where passes over the same tokens give the same bits, and infinity where one does not: kernels that race
    with themselves are right most of the time."""
    once = cell_passes(cfg, device, precision, tokens)
    first, changed = once("fused")[0], set[str]()
    for _ in range(times - 1):
        changed |= {name for name, value in once("fused")[0].items() if not torch.equal(value, first[name])}
    return {name: math.inf if name in changed else 0.0 for name in first}


def loss_distances(cfg: GMTConfig, device: torch.device, precision: str, tokens: int = 1000) -> dict[str, float]:
    dtype = _type(precision)
    x = torch.randn(tokens, cfg.model.hidden, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(cfg.model.vocab, cfg.model.hidden, device=device) * 0.02).requires_grad_()
    labels = torch.randint(cfg.model.vocab, (tokens,), device=device)
    mine = linear_cross_entropy(x, weight, labels)
    want = torch.nn.functional.cross_entropy((x @ weight.to(dtype).T).float(), labels, reduction="sum")
    pairs = zip(torch.autograd.grad(mine, (x, weight)), torch.autograd.grad(want, (x, weight)), strict=True)
    return {"loss": distance(mine, want)} | {
        f"gradient of {name}": distance(a, b) for name, (a, b) in zip(("x", "weight"), pairs, strict=True)
    }


def attention_distances(cfg: GMTConfig, device: torch.device, precision: str, length: int = 333) -> dict[str, float]:
    """Of attention with dropout and its gradient, from the equations in float64 with the weights that are dropped."""
    heads, dropout, seed = cfg.model.heads, cfg.model.dropout, 12345
    qkv = torch.randn(2, length, 3 * cfg.model.hidden, device=device, dtype=_type(precision))
    probe = torch.randn(2, length, cfg.model.hidden, device=device, dtype=_type(precision))
    mine = qkv.clone().requires_grad_()
    out, _ = torch.ops.gmt.attention_forward(mine, torch.tensor([seed], device=device), heads, dropout)
    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(2, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    unseen = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(unseen, float("-inf")).softmax(-1)
    weights = weights * _kept(seed, 2 * heads, length, dropout, device).view(weights.shape) / (1 - dropout)
    want = (weights @ v).transpose(1, 2).reshape(out.shape)
    grads = torch.autograd.grad(out, mine, probe)[0], torch.autograd.grad(want, exact, probe.double())[0]
    return {"output": distance(out, want), "gradient": distance(*grads)}


def _kept(seed: int, heads: int, length: int, dropout: float, device: torch.device) -> Tensor:
    """Which weights triton_attention.py keeps, in 64-bit integers of which 32 are used: [heads, T, T]."""
    bits, first, second = (1 << 32) - 1, 0x7FEB352D, 0x846CA68B

    def times(x: Tensor, factor: Tensor | int) -> Tensor:  # by halves: the whole product does not fit
        return (x * (factor & 0xFFFF) + ((x * (factor >> 16) & 0xFFFF) << 16)) & bits

    def mixed(x: Tensor) -> Tensor:
        x = x & bits
        x = times(x ^ x >> 16, first)
        x = times(x ^ x >> 15, second)
        return x ^ x >> 16

    base = mixed(seed ^ mixed(2 * torch.arange(heads, device=device) + 1))[:, None]
    places = torch.arange(length, device=device)
    turns, steps = mixed((base ^ first) + places // 32) | 1, mixed((base ^ 0x9E3779B1) + places % 32) | 1
    rows, keys = mixed(base + places) | 1, times(turns, steps)
    return times(rows[:, :, None], keys[:, None, :]) >= round(dropout * 2**32)


@torch.no_grad()
def sum_distances(cfg: GMTConfig, device: torch.device, precision: str, tokens: int = 1000) -> dict[str, float]:
    """Of the write-back's sums and counts from what the kernel itself gave out: its outputs and its choice of slots."""
    cell, hidden = make_cell(cfg, device), cfg.model.hidden
    x, norm = torch.randn(tokens, hidden, device=device), make_norm(hidden, device)
    with autocast(device, precision):
        dtype = compute_type(x)
        tables = all_tables([cell], [norm], dtype).blocks[0]
    floor, eps = cfg.memory.distance_floor, cell.norm_displacement.eps
    tau = torch.tensor(0.5, device=device)
    given = (x, None, None, None, *tables, tau, None, floor, norm.eps, eps)
    out, _, kept, _, slot, sums, (slot_sum, soft_sum) = torch.ops.gmt.fused_cell(*given, True, True)
    source, count = kept[0], sums[cfg.memory.slots : 2 * cfg.memory.slots]
    chosen = torch.nn.functional.one_hot(slot.long(), cfg.memory.slots).double()
    return {
        "slot counts": distance(count, chosen.sum(0)),
        "slot sums": distance(slot_sum, chosen.T @ out.double()),
        "soft sums": distance(soft_sum, source.double().T @ out.double()),
    }


def _cell_and_sums(cfg: GMTConfig, device: torch.device, precision: str, tokens: int) -> dict[str, float]:
    """Of the cell with the tiles of a small pass, and with those of a large one."""
    found = {}
    for label, tiles in (("", nullcontext()), (" as of many", as_of_many_tokens())):
        with tiles:
            distances = cell_distances(cfg, device, precision, tokens) | sum_distances(cfg, device, precision, tokens)
        found |= {f"cell, {tokens}{label}: {name}": value for name, value in distances.items()}
    return found


def check_cell(cfg: GMTConfig, device: torch.device, precision: str, tokens: int = 1024) -> dict[str, float]:
    """Of the cell alone, for a process that is to train with it; the generators are left as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        found = _cell_and_sums(cfg, device, precision, tokens)
    return _refused(found, GROSS[precision], "not trained with")


def check(cfg: GMTConfig, device: torch.device, precision: str) -> dict[str, float]:
    """Of everything that `gmt bench` times."""
    found = {}
    for tokens in (1000, 1024):  # tiles that are full are another kernel than those that are not
        found |= _cell_and_sums(cfg, device, precision, tokens)
    for tokens in (8_192, 20_000, 32_768):  # the tiles of small and of large batches, and such as are not full
        again = repeat_distances(cfg, device, precision, tokens)
        found |= {f"cell, {tokens}, again: {name}": value for name, value in again.items()}
    found |= {f"loss: {name}": value for name, value in loss_distances(cfg, device, precision).items()}
    if cfg.model.attention == "auto" and device.type == "cuda" and precision == "bf16":
        for length in (333, 1024):
            distances = attention_distances(cfg, device, precision, length)
            found |= {f"attention, {length}: {name}": value for name, value in distances.items()}
    return _refused(found, MOST[precision], "not timed")


def _refused(found: dict[str, float], most: float, what: str) -> dict[str, float]:
    wrong = {name: value for name, value in found.items() if not value <= most}
    if wrong:
        told = ", ".join(f"{name} {value:.1e}" for name, value in wrong.items())
        raise GMTError(
            f"{what}: the fused operators differ from plain PyTorch, or from themselves, by more than {most}: {told}"
        )
    return found
