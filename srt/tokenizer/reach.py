"""How far a chat template looks: which messages decide about the text around the next one.

Most templates write one message after the other and look at the message itself, at its neighbours and at the
first ones. For these the text around a new message is the same when the middle of the conversation is left
out, so that a turn costs the same however long the conversation is. That is read off the template's
statements, each of which must be one that is known to look no further.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from jinja2 import nodes

T = TypeVar("T")

MAX_REACH = 8
"""Messages at either end; a template that looks further is taken to look everywhere."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What decides about the text around a message that is appended.

    Attributes:
        head: so many messages at the beginning.
        tail: so many at the end.
        period: whether a message's index is even, if this is 2.
    """

    head: int
    tail: int
    period: int

    def without_middle(self, messages: Sequence[T]) -> Sequence[T]:
        """The messages that count."""
        spare = len(messages) - self.head - self.tail
        if spare < self.period:
            return messages
        cut = self.head + spare - spare % self.period
        return [*messages[: self.head], *messages[cut:]]


def reach_of(template: nodes.Template) -> Reach | None:
    """How far the template looks, None if that can't be told: then it looks everywhere."""
    walk = _Walk()
    try:
        walk.statements(template.body)
    except (_Everywhere, RecursionError):
        return None
    head = walk.head + walk.skipped
    return Reach(head, walk.tail, walk.period) if max(head, walk.tail) <= MAX_REACH else None


class _Everywhere(Exception):
    """The template may look anywhere."""


class _Kind(IntEnum):
    """What a value depends on; of two that are put together, the larger counts."""

    FIXED = 0  # on the first messages at most
    NEAR = 1  # on the message that is written, and its neighbours
    LAST = 2  # on the last messages
    # These are no values to write, and are only taken where they are known to be harmless.
    INDEX = 3  # the index of the message that is written
    COUNT = 4  # the number of messages
    LIST = 5  # the messages, or all but the first ones


_LOOP = {
    "first": _Kind.NEAR,
    "last": _Kind.NEAR,
    "previtem": _Kind.NEAR,
    "nextitem": _Kind.NEAR,
    "index": _Kind.INDEX,
    "index0": _Kind.INDEX,
    "length": _Kind.COUNT,
}
_TYPE_TESTS = frozenset(
    {"defined", "undefined", "none", "iterable", "sequence", "mapping", "string"}
)
_PARTS = (
    nodes.Getattr,
    nodes.Filter,
    nodes.Test,
    nodes.Call,
    nodes.BinExpr,
    nodes.UnaryExpr,
    nodes.CondExpr,
    nodes.Concat,
    nodes.Tuple,
    nodes.List,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
    nodes.Slice,
    nodes.Getitem,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
)
_WITH_STATE = frozenset({"namespace", "cycler", "joiner", "lipsum"})


