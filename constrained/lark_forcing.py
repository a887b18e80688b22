"""Which Lark grammars llguidance may compute forced runs for.

It follows a forced run byte by byte. Within one terminal nothing limits how long: a terminal like
``/a+/`` before something that begins with ``a`` can never end, and the run goes on for ever. That takes
a repetition whose every round is the same bytes. Where each repetition has a choice of characters in its
round, the run stops there, since two bytes may come next.
"""

from __future__ import annotations

import re

from stolon.constrained.regex import parse_regex
from stolon.constrained.regex_ast import Chars, Choice, Node, Repeat, Sequence
from stolon.errors import GrammarError

__all__ = ["forces_safely"]

MAX_ROUNDS = 256
_SCAN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"i?)
    | (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<regex>/(?:[^/\\]|\\.)+/[a-z]*)
    | (?P<ignore>%ignore\b)
    | (?P<options>%llguidance\s*\{\s*\})
    | (?P<directive>%[a-z]+)
    | (?P<terminal>^[ \t]*_*[A-Z][A-Z0-9_]*[ \t]*(?:\[[^\]]*\][ \t]*)?:)
    | (?P<rule>^[ \t]*[?!]*_*[a-z][a-z0-9_]*[^:"/\n]*:)
    | (?P<algebra>[&~])
    | (?P<repeat>[*+{])
    | .""",
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)


def forces_safely(lark: str) -> bool:
    """Whether no terminal of a grammar can be forced for ever. False where that is not clear."""
    in_terminal = False
    round_chooses = False  # of the item that a repetition sign would follow
    for found in _SCAN.finditer(lark):
        kind = found.lastgroup
        if kind in ("terminal", "rule", "ignore"):
            in_terminal = kind != "rule"
        elif kind in ("directive", "algebra"):
            return False
        elif kind == "repeat":
            if in_terminal and not round_chooses:
                return False
        elif kind == "regex":
            tree = _tree(found.group())
            if tree is None or not _has_choices(tree):
                return False
            round_chooses = _chooses(tree)
        elif not found.group().isspace():
            round_chooses = False
    return True


def _tree(literal: str) -> Node | None:
    body, _, flags = literal[1:].rpartition("/")
    try:
        return parse_regex(f"(?{flags}){body}" if flags else body)
    except GrammarError:
        return None


def _has_choices(root: Node) -> bool:
    """Whether every long repetition in a tree has a choice of characters in its round."""
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, Repeat):
            if (node.high is None or node.high > MAX_ROUNDS) and not _chooses(node.node):
                return False
            todo.append(node.node)
        elif isinstance(node, Sequence):
            todo.extend(node.parts)
        elif isinstance(node, Choice) and node.options:
            todo.extend(node.options)
        elif not (isinstance(node, Chars) and node.ranges):
            return False  # it matches nothing: what stands beside it is no choice
    return True


def _chooses(root: Node) -> bool:
    """Whether a tree holds a class of more than one character."""
    todo = [root]
    while todo:
        node = todo.pop()
        if isinstance(node, Chars):
            if len(node.ranges) > 1 or (node.ranges and node.ranges[0][0] < node.ranges[0][1]):
                return True
        elif isinstance(node, Repeat):
            if node.high != 0:
                todo.append(node.node)
        else:
            todo.extend(node.parts if isinstance(node, Sequence) else node.options)
    return False
