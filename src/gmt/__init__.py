"""Graph Memory Transformer: language models whose feed-forward layers are a memory you can look into.

from gmt import GMTConfig, GraphMemoryLM

The names are resolved on first use, so that `gmt --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmt.config import GMTConfig
    from gmt.model.language_model import GraphMemoryLM, LMOutput

__all__ = ["GMTConfig", "GraphMemoryLM", "LMOutput", "__version__"]
__version__ = "0.1.0"

_HOME = {
    "GMTConfig": "gmt.config",
    "GraphMemoryLM": "gmt.model.language_model",
    "LMOutput": "gmt.model.language_model",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gmt' has no attribute {name!r}")
