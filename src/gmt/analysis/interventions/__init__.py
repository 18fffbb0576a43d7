"""Touch a memory and see what changes: edits, and the context in which a model has them."""

from gmt.analysis.interventions.apply import Fired, from_json, intervene
from gmt.analysis.interventions.edits import (
    Ablate,
    Edges,
    Edit,
    MoveCentroid,
    Patch,
    Pin,
    Redirect,
    Scale,
    SetEdge,
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
    "Redirect",
    "Scale",
    "SetEdge",
    "SwapCentroids",
    "from_json",
    "intervene",
]
