"""`gmt doctor`: what this machine offers, which fast paths are on, and why the others are not."""

import importlib.util
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "typer")
OPTIONAL = {
    "accelerate": "trainer",
    "lm_eval": "eval",
    "matplotlib": "plots",
    "textblob": "report",
    "tiktoken": "data",
}  # package -> extra that installs it


class Finding(NamedTuple):
    name: str
    on: bool
    why: str


def versions() -> list[tuple[str, str]]:
    rows = [("python", platform.python_version()), ("gmt", installed("graph-memory-transformer") or "not installed")]
    rows += [(name, installed(name) or "missing") for name in PACKAGES]
    for name, extra in OPTIONAL.items():
        rows.append((name, installed(name) or f"missing: pip install 'graph-memory-transformer[{extra}]'"))
    return rows


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def devices() -> list[Finding]:
    import torch

    threads = f"{torch.get_num_threads()} threads"
    cuda = torch.cuda.is_available()
    mps = torch.backends.mps.is_available()
    no_cuda = "this torch is built without CUDA" if torch.version.cuda is None else "no CUDA device answers"
    no_mps = "this torch is built without MPS" if not torch.backends.mps.is_built() else "no MPS device answers"
    return [
        Finding("cuda", cuda, torch.cuda.get_device_name() if cuda else no_cuda),
        Finding("mps", mps, "Apple GPU" if mps else no_mps),
        Finding("cpu", True, threads),
    ]


def _kernels(device: Any) -> Finding:
    from gmt.kernels.available import MOST_HIDDEN, MOST_SLOTS, MOST_WIDE_SLOTS, machine_lacks

    lacks = machine_lacks(device)
    slots = f"{MOST_SLOTS} slots ({MOST_WIDE_SLOTS} in float32)"
    limits = f"up to {slots} and a hidden size of {MOST_HIDDEN}; plain PyTorch elsewhere"
    return Finding(
        "fused memory kernels", lacks is None, limits if lacks is None else f"{lacks}; plain PyTorch is used"
    )


def _attention(device: Any) -> Finding:
    from gmt.kernels.attention import HEAD_SIZES
    from gmt.kernels.available import machine_lacks

    lacks = machine_lacks(device)
    sizes = ", ".join(map(str, HEAD_SIZES[:-1])) + f" or {HEAD_SIZES[-1]}"
    limits = f"for training in half precision with dropout, heads of {sizes}; torch's elsewhere (model.attention)"
    return Finding("own attention kernel", lacks is None, limits if lacks is None else f"{lacks}; torch's is used")


def fast_paths() -> list[Finding]:
    import torch

    cuda = torch.cuda.is_available()
    compiler = shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    triton = importlib.util.find_spec("triton") is not None
    if cuda:
        can_compile, reason = triton, "Triton is installed" if triton else "Triton is missing"
    else:
        can_compile, reason = compiler is not None, f"C compiler {compiler}" if compiler else "no C compiler found"
    flash = cuda and torch.backends.cuda.flash_sdp_enabled()
    bf16 = cuda and torch.cuda.is_bf16_supported()
    return [
        Finding("torch.compile", can_compile, reason),
        Finding(
            "flash attention",
            flash,
            "through scaled_dot_product_attention"
            if flash
            else "switched off in torch"
            if cuda
            else "needs a CUDA device",
        ),
        _attention(torch.device("cuda" if cuda else "cpu")),
        Finding("bfloat16", bf16, "supported by the GPU" if bf16 else "runs on a CPU too, but no faster than float32"),
        _kernels(torch.device("cuda" if cuda else "cpu")),
        Finding(
            "CUDA graphs",
            cuda,
            "for training on one device with train.compile and train.graphs" if cuda else "needs a CUDA device",
        ),
    ]
