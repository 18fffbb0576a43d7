"""How the runs of a study were made, from their own records: what a reader needs to make them again."""

from collections.abc import Sequence
from pathlib import Path

from gmt.config.compare import differences
from gmt.study.file import Study, tokens_per_step
from gmt.study.plan import read_record, wanted_runs
from gmt.study.result import Result


def method(study: Study, file: Path, out: Path, results: Sequence[Result]) -> list[str]:
    """Lines of text: budget, data, machine, and what sets each arm apart from the reference."""
    reference = study.arms[study.reference]
    per_step, shape, checked = tokens_per_step(reference), reference.model, reference.validation
    steps = study.tokens // per_step
    said = [
        f"`gmt study {file.name} --data DATA --out OUT`, then `gmt study report {file.name} --out OUT`.",
        f"Each run reads {steps * per_step:,} tokens in {steps:,} steps of {per_step:,}, windows of {shape.context:,}; "
        f"seeds {', '.join(map(str, study.seeds))}. Arms with one seed read the same windows in the same order.",
        f"The reference has {shape.blocks} blocks of width {shape.hidden} and a vocabulary of {shape.vocab:,}. "
        "Validation is on the same first "
        f"{checked.batch * checked.batches:,} windows for every run, memory {checked.mode}: intervals are over seeds, "
        "not over texts.",
    ]
    records = [read_record(run.folder(out)) for run in wanted_runs(study, results)]
    ended = [record for record in records if record.get("finished")]
    machines = sorted({f"{record.get('device', 'a device not recorded')}{_versions(record)}" for record in ended})
    dates = sorted(record["finished"][:10] for record in ended)
    data = sorted({record["data"][:16] for record in ended})
    if ended:
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        said.append(f"Run on {'; '.join(machines)}; {when}; data with the hash {', '.join(data)}.")
    for arm, cfg in study.arms.items():
        if arm != study.reference:
            apart = [line.replace(" -> ", " to ") for line in differences(reference.to_dict(), cfg)]
            said.append(f"{arm} differs from {study.reference} in {'; '.join(apart) or 'nothing that is computed'}.")
    return said


def _versions(record: dict[str, dict[str, str]]) -> str:
    return "".join(f", {name} {version}" for name, version in record.get("versions", {}).items())
