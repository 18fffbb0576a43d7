"""How much each sublayer adds to the residual stream: the length of its update against what it is added to."""

from typing import Any

import torch
from torch import Tensor

from gmt.memory.precision import wide
from gmt.model.block import BlockOutput
from gmt.model.language_model import GraphMemoryLM


@torch.no_grad()
def residual_shares(lm: GraphMemoryLM, ids: Tensor) -> Tensor:
    """[2, L] mean over tokens of |update| / |stream before it|: of attention, and of the second sublayer (0 without).

    Looked at from outside, with hooks: one way for memory, dense and attention-only models, fused kernels or not.
    """
    updates: list[Tensor] = []
    shares: list[Tensor] = []

    def after_attention(module: Any, inputs: Any, update: Tensor) -> None:
        updates.append(wide(update))

    def after_block(module: Any, inputs: tuple[Tensor, ...], out: BlockOutput) -> None:
        x, update = wide(inputs[0]), updates.pop()
        h = x + update
        shares.append(torch.stack([_ratio(update, x), _ratio(wide(out.out) - h, h)]))

    training = lm.training
    hooks = [block.register_forward_hook(after_block) for block in lm.blocks]
    hooks += [block.attention.register_forward_hook(after_attention) for block in lm.blocks]  # pyright: ignore
    lm.eval()
    try:
        lm(ids, observe=False, logits_to_keep=1)
    finally:
        for hook in hooks:
            hook.remove()
        lm.train(training)
    return torch.stack(shares, dim=1)


def _ratio(update: Tensor, stream: Tensor) -> Tensor:
    return (update.norm(dim=-1) / stream.norm(dim=-1).clamp_min(1e-12)).mean()
