"""Model and optimizer as named tensors on the host, and back into a model, in one piece or in shards."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gmt.checkpoint.format import Progress, read_progress
from gmt.errors import GMTError
from gmt.model.bits import memory_hash
from gmt.model.language_model import GraphMemoryLM

PREFIX = "model."  # of weights, as GMTForCausalLM names them
MOMENTS = ("exp_avg", "exp_avg_sq")
MOST_NAMED = 5  # mismatches that an error lists


def full(tensor: Tensor) -> Tensor:
    """The whole tensor, also where this rank holds a shard of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(parameter: Tensor, whole: Tensor) -> Tensor:
    """The whole tensor as the parameter holds it: itself, or this rank's shard."""
    if isinstance(parameter, DTensor):
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return whole


def model_state(lm: GraphMemoryLM) -> dict[str, Tensor]:
    return {f"{PREFIX}{name}": _host(full(tensor)) for name, tensor in lm.state_dict().items()}


def optimizer_state(optimizer: torch.optim.Optimizer, lm: nn.Module) -> dict[str, Tensor]:
    state = {}
    for name, parameter in lm.named_parameters():
        entry = optimizer.state.get(parameter, {})
        state |= {f"{name}.{key}": _host(full(entry[key])) for key in (*MOMENTS, "step") if key in entry}
    return state


@torch.no_grad()
def load_state(path: Path, lm: GraphMemoryLM, optimizer: torch.optim.Optimizer) -> Progress:
    """Load a checkpoint that `verify` accepts. Everything is compared before the first tensor is copied."""
    weights, moments = load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors")
    if problems := mismatches(weights, moments, lm):
        more = f"; and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
        raise GMTError(f"{path} does not fit this model: {'; '.join(problems[:MOST_NAMED])}{more}")
    for name, tensor in lm.state_dict().items():
        saved = weights[PREFIX + name].to(tensor.device)
        tensor.copy_(like(tensor, saved) if tensor.dim() else saved)
    for name, parameter in lm.named_parameters():
        if f"{name}.step" in moments:
            optimizer.state[parameter] = {"step": moments[f"{name}.step"].to(parameter.device)} | {
                key: like(parameter, moments[f"{name}.{key}"].to(parameter.device)) for key in MOMENTS
            }
    progress = read_progress(path)
    if progress.memory and memory_hash(lm) != progress.memory:
        raise GMTError(f"{path}: the loaded memory differs from the hash in progress.json")
    return progress


def mismatches(weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], lm: GraphMemoryLM) -> list[str]:
    """Every name, shape and type in which a checkpoint differs from a model and its AdamW state."""
    expected = {PREFIX + name: (tensor.dtype, tensor.shape) for name, tensor in lm.state_dict().items()}
    problems = _compare("", weights, expected, set(expected))
    moment_of, required = {}, set()
    for name, parameter in lm.named_parameters():
        names = [f"{name}.{key}" for key in MOMENTS]
        moment_of |= dict.fromkeys(names, (parameter.dtype, parameter.shape))
        moment_of[f"{name}.step"] = (torch.float32, torch.Size())
        if any(key in moments for key in (*names, f"{name}.step")):  # a parameter without gradient has no state
            required |= {*names, f"{name}.step"}
    return problems + _compare("optimizer ", moments, moment_of, required)


def _compare(
    what: str,
    saved: Mapping[str, Tensor],
    expected: Mapping[str, tuple[torch.dtype, torch.Size]],
    required: set[str],
) -> list[str]:
    problems = [f"{what}{name} is missing" for name in sorted(required - saved.keys())]
    for name, tensor in sorted(saved.items()):
        if name not in expected:
            problems.append(f"{what}{name} is unknown")
        elif (tensor.dtype, tensor.shape) != expected[name]:
            dtype, shape = expected[name]
            problems.append(f"{what}{name} is {_form(tensor.dtype, tensor.shape)}, expected {_form(dtype, shape)}")
    return problems


def _form(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _host(tensor: Tensor) -> Tensor:
    """A copy on the host that training cannot change."""
    return tensor.detach().to("cpu", copy=True).contiguous()
