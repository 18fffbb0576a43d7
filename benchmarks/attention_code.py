"""What Triton makes of the attention kernels for a Hopper GPU, read on any machine: no GPU is needed.

    python benchmarks/attention_code.py

Prints registers, bytes that spill and, of the loop over tiles off the diagonal, instructions a thread and weight of S:
by arithmetic these bind the kernels, and not their products. Uses Triton's own tools, whose interface is not public.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gmt.kernels import triton_attention
from gmt.kernels.attention import TILES

KERNELS = {"forward": "attention_kernel", "queries": "queries_backward_kernel", "keys": "keys_backward_kernel"}
TYPES = {
    "log_ptr": "*fp32",
    "delta_ptr": "*fp32",
    "kept_ptr": "*i32",
    "seed_ptr": "*i64",
    "scale": "fp32",
    "boost": "fp32",
    "nothing": "fp32",
}
HEADS = {"D": 64, "DROP": True, "EVEN": True, "PRECISION": "tf32"}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compiled(kernel: Any, constants: dict[str, Any], tile: dict[str, int], types: dict[str, str]) -> Any:
    """Of the constants those that the kernel has; pointers that `types` does not name are to bfloat16."""
    names = kernel.arg_names
    constants = {name: value for name, value in (constants | tile).items() if name in names}
    kinds = {name: types.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(names) if name.endswith("_ptr")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    options = {name: tile[name] for name in ("num_warps", "num_stages")}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def inner_loop(code: str) -> int:
    """Instructions of the shortest loop with matrix products: at the diagonal there are masks besides."""
    places: dict[str, int] = {}
    lines: list[str] = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            places[label[1]] = len(lines)
        elif found := re.search(r"/\*[0-9a-f]+\*/\s+(.*?);", line):
            lines.append(found[1])
    back = [
        (places[to[1]], n)
        for n, line in enumerate(lines)
        if (to := re.search(r"BRA.*?`\((\.L_x_\d+)\)", line)) and places.get(to[1], n + 1) <= n
    ]
    return min(end - start + 1 for start, end in back if any("GMMA" in line for line in lines[start:end]))


def main() -> None:
    for kernel, tile in TILES.items():
        made = compiled(getattr(triton_attention, KERNELS[kernel]), HEADS, tile, TYPES)
        report = subprocess.run(
            [TOOLS / "ptxas", "-v", "-arch=sm_90a", "-o", "/dev/null", "-"],
            input=made.asm["ptx"], capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            code = subprocess.run(
                [TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
            ).stdout
        weights = tile["BM"] * tile["BN"] / tile["num_warps"] / 32
        registers, spilled = re.search(r"(\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
        print(
            f"{kernel:8} {tile}: {registers and registers[1]} registers, {spilled and spilled[1]} bytes spilt, "
            f"{inner_loop(code) / weights:.1f} instructions a weight"
        )


if __name__ == "__main__":
    main()
