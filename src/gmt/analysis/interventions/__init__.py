"""Touch a memory and see what changes: edits, and the context in which a model has them."""

from gmt.analysis.interventions.apply import Fired, from_json, intervene
from gmt.analysis.interventions.edges import Edges, Redirect, SetEdge
from gmt.analysis.interventions.edit import Edit
from gmt.analysis.interventions.edits import (
    Ablate,
    MoveCentroid,
    Patch,
    Pin,
    RandomCentroids,
    Scale,
    ShuffleCentroids,
    SwapCentroids,
)

__all__ = [
    "Ablate",
    "Edges",
    "Edit",
    "Fired",
    "MoveCentroid",
    "Patch",
    "Pin",
    "RandomCentroids",
    "Redirect",
    "Scale",
    "SetEdge",
    "ShuffleCentroids",
    "SwapCentroids",
    "from_json",
    "intervene",
]
