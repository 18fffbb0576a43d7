"""The authors' published checkpoint (`best.pt`) to a model directory, and back.

Only the `model` entry is converted: optimizer and scheduler belong to a training run. The file is opened with
weights_only=True, so a pickle that carries code is refused, never run.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from gmt.checkpoint.format import MANIFEST
from gmt.checkpoint.store import FOLDER, read_complete
from gmt.config import TAU_LEAST, TAU_MOST, GMTConfig
from gmt.errors import ConversionError
from gmt.hf.load import find_model
from gmt.hf.modeling import GMTForCausalLM
from gmt.model.language_model import GraphMemoryLM
from gmt.utils.outputs import OutputFolder

# theirs -> ours, without the block's number
OUTER = {
    "embed.weight": "token_embedding.weight",
    "pos_embed.weight": "position_embedding.weight",
    "norm_final.weight": "norm_final.weight",
    "norm_final.bias": "norm_final.bias",
    "temp": "tau",
}
ATTENTION = {
    "ln1.weight": "norm1.weight",
    "ln1.bias": "norm1.bias",
    "ln2.weight": "norm2.weight",
    "ln2.bias": "norm2.bias",
    "attn.qkv.weight": "attention.qkv.weight",
    "attn.out_proj.weight": "attention.output.weight",
}
MEMORY = {
    "cell.C": "memory.centroids",
    "cell.E": "memory.edges",
    "cell.gate": "memory.gate",
    "cell.write_momentum": "memory.momentum",
    "cell.usage": "memory.usage",
    "cell.centroid_age": "memory.age",
    "cell.Q_proj.weight": "memory.query.weight",
    "cell.K_proj.weight": "memory.key.weight",
    "cell.norm_C.weight": "memory.norm_centroids.weight",
    "cell.norm_C.bias": "memory.norm_centroids.bias",
    "cell.norm_disp.weight": "memory.norm_displacement.weight",
    "cell.norm_disp.bias": "memory.norm_displacement.bias",
}
DENSE = {"mlp.fc1.weight": "dense.up.weight", "mlp.fc2.weight": "dense.down.weight"}
HEAD, DIAGONAL = "lm_head.weight", "cell.diag_mask"  # both can be made from the rest
PROGRESS = ("step", "loss", "epoch", "batch_idx")


def convert(source: Path, target: Path, heads: int | None = None, force: bool = False) -> Path:
    """Convert a .pt file to a model directory, or a model directory to a .pt file.

    With `force`, the files of a model directory are added to a folder that contains others. Those are never replaced.
    """
    occupied = target.is_dir() and any(target.iterdir())
    a_file = os.path.lexists(target) and not target.is_dir()
    if a_file or (occupied and not (force and source.is_file())):
        hint = ", or --force to add the model's files to it" if occupied and source.is_file() else ""
        raise ConversionError(f"{target} is already there: use another name{hint}")
    if not source.exists():
        raise ConversionError(f"there is no {source}")
    published = None if source.is_file() else read_complete(source, lambda: _model_folder(source), to_published)
    model = from_published(source, heads) if source.is_file() else None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # a new folder under a name that nothing else has, on the disk of the target so that a rename is enough
        place = target if occupied else target.parent
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", suffix=".partial", dir=place, ignore_cleanup_errors=True
        ) as own:
            written = Path(own) / "model"
            if model is not None:
                model.save_pretrained(written)
            else:
                torch.save(published, written)
            if occupied:
                _add(written, target)
            else:
                _publish(written, target)
    except OSError as error:
        raise ConversionError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def _model_folder(source: Path) -> Path:
    """A run means its best checkpoint, as in the other commands; a damaged checkpoint is refused."""
    if (source / FOLDER).is_dir() or (source / MANIFEST).is_file():
        return find_model(str(source))
    return source


def _publish(written: Path, target: Path) -> None:
    """Rename, so that the target is complete when it appears. A model directory gets a list of its files."""
    if written.is_dir():
        output = OutputFolder(written, "convert", force=True, earlier=lambda name: True)
        output.reserve(*(path.name for path in written.iterdir()))
        output.finish()
    if target.is_dir():
        target.rmdir()
    written.replace(target)


def _add(written: Path, target: Path) -> None:
    """Move the files into a folder that contains others."""
    output = OutputFolder(target, "convert", force=True)
    names = [path.name for path in written.iterdir()]
    output.reserve(*names)
    for name in names:
        (written / name).replace(target / name)
    output.finish()


def from_published(path: Path, heads: int | None = None) -> GMTForCausalLM:
    checkpoint = _load(path)
    theirs: dict[str, Tensor] = checkpoint["model"]
    cfg = _infer_config(path, theirs, heads)
    names = _names(cfg)
    _check(path, theirs, cfg, names)
    with torch.device("meta"):
        lm = GraphMemoryLM(cfg)
    ours = lm.state_dict()
    state = {
        our: theirs[their].to(ours[our].dtype).reshape(ours[our].shape).clone()
        for their, our in names.items()
        if their in theirs
    }
    if "tau" not in state:  # a dense model has no use for a temperature, but keeps the setting's place
        state["tau"] = torch.tensor(cfg.temperature.min)
    lm.load_state_dict(state, assign=True)
    progress = {key: _plain(checkpoint[key]) for key in PROGRESS if key in checkpoint}
    layout = {
        their: [str(t.dtype).removeprefix("torch."), list(t.shape)]
        for their, t in theirs.items()
        if _differs(their, t, names, ours)
    }
    masks = [t for their, t in theirs.items() if their.endswith(DIAGONAL)]
    facts = {"name": path.stem, "converted from": path.name, **progress}
    if masks:
        facts["diag_mask"] = [str(masks[0].dtype).removeprefix("torch."), float(masks[0][0, 0])]
    if layout:
        facts["published layout"] = layout
    return GMTForCausalLM.from_lm(lm.eval(), facts=facts)


def to_published(folder: Path) -> dict[str, Any]:
    """The dictionary that the authors' code saves, with its `model` entry and what is known of its progress."""
    model = _load_directory(folder)
    facts = model.config.facts or {}
    layout = facts.get("published layout", {})
    ours = model.model.state_dict()
    state: dict[str, Tensor] = {}
    for their, our in _names(model.model.cfg).items():
        tensor = ours[our]
        if their in layout:
            dtype, shape = layout[their]
            tensor = tensor.to(getattr(torch, dtype)).reshape(shape)
        state[their] = tensor.contiguous().clone()
    state[HEAD] = state["embed.weight"]
    dtype, value = facts.get("diag_mask", ["bool", 1.0])
    for index, _ in enumerate(model.model.cells):
        diagonal = torch.eye(model.model.cfg.memory.slots, dtype=torch.bool)
        mask = diagonal if dtype == "bool" else torch.zeros(diagonal.shape, dtype=getattr(torch, dtype))
        state[f"blocks.{index}.{DIAGONAL}"] = mask if dtype == "bool" else mask.masked_fill(diagonal, value)
    return {"model": state, **{key: facts[key] for key in PROGRESS if key in facts}}


