"""Graph Memory Transformer: language models with a memory that you can read.

    import gmt

    model = gmt.load("runs/demo/v7")
    trace = gmt.trace(model, "The function returns a list.")

Names are resolved on first use, so that `gmt --help` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmt.analysis.interventions import Ablate, Edges, Scale, intervene
    from gmt.analysis.trace import Trace, trace
    from gmt.config import GMTConfig
    from gmt.hf.load import open_model as load
    from gmt.model.language_model import GraphMemoryLM, LMOutput

__all__ = [
    "Ablate",
    "Edges",
    "GMTConfig",
    "GraphMemoryLM",
    "LMOutput",
    "Scale",
    "Trace",
    "__version__",
    "intervene",
    "load",
    "trace",
]
__version__ = "0.1.0"

# public name -> module and name there
_HOME = {
    "Ablate": ("gmt.analysis.interventions", "Ablate"),
    "Edges": ("gmt.analysis.interventions", "Edges"),
    "GMTConfig": ("gmt.config", "GMTConfig"),
    "GraphMemoryLM": ("gmt.model.language_model", "GraphMemoryLM"),
    "LMOutput": ("gmt.model.language_model", "LMOutput"),
    "Scale": ("gmt.analysis.interventions", "Scale"),
    "Trace": ("gmt.analysis.trace", "Trace"),
    "intervene": ("gmt.analysis.interventions", "intervene"),
    "load": ("gmt.hf.load", "open_model"),
    "trace": ("gmt.analysis.trace", "trace"),
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module, attribute = _HOME[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'gmt' has no attribute {name!r}")
