"""What is timed: a second sublayer with its norm and residual, a training step, a generated token."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gmt.config import GMTConfig
from gmt.kernels.available import use_fused
from gmt.kernels.cell import all_tables, fused_block, gather_seen
from gmt.memory.cell import stack_seen
from gmt.memory.precision import compute_type
from gmt.model.block import Dense
from gmt.model.decode import Decoder
from gmt.model.device import autocast, compile_whole
from gmt.model.language_model import GraphMemoryLM
from gmt.model.parity import make_cell
from gmt.model.record import record
from gmt.train.graph import Graphed

Work = Callable[[], Any]


def layer(cfg: GMTConfig, batch: int, device: torch.device, precision: str, compiled: bool, depth: int = 1) -> Work:
    """Forward and backward of x + sublayer(LN(x)), with all that training wants of a memory cell.

    `depth` of them in a row: as in a model, what depends on memory alone is then made for all cells at once.
    """
    shape = cfg.model
    norms: Any = nn.ModuleList(nn.LayerNorm(shape.hidden) for _ in range(depth)).to(device)
    seconds: Any = nn.ModuleList(
        make_cell(cfg, device) if shape.sublayer == "memory" else Dense(shape.hidden, shape.dense_width)
        for _ in range(depth)
    )
    seconds = seconds.apply(GraphMemoryLM.init_weights).to(device)
    x = torch.randn(batch, shape.context, shape.hidden, device=device, requires_grad=True)
    grad, tau = torch.randn_like(x), torch.tensor(0.5, device=device)
    leaves = [x, *norms.parameters(), *seconds.parameters()]

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        if shape.sublayer != "memory":
            for norm, second in zip(norms, seconds, strict=True):
                x = x + second(norm(x))
            return (x,)
        tables = all_tables(list(seconds), list(norms), compute_type(x)) if use_fused(cfg, x) else None
        seen: list[Any] = []
        for index, (norm, second) in enumerate(zip(norms, seconds, strict=True)):
            if tables is not None:
                x, saw = fused_block(second, norm, x, None, tau, tables=tables.blocks[index])  # pyright: ignore[reportArgumentType]
            else:
                x, _, saw = second(x, norm(x), tau)
            seen.append(saw)
        tokens = x.new_full((), batch * shape.context)
        whole = stack_seen(seen) if tables is None else gather_seen(seen, tables, tokens)
        terms = whole.track + whole.ortho + whole.edge + whole.contrast + whole.usage_sum.square().mean(-1)
        return x, terms.sum(), whole.slot_sum, whole.slot_count

    run: Any = compile_whole(forward, cfg) if compiled else forward

    def work() -> Any:
        with autocast(device, precision):
            out = run(x)
        wanted = out[:2]
        given = [grad, *(torch.ones_like(t) for t in wanted[1:])]
        return torch.autograd.grad(wanted, leaves, given, allow_unused=True)

    return _replayed(work, device)


def _replayed(work: Work, device: torch.device) -> Work:
    """Work as a graph's replay: what the GPU needs, without the host's launches."""
    if device.type != "cuda":
        return work
    graph, held = record(work)
    # a graph knows addresses, and keeps nothing alive: the work does
    return lambda: (graph.replay(), work, held)


def step(cfg: GMTConfig, batch: int, device: torch.device, precision: str, compiled: bool, plain: bool) -> Work:
    """Forward, backward, all five terms and the commit; no optimizer. `plain` is the model without what is fast:
    plain PyTorch cell, whole logits, no CUDA graph."""
    torch.manual_seed(0)
    lm = GraphMemoryLM(cfg).to(device)
    model: Any = compile_whole(lm, cfg) if compiled else lm
    tokens = torch.randint(cfg.model.vocab, (batch, cfg.model.context + 1), device=device)
    ids, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def work(ids: Tensor, labels: Tensor) -> Tensor:
        lm.zero_grad()  # one micro-batch a step: gradients are written, not added to
        with autocast(device, precision):
            out = model(ids, labels, return_logits=plain)
        out.loss.backward()
        lm.commit(out.writes)
        return out.task_loss.detach()

    if plain or device.type != "cuda":
        return lambda: work(ids, labels)
    graphed = Graphed(work, lm, ids, labels)
    return lambda: graphed(ids, labels)


def decode(cfg: GMTConfig, batch: int, device: torch.device, precision: str, prompt: int = 64) -> Work:
    """One token; the text begins again when the context is full."""
    torch.manual_seed(0)
    lm = GraphMemoryLM(cfg).to(device)
    decoder = Decoder(lm.to(torch.bfloat16) if precision == "bf16" else lm, batch)
    ids = torch.randint(cfg.model.vocab, (batch, prompt), device=device)
    decoder.prompt(ids)

    def work() -> None:
        if decoder.filled >= cfg.model.context:
            decoder.prompt(ids)
        decoder.step()

    return work
