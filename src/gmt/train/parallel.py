"""Several ranks that end a step with the memory and weights of one.

Sums and counts of all blocks travel in one all-reduce per micro-batch, between forward and backward, so that the
usage term sees all ranks' tokens and its gradient is the one that a single process would have.
"""

import contextlib
import inspect
import os
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from gmt.errors import GMTError
from gmt.memory.writeback import Writes
from gmt.model.bits import memory_hash
from gmt.model.device import compile_blocks, compile_whole
from gmt.model.language_model import GraphMemoryLM

T = TypeVar("T")


class Parallel:
    """This process's place among the ranks, and what they do together. One process is the plain case of it."""

    def __init__(self, device: torch.device, mode: str = "ddp") -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.mode, self.device = mode, device
        if self.world > 1 and not dist.is_initialized():
            if device.type == "cuda":
                self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
                torch.cuda.set_device(self.device)
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    @property
    def main(self) -> bool:
        return self.rank == 0

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    # --- the model -----------------------------------------------------------------------------------------------

    def wrap(self, lm: GraphMemoryLM, compiled: bool) -> nn.Module:
        """The module whose forward is called; `lm` stays the one that holds the weights."""
        if self.world > 1 and self.mode == "fsdp2":
            if compiled:  # block by block, since a graph must not contain FSDP's hooks
                compile_blocks(lm, lm.cfg)
            _shard(lm)
            return lm
        model: Any = compile_whole(lm, lm.cfg) if compiled else lm
        if self.world > 1 and self.mode == "ddp":
            # nothing needs a broadcast: every rank computes the same buffers (the name changed in torch 2.13)
            known = inspect.signature(DistributedDataParallel.__init__).parameters
            name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
            return DistributedDataParallel(model, **{name: False})  # pyright: ignore[reportArgumentType]
        return model

    @contextlib.contextmanager
    def gradients(self, model: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged in the backward of a step's last micro-batch alone."""
        if self.world == 1:
            yield
        elif self.mode == "fsdp2":
            model.set_requires_gradient_sync(last)  # pyright: ignore
            yield
        else:
            with contextlib.nullcontext() if last else model.no_sync():  # pyright: ignore
                yield

    def finish_gradients(self, lm: GraphMemoryLM) -> None:
        """FSDP2 leaves the replicated memory to us: one all-reduce for all of its gradients."""
        if self.world == 1 or self.mode != "fsdp2":
            return
        grads = [p.grad for p in replicated_parameters(lm) if p.grad is not None]
        if not grads:  # a model without memory
            return
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        flat /= self.world
        for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def clip(self, lm: GraphMemoryLM, most: float) -> Tensor:
        """Scale all gradients to a norm of at most `most`; returns the norm before. All at once: one by one they were a
        thousand launches, for which the next step's graph waited."""
        grads = [p.grad for p in lm.parameters() if p.grad is not None]
        wholes = [grad for grad in grads if not isinstance(grad, DTensor)]
        shards = [grad.to_local() for grad in grads if isinstance(grad, DTensor)]
        sharded = _square(shards, self.device)
        if self.world > 1 and self.mode == "fsdp2":
            dist.all_reduce(sharded)
        norm = (_square(wholes, self.device) + sharded).sqrt()
        torch._foreach_mul_(wholes + shards, (most / (norm + 1e-6)).clamp_max(1))  # pyright: ignore[reportPrivateImportUsage]
        return norm

    # --- what the ranks saw -----------------------------------------------------------------------------------------

    def share(self, writes: Writes | None, numbers: Tensor) -> tuple[Writes | None, Tensor]:
        """Writes and a few more numbers, summed over ranks in one all-reduce.

        The summed usage stays attached to this rank's own: its value is all ranks', its gradient this rank's part.
        """
        if self.world == 1:
            return writes, numbers
        parts = [numbers]
        if writes is not None:
            parts += [writes.slot_sum, writes.slot_count, writes.usage_sum.detach(), writes.tokens]
        flat = torch.cat([part.detach().flatten() for part in parts])
        dist.all_reduce(flat)
        summed = [s.view_as(p) for s, p in zip(flat.split([p.numel() for p in parts]), parts, strict=True)]
        if writes is None:
            return None, summed[0]
        slot_sum, slot_count, usage, tokens = summed[1:]
        attached = usage + (writes.usage_sum - writes.usage_sum.detach())
        return Writes(slot_sum, slot_count, attached, tokens, writes.reseed), summed[0]

    def gather_reseed(self, writes: Writes | None, mine: Tensor | None) -> Writes | None:
        """Candidates of all ranks: each token is one rank's, who gives its block output; the others give nothing."""
        if self.world == 1 or writes is None or writes.reseed is None or mine is None:
            return writes
        candidates = torch.where(mine[..., None], writes.reseed, 0)
        dist.all_reduce(candidates)
        return writes._replace(reseed=candidates)

    def any(self, flag: bool) -> bool:
        """Whether any rank says so. Every rank must ask."""
        if self.world == 1:
            return flag
        told = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told.item())

    def sum(self, numbers: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        if self.world > 1:
            values: list[Any] = [value]
            dist.broadcast_object_list(values, device=self.device if self.device.type == "cuda" else None)
            return values[0]
        return value

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in the order of the ranks."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def raise_together(self, problem: str, prefix: str = "") -> None:
        """Raise on every rank if any rank has a problem. Every rank must call this at the same place."""
        found = self.gather(problem)
        if any(found):
            alike = len(set(found)) == 1
            text = found[0] if alike else "; ".join(f"rank {rank}: {why}" for rank, why in enumerate(found) if why)
            raise GMTError(text if alike else prefix + text)

    def check_memory(self, lm: GraphMemoryLM) -> str:
        """The hash of this rank's memory; an error where ranks differ."""
        hashes = self.gather(memory_hash(lm))
        if len(set(hashes)) > 1:
            raise GMTError(f"the memory differs between ranks (hashes {hashes})")
        return hashes[self.rank]


def replicated_parameters(lm: GraphMemoryLM) -> list[nn.Parameter]:
    """The cells', and those of LN2 before them, which the cells' tables are made of too (kernels/cell.py)."""
    modules = [module for block in lm.blocks if block.memory is not None for module in (block.memory, block.norm2)]
    return [p for module in modules for p in module.parameters()]  # pyright: ignore


def _shard(lm: GraphMemoryLM) -> None:
    """Blocks in shards; memory outside of them, whole on every rank, so that a commit needs nobody else, and LN2, which
    goes into memory's tables."""
    from torch.distributed.fsdp import fully_shard

    replicated = set(replicated_parameters(lm))
    for block in lm.blocks:
        fully_shard(block, ignored_params=replicated)
    fully_shard(lm, ignored_params=replicated)


def _square(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Of the norm of all of them."""
    return get_total_norm(tensors).square() if tensors else torch.zeros((), device=device)
