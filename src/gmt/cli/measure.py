"""`gmt eval`, `gmt generate` and `gmt bench`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gmt.cli.app import Device, Table, app, names
from gmt.errors import GMTError


@app.command("eval")
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(help="A model directory, a run (its best checkpoint), RUN@STEP, or a name on the hub."),
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
    batches: Annotated[
        int | None,
        typer.Option(help="Most validation batches.", min=1, show_default="as many windows as the model's run reads"),
    ] = None,
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
        modes=names(mode),
        tasks=None if tasks is None else names(tasks),
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
    model: Annotated[
        str, typer.Argument(help="A model directory, a run (its best checkpoint), RUN@STEP, or a name on the hub.")
    ],
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
    """Continue a text."""
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
    kinds: Annotated[list[str] | None, typer.Argument(help="cell, cells, step, decode.", show_default="all")] = None,
    batch: Annotated[str, typer.Option(help="Windows per batch; separate several values with commas.")] = "8,32",
    models: Annotated[
        str | None, typer.Option(help='Only these, with semicolons: "dense-1050; dense-205; memory; memory, plain".')
    ] = None,
    size: Annotated[str, typer.Option(help="base, the paper's shape, or tiny.")] = "base",
    rounds: Annotated[int, typer.Option(help="Times that each is timed.", min=1)] = 30,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or auto: bf16 on a GPU.")] = "auto",
    device: Annotated[Device, typer.Option(help="Where to run.")] = Device.auto,
    compiled: Annotated[bool, typer.Option("--compile/--eager", help="Compile the models.")] = True,
    out: Annotated[Path | None, typer.Option(help="The same as JSON.")] = None,
) -> None:
    """Time memory and dense models side by side: a layer, a training step, a generated token."""
    from gmt.bench.run import KINDS, is_result, table
    from gmt.bench.run import bench as run
    from gmt.model.device import auto_precision, pick_device
    from gmt.utils.io import write_json
    from gmt.utils.outputs import check_file

    if out is not None:
        check_file(out, "bench", is_result)
    place = pick_device(device.value)
    if not all(part.isdigit() and int(part) for part in names(batch)):
        raise GMTError(f"--batch takes whole numbers with commas, not {batch!r}")
    narrow = auto_precision(place) if precision == "auto" else precision
    if narrow not in ("fp32", "bf16"):
        raise GMTError(f"there is no precision {precision!r}; there are auto, fp32 and bf16")
    result = run(
        tuple(kinds or KINDS),
        tuple(int(part) for part in names(batch)),
        place,
        narrow,
        size=size,
        rounds=rounds,
        compiled=compiled,
        only=tuple(name.strip() for name in (models or "").split(";") if name.strip()),
        tell=lambda text: typer.echo(text, err=True),
        keep=lambda result: None if out is None else write_json(out, result),
    )
    typer.echo(table(result))
