"""`gmt bench`: one run, everything interleaved, as a table and JSON."""

import gc
import json
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from gmt.bench import cases
from gmt.bench.timing import Times, in_turns, matrix_rate
from gmt.config import GMTConfig
from gmt.errors import GMTError
from gmt.model.flops import training_flops
from gmt.model.parity import check
from gmt.utils.tables import markdown_table

KINDS = ("cell", "cells", "step", "decode")
# the form to beat, as torch compiles it by default: by rule its step at batch 32 took half as long again
PLAIN = ("memory.kernels=plain", "train.deterministic=false")
# name -> preset and overrides; the first is what the others are measured against
MODELS = {
    "dense-1050": ("dense-1050",),
    "dense-205": ("dense-205",),
    "memory": ("gmt-v7-base",),
    "memory, plain": ("gmt-v7-base", *PLAIN),
}
Listener = Callable[[str], None]


def configs(size: str) -> dict[str, GMTConfig]:
    if size == "base":
        return {name: GMTConfig.preset(*settings) for name, settings in MODELS.items()}
    if size != "tiny":
        raise GMTError(f"there is no size {size!r}; there are base and tiny")
    dense = ["model.sublayer=dense", "model.dense_width=175"]
    tiny = {"dense-1050": dense, "dense-205": [dense[0], "model.dense_width=34"], "memory": []}
    return {name: GMTConfig.preset("tiny", *settings) for name, settings in tiny.items()} | {
        "memory, plain": GMTConfig.preset("tiny", *PLAIN)
    }


def bench(
    kinds: tuple[str, ...],
    batches: tuple[int, ...],
    device: torch.device,
    precision: str,
    *,
    size: str = "base",
    rounds: int = 30,
    compiled: bool = True,
    only: tuple[str, ...] = (),
    tell: Listener = lambda text: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """`keep` is given the result after each comparison: compiling takes minutes, and a run may be cut off."""
    for kind in kinds:
        if kind not in KINDS:
            raise GMTError(f"there is nothing called {kind!r} to time; there are {', '.join(KINDS)}")
    models = configs(size)
    for name in only:
        if name not in models:
            raise GMTError(f"there is no model {name!r} to time; there are {'; '.join(models)}")
    fused = device.type == "cuda"
    memory = models["memory"]
    models = {name: cfg for name, cfg in models.items() if not only or name in only}
    result: dict[str, Any] = _facts(device, precision, size, rounds)
    if fused:
        tell("checking the fused operators against plain PyTorch")
        result["parity"] = check(memory, device, precision)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    result["matrix_flops"] = matrix_rate(device, dtype)
    result["rows"] = []
    for kind in kinds:
        for batch in batches if kind != "decode" else (1,):
            tell(f"{kind}, batch {batch}")
            result["rows"] += _compare(kind, batch, models, device, precision, rounds, compiled, result["matrix_flops"])
            keep(result)
    return result


def _compare(
    kind: str,
    batch: int,
    models: dict[str, GMTConfig],
    device: torch.device,
    precision: str,
    rounds: int,
    compiled: bool,
    rate: float,
) -> list[dict[str, Any]]:
    works: dict[str, Any] = {}
    peaks: dict[str, int] = {}
    for name, cfg in models.items():
        if kind == "decode" and name == "memory, plain":
            continue
        before = _settle(device)
        works[name] = _make(kind, name, cfg, batch, device, precision, compiled)
        works[name]()
        peaks[name] = _peak(device) - before
    times = in_turns(works, device, rounds, inner=20 if kind == "decode" else 1)
    if kind == "cells":  # told for one of them
        times = {name: Times(*(t / models[name].model.blocks for t in found)) for name, found in times.items()}
    reference = times[next(iter(times))].median  # dense-1050, where it is timed at all
    rows = []
    for name, cfg in models.items():
        if name not in times:
            continue
        found, tokens = times[name], batch * (1 if kind == "decode" else cfg.model.context)
        row: dict[str, Any] = {"kind": kind, "batch": batch, "model": name, "deterministic": cfg.train.deterministic}
        row["ms"] = found.median * 1e3
        row |= {"low_ms": found.low * 1e3, "high_ms": found.high * 1e3, "tokens_per_s": tokens / found.median}
        row["speed"] = reference / found.median
        if kind == "step":
            row["utilisation"] = training_flops(cfg) * tokens / found.median / rate
        if device.type == "cuda":
            row["peak_gb"] = peaks[name] / 1e9
        rows.append(row)
    works.clear()
    _settle(device)
    return rows


def _make(
    kind: str, name: str, cfg: GMTConfig, batch: int, device: torch.device, precision: str, compiled: bool
) -> Any:
    if kind in ("cell", "cells"):
        return cases.layer(cfg, batch, device, precision, compiled, 1 if kind == "cell" else cfg.model.blocks)
    if kind == "step":
        return cases.step(cfg, batch, device, precision, compiled, plain=name == "memory, plain")
    return cases.decode(cfg, batch, device, precision)


def _settle(device: torch.device) -> int:
    gc.collect()
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def _facts(device: torch.device, precision: str, size: str, rounds: int) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "device": name,
        "precision": precision,
        "size": size,
        "rounds": rounds,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def is_result(path: Path) -> bool:
    """Return whether a file contains the JSON of an earlier run."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(tree, dict) and {"rounds", "matrix_flops", "rows"} <= tree.keys()


def table(result: dict[str, Any]) -> str:
    """Markdown; `speed` is against the first model timed in the same run, dense-1050 unless it was left out."""
    header = ["what", "batch", "model", "ms", "quartiles", "tokens/s", "speed", "utilisation", "peak GB"]
    rows = []
    for row in result["rows"]:
        used = f"{row['utilisation']:.0%}" if "utilisation" in row else "-"
        peak = f"{row['peak_gb']:.2f}" if "peak_gb" in row else "-"
        cells = [row["kind"], str(row["batch"]), row["model"], f"{row['ms']:.3f}"]
        cells += [f"{row['low_ms']:.3f} to {row['high_ms']:.3f}", f"{row['tokens_per_s']:,.0f}"]
        rows.append([*cells, f"{row['speed']:.2f}", used, peak])
    rate = result["matrix_flops"] / 1e12
    machine = f"{result['device']}, {result['precision']}, torch {result['torch']}"
    return "\n".join([markdown_table(header, rows), "", f"{machine}; a large matrix product: {rate:.1f} TFLOP/s."])
