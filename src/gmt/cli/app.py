"""The application itself, and the choices that several commands offer."""

import os
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gmt.errors import GMTError


class Commands(TyperGroup):
    """Turns an error inside a command into one sentence and an exit code. GMT_DEBUG=1 shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GMTError as error:
            if os.environ.get("GMT_DEBUG", "0") not in ("", "0"):
                raise
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


class Scan(StrEnum):
    slots = "slots"
    edges = "edges"


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


Force = Annotated[
    bool, typer.Option("--force", help="Write into a folder that contains other files; those are never replaced.")
]


def names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
