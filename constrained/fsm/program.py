"""The program that both automata run: instructions and graphs of bytes.

An instruction either matches a piece of text by a graph of bytes, or leads on without text. Counted
repetitions are not unrolled: a position in the program comes with the counts of the loops around it,
so ``.{0,10000}`` is three instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ACCEPT",
    "ENTER",
    "FAR",
    "LOOP",
    "MATCH",
    "MAX_LOOPS",
    "SPLIT",
    "Program",
    "TooLarge",
    "clear",
    "table",
]

MATCH, SPLIT, ENTER, LOOP, ACCEPT = range(5)
MAX_LOOPS = 5  # counted repetitions within each other
FAR = 1 << 40  # lengths are counted up to here

_Int = npt.NDArray[np.int64]
_PIECE = 1024  # rows; about half a millisecond


class TooLarge(Exception):
    """The tree is beyond the limits of a program."""


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions and graphs of bytes, as tables.

    Attributes:
        start: where it begins; None if there is no text at all.
        code: int64 [instructions, 9]: operation, number of loops around, x, y, low, high (-1: none),
            shortest text to the end of the loop around or of all (in bytes), that loop (-1: none),
            shortest text of the body.
            MATCH: x graph node, y next. SPLIT: x to y of `targets`. ENTER and LOOP: x body, y exit.
        targets: int64, where splits lead.
        nodes: int64 [nodes, 3]: first and last (exclusive) of its edges, 1 if a text may end here.
        edges: int64 [edges, 3]: first byte, last byte, node.
    """

    start: int | None
    code: _Int
    targets: _Int
    nodes: _Int
    edges: _Int


def table(rows: list[Any], width: int) -> _Int:
    """The rows as a table. They are used up, in pieces: each piece holds the interpreter lock."""
    pieces = [
        np.array(rows[at : at + _PIECE], np.int64).reshape(-1, width)
        for at in range(0, max(len(rows), 1), _PIECE)
    ]
    clear(rows)
    return np.concatenate(pieces)


def clear(rows: list[Any]) -> None:
    """Free rows in pieces: freeing many at once holds up other threads."""
    while rows:
        del rows[-_PIECE:]
