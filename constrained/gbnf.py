"""Trees written in GBNF, the grammar notation of llama.cpp: one rule, ``root``."""

from __future__ import annotations

from stolon.constrained.regex_ast import Chars, Choice, Node, Repeat, Sequence
from stolon.errors import GrammarError

__all__ = ["MAX_GBNF_CHARS", "to_gbnf"]

MAX_GBNF_CHARS = 64 << 10


def to_gbnf(tree: Node) -> str:
    """A grammar of exactly the tree's texts. Raises GrammarError if it would be too large, or has none."""
    text = "root ::= " + _expression(tree) + "\n"
    if len(text) > MAX_GBNF_CHARS:
        raise GrammarError("as a GBNF grammar this would be too large")
    return text


def _expression(node: Node) -> str:
    if isinstance(node, Chars):
        return "[" + "".join(_range(low, high) for low, high in node.ranges) + "]"
    if isinstance(node, Sequence):
        return " ".join(map(_item, node.parts)) or '""'
    if isinstance(node, Choice):
        if not node.options:
            raise GrammarError("no text matches")
        return " | ".join(map(_expression, node.options))
    return _item(node.node) + _times(node)


def _item(node: Node) -> str:
    text = _expression(node)
    return text if isinstance(node, Chars) else f"({text})"


def _times(node: Repeat) -> str:
    match node.low, node.high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case low, high:
            return f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


def _character(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    if code < 0x100:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
