"""The model at step 0: a function of the configuration, the seed and, where memory begins with k-means, the data."""

import torch

from gmt.config import GMTConfig
from gmt.data.batches import TrainBatches, read_windows
from gmt.errors import GMTError
from gmt.memory.kmeans import spherical_kmeans
from gmt.memory.maintenance import keyed_generator, reseed_positions
from gmt.model.language_model import GraphMemoryLM

STATES_PER_SLOT = 64  # what k-means looks at


def build(cfg: GMTConfig, device: torch.device) -> GraphMemoryLM:
    torch.manual_seed(cfg.train.seed)
    lm = GraphMemoryLM(cfg)
    lm = lm.double() if cfg.train.precision == "fp64" else lm
    lm.gradient_checkpointing = cfg.train.recompute
    return lm.to(device)


@torch.no_grad()
def centroids_from_data(lm: GraphMemoryLM, batches: TrainBatches) -> None:
    """Each block's centroids from its own outputs on the first micro-batch, which every rank reads whole."""
    slots, seed = lm.cfg.memory.slots, lm.cfg.train.seed
    ids = torch.from_numpy(read_windows(batches.stream, batches.whole(0, 0), batches.context).ids).to(lm.tau.device)
    if ids.numel() < slots:
        raise GMTError(f"k-means of {slots} slots needs as many tokens in a micro-batch, and one has {ids.numel()}")
    count = min(ids.numel(), STATES_PER_SLOT * slots)
    positions = reseed_positions(ids.numel(), count, keyed_generator(seed, 0, 0, 2)).to(ids.device)
    lm.eval()
    out = lm(ids, reseed=positions.expand(len(lm.cells), -1), logits_to_keep=1)
    assert out.writes is not None and out.writes.reseed is not None
    for index, (cell, states) in enumerate(zip(lm.cells, out.writes.reseed, strict=True)):
        found = spherical_kmeans(states.to(cell.centroids.dtype), slots, keyed_generator(seed, 0, index, 3))
        cell.centroids.copy_(found)
