"""What Triton makes of the kernels for a Hopper GPU: run by test_made_code.py in a process without its interpreter.

Prints for each kernel how many matrix products its PTX has, and which integer instructions read a result of one.
"""

import json
import os
import re
from collections import Counter
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gmt.kernels import attention, operators, triton_attention, triton_cell, triton_sums

CELL = {"H": 768, "F": 128, "FP": 128, "HAS_UPDATE": True, "OBSERVE": True, "SAVE": True, "HAS_MASK": False}
CELL |= {"REST": True, "EVEN": True, "PRECISION": "tf32"}
HEADS = {"D": 64, "DROP": True, "EVEN": True, "PRECISION": "tf32"}
WIDE = ("x", "scale", "shift", "means", "tau", "out", "stats", "sums", "sums_grad", "along", "reach", "scores", "parts")
TYPES = {f"{name}_ptr": "*fp32" for name in (*WIDE, "norms", "log", "delta")} | {
    "slot_ptr": "*i32",
    "mask_ptr": "*i32",
    "seed_ptr": "*i64",
}
TYPES |= dict.fromkeys(("floor", "move_eps", "scale", "boost", "nothing"), "fp32")
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
    names = kernel.arg_names
    constants = {name: value for name, value in (constants | tile).items() if name in names}
    kinds = {name: types.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(names) if name.endswith("_ptr")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    options = {name: tile[name] for name in ("num_warps", "num_stages")}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


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
    narrow = {name: kind for name, kind in TYPES.items() if name not in ("out_ptr", "scale_ptr")} | {"kept_ptr": "*i32"}
    for name, kernel in (
        ("forward", triton_attention.attention_kernel),
        ("queries", triton_attention.queries_backward_kernel),
        ("keys", triton_attention.keys_backward_kernel),
    ):
        found[f"attention, {name}"] = looked_at(ptx(kernel, HEADS, attention.TILES[name], narrow))
    turned = ptx(turned_kernel, {}, {"num_warps": 4, "num_stages": 3}, TYPES)
    print(json.dumps(found | {"turned": looked_at(turned)}))


if __name__ == "__main__":
    main()
