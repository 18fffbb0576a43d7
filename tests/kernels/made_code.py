"""What Triton makes of the kernels for a Hopper GPU: run by test_made_code.py in a process without its interpreter.

Prints for each kernel how many matrix products its PTX has, and which integer instructions read a result of one; and
how many copies to shared memory the rows of LN2's backward begin ahead.
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import attention_code  # turns the interpreter off, and so comes before Triton
import triton
import triton.language as tl

from gmt.kernels import attention, operators, triton_attention, triton_cell, triton_norm, triton_sums

CELL = {"H": 768, "F": 128, "FP": 128, "HAS_UPDATE": True, "OBSERVE": True, "SAVE": True, "HAS_MASK": False}
CELL |= {"REST": True, "EVEN": True, "PRECISION": "tf32"}
WIDE = (
    "x",
    "scale",
    "shift",
    "offset",
    "means",
    "tau",
    "out",
    "stats",
    "sums",
    "sums_grad",
    "along",
    "grad",
    "weight",
    "bias",
    "dx",
    "columns",
    "reach",
    "scores",
    "parts",
)
TYPES = {f"{name}_ptr": "*fp32" for name in WIDE} | {
    "slot_ptr": "*i32",
    "mask_ptr": "*i32",
}
TYPES |= dict.fromkeys(("floor", "move_eps"), "fp32")
INTEGER = r"(xor|and|or|not|shl|shr|shf|lop3|bfe|bfi|prmt|(add|sub|mad|mul|min|max)[.\w]*\.[su]\d+)\b"


@triton.jit
def turned_kernel(a_ptr, b_ptr, scale_ptr, out_ptr):
    """The sign of a sum of products turned: in integers, as Triton has it."""
    rows, columns = tl.arange(0, 64), tl.arange(0, 32)
    total = tl.zeros([64, 64], dtype=tl.float32)
    for start in range(0, 768, 32):
        a = tl.load(a_ptr + rows[:, None] * 768 + start + columns[None, :])
        b = tl.load(b_ptr + rows[None, :] * 768 + start + columns[:, None])
        total = tl.dot(a, b, total)
    tl.store(out_ptr + rows[:, None] * 64 + rows[None, :], 1.0 - total * tl.load(scale_ptr + rows)[:, None])


def ptx(kernel: Any, constants: dict[str, Any], tile: dict[str, int], types: dict[str, str]) -> str:
    return attention_code.compiled(kernel, constants, tile, types).asm["ptx"]


def looked_at(code: str) -> dict[str, Any]:
    lines = [line.split("//")[0].strip() for line in code.splitlines()]
    products = [line for line in lines if re.match(r"wgmma\.mma_async|mma\.sync", line)]
    results = {name for line in products for name in re.findall(r"%\w+", line[line.index("{") : line.index("}")])}
    for line in lines:  # a result keeps its value where it is moved to
        if (moved := re.match(r"mov\.[bf]32\s+(%\w+),\s*(%\w+);", line)) and moved[2] in results:
            results.add(moved[1])
    read: Counter[str] = Counter()
    for line in lines:
        if found := re.match(rf"(?:@!?%\w+\s+)?({INTEGER}[.\w]*)\s+%\w+,(.*);", line):
            read[found[1]] += bool(results & set(re.findall(r"%\w+", found[found.lastindex or 0])))
    return {"products": len(products), "integers": {name: count for name, count in read.items() if count}}


def main() -> None:
    tiles, smaller, move = operators.TILES, operators.SMALLER, triton_cell.move_kernel
    many, uneven = {**CELL, "F": 256, "FP": 256}, {**CELL, "EVEN": False, "HAS_MASK": True}
    kernels = {
        "route": (triton_cell.route_kernel, CELL, tiles["route"]),
        "route, 256 slots": (triton_cell.route_kernel, many, smaller["route"]),
        "route, uneven": (triton_cell.route_kernel, uneven, tiles["route"]),
        "move": (move, CELL, tiles["move"]),
        "move, few tokens": (move, CELL, {**tiles["move"], "BH": operators.WIDER_MOVE["BH"]}),
        "move, 256 slots": (move, many, smaller["move"]),
        "sums": (triton_cell.slot_sum_kernel, CELL, tiles["sums"]),
        "backward": (triton_cell.backward_kernel, CELL, tiles["backward"]),
        "backward, 256 slots": (triton_cell.backward_kernel, many, smaller["backward"]),
        "products": (triton_sums.products_kernel, CELL, tiles["products"]),
    }
    found = {name: looked_at(ptx(kernel, sizes, tile, TYPES)) for name, (kernel, sizes, tile) in kernels.items()}
    for name, kernel in attention_code.KERNELS.items():
        made = ptx(getattr(triton_attention, kernel), attention_code.HEADS, attention.TILES[name], attention_code.TYPES)
        found[f"attention, {name}"] = looked_at(made)
    turned = ptx(turned_kernel, {}, {"num_warps": 4, "num_stages": 3}, TYPES)
    rows = {**CELL, **operators._halves(768), "STAGES": operators.NORM_BACKWARD["STAGES"]}
    norm = ptx(triton_norm.norm_backward_kernel, rows, {"num_warps": 1, "num_stages": 3}, TYPES)
    made = {"products": found | {"turned": looked_at(turned)}, "fetched": norm.count("cp.async.cg")}
    print(json.dumps(made))


if __name__ == "__main__":
    main()
