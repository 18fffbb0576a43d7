"""Settings of earlier versions under the names of this one.

A renamed setting is translated. A removed setting is dropped at its old default and refused at any other value.
"""

from collections.abc import Mapping
from typing import Any

from gmt.config.parse import Problems, coerce

# Old 'section.name' -> new 'section.name'. Append new entries: the first name of a setting is its oldest. The digests
# of study runs depend on it (gmt.study.identity), so an entry stays for good.
RENAMED: dict[str, str] = {}

# Old 'section.name' -> its old default.
REMOVED: dict[str, Any] = {}


def current_name(name: str) -> str:
    while name in RENAMED:
        name = RENAMED[name]
    return name


def stored_name(name: str) -> str:
    """Return the oldest name of a setting: the one that no later rename changes."""
    return next((old for old in RENAMED if current_name(old) == name), name)


def old_names() -> dict[str, Any]:
    """Every name that is no longer a setting."""
    return {**RENAMED, **REMOVED}


def translate(settings: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Translate one source of settings (dotted name -> value); what cannot be translated is appended to `problems`."""
    found: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for name, value in settings.items():
        key = current_name(name)
        if key in REMOVED:
            if not _equal(value, REMOVED[key]):
                problems.append(
                    f"{name} = {value!r}: this setting was removed, and only its former default {REMOVED[key]!r} "
                    "is accepted; remove it"
                )
        elif key in given_as:
            problems.append(
                f"{name} = {value!r}: {given_as[key]} = {found[key]!r} sets the same setting, which was renamed; "
                f"keep one value, as {key}"
            )
        else:
            found[key], given_as[key] = value, name
    return found


def _equal(value: Any, default: Any) -> bool:
    """Compare as the type of the default: YAML reads 1e-3 as text and 1 as an integer."""
    if value is None or default is None:
        return value is default
    typed: dict[str, Any] = {}
    coerce("value", type(default), value, typed, [])
    return typed.get("value") == default
