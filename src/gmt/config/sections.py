"""The sections of a configuration: every setting, its default (the paper's), its meaning and its range."""

import math
from dataclasses import dataclass, field
from typing import Any

# temperatures between which 1 / (τ d) is a finite float32 at any distance floor
TAU_LEAST, TAU_MOST = 1e-6, 1000.0
MOST_WEIGHT = 1e6
SPREAD = 0.02  # standard deviation of linear and embedding weights at the start
MANY = 1 << 40


def setting(
    default: Any,
    help: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that knows its allowed range (`above` is a bound that is itself excluded)."""
    meta = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class ModelConfig:
    """The shape of the language model."""

    sublayer: str = setting("memory", "second sublayer of a block", choices=("memory", "dense", "none"))
    blocks: int = setting(16, "number of blocks, L", low=1, high=1024)
    hidden: int = setting(768, "hidden size, H", low=2, high=65536)
    heads: int = setting(12, "attention heads; divides `hidden`", low=1, high=1024)
    context: int = setting(1024, "longest sequence, T", low=1, high=1 << 20)
    vocab: int = setting(50257, "vocabulary size, V", low=2, high=1 << 24)
    dense_width: int = setting(1050, "inner width of a dense sublayer", low=1, high=1 << 20)
    residual_init: str = setting(
        "plain",
        "spread of what projects into the residual stream at the start: 0.02, or scaled by 1 / sqrt(2 L)",
        choices=("plain", "scaled"),
    )
    dropout: float = setting(0.1, "on the summed embeddings and inside attention", low=0.0, high=0.99)
    attention: str = setting(
        "auto",
        "attention with dropout: our own kernel where it can run, or torch's everywhere; other weights are dropped",
        choices=("auto", "torch"),
    )


@dataclass(frozen=True)
class MemoryConfig:
    """One block's memory cell."""

    slots: int = setting(128, "centroids per block, F", low=2, high=65536)
    navigation: int = setting(128, "size of the query-key space, D", low=1, high=65536)
    distance_floor: float = setting(0.01, "smallest routing distance, ε_grav", low=1e-6, high=1.0)
    assignment: str = setting("hard", "how a token is assigned to slots in a write", choices=("hard",))
    kernels: str = setting(
        "auto",
        "fused kernels where they can run, or plain PyTorch; both compute the same",
        choices=("auto", "fused", "plain"),
    )
    init: str = setting(
        "sphere",
        "centroids at the start: random on the unit sphere, or k-means of the untrained model's block outputs",
        choices=("sphere", "k-means"),
    )
    edges: str = setting(
        "learned", "edge logits: learned, or held as drawn, or all alike", choices=("learned", "frozen", "uniform")
    )
    train_centroids: bool = setting(True, "whether gradients move centroids; if not, write-back alone does")
    write_back: bool = setting(True, "whether a commit moves centroids; usage and age are kept either way")
    usage_decay: float = setting(0.99, "smoothing of the usage statistic, ρ", low=0.0, high=1.0)
    gate_init: float = setting(1.0, "gate parameter g at the start", low=-50, high=50)
    navigation_init: float = setting(SPREAD, "spread of W_Q and W_K at the start", low=0.0, high=10.0)
    momentum_init: float = setting(4.6, "write-back momentum parameter u at the start", low=-50, high=50)


@dataclass(frozen=True)
class TemperatureConfig:
    """The routing temperature falls from `max` to `min` over the planned steps; the same for both keeps it."""

    schedule: str = setting("log", "how it falls: the paper's way, or in a straight line", choices=("log", "linear"))
    max: float = setting(1.0, "τ at the first step", low=TAU_LEAST, high=TAU_MOST)
    min: float = setting(0.1, "τ at the last step", low=TAU_LEAST, high=TAU_MOST)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the auxiliary terms, when they begin to weigh, and the two thresholds inside them."""

    track: float = setting(1.0, "λ_track", low=0.0, high=MOST_WEIGHT)
    track_form: str = setting(
        "track",
        "the source predicts what is written, or the commitment the authors gave up: the state is drawn to the source",
        choices=("track", "commit"),
    )
    ortho: float = setting(0.05, "β_ortho", low=0.0, high=MOST_WEIGHT)
    cluster: float = setting(0.3, "λ_cluster", low=0.0, high=MOST_WEIGHT)
    edge: float = setting(0.1, "λ_edge", low=0.0, high=MOST_WEIGHT)
    contrast: float = setting(0.5, "λ_contrast", low=0.0, high=MOST_WEIGHT)
    begin: float = setting(0.0, "share of the planned steps before which the terms weigh nothing", low=0.0, high=1.0)
    full: float = setting(0.0, "share of the planned steps at which they have their whole weight", low=0.0, high=1.0)
    cluster_target: float | None = setting(None, "N_target; by default F/4", above=0.0)
    edge_floor: float | None = setting(
        None, "H_target; by default 4.0 at F 128, else 0.8257 ln(F-1)", low=0.0, high=100.0
    )


@dataclass(frozen=True)
class MaintenanceConfig:
    """Reset of dead slots and merging of near-duplicates."""

    every: int = setting(110, "optimizer steps between two maintenance events; 0 for never", low=0, high=MANY)
    reset: bool = setting(True, "whether dead slots are reset")
    merge: bool = setting(True, "whether near-duplicates are merged")
    dead_below: float | None = setting(None, "usage under which a slot is dead; by default 0.128/F", low=0.0, high=1.0)
    merge_cosine: float = setting(0.95, "cosine over which two slots are near-duplicates", low=-1.0, high=1.0)
    # at least 1: a slot replaced in this very event has age 0 and must not be taken for a mature one
    merge_age: int = setting(100, "age from which a slot may be merged", low=1, high=MANY)


@dataclass(frozen=True)
class TrainConfig:
    """One run of training. Batch sizes are global: ranks share them."""

    seed: int = setting(0, "of weights, data order, dropout and maintenance", low=0, high=2**63 - 1)
    micro_batch: int = setting(8, "windows a forward pass, over all ranks", low=1, high=1 << 20)
    accumulation: int = setting(33, "micro-batches an optimizer step", low=1, high=1 << 20)
    epochs: int = setting(2, "passes over the training stream", low=1, high=1 << 20)
    steps: int | None = setting(
        None, "planned steps S; by default epochs times the full steps of one", low=1, high=MANY
    )
    learning_rate: float = setting(3e-4, "at the end of the warm-up", low=0.0, high=10.0)
    centroid_rate: float = setting(1.0, "learning rate of centroids, as a multiple of the others'", low=0.0, high=100.0)
    warmup: int | None = setting(
        None, "steps of warm-up; by default 2000, or S/10 in a run of fewer than 20,000 steps", low=0, high=MANY
    )
    beta1: float = setting(0.9, "AdamW", low=0.0, high=0.9999)
    beta2: float = setting(0.95, "AdamW", low=0.0, high=0.99999)
    weight_decay: float = setting(0.1, "on every parameter", low=0.0, high=10.0)
    clip: float = setting(1.0, "largest norm of the gradient", above=0.0, high=1e6)
    precision: str = setting("bf16", "autocast to bf16 over float32 weights, or none", choices=("bf16", "fp32", "fp64"))
    device: str = setting("auto", "auto takes cuda, then mps, then cpu", choices=("auto", "cuda", "mps", "cpu"))
    compile: bool = setting(False, "torch.compile the forward pass")
    graphs: bool = setting(False, "with train.compile on a single CUDA device: replay micro-batches as a CUDA graph")
    deterministic: bool = setting(
        True,
        "with train.compile: kernels by rule, not by timing them, so that runs repeat bit for bit; false may be faster",
    )
    recompute: bool = setting(False, "activation checkpointing: less memory, more time")
    parallel: str = setting("ddp", "how several ranks share the model", choices=("ddp", "fsdp2"))


@dataclass(frozen=True)
class ValidationConfig:
    """How often, how much, and what memory does meanwhile."""

    per_epoch: int = setting(20, "validations an epoch; 0 for none", low=0, high=1 << 20)
    every: int | None = setting(None, "steps between validations, in place of per_epoch", low=1, high=MANY)
    batch: int = setting(8, "windows a batch", low=1, high=1 << 20)
    batches: int = setting(512, "most batches of one validation", low=1, high=MANY)
    mode: str = setting(
        "frozen",
        "frozen: no writes. adaptive: writes, then memory is restored. adaptive-carry: writes that stay",
        choices=("frozen", "adaptive", "adaptive-carry"),
    )


@dataclass(frozen=True)
class SaveConfig:
    """Checkpoints and records."""

    every: int | None = setting(None, "steps between checkpoints; by default one at each validation", low=1, high=MANY)
    best: bool = setting(True, "also save whenever a validation loss is the lowest so far")
    keep: int = setting(2, "how many of the newest to keep, besides the best", low=1, high=1 << 20)
    tensorboard: bool = setting(False, "write TensorBoard events too (extra `log`)")
    wandb: str = setting("", "Weights & Biases project to log to; empty for none (extra `log`)")
