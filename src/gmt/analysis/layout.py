"""A slot's place on paper: near slots near, from the geometry of the memory states alone."""

import numpy as np

from gmt.analysis.trace import Array


def place_slots(states: Array) -> tuple[Array, float]:
    """[F, H] to [F, 2] in [0, 1]: the two directions in which the states' own directions differ most; and the share of
    their variance that these hold.

    Half of a coordinate is the slot's rank along it: a few outlying slots would otherwise push all others into a heap.
    The same states are always laid out alike: the sign of each direction is fixed by its largest part.
    """
    unit = states / np.maximum(np.linalg.norm(states, axis=-1, keepdims=True), 1e-8)
    centred = unit - unit.mean(0)
    _, sizes, axes = np.linalg.svd(centred.astype(np.float64), full_matrices=False)
    axes = axes[:2]
    if len(axes) < 2:
        axes = np.vstack([axes, np.zeros_like(axes)])
    axes = axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(-1)])[:, None]
    places = centred @ axes.T
    spread = np.ptp(places, axis=0)
    even = (places - places.min(0)) / np.where(spread > 1e-12, spread, 1.0)
    ranks = places.argsort(0, kind="stable").argsort(0) / max(len(states) - 1, 1)
    total = float((sizes**2).sum())
    return 0.5 * even + 0.5 * ranks, float((sizes[:2] ** 2).sum()) / total if total > 1e-12 else 1.0
