"""Trees written as the text of a regular expression."""

from __future__ import annotations

from stolon.constrained.regex_ast import ANY, Chars, Choice, Node, Sequence
from stolon.constrained.regex_build import Ranges, complement

__all__ = ["to_rust"]


def to_rust(node: Node) -> str:
    """The tree in the syntax of Rust's ``regex`` crate, for use as a whole match.

    Pure ASCII without ``/``, ``"`` and line ends, so that it can stand in a Lark terminal. Classes
    are spelled out: the text doesn't depend on anyone's Unicode tables.
    """
    if isinstance(node, Chars):
        return _chars(node.ranges)
    if isinstance(node, Sequence):
        return "".join(
            f"(?:{to_rust(part)})" if isinstance(part, Choice) else to_rust(part)
            for part in node.parts
        )
    if isinstance(node, Choice):
        if not node.options:
            return r"[^\x{0}-\x{10FFFF}]"
        return "|".join(map(to_rust, node.options))
    inner = to_rust(node.node)
    if not isinstance(node.node, Chars):
        inner = f"(?:{inner})"
    low, high = node.low, node.high
    if (low, high) in _SHORT:
        return inner + _SHORT[low, high]
    return (
        f"{inner}{{{low}}}" if low == high else f"{inner}{{{low},{'' if high is None else high}}}"
    )


_SHORT: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def _chars(ranges: Ranges) -> str:
    if ranges == ANY.ranges:
        return "(?s:.)"
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _escape(ranges[0][0])
    others = complement(ranges)
    if len(others) < len(ranges) and others:
        return f"[^{_body(others)}]"
    return f"[{_body(ranges)}]"


def _body(ranges: Ranges) -> str:
    return "".join(
        _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in ranges
    )


def _escape(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return " " if char == " " else f"\\x{{{code:X}}}"
