"""`gmt prepare` and `gmt data`."""

from pathlib import Path
from typing import Annotated

import typer

from gmt.cli.app import IdType, OnError, app
from gmt.errors import GMTError

data_app = typer.Typer(no_args_is_help=True, help="Look at a prepared folder.")
app.add_typer(data_app, name="data")


@app.command()
def prepare(
    out: Annotated[Path, typer.Option(help="The folder to write; it appears when everything is whole.")],
    source: Annotated[
        list[str] | None,
        typer.Argument(
            help="`python-docs` (embedded, the default), `openwebtext` or another dataset of the hub, or a local file, "
            "folder or glob of .txt, .jsonl, .json.gz, .jsonl.zst, .parquet.",
            show_default="python-docs",
        ),
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(help="`gpt2`, a tokenizer.json, a folder with a vocabulary, or `train:N`.")
    ] = "gpt2",
    text_field: Annotated[str, typer.Option(help="The field that holds a document's text.")] = "text",
    workers: Annotated[int, typer.Option(help="Processes that tokenize; the bytes are the same for any number.")] = 1,
    train_cap: Annotated[int, typer.Option(help="Most training tokens, 0 for no cap; validation has a tenth.")] = (
        3_000_000_000
    ),
    context: Annotated[int, typer.Option(help="Each split must hold a window of this many tokens.")] = 1024,
    on_error: Annotated[OnError, typer.Option(help="What to do with a document that cannot be read.")] = OnError.stop,
    dtype: Annotated[IdType, typer.Option(help="Type of the stored ids.")] = IdType.auto,
) -> None:
    """Turn text into a token stream: train.bin, val.bin, tokenizer.json and manifest.json."""
    from gmt.data.prepare import PrepareOptions
    from gmt.data.prepare import prepare as run
    from gmt.terminal import PrepareView

    options = PrepareOptions(
        tuple(source or ["python-docs"]), tokenizer, text_field, train_cap, context, on_error.value, dtype.value
    )
    with PrepareView() as view:
        manifest = run(options, out, workers, view.tell)
    view.summary(manifest, out)


@data_app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A folder that `gmt prepare` wrote.")],
    step: Annotated[int, typer.Option(help="Optimizer step, from 0.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    context: Annotated[int, typer.Option(help="Tokens a window.", min=1)] = 1024,
    micro_batch: Annotated[int, typer.Option(help="Windows a micro-batch, over all ranks.", min=1)] = 8,
    accumulation: Annotated[int, typer.Option(help="Micro-batches a step.", min=1)] = 33,
    width: Annotated[int, typer.Option(help="Characters to print of each window, 0 for all.", min=0)] = 200,
) -> None:
    """Print the decoded windows that an optimizer step reads."""
    from gmt.terminal import show_step

    show_step(folder, step, seed, context, micro_batch, accumulation, width)


@data_app.command()
def verify(folder: Annotated[Path, typer.Argument(help="A folder that `gmt prepare` wrote.")]) -> None:
    """Recompute the hashes and bounds of a prepared folder."""
    from gmt.data.manifest import verify as run

    if problems := run(folder):
        raise GMTError("; ".join(problems))
    typer.echo(f"{folder} is whole")
