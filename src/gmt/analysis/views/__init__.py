"""Views: figures of a trace or a run, each with its sentence and its table."""

from gmt.analysis.views.curves import training_curves
from gmt.analysis.views.depth import coverage_and_diversity, depth_progression, source_overlap_view
from gmt.analysis.views.memory import centroid_similarity, edge_entropy, edge_matrices, gate_and_momentum
from gmt.analysis.views.prediction import logit_share, surprise
from gmt.analysis.views.routing import active_edges, routing_consistency, routing_flow
from gmt.analysis.views.word_slots import pos_routing, pos_slots, slot_tokens
from gmt.analysis.views.words import displacement_by_pos, displacement_map, displacement_norms

__all__ = [
    "active_edges",
    "centroid_similarity",
    "coverage_and_diversity",
    "depth_progression",
    "displacement_by_pos",
    "displacement_map",
    "displacement_norms",
    "edge_entropy",
    "edge_matrices",
    "gate_and_momentum",
    "logit_share",
    "pos_routing",
    "pos_slots",
    "routing_consistency",
    "routing_flow",
    "slot_tokens",
    "source_overlap_view",
    "surprise",
    "training_curves",
]
