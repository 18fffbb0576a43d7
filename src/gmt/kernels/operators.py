"""The two operators of the fused cell, forward and backward, registered with autograd and compile.

Compile's cache on disk knows an operator by its name and what it is given: one whose results alone change in number or
shape gets another name.
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
PARTS = {"sums": 22, "products": 12}
FEW = 16  # tokens up to which a token is spread over the chip, and not a tile of tokens put on one multiprocessor

# tokens and hidden columns of a tile, warps and stages, by kernel: chosen on an H200 at F 128, H 768
TILES = {
    "route": {"BM": 64, "num_warps": 4, "num_stages": 1},
    "move": {"BM": 64, "BH": 32, "num_warps": 4, "num_stages": 4},
    "backward": {"BM": 32, "num_warps": 4, "num_stages": 1},
    "sums": {"BT": 64, "BH": 64, "num_warps": 4, "num_stages": 3},
    "products": {"BT": 64, "BI": 128, "BJ": 128, "num_warps": 8, "num_stages": 3},
}
SMALLER = {
    "route": {"BM": 64, "num_warps": 8, "num_stages": 1},
    "move": {"BM": 64, "BH": 32, "num_warps": 8, "num_stages": 2},
    "backward": {"BM": 32, "num_warps": 8, "num_stages": 1},
    "sums": {"BT": 64, "BH": 64, "num_warps": 8, "num_stages": 1},
    "products": TILES["products"],
}
# with few tokens a tile is all that a multiprocessor has, and a wider one is done sooner; not every GPU has room for it
WIDER_MOVE = {"tokens": 16_384, "shared": 200_000, "BH": 64}
NORM_WARPS = 1  # of a row
NORM_BACKWARD = {"STAGES": 3, "num_warps": 1}
NORM_PROGRAMS = 528  # of LN2's backward, four for each multiprocessor


def _tile(kernel: str, slots: int, dtype: torch.dtype) -> dict[str, int]:
    """What fits on the chip: less of it for more slots, and for float32."""
    tile = {**(TILES if slots <= 128 else SMALLER)[kernel]}
    if dtype == torch.float32:
        small = {"BM": 32, "BT": 32, "BH": 32, "BI": 64, "BJ": 64, "num_warps": 8, "num_stages": 1}
        tile |= {name: small[name] for name in tile if name in small}
    return tile if kernel == "products" else {"FP": _power(slots), **tile}


def _move_tile(x: Tensor, slots: int, dtype: torch.dtype) -> dict[str, int]:
    tile, wider = _tile("move", slots, dtype), WIDER_MOVE
    if x.device.type == "cuda" and dtype == torch.bfloat16 and slots <= 128 and len(x) <= wider["tokens"]:
        room = torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin
        tile |= {"BH": wider["BH"]} if room >= wider["shared"] else {}
    return tile


@contextmanager
def as_of_many_tokens() -> Iterator[None]:
    """The tiles of a large pass, for who looks at them with a small one."""
    before = WIDER_MOVE["tokens"]
    WIDER_MOVE["tokens"] = 0
    try:
        yield
    finally:
        WIDER_MOVE["tokens"] = before


def _even(tile: dict[str, int], tokens: int, hidden: int, slots: int) -> bool:
    """Whether tiles hold nothing but what is there."""
    sizes = {"BM": tokens, "BT": tokens, "BH": hidden, "BJ": hidden, "FP": slots, "BI": slots}
    return all(size % tile.get(name, 1) == 0 for name, size in sizes.items())


@contextmanager
def _on_chip(x: Tensor) -> Iterator[None]:
    """Launches on x's device. The tiles are a Hopper GPU's: another may have less shared memory."""
    from gmt.kernels.triton_base import OutOfResources

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


def table_sizes(slots: int, hidden: int) -> list[tuple[int, int]]:
    """Of what a block's tables hold, one after the other: lookup, transition, gram, gram again, moves and states. Their
    gradients come out in the same order: gram's through the displacement's norm, then through the tracking term."""
    return [(2 * slots, hidden), *[(slots, slots)] * 3, (slots, hidden), (slots, hidden)]


def table_views(tables: Tensor, slots: int, hidden: int) -> list[Tensor]:
    sizes = table_sizes(slots, hidden)
    return [part.view(size) for part, size in zip(tables.split([a * b for a, b in sizes]), sizes, strict=True)]


def vector_sizes(slots: int, hidden: int) -> list[int]:
    """Of a block's vectors: LN2's weight and bias, shift, offset and means. So come their gradients out too."""
    return [hidden, hidden, hidden, 2 * slots, slots]


@torch.library.custom_op("gmt::fused_cell", mutates_args=())
def memory_cell(
    x: Tensor,
    update: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    tables: Tensor,
    vectors: Tensor,
    scale: Tensor,
    rest: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    floor: float,
    norm_eps: float,
    move_eps: float,
    observe: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, update [N, H] -> out; unit [N, H], kept [5, N, F] and stats [3, N] for backward; slot [N]; sums [3F + 1];
    slot_sums [2, F, H]. See the kernels for what they hold. LN2's weight and bias are given where lookup does not have
    them in it: tables that are kept know nothing of LN2. scale takes no gradient: it goes through the moves, among the
    tables, which are the states times scale."""
    from gmt.kernels.triton_cell import move_kernel, route_kernel, slot_sum_kernel
    from gmt.kernels.triton_norm import norm_kernel

    (tokens, hidden), slots, dtype = x.shape, len(rest), tables.dtype
    lookup, transition, gram, _, _, states = table_views(tables, slots, hidden)
    weight, bias, shift, offset, means = vectors.split(vector_sizes(slots, hidden))
    folded = norm_weight is None
    if folded != (norm_bias is None) or (save and not folded):
        raise ValueError("LN2 is given whole, and where nothing is kept for a backward, or it is in the tables")
    if not folded:
        weight, bias = norm_weight, norm_bias
    out, unit, kept, stats, slot, sums, slot_sums = outputs = _outputs(x, slots, dtype, observe, save)
    if not observe and not save and tokens <= FEW and slots <= 128:
        wanted = lookup, offset, transition, states, scale, shift, gram, rest
        _few(x, update, weight, bias, wanted, tau, out, floor, norm_eps, move_eps, folded)
        return outputs
    common = {"F": slots, "SAVE": save, "HAS_MASK": mask is not None, "PRECISION": _precision(dtype)}
    given, has = x if update is None else update, update is not None
    counts = slot if mask is None else mask
    unit = unit if save else x.new_empty((tokens, hidden), dtype=dtype)
    routes = kept if save else x.new_empty((2, tokens, slots), dtype=dtype)
    sizes, wide = _tile("route", slots, dtype), _move_tile(x, slots, dtype)
    seen, pulls = (
        x.new_empty((math.ceil(tokens / tile["BM"]), columns), dtype=torch.float32)
        for tile, columns in ((sizes, 2 * slots), (wide, slots + 1))
    )
    with _on_chip(x):
        norm_kernel[(tokens,)](
            x, given, weight, bias, unit, stats, tokens, norm_eps,
            H=hidden, HP=_power(hidden), HAS_UPDATE=has, FOLDED=folded, num_warps=NORM_WARPS,
        )  # fmt: skip
        route_kernel[(len(seen),)](
            wide_product(unit, lookup.T), offset, transition, gram, rest, tau, counts, routes, stats, slot, seen,
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
    return outputs


def _parts(kernel: str, tile: dict[str, int], tokens: int) -> tuple[int, int]:
    """How many, and how many tokens in each: whole tiles, but in the last."""
    parts = max(1, min(PARTS[kernel], math.ceil(tokens / tile["BT"])))
    return parts, math.ceil(math.ceil(tokens / parts) / tile["BT"]) * tile["BT"]


def _add_up(
    *sums: tuple[Tensor, Tensor], factor: Tensor | None = None, times: tuple[float, float] | None = None
) -> None:
    """Up to four sums over the first axis, each of a pair's first into its second; the third and fourth `times` the
    factor. PyTorch's own takes several times as long for so few columns."""
    from gmt.kernels.triton_sums import column_sums_kernel

    given: list[Any] = []
    sizes: dict[str, int] = {}
    blocks = 0
    for number, name in enumerate("ABCD"):
        parts, total = sums[min(number, len(sums) - 1)]
        wanted = total.numel() if number < len(sums) else 0
        # a loop over many parts waits for each of its turns: few turns
        rows, columns = (16, 512) if parts.shape[0] <= 32 else (256, 16)
        given += [parts, total, parts.shape[0], parts.stride(0), wanted]
        sizes |= {f"{name}_BP": rows, f"{name}_BC": columns}
        blocks += math.ceil(wanted / columns)
    first = sums[0][0]
    with torch.cuda.device_of(first):
        column_sums_kernel[(blocks,)](
            first if factor is None else factor,
            *given,
            C_TIMES=times and times[0],
            D_TIMES=times and times[1],
            num_warps=4,
            **sizes,
        )


def _few(
    x: Tensor, update: Tensor | None, weight: Tensor, bias: Tensor, tables: tuple[Tensor, ...], tau: Tensor,
    out: Tensor, floor: float, norm_eps: float, move_eps: float, folded: bool,
) -> None:  # fmt: skip
    """A token, or a few of them, of a text that is being generated."""
    from gmt.kernels.triton_small import few_move_kernel, few_scores_kernel

    lookup, offset, transition, states, scale, shift, gram, rest = tables
    (tokens, hidden), slots = x.shape, states.shape[0]
    scores = x.new_empty((tokens, 2 * slots + 1), dtype=torch.float32)
    given, has = x if update is None else update, update is not None
    with torch.cuda.device_of(x):
        few_scores_kernel[(tokens, math.ceil(2 * slots / 8))](
            x, given, weight, bias, lookup, offset, scores, norm_eps,
            H=hidden, HP=_power(hidden), F=slots, BS=8, HAS_UPDATE=has, FOLDED=folded, num_warps=4,
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
        room(save, tokens, hidden, kind=dtype),
        room(save, 5, tokens, slots, kind=dtype),
        room(True, 3, tokens),
        room(observe, tokens, kind=torch.int32),
        room(observe, 3 * slots + 1),
        room(observe, 2, slots, hidden),
    )


@memory_cell.register_fake
def _(x, update, norm_weight, norm_bias, tables, vectors, scale, rest, *others):  # type: ignore
    return _outputs(x, len(rest), tables.dtype, *others[-2:])


@torch.library.custom_op("gmt::fused_cell_backward", mutates_args=())
def memory_cell_backward(
    grad: Tensor,
    narrow: Tensor,
    sums_grad: Tensor,
    x: Tensor,
    tables: Tensor,
    vectors: Tensor,
    tau: Tensor,
    mask: Tensor | None,
    unit: Tensor,
    kept: Tensor,
    stats: Tensor,
    sums: Tensor,
    slot_sums: Tensor,
    floor: float,
    observe: bool,
    update_type: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, update, tables and vectors. narrow is grad in the compute type. Nobody looks at x: a compiled
    graph keeps what is given here, and makes LN1's backward from it. Else it writes what LN1 made of x, in float32,
    and keeps that."""
    from gmt.kernels.triton_cell import backward_kernel
    from gmt.kernels.triton_norm import norm_backward_kernel
    from gmt.kernels.triton_sums import products_kernel

    (tokens, hidden), slots, dtype = unit.shape, kept.shape[-1], tables.dtype
    lookup, transition, gram, _, moves, states = table_views(tables, slots, hidden)
    weight, bias, *_ = vectors.split(vector_sizes(slots, hidden))
    sizes, counts = _tile("backward", slots, dtype), stats if mask is None else mask
    dx, dupdate = ways = _ways(grad, update_type)
    scaled, bent = unit.new_empty(2, tokens, slots)
    dscores = unit.new_empty(tokens, 2 * slots)
    along = unit.new_empty(tokens, dtype=torch.float32)
    programs = min(NORM_PROGRAMS, tokens)
    columns = unit.new_empty((programs, 3 * hidden + 2 * slots), dtype=torch.float32)
    with _on_chip(unit):
        backward_kernel[(math.ceil(tokens / sizes["BM"]),)](
            wide_product(narrow, moves.T), transition, gram, tau, counts, kept, stats,
            sums_grad, scaled, bent, dscores, along, tokens, floor,
            F=slots, OBSERVE=observe, HAS_MASK=mask is not None, EVEN=_even(sizes, tokens, hidden, slots),
            PRECISION=_precision(dtype), **sizes,
        )  # fmt: skip
        dunit = narrow_product(dscores, lookup)
        norm_backward_kernel[(programs,)](
            grad, unit, weight, bias, dunit, dscores, along, stats, dx, dupdate, columns, tokens,
            H=hidden, F=slots, FP=_power(slots), HAS_UPDATE=update_type is not None,
            **_halves(hidden), **NORM_BACKWARD,
        )  # fmt: skip
    sizes = _tile("products", slots, dtype)
    parts, per_part = _parts("products", sizes, tokens)
    dtables, dvectors = torch.empty_like(tables), torch.empty_like(vectors)
    by_tokens, by_tracking = dtables[: -states.numel()], dtables[-states.numel() :]
    of_tokens, of_means = dvectors.split([3 * hidden + 2 * slots, slots])
    by_part = unit.new_empty((parts, by_tokens.numel()), dtype=torch.float32)
    with _on_chip(unit):
        products_kernel[(_products(sizes, slots, hidden), parts)](
            dscores, unit, scaled, narrow, kept, bent, sums_grad, counts, by_part, tokens, per_part,
            H=hidden, F=slots, OBSERVE=observe, HAS_MASK=mask is not None, PRECISION=_precision(dtype),
            EVEN=_even(sizes, tokens, hidden, slots), **sizes,
        )  # fmt: skip
    # the longest sum first: it would be what all wait for at the end
    totals = [(columns, of_tokens), (by_part, by_tokens)]
    if observe:  # the tracking term's pull is known but for its weight in the objective
        totals += [(slot_sums[1:].flatten(1), by_tracking), (sums[None, 2 * slots : -1], of_means)]
    else:
        by_tracking.zero_()
        of_means.zero_()
    _add_up(*totals, factor=sums_grad[3 * slots :], times=(-2, 1))
    return *ways, dtables, dvectors


def _halves(hidden: int) -> dict[str, int]:
    """Two powers of two that hold a row: the first is full."""
    first = 1 << ((hidden - 1).bit_length() - 1)
    return {"HA": first, "HB": _power(hidden - first)}


def _products(tile: dict[str, int], slots: int, hidden: int) -> int:
    """Tiles of products_kernel: three products of [F, F], one of [F, H], one of [2F, H]."""
    down, twice = (math.ceil(size / tile["BI"]) for size in (slots, 2 * slots))
    across, columns = (math.ceil(size / tile["BJ"]) for size in (slots, hidden))
    return 3 * down * across + (down + twice) * columns


def _ways(grad: Tensor, update_type: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Room for the gradients of x and update."""
    return torch.empty_like(grad), grad.new_empty(0 if update_type is None else grad.shape, dtype=update_type)


@memory_cell_backward.register_fake
def _(grad, narrow, sums_grad, x, tables, vectors, *others):  # type: ignore
    return *_ways(grad, others[-1]), torch.empty_like(tables), torch.empty_like(vectors)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, update, _, _, tables, vectors, _, _, tau, mask, ctx.floor, _, _, ctx.observe, _ = inputs
    _, unit, kept, stats, slot, sums, slot_sums = output
    ctx.save_for_backward(x, tables, vectors, tau, mask, unit, kept, stats, sums, slot_sums)
    ctx.update_type = None if update is None else update.dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(unit, kept, stats, slot, slot_sums)


def _backward(ctx: Any, grad: Tensor | None, *others: Tensor | None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors  # asked for once: recomputed activations are given once
    x, tables, kept = saved[0], saved[1], saved[6]
    grad = torch.zeros_like(x) if grad is None else grad.contiguous()
    sums_grad = others[4]
    if sums_grad is None:
        sums_grad = x.new_zeros(3 * kept.shape[-1] + 1, dtype=torch.float32)
    # rounded here, where compile can join it to what made the gradient
    dx, dupdate, dtables, dvectors = torch.ops.gmt.fused_cell_backward(
        grad, grad.to(tables.dtype), sums_grad.contiguous(), *saved, ctx.floor, ctx.observe, ctx.update_type
    )
    return dx, None if ctx.update_type is None else dupdate, None, None, dtables, dvectors, *[None] * 9


torch.library.register_autograd("gmt::fused_cell", _backward, setup_context=_setup)
