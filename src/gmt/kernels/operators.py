"""The two operators of the fused cell, forward and backward, registered with autograd and compile.

Compile's cache on disk knows an operator by its name alone: one whose results change in number or shape gets another.
"""

# Triton's launch arguments are not those of the kernel's signature
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gmt.errors import GMTError
from gmt.kernels.products import narrow_product, wide_product

# into how many parts sums over tokens go: times the columns of tiles, two for each multiprocessor of an H200
PARTS = {"sums": 22, "products": 13}
FEW = 16  # tokens up to which a token is spread over the chip, and not a tile of tokens put on one multiprocessor

# tokens and hidden columns of a tile, warps and stages, by kernel: chosen on an H200 at F 128, H 768
TILES = {
    "route": {"BM": 64, "num_warps": 4, "num_stages": 1},
    "move": {"BM": 64, "BH": 32, "num_warps": 4, "num_stages": 4},
    "backward": {"BM": 64, "BH": 64, "num_warps": 4, "num_stages": 3},
    "sums": {"BT": 64, "BH": 64, "num_warps": 4, "num_stages": 3},
    "products": {"BT": 64, "BI": 128, "BJ": 128, "num_warps": 8, "num_stages": 3},
}
SMALLER = {
    "route": {"BM": 64, "num_warps": 8, "num_stages": 1},
    "move": {"BM": 64, "BH": 32, "num_warps": 8, "num_stages": 2},
    "backward": {"BM": 64, "BH": 64, "num_warps": 8, "num_stages": 2},
    "sums": {"BT": 64, "BH": 64, "num_warps": 8, "num_stages": 1},
    "products": TILES["products"],
}
NORM_WARPS = 1  # of a row
NORM_BACKWARD = {"programs": 1056, "num_warps": 1}  # eight for each multiprocessor


def _tile(kernel: str, slots: int, dtype: torch.dtype) -> dict[str, int]:
    """What fits on the chip: less of it for more slots, and for float32."""
    tile = {**(TILES if slots <= 128 else SMALLER)[kernel]}
    if dtype == torch.float32:
        small = {"BM": 32, "BT": 32, "BH": 32, "BI": 64, "BJ": 64, "num_warps": 8, "num_stages": 1}
        tile |= {name: small[name] for name in tile if name in small}
    return tile if kernel == "products" else {"FP": _power(slots), **tile}


def _even(tile: dict[str, int], tokens: int, hidden: int, slots: int) -> bool:
    """Whether tiles hold nothing but what is there."""
    sizes = {"BM": tokens, "BT": tokens, "BH": hidden, "BJ": hidden, "FP": slots, "BI": slots}
    return all(size % tile.get(name, 1) == 0 for name, size in sizes.items())


@contextmanager
def _on_chip(x: Tensor) -> Iterator[None]:
    """Launches on x's device. The tiles are a Hopper GPU's: another may have less shared memory."""
    from gmt.kernels.triton_cell import OutOfResources

    try:
        with torch.cuda.device_of(x):
            yield
    except OutOfResources as error:
        why = f"the fused memory kernels do not fit this GPU ({' '.join(str(error).split())})"
        raise GMTError(f"{why}: set memory.kernels=plain") from None


def _power(size: int) -> int:
    """The next power of two; a product wants 16 at least."""
    return max(16, 1 << (size - 1).bit_length())


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"  # the second is not looked at for bfloat16


