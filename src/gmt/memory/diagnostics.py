"""Numbers that tell how a memory is doing: the ones the paper lists, for all blocks at once."""

import torch
from torch import Tensor

from gmt.memory.cell import MemoryCell
from gmt.memory.losses import contrast_loss, effective_slots, entropy
from gmt.memory.routing import direction, transition_matrix


@torch.no_grad()
def usage_diagnostics(mean_usage: Tensor, slot_count: Tensor) -> Tensor:
    """Of one forward pass: mean N_eff, least N_eff, and coverage, the share of slots that are some token's nearest."""
    n_eff = effective_slots(mean_usage)
    return torch.stack([n_eff.mean(), n_eff.min(), (slot_count > 0).to(n_eff.dtype).mean()])


USAGE_NAMES = ("n_eff_mean", "n_eff_min", "coverage")


@torch.no_grad()
def memory_diagnostics(cells: list[MemoryCell], dead_below: float) -> dict[str, float]:
    """Of the memory itself, over all blocks."""
    cosine, edge_entropy, largest, similarity = [], [], [], []
    for cell in cells:
        unit = direction(cell.centroids)
        slots = len(unit)
        gram = unit @ unit.T
        cosine.append((gram.sum() - gram.diagonal().sum()) / (slots * (slots - 1)))
        transition = transition_matrix(cell.edges)
        edge_entropy.append(entropy(transition).mean())
        largest.append(transition.max(-1).values.mean())
        similarity.append(contrast_loss(transition))
    gates = torch.stack([cell.gate.float().sigmoid() for cell in cells])
    momenta = torch.stack([cell.momentum.float().sigmoid() for cell in cells])
    return {
        "dead_slots": float(sum((cell.usage < dead_below).sum() for cell in cells)),
        "centroid_cosine": float(torch.stack(cosine).mean()),
        "edge_entropy": float(torch.stack(edge_entropy).mean()),
        "largest_edge": float(torch.stack(largest).mean()),
        "edge_row_similarity": float(torch.stack(similarity).mean()),
        "gate_mean": float(gates.mean()),
        "gate_min": float(gates.min()),
        "gate_max": float(gates.max()),
        "momentum_mean": float(momenta.mean()),
        "momentum_min": float(momenta.min()),
        "momentum_max": float(momenta.max()),
    }
