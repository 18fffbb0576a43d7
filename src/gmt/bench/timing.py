"""Times of several things in turns, so that a slow moment of the machine strikes all of them."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

Work = Callable[[], object]


class Times(NamedTuple):
    median: float  # seconds
    low: float  # quartiles
    high: float


def timed(work: Work, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def in_turns(works: dict[str, Work], device: torch.device, rounds: int, inner: int = 1) -> dict[str, Times]:
    """Seconds of one call each; `inner` calls are timed together where one is too short."""

    def several(work: Work) -> None:
        for _ in range(inner):
            work()

    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 2):
        for name, work in works.items():
            taken = timed(lambda work=work: several(work), device) / inner
            if turn >= 2:  # the first ones warm up
                seconds[name].append(taken)
    return {name: _quartiles(series) for name, series in seconds.items()}


def _quartiles(series: list[float]) -> Times:
    low, middle, high = statistics.quantiles(series, n=4) if len(series) > 1 else (series[0],) * 3
    return Times(middle, low, high)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one large square product on random numbers: what this machine can do at all."""
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / in_turns({"product": lambda: a @ b}, device, 20)["product"].median
