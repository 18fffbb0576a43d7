"""One micro-batch as a CUDA graph: recorded once, replayed without the host launching anything.

A small batch leaves a GPU waiting for launches. What is recorded is forward, backward and commit; the batch, the
temperature, the dropout's seed and the memory are read where they lie, so that a replay is the same computation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gmt.model.language_model import GraphMemoryLM
from gmt.model.memory_state import restore, snapshot
from gmt.model.record import record

Work = Callable[[Tensor, Tensor], Any]  # ids, labels -> tensors that each replay writes anew
WARM_UP = 3  # passes before recording: compilation, workspaces, the optimizer's view of the gradients


class Graphed:
    """`work` for batches of one shape. Gradients must stay in place: set them to zero, not to None."""

    def __init__(
        self, work: Work, lm: GraphMemoryLM, ids: Tensor, labels: Tensor, others: Sequence[Tensor] = ()
    ) -> None:
        """`others` are tensors that the work changes beside memory and gradients."""
        self.ids, self.labels = ids.clone(), labels.clone()
        self.work = work  # and with it the model: a graph knows addresses, and keeps nothing alive
        memory, grads = snapshot(lm), [None if p.grad is None else p.grad.clone() for p in lm.parameters()]
        kept = [t.clone() for t in others]
        states = torch.get_rng_state(), torch.cuda.get_rng_state()
        self.graph, self.result = record(lambda: work(self.ids, self.labels), WARM_UP)
        # the passes above must leave nothing behind
        restore(lm, memory)
        torch.set_rng_state(states[0])
        torch.cuda.set_rng_state(states[1])
        with torch.no_grad():
            for tensor, copy in zip(others, kept, strict=True):
                tensor.copy_(copy)
            for p, grad in zip(lm.parameters(), grads, strict=True):
                if p.grad is not None:
                    p.grad.zero_() if grad is None else p.grad.copy_(grad)

    def __call__(self, ids: Tensor, labels: Tensor) -> Any:
        if ids.shape != self.ids.shape:
            raise ValueError(f"the graph was recorded for batches of {list(self.ids.shape)}, not {list(ids.shape)}")
        self.ids.copy_(ids, non_blocking=True)
        self.labels.copy_(labels, non_blocking=True)
        self.graph.replay()
        return self.result