@torch.library.custom_op("gmt::memory_cell", mutates_args=())
def memory_cell(
    x: Tensor,
    update: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    lookup: Tensor,
    transition: Tensor,
    states: Tensor,
    scale: Tensor,
    shift: Tensor,
    gram: Tensor,
    means: Tensor,
    rest: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    floor: float,
    norm_eps: float,
    move_eps: float,
    observe: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, update [N, H] -> out; kept [4, N, F] and stats [4, N] for backward; slot [N]; sums [3F + 1]; slot_sums
    [2, F, H]. See route_kernel and move_kernel for what they hold."""
    from gmt.kernels.triton_cell import move_kernel, norm_kernel, route_kernel, slot_sum_kernel

    (tokens, hidden), slots, dtype = x.shape, states.shape[0], states.dtype
    out, kept, stats, slot, sums, slot_sums = _outputs(x, slots, dtype, observe, save)
    if not observe and not save and tokens <= FEW and slots <= 128:
        tables = lookup, transition, states, scale, shift, gram, rest
        _few(x, update, weight, bias, tables, tau, out, floor, norm_eps, move_eps)
        return out, kept, stats, slot, sums, slot_sums
    common = {"F": slots, "SAVE": save, "HAS_MASK": mask is not None, "PRECISION": _precision(dtype)}
    given, has = x if update is None else update, update is not None
    counts = slot if mask is None else mask
    z = x.new_empty((tokens, hidden), dtype=dtype)
    routes = kept if save else x.new_empty((2, tokens, slots), dtype=dtype)
    sizes, wide = _tile("route", slots, dtype), _tile("move", slots, dtype)
    seen, pulls = (
        x.new_empty((math.ceil(tokens / tile["BM"]), columns), dtype=torch.float32)
        for tile, columns in ((sizes, 2 * slots), (wide, slots + 1))
    )
    with _on_chip(x):
        norm_kernel[(tokens,)](
            x, given, weight, bias, z, stats, tokens, norm_eps,
            H=hidden, HP=_power(hidden), HAS_UPDATE=has, num_warps=NORM_WARPS,
        )  # fmt: skip
        route_kernel[(len(seen),)](
            wide_product(z, lookup.T), transition, gram, rest, tau, counts, routes, stats, slot, seen,
            tokens, floor, move_eps, OBSERVE=observe,
            REST=dtype != torch.float32, EVEN=_even(sizes, tokens, hidden, slots), **sizes, **common,
        )  # fmt: skip
        move_kernel[(len(pulls),)](
            x, given, states, scale, shift, gram, means, counts, out, routes, stats, pulls, tokens,
            H=hidden, HAS_UPDATE=has, OBSERVE=observe, EVEN=_even(wide, tokens, hidden, slots), **wide, **common,
        )  # fmt: skip
    if observe:
        sizes = _tile("sums", slots, dtype)
        parts, per_part = _parts("sums", sizes, tokens)
        by_part = x.new_empty((parts, 2, slots, hidden), dtype=torch.float32)
        with _on_chip(x):
            slot_sum_kernel[(math.ceil(hidden / sizes["BH"]), parts)](
                out, kept if save else states, slot, by_part, tokens, per_part, H=hidden,
                REST=dtype != torch.float32, EVEN=_even(sizes, tokens, hidden, slots), **sizes, **common,
            )  # fmt: skip
        _add_up((seen, sums[: 2 * slots]), (pulls, sums[2 * slots :]), (by_part, slot_sums))
    return out, kept, stats, slot, sums, slot_sums


def _parts(kernel: str, tile: dict[str, int], tokens: int) -> tuple[int, int]:
    """How many, and how many tokens in each: whole tiles, but in the last."""
    parts = min(PARTS[kernel], math.ceil(tokens / tile["BT"]))
    return parts, math.ceil(math.ceil(tokens / parts) / tile["BT"]) * tile["BT"]


def _add_up(*sums: tuple[Tensor, Tensor]) -> None:
    """Up to four sums over the first axis, each of a pair's first into its second. PyTorch's own takes several times as
    long for so few columns."""
    from gmt.kernels.triton_sums import column_sums_kernel

    given: list[Any] = []
    sizes: dict[str, int] = {}
    blocks = 0
    for number, name in enumerate("ABCD"):
        parts, total = sums[min(number, len(sums) - 1)]
        wanted = total.numel() if number < len(sums) else 0
        rows, columns = (16, 256) if parts.shape[0] <= 32 else (64, 16)
        given += [parts, total, parts.shape[0], parts.stride(0), wanted]
        sizes |= {f"{name}_BP": rows, f"{name}_BC": columns}
        blocks += math.ceil(wanted / columns)
    with torch.cuda.device_of(sums[0][0]):
        column_sums_kernel[(blocks,)](*given, num_warps=4, **sizes)


def _few(
    x: Tensor, update: Tensor | None, weight: Tensor, bias: Tensor, tables: tuple[Tensor, ...], tau: Tensor,
    out: Tensor, floor: float, norm_eps: float, move_eps: float,
) -> None:  # fmt: skip
    """A token, or a few of them, of a text that is being generated."""
    from gmt.kernels.triton_small import few_move_kernel, few_scores_kernel

    lookup, transition, states, scale, shift, gram, rest = tables
    (tokens, hidden), slots = x.shape, states.shape[0]
    scores = x.new_empty((tokens, 2 * slots + 1), dtype=torch.float32)
    given, has = x if update is None else update, update is not None
    with torch.cuda.device_of(x):
        few_scores_kernel[(tokens, math.ceil(2 * slots / 8))](
            x, given, weight, bias, lookup, scores, norm_eps,
            H=hidden, HP=_power(hidden), F=slots, BS=8, HAS_UPDATE=has, num_warps=4,
        )  # fmt: skip
        few_move_kernel[(tokens, math.ceil(hidden / 32))](
            x, given, scores, transition, states, scale, shift, gram, rest, tau, out, floor, move_eps,
            H=hidden, F=slots, FP=_power(slots), BH=32, HAS_UPDATE=has, REST=states.dtype != torch.float32, num_warps=8,
        )  # fmt: skip


def _outputs(x: Tensor, slots: int, dtype: torch.dtype, observe: bool, save: bool) -> tuple[Tensor, ...]:
    """Room for the results; none where they are not asked for."""
    tokens, hidden = x.shape

    def room(wanted: bool, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return x.new_empty(shape if wanted else (0,), dtype=kind)

    return (
        torch.empty_like(x),
        room(save, 4, tokens, slots, kind=dtype),
        room(True, 4, tokens),
        room(observe, tokens, kind=torch.int32),
        room(observe, 3 * slots + 1),
        room(observe, 2, slots, hidden),
    )


@memory_cell.register_fake
def _(x, update, weight, bias, lookup, transition, states, *others):  # type: ignore
    return _outputs(x, states.shape[0], states.dtype, *others[-2:])


@torch.library.custom_op("gmt::memory_cell_backward", mutates_args=())
def memory_cell_backward(
    grad: Tensor,
    sums_grad: Tensor,
    x: Tensor,
    update: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    lookup: Tensor,
    transition: Tensor,
    states: Tensor,
    scale: Tensor,
    gram: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    kept: Tensor,
    stats: Tensor,
    floor: float,
    observe: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x and update; of lookup, transition and gram, one after the other in the compute type; (r δ)^T g
    [F, H]; gradients of shift, of weight and bias."""
    from gmt.kernels.triton_cell import backward_kernel, norm_backward_kernel
    from gmt.kernels.triton_sums import products_kernel

    (tokens, hidden), slots, dtype = x.shape, states.shape[0], states.dtype
    sizes = _tile("backward", slots, dtype)
    tiles = math.ceil(tokens / sizes["BM"])
    programs = min(NORM_BACKWARD["programs"], tokens)
    given, has = x if update is None else update, update is not None
    dx, dupdate = torch.empty_like(x), torch.empty_like(given) if has else x.new_empty(0)
    z, narrow = (x.new_empty((tokens, hidden), dtype=dtype) for _ in range(2))
    scaled, bent = x.new_empty((tokens, slots), dtype=dtype), x.new_empty((2, tokens, slots), dtype=dtype)
    dscores = x.new_empty((tokens, 2 * slots), dtype=dtype)
    along = x.new_empty(tokens, dtype=torch.float32)
    columns = x.new_empty((tiles, hidden), dtype=torch.float32)
    norms = x.new_empty((programs, 2, hidden), dtype=torch.float32)
    with _on_chip(x):
        backward_kernel[(tiles,)](
            grad, transition, states, scale, gram, tau, stats if mask is None else mask, kept, stats,
            sums_grad, narrow, scaled, bent, dscores, along, columns, tokens, floor,
            H=hidden, F=slots, OBSERVE=observe, HAS_MASK=mask is not None, EVEN=_even(sizes, tokens, hidden, slots),
            PRECISION=_precision(dtype), **sizes,
        )  # fmt: skip
        dz = narrow_product(dscores, lookup)
        norm_backward_kernel[(programs,)](
            grad, x, given, weight, bias, dz, along, stats, dx, dupdate if has else dx, z, norms, tokens,
            H=hidden, HP=_power(hidden), HAS_UPDATE=has, num_warps=NORM_BACKWARD["num_warps"],
        )  # fmt: skip
    sizes = _tile("products", slots, dtype)
    parts, per_part = _parts("products", sizes, tokens)
    dtables, moved, dshift, dnorm = _gradients(x, slots, dtype)
    by_part = x.new_empty((parts, dtables.numel() + moved.numel()), dtype=torch.float32)
    with _on_chip(x):
        products_kernel[(_products(sizes, slots, hidden), parts)](
            dscores, z, scaled, narrow, kept, bent, by_part, tokens, per_part,
            H=hidden, F=slots, OBSERVE=observe, PRECISION=_precision(dtype),
            EVEN=_even(sizes, tokens, hidden, slots), **sizes,
        )  # fmt: skip
    _add_up((by_part, dtables), (by_part[:, dtables.numel() :], moved), (columns, dshift), (norms, dnorm))
    return dx, dupdate, dtables, moved, dshift, dnorm


def _products(tile: dict[str, int], slots: int, hidden: int) -> int:
    """Tiles of the products over tokens: two of [F, F], one of [F, H] and one of [2F, H]."""
    down, twice = (math.ceil(size / tile["BI"]) for size in (slots, 2 * slots))
    across, columns = (math.ceil(size / tile["BJ"]) for size in (slots, hidden))
    return 2 * down * across + (down + twice) * columns


def _gradients(x: Tensor, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for those that are sums over tokens."""
    hidden = x.shape[1]
    tables = x.new_empty(2 * slots * hidden + 2 * slots * slots, dtype=dtype)
    whole = (x.new_empty(shape, dtype=torch.float32) for shape in ((slots, hidden), (hidden,), (2, hidden)))
    return tables, *whole


@memory_cell_backward.register_fake
def _(grad, sums_grad, x, update, weight, bias, lookup, transition, states, *others):  # type: ignore
    moves = torch.empty_like(x), x.new_empty(0) if update is None else torch.empty_like(update)
    return *moves, *_gradients(x, states.shape[0], states.dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, update, weight, bias, lookup, transition, states, scale, _, gram, *others = inputs
    _, _, tau, mask, ctx.floor, _, _, ctx.observe, _ = others
    _, kept, stats, slot, sums, slot_sums = output
    ctx.save_for_backward(
        x, update, weight, bias, lookup, transition, states, scale, gram, tau, mask, kept, stats, sums, slot_sums,
    )  # fmt: skip
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, stats, slot, slot_sums)


def _backward(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    """What is left after the products over tokens is small: here, where compile can join it to its neighbours."""
    *inputs, kept, stats, sums, slot_sums = ctx.saved_tensors
    x, update, weight, bias, lookup, transition, states, scale, gram = inputs[:9]
    slots = states.shape[0]
    grad = torch.zeros_like(x) if grad is None else grad
    sums_grad = x.new_zeros(3 * slots + 1, dtype=torch.float32) if others[3] is None else others[3]
    dx, dupdate, dtables, moved, dshift, norm = torch.ops.gmt.memory_cell_backward(
        grad.contiguous(), sums_grad.contiguous(), *inputs, kept, stats, ctx.floor, ctx.observe
    )
    dstates, dmeans = moved * scale, None
    if ctx.observe:
        error = sums_grad[3 * slots]
        dstates = dstates - 2 * error * slot_sums[1]
        dmeans = error * sums[2 * slots : 3 * slots]
    dscale = (states.float() * moved).sum(0)
    like = lookup, transition, gram
    pieces = dtables.split([table.numel() for table in like])
    dlookup, dtransition, dgram = (part.view_as(table) for part, table in zip(pieces, like, strict=True))
    norms = norm[0].to(weight.dtype), norm[1].to(bias.dtype)
    updates = None if update is None else dupdate
    return (
        dx, updates, *norms, dlookup, dtransition, dstates.to(states.dtype), dscale, dshift, dgram, dmeans, *[None] * 8,
    )  # fmt: skip


torch.library.register_autograd("gmt::memory_cell", _backward, setup_context=_setup)
