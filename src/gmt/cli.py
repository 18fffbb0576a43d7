"""The command `gmt`: one short function per command.

Exit codes: 0 done, 1 a mistake of the user's (one clear sentence), 2 bad usage, 130 interrupted.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gmt import __version__
from gmt.errors import GMTError


class Commands(TyperGroup):
    """Turns what goes wrong inside a command into one sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GMTError as error:
            raise _exit(str(error), 1) from None
        except KeyboardInterrupt:
            raise _exit("interrupted", 130) from None


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo(typer.style("error: ", fg="red", bold=True) + message, err=True)
    return typer.Exit(code)


class OnError(StrEnum):
    stop = "stop"
    skip = "skip"


class IdType(StrEnum):
    auto = "auto"
    uint16 = "uint16"
    uint32 = "uint32"


app = typer.Typer(
    name="gmt",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Graph Memory Transformer: language models whose feed-forward layers are a memory you can look into.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)

data_app = typer.Typer(no_args_is_help=True, help="Look at a prepared folder.")
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        typer.echo(__version__)
        raise typer.Exit


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
    source: Annotated[Path, typer.Argument(help="The authors' best.pt, or a model directory to turn back into one.")],
    out: Annotated[Path, typer.Option(help="The model directory, or the .pt file, to write.")],
    heads: Annotated[int | None, typer.Option(help="Attention heads; by default 64 channels each.")] = None,
) -> None:
    """Turn the authors' published checkpoint into a model directory, or a model directory into their format."""
    from gmt.hf.convert import convert as run

    typer.echo(f"wrote {run(source, out, heads)}")


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


@app.command()
def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a preset.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings as section.setting=value.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder that `gmt prepare` wrote.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder: checkpoints, metrics.jsonl, curves.png.")] = None,
    resume: Annotated[bool, typer.Option(help="Go on from the newest whole checkpoint of the run.")] = False,
    force: Annotated[bool, typer.Option(help="Resume even though settings or data have changed.")] = False,
    plan: Annotated[bool, typer.Option(help="Print what the run would do, and do nothing.")] = False,
    plan_tokens: Annotated[
        int | None, typer.Option(help="Training tokens to plan for where no --data is given.")
    ] = None,
) -> None:
    """Train a model. Several ranks: torchrun --nproc-per-node=N -m gmt train ..."""
    from gmt.config import PRESETS, GMTConfig
    from gmt.terminal import TrainView, print_plan
    from gmt.train.plan import plan as make_plan
    from gmt.train.run import Options, Run, pick_device

    cfg = (
        GMTConfig.preset(config, *overrides or [])
        if config in PRESETS
        else GMTConfig.from_yaml(config, overrides or [])
    )
    if plan:
        print_plan(make_plan(cfg, data, plan_tokens, pick_device(cfg.train.device)))
        return
    if data is None or out is None:
        raise GMTError("training needs --data, a folder that `gmt prepare` wrote, and --out, a folder for the run")
    with TrainView(cfg) as view:
        run = Run(cfg, Options(data, out, resume, force), view.tell)
        try:
            code = run.go()
        finally:
            run.parallel.close()
    raise typer.Exit(code)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
    minutes: Annotated[float, typer.Option(help="About how long the two models train.", min=0.05)] = 3.0,
) -> None:
    """Prepare the Python manual, train a tiny memory model beside its dense twin, compare and sample them."""
    from gmt.demo import demo as run

    run(out, minutes)


def main() -> None:
    app()
