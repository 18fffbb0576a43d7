"""`gmt study` and `gmt study report`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from gmt.cli.app import Force, app, names
from gmt.errors import GMTError

if TYPE_CHECKING:
    from gmt.study.file import Study


class RunsByDefault(TyperGroup):
    """`gmt study FILE` is `gmt study run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


study_app = typer.Typer(
    cls=RunsByDefault, no_args_is_help=True, help="Runs over arms, rates and seeds: gmt study FILE, gmt study report."
)
app.add_typer(study_app, name="study")

File = Annotated[Path, typer.Argument(help="The study: a YAML file such as those in configs/studies.")]


@study_app.command()
def run(
    file: File,
    data: Annotated[Path | None, typer.Option(help="A folder that `gmt prepare` wrote.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where runs go; studies with the same folder share equal runs.")
    ] = None,
    side_by_side: Annotated[int, typer.Option(help="Runs at a time on each device.", min=1)] = 1,
    gpus: Annotated[str | None, typer.Option(help="GPUs to use, e.g. 0,1; by default all that can be seen.")] = None,
    keep_checkpoints: Annotated[
        bool, typer.Option(help="Keep the checkpoints of finished runs; their records stay in any case.")
    ] = True,
    only: Annotated[list[str] | None, typer.Option(help="Run this arm alone; may be given several times.")] = None,
    plan: Annotated[bool, typer.Option(help="Print runs, tokens and the time wanted, and do nothing.")] = False,
    force: Force = False,
) -> None:
    """Run what is missing of a study: finished runs are skipped, interrupted ones resumed."""
    from gmt.study.file import load_study
    from gmt.study.run import RunOptions, pick_devices, run_study
    from gmt.terminal import StudyView
    from gmt.train.loop import PREEMPTED

    study, devices = load_study(file), pick_devices(names(gpus))
    if plan:
        print_study(study, out, len(devices))
        return
    if data is None or out is None:
        raise GMTError("a study needs --data, a folder that `gmt prepare` wrote, and --out, a folder for its runs")
    options = RunOptions(data, out, side_by_side, devices, keep_checkpoints, tuple(only or ()), force)
    with StudyView() as view:
        outcome = run_study(study, options, view.tell)
    if outcome.stopped is not None:
        typer.echo(f"interrupted: {outcome.saved} runs saved; the same command goes on from there", err=True)
        raise typer.Exit(130 if outcome.stopped == signal.SIGINT else PREEMPTED)
    if outcome.failed:
        told = "".join(f"\n  {name}: {why}" for name, why in outcome.failed.items())
        raise GMTError(f"{len(outcome.failed)} runs failed; the same command tries them again:{told}")
    typer.echo(f"all runs are finished; next: gmt study report {file} --out {out}")


@study_app.command()
def report(
    file: File,
    out: Annotated[Path, typer.Option(help="The folder the study ran in.")],
    to: Annotated[Path | None, typer.Option(help="Where the report goes; by default OUT/reports/NAME.")] = None,
    force: Force = False,
) -> None:
    """Tables, figures and plain sentences from the finished runs: report.md, CSV and SVG."""
    from gmt.study.file import load_study
    from gmt.study.method import method
    from gmt.study.plan import gather
    from gmt.study.report import write_report

    study = load_study(file)
    results, missing = gather(study, out)
    if not results:
        raise GMTError(f"{out} holds no finished run of {file}: run `gmt study {file} --data DATA --out {out}` first")
    page = write_report(
        study.name,
        study.question,
        results,
        study.reference,
        to or out / "reports" / study.name,
        planned=len(study.arms) - 1,
        missing=[f"{run.name}: {run.folder(out).name}" for run in missing],
        method=method(study, file, out, results),
        force=force,
    )
    typer.echo(page.read_text(encoding="utf-8").partition("## Arms")[0].strip())
    typer.echo(f"\nwrote {page}")


def print_study(study: "Study", out: Path | None, devices: int) -> None:
    """What `gmt study` would do."""
    from gmt.study.plan import study_plan

    outlook = study_plan(study, out, devices)
    typer.echo(f"{study.name}: {study.question}\n" if study.question else study.name)
    width = max(len("arm"), *map(len, study.arms)) + 2
    typer.echo(f"  {'arm':<{width}}{'parameters':>14}{'MFLOP a token':>16}{'runs':>6}{'finished':>10}")
    for row in outlook.rows:
        mark = "  (reference)" if row.arm == study.reference else ""
        numbers = f"{row.parameters:>14,}{row.flops / 1e6:>16,.0f}{row.runs:>6}{row.finished:>10}"
        typer.echo(f"  {row.arm:<{width}}{numbers}{mark}")
    rates = ", ".join(f"{rate:g}" for rate in study.rates) or "as the arms have them"
    typer.echo(f"\n  learning rates {rates}; seeds {', '.join(map(str, study.seeds))}")
    if len(study.rates) > 1 and study.rate_seeds < len(study.seeds):
        typer.echo(f"  every rate is tried with {study.rate_seeds} of the seeds, the others take each arm's best")
    typer.echo(f"  {outlook.runs} runs of {study.tokens:,} tokens, {outlook.tokens:,} tokens still to be read")
    where = f"{devices} devices ({outlook.device})" if devices > 1 else outlook.device
    typer.echo(f"  about {outlook.hours:.2f} hours on {where}, by its rate on a matrix product: without starting,")
    typer.echo("  compiling and validating; runs side by side share a device, and take about as long together")