def _load_directory(folder: Path) -> GMTForCausalLM:
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConversionError(f"{folder} is not a model directory: it has no config.json that names a model") from None
    if kind != "gmt":
        raise ConversionError(f"{folder} holds a {kind} model, not a graph memory model")
    try:
        loaded: Any = GMTForCausalLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
        model, told = loaded
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConversionError(f"{folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    if wrong := [str(name) for names in told.values() for name in names]:  # never made up, never left out
        raise ConversionError(f"{folder}: its weights are not those of its config: {_some(sorted(wrong))}")
    if model.config.sublayer == "none":
        raise ConversionError(f"{folder} has no second sublayer; the authors' format has no place for that")
    return model


def _numpy_scalars() -> list[Any]:
    """Plain numbers as numpy pickles them: a training loop often leaves one in `loss`."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(name)) for name in ("float64", "float32", "int64", "int32")]
    return [scalar, (scalar, "numpy.core.multiarray.scalar"), np.dtype, *kinds]


def _load(path: Path) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(_numpy_scalars()):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch raises many kinds here; each means that this is not such a file
        if "unsupported global" in str(error).lower():
            raise ConversionError(f"{path} carries code besides tensors and was not opened") from None
        raise ConversionError(f"{path} is not a torch checkpoint, or is cut short") from None
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("model"), Mapping):
        raise ConversionError(f"{path} is no published checkpoint: it has no dictionary `model`")
    wrong = [k for k, v in checkpoint["model"].items() if not (isinstance(k, str) and isinstance(v, Tensor))]
    if wrong:
        raise ConversionError(f"{path}: model entry {wrong[0]!r} is not a tensor")
    return checkpoint


def _infer_config(path: Path, theirs: dict[str, Tensor], heads: int | None) -> GMTConfig:
    """All sizes stand in the shapes, but for the heads: those of the paper are 64 wide."""

    def shape(name: str) -> tuple[int, int]:
        if name not in theirs:
            raise ConversionError(f"{path} lacks {name}")
        if theirs[name].dim() != 2:
            raise ConversionError(f"{path}: {name} has shape {list(theirs[name].shape)}, not two dimensions")
        return theirs[name].shape[0], theirs[name].shape[1]

    numbers = {int(m[1]) for name in theirs if (m := re.match(r"blocks\.(\d+)\.", name))}
    (vocab, hidden), (context, _) = shape("embed.weight"), shape("pos_embed.weight")
    if heads is None and hidden % 64:
        raise ConversionError(f"{path}: a hidden size of {hidden} is not a multiple of 64; say --heads")
    model: dict[str, Any] = {
        "blocks": max(numbers, default=0) + 1,
        "hidden": hidden,
        "heads": heads or hidden // 64,
        "context": context,
        "vocab": vocab,
    }
    tree: dict[str, Any] = {"model": model}
    if "blocks.0.cell.C" in theirs:
        tree["memory"] = {"slots": shape("blocks.0.cell.C")[0], "navigation": shape("blocks.0.cell.Q_proj.weight")[0]}
    elif "blocks.0.mlp.fc1.weight" in theirs:
        model |= {"sublayer": "dense", "dense_width": shape("blocks.0.mlp.fc1.weight")[0]}
    else:
        raise ConversionError(f"{path} lacks blocks.0.cell.C, and blocks.0.mlp.fc1.weight too")
    return GMTConfig.from_dict(tree)


def _names(cfg: GMTConfig) -> dict[str, str]:
    inner = ATTENTION | (MEMORY if cfg.model.sublayer == "memory" else DENSE)
    blocks = {
        f"blocks.{i}.{their}": f"blocks.{i}.{our}" for i in range(cfg.model.blocks) for their, our in inner.items()
    }
    return OUTER | blocks


def _check(path: Path, theirs: dict[str, Tensor], cfg: GMTConfig, names: dict[str, str]) -> None:
    with torch.device("meta"):
        ours = GraphMemoryLM(cfg).state_dict()
    optional = {"temp"} if cfg.model.sublayer == "dense" else set()
    missing = [their for their in names if their not in theirs and their not in optional]
    made = {HEAD} | {f"blocks.{i}.{DIAGONAL}" for i in range(cfg.model.blocks)}
    unknown = [their for their in theirs if their not in names and their not in made]
    if missing:
        raise ConversionError(f"{path} lacks {_some(missing)}")
    if unknown:
        raise ConversionError(f"{path} has entries that no published model has: {_some(unknown)}")
    for their, our in names.items():
        if their not in theirs:
            continue
        found, wanted = theirs[their], ours[our]
        scalar = wanted.dim() == 0 and found.numel() == 1
        if found.shape != wanted.shape and not scalar:
            raise ConversionError(f"{path}: {their} has shape {list(found.shape)}, not {list(wanted.shape)}")
    if HEAD in theirs and not torch.equal(theirs[HEAD], theirs["embed.weight"]):
        raise ConversionError(f"{path}: lm_head.weight is not the token embedding; such a model has no place here")
    if "temp" in theirs and not TAU_LEAST <= float(theirs["temp"]) <= TAU_MOST:
        raise ConversionError(f"{path}: temp is {float(theirs['temp']):g}, which is no routing temperature")
    for their, mask in theirs.items():
        if their.endswith(DIAGONAL) and not _masks_diagonal(mask, cfg.memory.slots):
            raise ConversionError(f"{path}: {their} masks something other than the diagonal")


def _masks_diagonal(mask: Tensor, slots: int) -> bool:
    if mask.shape != (slots, slots):
        return False
    diagonal = torch.eye(slots, dtype=torch.bool)
    if mask.dtype == torch.bool:
        return torch.equal(mask, diagonal)
    on, off = mask[diagonal], mask[~diagonal]
    # as large a negative number as any code uses for minus infinity: its softmax is exactly zero
    return bool((off == 0).all() and (on <= -1e4).all() and (on == on[0]).all())


def _differs(their: str, tensor: Tensor, names: dict[str, str], ours: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is stored in another type or shape than ours, so that the way back needs to know."""
    if their not in names:
        return False
    return tensor.dtype != ours[names[their]].dtype or tensor.shape != ours[names[their]].shape


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic | Tensor) and np.size(value) == 1 else value


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
