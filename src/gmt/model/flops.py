"""Floating-point operations of a model, counted from its matrix products."""

from gmt.config import GMTConfig


def forward_flops(cfg: GMTConfig) -> float:
    """Per token of a full window, forward; causal attention sees half the window on average."""
    m, slots, navigation = cfg.model, cfg.memory.slots, cfg.memory.navigation
    attention = 2 * 4 * m.hidden**2 + 2 * 2 * (m.context / 2) * m.hidden
    memory = 2 * (3 * slots * m.hidden + slots**2 + navigation * m.hidden + slots * navigation)
    second = {"memory": memory, "dense": 2 * 2 * m.hidden * m.dense_width, "none": 0}[m.sublayer]
    return m.blocks * (attention + second) + 2 * m.hidden * m.vocab


def training_flops(cfg: GMTConfig) -> float:
    """Forward and backward; a write-back's slot sums have no backward."""
    sums = 2 * cfg.memory.slots * cfg.model.hidden * cfg.model.blocks if cfg.model.sublayer == "memory" else 0
    return 3 * forward_flops(cfg) + sums
