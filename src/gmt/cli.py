"""The command `gmt`: one short function per command.

Exit codes: 0 done, 1 a mistake of the user's (one clear sentence), 2 bad usage, 130 interrupted.
"""

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


app = typer.Typer(
    name="gmt",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Graph Memory Transformer: language models whose feed-forward layers are a memory you can look into.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)


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


def main() -> None:
    app()
