"""The embedded corpus: the manual and the docstrings that ship inside every Python, about 2 MB of English."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from gmt.data.sources import Raw
from gmt.errors import DataError

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}


class PythonDocs:
    """One document per topic of the manual and per module of the standard library."""

    name = "python-docs"

    def fingerprint(self) -> Any:
        return [self.name, sys.version]

    def size(self) -> int | None:
        return None

    def count(self) -> int | None:
        return len(self._documents)

    @cached_property
    def _documents(self) -> dict[str, str]:
        return {**_topics(), **_docstrings(Path(sysconfig.get_paths()["stdlib"]))}

    def read(self) -> Iterator[Raw]:
        # by the hash of their names: an order that depends on nothing else and mixes topics with modules, so that
        # the last twentieth, which validates, is a fair sample
        for number, name in enumerate(sorted(self._documents, key=lambda n: hashlib.sha256(n.encode()).digest()), 1):
            yield Raw(f"{self.name}/{name}", number, self._documents[name].encode(), False)


def _topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError("this Python came without its manual (pydoc_data); prepare a file of text instead") from None
    return {f"topic {name}": text.strip() for name, text in topics.items()}


def _docstrings(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if LEFT_OUT & set(parts) or parts[0] not in sys.stdlib_module_names:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # a file of examples or of another version: not a module anybody imports
        text = "\n\n".join(_documented(tree, ".".join(parts)))
        if text:
            found[f"module {'.'.join(parts)}"] = text
    return found


def _documented(tree: ast.Module, module: str) -> Iterator[str]:
    """`name` and its docstring, for the module and everything in it that has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) >= 40:  # shorter ones are labels
                yield f"{module if isinstance(node, ast.Module) else node.name}\n\n{text}"
