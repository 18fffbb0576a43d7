"""Small seeded data and configurations, and processes that are forked so that torch need not be imported again."""

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from gmt.config import GMTConfig
from gmt.data.manifest import Manifest
from gmt.data.tokenizer import train_tokenizer
from gmt.train.loop import Options, Run
from gmt.utils.io import sha256_of

VOCAB, CONTEXT = 23, 8


def make_data(folder: Path, tokens: int = 2000, seed: int = 0) -> Path:
    """Seeded text with something to learn: mostly each token is followed by one of two others."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"train": tokens, "val": 400}
    for split, count in counts.items():
        ids = [0]
        for _ in range(count - 1):
            free = rng.random() < 0.1
            ids.append(int(rng.integers(VOCAB)) if free else (ids[-1] * 3 + int(rng.integers(2))) % VOCAB)
        np.array(ids, dtype=np.uint16).tofile(folder / f"{split}.bin")
    (folder / "tokenizer.json").write_text(train_tokenizer(257, ["ab"]).to_str())
    Manifest(
        sources=[], options={}, documents={}, tokens=counts, text_bytes={}, caps={}, dtype="uint16",
        tokenizer={"sha256": sha256_of(folder / "tokenizer.json"), "vocab": VOCAB},
        sha256={split: sha256_of(folder / f"{split}.bin") for split in counts},
    ).save(folder)  # fmt: skip
    return folder


def config(*overrides: str) -> GMTConfig:
    tree = {
        "model": {"blocks": 2, "hidden": 8, "heads": 2, "context": CONTEXT, "vocab": VOCAB, "dropout": 0.0},
        "memory": {"slots": 6, "navigation": 4},
        "maintenance": {"every": 5, "dead_below": 0.163},
        "train": {
            "micro_batch": 8, "accumulation": 2, "steps": 20, "learning_rate": 1e-2, "warmup": 0,
            "precision": "fp64", "device": "cpu",
        },
        "validation": {"every": 10, "batches": 3},
    }  # fmt: skip
    return GMTConfig.from_dict(tree, overrides)


def train(cfg: GMTConfig, data: Path, out: Path, tell=lambda *_: None, **options) -> int:
    run = Run(cfg, Options(data, out, **options), tell)
    try:
        return run.go()
    finally:
        run.parallel.close()


def checkpoint(out: Path, step: int) -> dict[str, torch.Tensor]:
    folder = out / "checkpoints" / f"step-{step:08d}"
    return load_file(folder / "model.safetensors") | {
        f"optimizer.{name}": t for name, t in load_file(folder / "optimizer.safetensors").items()
    }


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert different == []


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float = 1e-9) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def fork(work: Callable[[], int | None], environment: dict[str, str] | None = None) -> int:
    """The pid of a child that does the work and ends with what it returns; a traceback is printed and is 99."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    code = 99
    try:
        os.environ.update(environment or {})
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(work: Callable[[], int | None]) -> int:
    return wait(fork(work))


def ranks(world: int, work: Callable[[int], int | None]) -> list[int]:
    """Exit codes of `world` processes that make one group over the loopback."""
    return [wait(pid) for pid in start_ranks(world, work)]


def start_ranks(world: int, work: Callable[[int], int | None]) -> list[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        fork(lambda r=rank: work(r), shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(world)
    ]
