"""From YAML and dotted overrides to values of the right type, with every mistake told at once."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from gmt.errors import ConfigError

Problems = list[str]
Settings = dict[str, Any]  # dotted name -> value
Index = dict[str, dataclasses.Field[Any]]

WANTED = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def index_of(config: type) -> Index:
    """Dotted name -> field, with the resolved type put beside the range."""
    index = {}
    for section in dataclasses.fields(config):
        kind: Any = section.default_factory
        types = get_type_hints(kind)
        for entry in dataclasses.fields(kind):
            index[f"{section.name}.{entry.name}"] = entry
            entry.type = types[entry.name]
    return index


def layers(tree: Mapping[str, Any], presets: Mapping[str, Any], problems: Problems) -> Iterator[Settings]:
    if not isinstance(tree, Mapping):
        problems.append(f"a configuration is a mapping of sections, not {type(tree).__name__}")
        return
    if "preset" in tree:
        name = tree["preset"]
        if isinstance(name, str) and name in presets:
            yield flatten(presets[name])
        else:
            problems.append(f"preset: there is no {name!r}{nearest(str(name), presets)}")
    yield flatten({k: v for k, v in tree.items() if k != "preset"})


def flatten(tree: Mapping[str, Any]) -> Settings:
    settings: Settings = {}
    for section, entries in tree.items():
        if isinstance(entries, Mapping):
            settings |= {f"{section}.{key}": value for key, value in entries.items()}
        else:
            settings[str(section)] = entries
    return settings


def parse_overrides(overrides: Iterable[str], problems: Problems) -> Iterator[Settings]:
    for text in overrides:
        name, equals, value = text.partition("=")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = value
        if equals:
            yield {name.strip(): parsed}
        else:
            problems.append(f"{text!r} is not an override of the form section.setting=value")


def of_section(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}


def coerce(name: str, kind: Any, value: Any, values: dict[str, Any], problems: Problems) -> None:
    """Put the value in the field's own type. YAML reads 1e-3 as text and 1 as an integer: both are good floats."""
    if get_origin(kind) is UnionType and value is None:  # the only unions are `X | None`
        values[name] = None
        return
    kind = _plain_type(kind)
    try:
        if isinstance(value, bool) != (kind is bool) or (kind is not float and isinstance(value, str) != (kind is str)):
            raise ValueError
        values[name] = kind(value)
        if kind is int and values[name] != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        problems.append(f"{name} = {value!r}: must be {WANTED[kind]}")
        values.pop(name, None)


def range_problems(cfg: Any, index: Index) -> Problems:
    problems = []
    for name, entry in index.items():
        section, _, key = name.partition(".")
        value, meta = getattr(getattr(cfg, section), key), entry.metadata
        if value is None:
            continue
        if meta["choices"]:
            if value not in meta["choices"]:
                problems.append(f"{name} = {value!r}: must be one of {', '.join(meta['choices'])}")
        elif not _has_type(value, kind := _plain_type(entry.type)):
            problems.append(f"{name} = {value!r}: must be {WANTED[kind]}")
        elif kind in (bool, str):
            continue
        elif meta["above"] is not None and not meta["above"] < value <= meta["high"]:
            problems.append(f"{name} = {value}: must be over {meta['above']:g}{_upto(meta['high'])}")
        elif meta["above"] is None and not meta["low"] <= value <= meta["high"]:
            problems.append(f"{name} = {value}: must be at least {meta['low']:g}{_upto(meta['high'])}")
    return problems


def _plain_type(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is UnionType else kind


def _has_type(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def _upto(high: float) -> str:
    return "" if high == math.inf else f" and at most {high:g}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name; a setting written without its section is found by its last part."""
    names = list(known)
    tails = {full.partition(".")[2]: full for full in names}
    match = difflib.get_close_matches(name, names, 1, 0.5) or [
        tails[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], tails, 1, 0.7)
    ]
    return f"; the nearest is {match[0]}" if match else ""


def raise_problems(problems: Problems) -> None:
    if len(problems) == 1:
        raise ConfigError(f"wrong setting: {problems[0]}")
    if problems:
        raise ConfigError(f"{len(problems)} wrong settings:\n" + "\n".join(f"  {line}" for line in problems))
