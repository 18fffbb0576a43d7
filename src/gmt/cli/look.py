"""`gmt report`: commands that show what a memory does."""

from pathlib import Path
from typing import Annotated

import typer

from gmt.cli.app import Device, app


@app.command()
def report(
    model: Annotated[str, typer.Argument(help="A model directory, a run (its best checkpoint), or a name on the hub.")],
    out: Annotated[Path, typer.Option(help="The folder to write: index.html, figures, tables, traces.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="A text as NAME=FILE; may be given again.", show_default="three short ones of our own"),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(help="A second model or run, or a step of this run as step-N, to set beside it.")
    ] = None,
    blocks: Annotated[int, typer.Option(help="Blocks shown one by one, chosen over the depth.", min=1)] = 4,
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
) -> None:
    """One page that shows what the memory does with a few texts: routes, edges, movement, and what a move means."""
    from gmt.analysis.report import ReportOptions
    from gmt.analysis.report import report as run
    from gmt.terminal import EvalView

    options = ReportOptions(tuple(text or ()), compare, blocks, tau, device.value)
    with EvalView() as view:
        page = run(model, out, options, view.tell)
    typer.echo(f"\nreport: {page}")
