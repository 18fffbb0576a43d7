"""A CUDA graph: work recorded once, and replayed without the host launching anything."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def record(
    work: Callable[[], T], warm_up: int = 3, between: Callable[[], None] = lambda: None
) -> tuple[torch.cuda.CUDAGraph, T]:
    """The graph, and what its replays write to. `between` puts things back after each of the passes before recording,
    which compile, and set up workspaces. A graph knows addresses and keeps nothing alive: hold what `work` uses."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(warm_up):
            work()
            between()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result
