"""`gmt report`, `gmt intervene` and `gmt explore`: what a memory does, and what becomes of it when it is changed."""

from pathlib import Path
from typing import Annotated

import typer

from gmt.cli.app import Device, Force, Scan, app, names
from gmt.errors import GMTError


@app.command()
def report(
    model: Annotated[
        str, typer.Argument(help="A model directory, a run (its best checkpoint), RUN@STEP, or a name on the hub.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write: index.html, figures, tables, traces.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text as NAME=FILE; may be given again.",
            show_default="two windows of validation text and a general one",
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="A second model or run, or a step of a run as RUN@STEP, to set beside it.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A folder that `gmt prepare` wrote.", show_default="the folder that the run was trained on"),
    ] = None,
    blocks: Annotated[str, typer.Option(help="How many blocks to show one by one, or which: 0,6,11,15.")] = "4",
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    force: Force = False,
) -> None:
    """One page that shows what the memory does with a few texts: routes, edges, movement, and what a move means."""
    from gmt.analysis.report import ReportOptions
    from gmt.analysis.report import report as run
    from gmt.terminal import EvalView

    options = ReportOptions(tuple(text or ()), compare, blocks, tau, device.value, data, force)
    with EvalView() as view:
        page = run(model, out, options, view.tell)
    typer.echo(f"\nreport: {page}")


@app.command("intervene")
def intervene_(
    model: Annotated[
        str, typer.Argument(help="A model directory, a run (its best checkpoint), RUN@STEP, or a name on the hub.")
    ],
    data: Annotated[Path, typer.Option(help="A folder that `gmt prepare` wrote: its validation windows are read.")],
    out: Annotated[Path, typer.Option(help="The folder to write; what was measured into it already is kept.")],
    windows: Annotated[
        int | None,
        typer.Option(
            help="Validation windows that every condition reads.", min=2, show_default="those of the run, at most 128"
        ),
    ] = None,
    alphas: Annotated[str, typer.Option(help="Factors of the displacement, with commas.")] = (
        "0,0.25,0.5,0.75,1,1.25,1.5,2"
    ),
    each_block: Annotated[bool, typer.Option(help="Also edit every block alone.")] = True,
    scan: Annotated[
        Scan | None, typer.Option(help="Silence every slot, or cut the heaviest edges, one by one.")
    ] = None,
    block: Annotated[int, typer.Option(help="The block of a scan.", min=0)] = 0,
    count: Annotated[int, typer.Option(help="Edges that a scan cuts.", min=1)] = 64,
    edits: Annotated[
        Path | None, typer.Option(help="A list of edits as JSON, measured in place of the controls.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks as in `gmt eval`, run under every condition.")] = None,
    task_data: Annotated[Path | None, typer.Option(help="A folder with TASK_SPLIT.jsonl files.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first items of each task.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of shuffled and random edges.", min=0)] = 0,
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    force: Force = False,
) -> None:
    """Edit edges, slots or the whole memory, and measure the change of the loss."""
    from gmt.analysis.interventions import run
    from gmt.terminal import EvalView

    try:
        factors = tuple(float(part) for part in names(alphas))
    except ValueError:
        raise GMTError(f"--alphas takes numbers with commas, not {alphas!r}") from None
    options = run.Options(
        data, windows, factors, each_block, scan and scan.value, block, count, edits, names(tasks), task_data, limit,
        seed, tau, device.value, force,
    )  # fmt: skip
    with EvalView() as view:
        told = run.run(model, out, options, view.tell)
    typer.echo(f"\n{told}\n\nresults: {out}")


@app.command()
def explore(
    model: Annotated[
        str, typer.Argument(help="A model directory, a run (its best checkpoint), RUN@STEP, or a name on the hub.")
    ],
    other: Annotated[str | None, typer.Option(help="A second model or run, or RUN@STEP, to compare with.")] = None,
    corpus: Annotated[
        Path | None, typer.Option(help="A prepared folder or a text file: examples for the slots' cards.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8642,
    allow_remote: Annotated[
        bool, typer.Option(help="Let other machines in, each with the token in the address.")
    ] = False,
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
) -> None:
    """A local page: follow tokens through the memory, look at slots and edges, change them and see what happens."""
    from gmt.explorer.run import serve

    serve(
        model,
        other,
        host,
        port,
        corpus,
        allow_remote=allow_remote,
        tau=tau,
        device=device.value,
        tell=lambda address: typer.echo(f"open {address}   (Ctrl+C ends it)"),
    )
