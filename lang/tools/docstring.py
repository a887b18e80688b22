"""What a docstring says of a function and of each of its parameters."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*$")
_ENTRY = re.compile(r"(\*{0,2}\w+(?:,\s*\*{0,2}\w+)*)\s*(?:\([^)]*\))?:\s*(.*)$")
_FIELD = re.compile(r":param\s+(?:[\w.\[\], |]+\s+)?(\w+):\s*(.*)$")


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The text before any section, and the description of each parameter.

    Reads Google's ``Args:`` sections and Sphinx's ``:param name:`` fields; other text is part of the
    description.
    """
    lines = (inspect.getdoc(function) or "").splitlines()
    about: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if _SECTION.match(line):
            at = _section(lines, at + 1, parameters)
            continue
        field = _FIELD.match(line)
        if field:
            parameters[field[1]] = field[2].strip()
        elif re.match(r"(Returns|Raises|Yields|Examples?|Notes?):\s*$", line):
            break
        elif not line.startswith((":return", ":raise", ":rtype", ":type")):
            about.append(line)
        at += 1
    return " ".join(" ".join(about).split()), parameters


def _section(lines: list[str], at: int, parameters: dict[str, str]) -> int:
    """Read the entries of an ``Args:`` section; where it ends."""
    names: list[str] = []
    indent: int | None = None
    while at < len(lines):
        line = lines[at]
        if line.strip():
            depth = len(line) - len(line.lstrip())
            if depth == 0:
                break
            indent = depth if indent is None else indent
            entry = _ENTRY.match(line.strip()) if depth <= indent else None
            if entry:
                names = [name.strip().lstrip("*") for name in entry[1].split(",")]
                parameters.update(dict.fromkeys(names, entry[2].strip()))
            else:
                for name in names:
                    parameters[name] = f"{parameters[name]} {line.strip()}".strip()
        at += 1
    return at
