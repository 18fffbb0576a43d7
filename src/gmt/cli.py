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


class Device(StrEnum):
    auto = "auto"
    cuda = "cuda"
    mps = "mps"
    cpu = "cpu"


class Table(StrEnum):
    all = "all"
    val = "val"
    arc = "arc"
    lm = "lm"


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
    from gmt.model.device import pick_device
    from gmt.terminal import TrainView, print_plan
    from gmt.train.plan import plan as make_plan
    from gmt.train.run import Options, Run

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


@app.command("eval")
def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A model directory, a run (its best checkpoint), or a name on the hub.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder that `gmt prepare` wrote: validation loss.")] = None,
    mode: Annotated[
        str, typer.Option(help="Memory while validating: frozen, adaptive, adaptive-carry, or several with commas.")
    ] = "frozen",
    tasks: Annotated[
        str | None,
        typer.Option(help="`arc-easy-standalone` and any tasks of the LM evaluation harness, with commas."),
    ] = None,
    task_data: Annotated[
        Path | None, typer.Option(help="A folder with TASK_SPLIT.jsonl files, in place of the hub.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first items of each task.", min=1)] = None,
    shots: Annotated[
        int | None, typer.Option(help="Examples before each item.", min=0, show_default="as the task says")
    ] = None,
    batch: Annotated[int, typer.Option(help="Windows or texts a batch.", min=1)] = 8,
    batches: Annotated[int, typer.Option(help="Most validation batches.", min=1)] = 512,
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    paper: Annotated[
        bool,
        typer.Option(help="The paper's protocol: adaptive-carry, 512 × 8 windows, bf16, zero-shot, tasks at τ_min."),
    ] = False,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto: bf16 on a GPU.")] = "auto",
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    harness: Annotated[
        list[str] | None, typer.Option(help="An option of the harness as name=value; may be given again.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Results as JSON; what is there already is not run again.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Two files of results: both, and their difference.")
    ] = None,
    table: Annotated[Table, typer.Option(help="Which of the paper's tables to print.")] = Table.all,
) -> None:
    """Validation loss, ARC-Easy and the tasks of the LM evaluation harness, as the paper's tables."""
    from gmt.evaluate.results import Results
    from gmt.evaluate.tables import tables

    if compare is not None:
        if model is not None:
            raise GMTError("--compare reads two files of results; it takes no model")
        typer.echo(tables([Results.load(path) for path in compare], table.value))
        return
    if model is None:
        raise GMTError("evaluation needs a model: a model directory, a run, or a name on the hub")
    if (table == Table.val and data is None) or (table in (Table.arc, Table.lm) and not (tasks or paper)):
        raise GMTError(f"the table {table.value!r} would be empty: it needs {'--data' if data is None else '--tasks'}")
    from gmt.evaluate.run import EvalOptions
    from gmt.evaluate.run import evaluate as run
    from gmt.terminal import EvalView

    options = EvalOptions(
        data=data,
        modes=_names(mode),
        tasks=None if tasks is None else _names(tasks),
        task_data=task_data,
        tau=tau,
        paper=paper,
        batch=batch,
        batches=batches,
        limit=limit,
        shots=shots,
        device=device.value,
        precision=precision,
        out=out,
        harness=_pairs(harness or []),
    )
    with EvalView() as view:
        results = run(model, options, view.tell)
    typer.echo(f"\n{tables([results], table.value)}")
    if out is not None:
        typer.echo(f"\nresults: {out}; next: gmt eval --compare {out} OTHER.json")


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _pairs(settings: list[str]) -> dict[str, Any]:
    import yaml

    pairs = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise GMTError(f"--harness takes name=value, not {setting!r}")
        pairs[name] = yaml.safe_load(value)
    return pairs


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="A model directory, a run (its best checkpoint), or a name on the hub.")],
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")] = "",
    tokens: Annotated[int, typer.Option(help="Most new tokens.", min=1)] = 100,
    temperature: Annotated[float, typer.Option(help="Of the sampling; 0 takes the likeliest token.", min=0.0)] = 0.8,
    top_k: Annotated[int, typer.Option(help="Sample from the k likeliest; 0 for all.", min=0)] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest that hold this share.")] = 1.0,
    seed: Annotated[
        int, typer.Option(help="Of the first sample; the next ones count on.", min=0, max=2**62, show_default=True)
    ] = 0,
    samples: Annotated[int, typer.Option(help="How many continuations.", min=1)] = 1,
    adaptive: Annotated[bool, typer.Option(help="Memory takes writes while generating; restored after.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Keep the routes of every token as safetensors.")] = None,
    tau: Annotated[float | None, typer.Option(help="Routing temperature, in place of the stored one.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
) -> None:
    """Go on with a text, printing it as it comes."""
    from gmt.evaluate.generation import Sampling, room_after
    from gmt.evaluate.generation import generate as run
    from gmt.hf.load import open_model
    from gmt.model.device import pick_device
    from gmt.terminal import GenerateView

    sampling = Sampling(tokens, temperature, top_k, top_p, seed, samples)
    loaded = open_model(model, pick_device(device.value), tau)
    with GenerateView(prompt, samples) as view:
        if (room := room_after(loaded, prompt)) < tokens:
            typer.echo(f"(the context has room for {room} more tokens)", err=True)
        run(loaded, prompt, sampling, adaptive=adaptive, trace=trace, tell=view.tell)
    if trace is not None:
        typer.echo(f"routes: {trace}", err=True)


@app.command()
def bench(
    kinds: Annotated[list[str] | None, typer.Argument(help="cell, step, decode.", show_default="all three")] = None,
    batch: Annotated[str, typer.Option(help="Windows a batch; several with commas.")] = "8,32",
    size: Annotated[str, typer.Option(help="base, the paper's shape, or tiny.")] = "base",
    rounds: Annotated[int, typer.Option(help="Times that each is timed.", min=1)] = 30,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto: bf16 on a GPU.")] = "auto",
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    compiled: Annotated[bool, typer.Option("--compile/--eager", help="Compile the models.")] = True,
    out: Annotated[Path | None, typer.Option(help="The same as JSON.")] = None,
) -> None:
    """Time memory and dense models side by side: a layer, a training step, a generated token."""
    from gmt.bench.run import KINDS, table
    from gmt.bench.run import bench as run
    from gmt.data.manifest import write_json
    from gmt.model.device import pick_device

    place = pick_device(device.value)
    if not all(part.isdigit() and int(part) for part in _names(batch)):
        raise GMTError(f"--batch takes whole numbers with commas, not {batch!r}")
    narrow = ("bf16" if place.type == "cuda" else "fp32") if precision == "auto" else precision
    if narrow not in ("fp32", "bf16"):
        raise GMTError(f"there is no precision {precision!r}; there are auto, fp32 and bf16")
    result = run(
        tuple(kinds or KINDS),
        tuple(int(part) for part in _names(batch)),
        place,
        narrow,
        size=size,
        rounds=rounds,
        compiled=compiled,
        tell=lambda text: typer.echo(text, err=True),
    )
    typer.echo(table(result))
    if out is not None:
        write_json(out, result)


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
