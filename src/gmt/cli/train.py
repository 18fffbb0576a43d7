"""`gmt train`, `gmt convert`, `gmt demo` and `gmt doctor`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from gmt.cli.app import Force, app
from gmt.errors import GMTError


@app.command()
def doctor() -> None:
    """Versions, devices, and which fast paths are on, with the reason for those that are not."""
    from gmt.doctor import devices, fast_paths, versions

    for name, found in versions():
        typer.echo(f"  {name:<22}{found}")
    for title, findings in (("devices", devices()), ("fast paths", fast_paths())):
        typer.echo(f"\n{title}")
        for finding in findings:
            mark = typer.style("on ", fg="green") if finding.on else typer.style("off", dim=True)
            typer.echo(f"  {mark} {finding.name:<22}{finding.why}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="The authors' best.pt, or a model directory or run to export.")],
    out: Annotated[Path, typer.Option(help="The model directory, or the .pt file, to write.")],
    heads: Annotated[int | None, typer.Option(help="Attention heads; by default 64 channels each.")] = None,
    force: Force = False,
) -> None:
    """Turn the authors' published checkpoint into a model directory, or a model directory into their format."""
    from gmt.hf.convert import convert as run

    typer.echo(f"wrote {run(source, out, heads, force)}")


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings as section.setting=value.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder that `gmt prepare` wrote.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder: checkpoints, metrics.jsonl, curves.png.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue from the newest complete checkpoint of the run.")] = False,
    force: Annotated[bool, typer.Option(help="Resume even though settings or data have changed.")] = False,
    plan: Annotated[bool, typer.Option(help="Print steps, memory and time; train nothing.")] = False,
    plan_tokens: Annotated[
        int | None, typer.Option(help="Training tokens to plan for where no --data is given.")
    ] = None,
) -> None:
    """Train a model. Several ranks: torchrun --nproc-per-node=N -m gmt train ..."""
    from gmt.config import GMTConfig
    from gmt.model.device import pick_device
    from gmt.terminal import TrainView, print_plan
    from gmt.train.loop import Options
    from gmt.train.loop import train as run
    from gmt.train.plan import plan as make_plan

    cfg = GMTConfig.named(config, overrides or [])
    if plan:
        world, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0)))
        if rank == 0:
            print_plan(make_plan(cfg, data, plan_tokens, pick_device(cfg.train.device), world))
        return
    if data is None or out is None:
        raise GMTError("training needs --data, a folder that `gmt prepare` wrote, and --out, a folder for the run")
    with TrainView() as view:
        code = run(cfg, Options(data, out, resume, force), view.tell)
    raise typer.Exit(code)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(help="Optimizer steps of each model, 2,048 tokens each.", min=8)] = 800,
    seed: Annotated[int, typer.Option(help="Seed of weights and data order.", min=0)] = 0,
    report: Annotated[bool, typer.Option(help="Write a report about the memory model.")] = True,
) -> None:
    """Train v7 and a dense model of equal size on the Python manual, and compare them."""
    from gmt.demo import demo as run

    run(out, steps, seed, report)
