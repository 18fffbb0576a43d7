"""What one finished run says, read from its record: nothing here needs a checkpoint."""

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gmt.train.metrics import read_metrics

# numbers of the last validation and of the last steps that a report shows, and what they are called there
DIAGNOSTICS = {
    "n_eff_mean": "N_eff",
    "dead_slots": "dead slots, all blocks",
    "centroid_cosine": "centroid cosine",
    "edge_entropy": "edge entropy",
    "gate_mean": "gate",
    "momentum_mean": "momentum",
}


@dataclass(frozen=True)
class Result:
    """One arm at one learning rate with one seed, trained to the end of its budget."""

    arm: str
    rate: float
    seed: int
    loss: float  # validation, at the end
    validation: tuple[tuple[int, float], ...]  # tokens seen, validation loss
    training: tuple[tuple[int, float], ...]  # tokens seen, training loss of that step
    parameters: int
    flops: float  # a token, forward and backward
    tokens_per_second: float  # median over the run
    diagnostics: dict[str, float] = field(default_factory=dict)  # keys of DIAGNOSTICS; empty without memory
    attention_share: tuple[float, ...] = ()  # |what attention adds| / |residual stream before it|, by block
    second_share: tuple[float, ...] = ()  # the same of the second sublayer; empty where there is none
    alone: bool = True  # on its device; side by side tokens a second say how it was shared


def read_result(
    run: Path,
    *,
    arm: str,
    rate: float,
    seed: int,
    steps: int,
    per_step: int,
    parameters: int,
    flops: float,
    alone: bool = True,
    loss: float | None = None,
) -> Result | None:
    """The result of a run of `steps` steps, or None where it has not come to its end. A `loss` that is given is that
    of a run that ended early, at a number that is not finite."""
    lines = read_metrics(run / "metrics.jsonl")
    validations: list[dict[str, Any]] = [line for line in lines if "val_loss" in line]
    if loss is None and (not validations or validations[-1]["step"] != steps):
        return None
    last: dict[str, Any] = validations[-1] if validations else {}
    trained = [line for line in lines if "task" in line]
    # N_eff of one batch wanders: the mean of the last tenth says more
    tail = trained[-max(1, len(trained) // 10) :]
    n_eff = [line["n_eff_mean"] for line in tail if "n_eff_mean" in line]
    found = {name: last[name] for name in DIAGNOSTICS if name in last}
    return Result(
        arm=arm,
        rate=rate,
        seed=seed,
        loss=last["val_loss"] if loss is None else loss,
        validation=tuple((line["step"] * per_step, line["val_loss"]) for line in validations),
        training=tuple((line["step"] * per_step, line["task"]) for line in trained),
        parameters=parameters,
        flops=flops,
        tokens_per_second=statistics.median(line["tokens_per_second"] for line in trained) if trained else 0.0,
        diagnostics=({"n_eff_mean": statistics.fmean(n_eff)} if n_eff else {}) | found,
        attention_share=tuple(last.get("attention_share", ())),
        second_share=tuple(last.get("second_share", ())),
        alone=alone,
    )
