"""The numbers of a step and of a validation, as they are recorded."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from gmt.config import GMTConfig
from gmt.data.batches import TrainBatches, ValidationBatches
from gmt.evaluate.shares import residual_shares
from gmt.memory import losses
from gmt.memory.diagnostics import USAGE_NAMES
from gmt.model.flops import training_flops
from gmt.model.language_model import GraphMemoryLM
from gmt.model.objective import objective
from gmt.train.parallel import Parallel
from gmt.train.schedule import Schedule
from gmt.train.step import NUMBERS, StepRecord


def step_values(
    record: StepRecord, cfg: GMTConfig, schedule: Schedule, tokens_per_second: float, world: int
) -> tuple[dict[str, Any], bool]:
    """The metrics of a step, and whether a rank received a signal. Waits for the step to finish."""
    numbers = dict(zip(NUMBERS, record.numbers.mean(0).tolist(), strict=True))
    terms = {name: numbers[name] for name in losses.TERMS} if cfg.model.sublayer == "memory" else {}
    values: dict[str, Any] = {"task": numbers["task"], **terms}
    values["loss"] = objective(numbers["task"], terms, cfg.losses, schedule.aux_weight(record.step))
    values |= {"grad_norm": float(record.norm), "learning_rate": record.learning_rate, "tau": record.tau}
    if record.usage is not None:
        values |= dict(zip(USAGE_NAMES, record.usage.tolist(), strict=True))
        values |= {"dead": int(record.dead), "resets": record.resets, "merges": record.merges}
    values["tokens_per_second"] = tokens_per_second
    values["tflops"] = tokens_per_second * training_flops(cfg) / 1e12 / world
    return values, numbers["stop"] > 0


def not_finite(record: StepRecord, batches: TrainBatches) -> str:
    """Which number of a step is not finite, and on which windows."""
    bad = {name.removeprefix("bad_") for name in NUMBERS if name.startswith("bad_")}
    rows = record.numbers.tolist()
    found = [
        (micro, term) for micro, row in enumerate(rows) for term in sorted(bad) if row[NUMBERS.index(f"bad_{term}")] > 0
    ]
    terms = sorted({term for _, term in found}) or ["the gradient"]
    micros = sorted({micro for micro, _ in found}) or range(len(rows))
    windows = [w for micro in micros for w in batches.whole(record.step, micro).tolist()]
    return (
        f"step {record.step + 1}: {', '.join(terms)} is not finite, on windows {windows} of the training stream; "
        f"it reached neither weights nor memory, and no checkpoint was written over"
    )


def sublayer_shares(
    lm: GraphMemoryLM, validation: ValidationBatches, parallel: Parallel, autocast: AbstractContextManager[Any]
) -> dict[str, list[float]]:
    """How much each sublayer adds to the residual stream, on the first validation batch of all ranks."""
    ids = torch.from_numpy(validation.at(0).ids).to(parallel.device)
    rows = len(ids)
    if not rows:  # a rank without rows takes part with weight 0
        ids = ids.new_zeros(1, lm.cfg.model.context)
    with autocast:
        found = residual_shares(lm, ids)
    total = parallel.share(None, torch.stack([torch.ones_like(found[0]), *found]) * rows)[1]
    attention, second = (total[1:] / total[0]).tolist()
    return {"attention_share": attention, "second_share": second if lm.cfg.model.sublayer != "none" else []}
