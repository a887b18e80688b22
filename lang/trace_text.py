"""A trace as lines: the branches as a tree, the counts in columns that fit the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stolon.lang.call_trace import CallTrace
    from stolon.lang.calls import BranchPath
    from stolon.lang.trace import Trace

# Columns are left out, the first of these first, until so much is left for the names.
_DISPENSABLE = ("drafts", "cost", "forced", "computed", "cached", "time", "finish")
_NAMES = 18


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the tree: a call, or the head of a fork's branch. `guide` are the lines before it."""

    guide: str
    label: str
    call: CallTrace | None


def rows(trace: Trace) -> Iterator[Row]:
    """The tree from top to bottom: of each branch its own calls, then the branches forked from it."""
    own: dict[BranchPath, list[CallTrace]] = {}
    below: dict[BranchPath, dict[BranchPath, None]] = {}
    for call in trace.calls:
        own.setdefault(call.path, []).append(call)
        for depth in range(len(call.path)):
            below.setdefault(call.path[:depth], {})[call.path[: depth + 1]] = None

    def entries(path: BranchPath) -> list[CallTrace | BranchPath]:
        return [*own.get(path, ()), *below.get(path, ())]

    stack: list[tuple[str, Iterator[CallTrace | BranchPath], int]] = []
    first = entries(())
    stack.append(("", iter(first), len(first)))
    while stack:
        indent, left, count = stack.pop()
        entry = next(left, None)
        if entry is None:
            continue
        stack.append((indent, left, count - 1))
        last = count == 1
        guide = indent + ("└─ " if last else "├─ ")
        if isinstance(entry, tuple):
            yield Row(guide, branch_label(entry), None)
            inside = entries(entry)
            stack.append((indent + ("   " if last else "│  "), iter(inside), len(inside)))
        else:
            yield Row(guide, call_label(entry), entry)


def branch_label(path: BranchPath) -> str:
    """The last fork of a branch, and which child of it."""
    return f"fork {path[-1][0]} [{path[-1][1]}]" if path else "main"


def call_label(call: CallTrace) -> str:
    """Kind, name and number of samples, on one line whatever the name is."""
    name = "(unnamed)" if call.name is None else call.name
    samples = f" ×{call.samples}" if call.samples > 1 else ""
    return f"{call.kind} {printable(name)}{samples}"


def printable(text: str) -> str:
    """The text without line breaks, control characters and lone surrogates."""
    return "".join(char if char.isprintable() else "�" for char in text)


def summary(trace: Trace) -> str:
    """The first line."""
    parts = [
        _count(len(trace.calls), "call"),
        _count(trace.branches or 1, "branch", "branches"),
        duration(trace.seconds),
    ]
    return f"{printable(trace.program)}  {', '.join(parts)}"


def duration(seconds: float | None) -> str:
    """Time in a unit that leaves two or three digits."""
    if seconds is None:
        return ""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 99.5 else f"{seconds:.0f} s"


def tree(trace: Trace, width: int | None) -> str:
    """The whole text."""
    if width is None:
        width = shutil.get_terminal_size((100, 24)).columns
    lines = list(rows(trace))
    columns = _columns(trace)
    cells = {
        name: [name, *("" if row.call is None else cell(row.call) for row in lines), total]
        for name, (cell, total) in columns.items()
    }
    widths = {name: max(map(len, column)) + 2 for name, column in cells.items()}
    labels = ["", *(row.guide + row.label for row in lines), "total"]
    wanted = max(map(len, labels))
    for name in _DISPENSABLE:
        if width - sum(widths.values()) >= min(wanted, _NAMES):
            break
        widths.pop(name, None)
    room = max(min(wanted, width - sum(widths.values())), 1)
    text = [summary(trace)]
    for at, label in enumerate(labels):
        line = (label if len(label) <= room else label[: room - 1] + "…").ljust(room)
        for name, column_width in widths.items():
            line += cells[name][at].rjust(column_width)
        text.append(line.rstrip())
    return "\n".join(text)


def _columns(trace: Trace) -> dict[str, tuple[Callable[[CallTrace], str], str]]:
    """Of each column the cell of a call, and the total. What is nowhere has none."""
    total = trace.totals
    columns: dict[str, tuple[Callable[[CallTrace], str], str]] = {}
    if total.cached:
        columns["cached"] = (lambda call: str(call.tokens.cached), str(total.cached))
    if total.computed:
        columns["computed"] = (lambda call: str(call.tokens.computed), str(total.computed))
    if total.forced:
        columns["forced"] = (lambda call: str(call.tokens.forced), str(total.forced))
    columns["generated"] = (lambda call: str(call.tokens.sampled), str(total.sampled))
    if total.drafted:
        columns["drafts"] = (
            lambda call: f"{call.tokens.accepted}/{call.tokens.drafted}",
            f"{total.accepted}/{total.drafted}",
        )
    columns["finish"] = (lambda call: call.finish, "")
    columns["time"] = (lambda call: duration(call.seconds), duration(trace.seconds))
    prices = trace.prices
    if prices is not None:
        columns["cost"] = (lambda call: f"{prices.of(call):.6f}", f"{trace.cost() or 0.0:.6f}")
    return columns


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
