"""The command `gmt`: one short function per command.

Exit codes: 0 done, 1 a mistake of the user's (one clear sentence), 2 bad usage, 130 interrupted.
"""

from typing import Annotated

import typer

from gmt import __version__
from gmt.cli import data, look, measure, study, train  # noqa: F401  each adds its commands
from gmt.cli.app import app


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    app()