class _Walk:
    """Goes through the statements in order, with the kinds of the names that are set.

    Attributes:
        head, tail, period: as in `Reach`, as far as they are known.
        skipped: so many messages at the beginning may be left out of a list.
    """

    def __init__(self) -> None:
        self.head, self.tail, self.period = 1, 1, 1
        self.skipped = 0
        self._kinds: dict[int, _Kind] = {}  # of nodes: each is looked at once
        self._names: list[dict[str, _Kind]] = [{"messages": _Kind.LIST}]
        self._in_messages = False  # in the loop over them
        self._if_last = False  # under a condition on the last message

    # -- statements ------------------------------------------------------------------------------

    def statements(self, body: Iterable[nodes.Node]) -> None:
        for node in body:
            self._statement(node)

    def _statement(self, node: nodes.Node) -> None:
        match node:
            case nodes.TemplateData() | nodes.Continue():
                pass
            case nodes.Output():
                for part in node.nodes:
                    self._value(part)
            case nodes.ExprStmt():
                self._value(node.node)
            case nodes.If():
                self._if(node)
            case nodes.For():
                self._for(node)
            case nodes.Assign(target=nodes.Name(name=name)) if not self._if_last:
                self._set(name, self._kind(node.node))
            case _:
                raise _Everywhere

    def _if(self, node: nodes.If) -> None:
        kind = self._value(node.test)
        before, self._if_last = self._if_last, self._if_last or kind is _Kind.LAST
        self.statements(node.body)
        self.statements(node.elif_)
        self.statements(node.else_)
        self._if_last = before

    def _for(self, node: nodes.For) -> None:
        kind = self._kind(node.iter)
        if node.test is not None or node.recursive or self._if_last:
            raise _Everywhere
        outer = self._in_messages
        if kind is _Kind.LIST and not outer:
            self._in_messages = True
            inside = {"loop": _Kind.LIST}
            item = _Kind.NEAR
        elif kind <= _Kind.NEAR:
            inside = {"loop": kind}
            item = kind
        else:
            raise _Everywhere
        targets = node.target.items if isinstance(node.target, nodes.Tuple) else [node.target]
        for target in targets:
            if not isinstance(target, nodes.Name) or target.name == "loop":
                raise _Everywhere
            inside[target.name] = item
        self._names.append(inside)
        self.statements(node.body)
        self._names.pop()
        self._in_messages = outer
        self.statements(node.else_)

    def _set(self, name: str, kind: _Kind) -> None:
        # Set under a condition it may still be what it was.
        low, high = sorted((kind, self._look_up(name)))
        if name == "loop" or (high > _Kind.LAST and low not in (_Kind.FIXED, high)):
            raise _Everywhere
        self._names[-1][name] = high

    # -- expressions -----------------------------------------------------------------------------

    def _value(self, node: nodes.Node) -> _Kind:
        """The kind of what is written, or decides what is."""
        kind = self._kind(node)
        if kind > _Kind.LAST or (kind is _Kind.LAST and self._in_messages):
            raise _Everywhere
        return kind

    def _kind(self, node: nodes.Node) -> _Kind:
        known = self._kinds.get(id(node))
        if known is None:
            known = self._kinds[id(node)] = self._found_kind(node)
        return known

    def _found_kind(self, node: nodes.Node) -> _Kind:
        match node:
            case nodes.Const() | nodes.TemplateData():
                return _Kind.FIXED
            case nodes.Name():
                return self._look_up(node.name)
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr) if self._is_loop():
                return self._attribute_of_loop(attr)
            case nodes.Getitem(node=listed) if self._kind(listed) is _Kind.LIST:
                return self._part_of_list(node.arg)
            case nodes.Filter(node=nodes.Node() as listed) if self._kind(listed) is _Kind.LIST:
                return self._filtered_list(node)
            case nodes.Test(node=listed) if self._kind(listed) is _Kind.LIST:
                if node.name not in _TYPE_TESTS:
                    raise _Everywhere
                return _Kind.FIXED
            case nodes.Add() | nodes.Sub() if self._offset(node) is not None:
                return self._kind(node.left)
            case nodes.Mod() if self._kind(node.left) is _Kind.INDEX:
                if not isinstance(node.right, nodes.Const) or node.right.value != 2:
                    raise _Everywhere
                self.period = 2
                return _Kind.NEAR
            case nodes.Compare():
                return self._compared(node)
            case _ if isinstance(node, _PARTS):
                return self._all(node)
        raise _Everywhere

    def _all(self, node: nodes.Node) -> _Kind:
        """Of an expression that may do anything with its parts."""
        return max((self._value(part) for part in node.iter_child_nodes()), default=_Kind.FIXED)

    def _look_up(self, name: str) -> _Kind:
        for names in reversed(self._names):
            if name in names:
                return names[name]
        if name in _WITH_STATE:
            raise _Everywhere  # something is carried from message to message
        return _Kind.FIXED

    def _is_loop(self) -> bool:
        return self._look_up("loop") is _Kind.LIST

    def _attribute_of_loop(self, attr: str) -> _Kind:
        if attr not in _LOOP:
            raise _Everywhere
        self.tail = max(self.tail, 2)
        return _LOOP[attr]

    def _part_of_list(self, place: nodes.Node) -> _Kind:
        """``messages[…]``."""
        match place:
            case nodes.Const(value=int(at)) if at >= 0:
                self.head = max(self.head, at + 1)
                return _Kind.FIXED
            case nodes.Neg(node=nodes.Const(value=int(at))):
                self.tail = max(self.tail, at + 1)
                return _Kind.LAST
            case nodes.Slice(start=nodes.Const(value=int(at)), stop=None, step=None) if at >= 0:
                self.skipped += at
                return _Kind.LIST
        if self._kind(place) is not _Kind.INDEX:
            raise _Everywhere
        distance = abs(self._offset(place) or 0) + 2
        self.tail, self.head = max(self.tail, distance), max(self.head, distance)
        return _Kind.NEAR

    def _filtered_list(self, node: nodes.Filter) -> _Kind:
        match node.name:
            case "length" | "count":
                return _Kind.COUNT
            case "first":
                return self._part_of_list(nodes.Const(0))
            case "last":
                return self._part_of_list(nodes.Neg(nodes.Const(1)))
        raise _Everywhere

    def _offset(self, node: nodes.Node) -> int | None:
        """How far ``loop.index0 + 1`` or ``messages|length - 1`` is from what it begins with."""
        match node:
            case nodes.Add() | nodes.Sub():
                counts = self._kind(node.left) in (_Kind.INDEX, _Kind.COUNT)
                right = node.right
                if counts and isinstance(right, nodes.Const) and isinstance(right.value, int):
                    before = self._offset(node.left) or 0
                    return before + (right.value if isinstance(node, nodes.Add) else -right.value)
        return None

    def _compared(self, node: nodes.Compare) -> _Kind:
        """A place may be compared with a fixed number, which tells the ends apart, and with another."""
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        kinds = [self._kind(side) for side in sides]
        if max(kinds) <= _Kind.LAST:
            return self._all(node)
        for side, kind in zip(sides, kinds, strict=True):
            if kind in (_Kind.INDEX, _Kind.COUNT):
                distance = abs(self._offset(side) or 0) + 2
            elif isinstance(side, nodes.Const) and isinstance(side.value, int):
                distance = abs(side.value) + 2
            else:
                raise _Everywhere
            self.head, self.tail = max(self.head, distance), max(self.tail, distance)
        return _Kind.NEAR if _Kind.INDEX in kinds else _Kind.FIXED
