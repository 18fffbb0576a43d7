"""Graph memory models in Hugging Face clothes: importing this registers them with the Auto classes."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModelForCausalLM

from gmt.errors import GMTError
from gmt.hf.configuration import GMTPretrainedConfig
from gmt.hf.modeling import GMTCausalLMOutput, GMTForCausalLM

if TYPE_CHECKING:
    from gmt.hf.trainer import GMTTrainer

__all__ = ["GMTCausalLMOutput", "GMTForCausalLM", "GMTPretrainedConfig", "GMTTrainer"]

AutoConfig.register("gmt", GMTPretrainedConfig, exist_ok=True)
AutoModelForCausalLM.register(GMTPretrainedConfig, GMTForCausalLM, exist_ok=True)


def __getattr__(name: str) -> Any:
    if name == "GMTTrainer":  # on first use: it needs the optional accelerate
        if find_spec("accelerate") is None:
            raise GMTError("GMTTrainer needs accelerate: pip install 'graph-memory-transformer[trainer]'")
        return import_module("gmt.hf.trainer").GMTTrainer
    raise AttributeError(f"module 'gmt.hf' has no attribute {name!r}")
