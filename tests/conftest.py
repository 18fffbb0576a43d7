"""Shared fixtures. The environment is set before torch's first operation."""

import os

# without it, bfloat16 matrix products die inside oneDNN on some CPUs
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# read when Triton is first imported; lets the fused kernels run on a CPU for those tests that ask for them
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from gmt import GMTConfig, GraphMemoryLM

torch.set_num_threads(1)  # the tests run side by side, one process per core

SMALL = {
    "model": {"blocks": 2, "hidden": 8, "heads": 2, "context": 16, "vocab": 11, "dropout": 0.0, "dense_width": 5},
    "memory": {"slots": 5, "navigation": 3},
}


def small_config(*overrides: str) -> GMTConfig:
    return GMTConfig.from_dict(SMALL, overrides)


def small_model(*overrides: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> GraphMemoryLM:
    """A model small enough for loops, with every tensor away from its starting value."""
    torch.manual_seed(seed)
    lm = GraphMemoryLM(small_config(*overrides)).to(dtype)
    with torch.no_grad():
        for p in lm.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return lm


def batch_of(lm: GraphMemoryLM, rows: int = 2, length: int = 6, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(lm.cfg.model.vocab, (rows, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def snapshot(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_same(module: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    """Every tensor of the module is bit-identical to the snapshot."""
    after = module.state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), f"{name} has changed"


@pytest.fixture
def lm() -> GraphMemoryLM:
    return small_model()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest test first, so that it runs beside all the others."""
    items.sort(key=lambda item: "test_wheel" not in item.nodeid)
