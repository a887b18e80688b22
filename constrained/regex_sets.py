"""Reading a bracketed set: ranges, nested sets, set operations, POSIX classes."""

from __future__ import annotations

from stolon.constrained.regex_build import Ranges, complement, difference, intersect, union
from stolon.constrained.regex_classes import posix_class
from stolon.constrained.regex_escapes import Scanner, read_escape, refuse
from stolon.constrained.regex_flags import Flags

__all__ = ["read_set"]

MAX_DEPTH = 50
_OPERATIONS = ("&&", "--", "~~")


class _Set:
    """A set being read: its items so far, and the operation that waits for its right side."""

    __slots__ = ("at", "items", "left", "negated", "operation")

    def __init__(self, at: int, negated: bool) -> None:
        self.at = at
        self.negated = negated
        self.items: list[tuple[int, int]] = []
        self.left: Ranges | None = None
        self.operation = ""

    def combine(self, flags: Flags) -> Ranges:
        """The value so far: operations go from left to right."""
        right = flags.cased(union(self.items))
        self.items = []
        left = self.left
        if left is None:
            return right
        if self.operation == "&&":
            return intersect(left, right)
        if self.operation == "--":
            return difference(left, right)
        return union(difference(left, right), difference(right, left))


def read_set(scan: Scanner, flags: Flags, at: int) -> Ranges:
    """The set whose opening bracket, at `at`, was passed over.

    Raises:
        GrammarError: it is not closed, has a reversed range, or an escape that is refused.
    """
    sets = [_begin(scan, flags, at)]
    while True:
        here = scan.at
        if scan.done:
            raise refuse("has an unclosed set", sets[-1].at)
        top = sets[-1]
        if flags.verbose and scan.peek().isspace():
            scan.take()
            continue
        if not flags.ecma and scan.rest(2) in _OPERATIONS and scan.rest(3) != "--]":
            top.left = top.combine(flags)
            top.operation = scan.rest(2)
            scan.at += 2
            continue
        c = scan.take()
        if c == "]":
            ranges = top.combine(flags)
            if top.negated:
                if not flags.unicode:
                    raise refuse("has a negated set without Unicode, which matches bytes", top.at)
                ranges = complement(ranges)
            sets.pop()
            if not sets:
                return ranges
            sets[-1].items.extend(ranges)
        elif c == "[" and not flags.ecma:
            if (ranges_of_name := _posix(scan, here)) is not None:
                top.items.extend(ranges_of_name)
            else:
                if len(sets) >= MAX_DEPTH:
                    raise refuse("has sets nested too deeply", here)
                sets.append(_begin(scan, flags, here))
        else:
            _range(scan, flags, top, c, here)


def _begin(scan: Scanner, flags: Flags, at: int) -> _Set:
    negated = scan.peek() == "^"
    if negated:
        scan.take()
    new = _Set(at, negated)
    if flags.ecma:
        return new
    while scan.peek() == "-" and scan.rest(2) != "--":
        scan.take()
        new.items.append((45, 45))
    if not new.items and scan.peek() == "]":
        scan.take()
        if scan.peek() == "-" and scan.rest(2) != "--" and scan.rest(2) != "-]":
            scan.at -= 1
            _range(scan, flags, new, scan.take(), scan.at)
        else:
            new.items.append((93, 93))
    return new


def _posix(scan: Scanner, at: int) -> Ranges | None:
    """``[:name:]`` after its first bracket; None, and no move, if it is a nested set."""
    if scan.peek() != ":":
        return None
    start = scan.at
    scan.take()
    name = scan.take_until(":]", limit=20)
    if name is None or not name.lstrip("^").isalpha():
        scan.at = start
        return None
    ranges = posix_class(name.lstrip("^"))
    if ranges is None:
        raise refuse(f"uses the class [:{name}:], which is not known", at)
    return complement(ranges) if name.startswith("^") else ranges


def _range(scan: Scanner, flags: Flags, into: _Set, c: str, at: int) -> None:
    """One character, an escape, or a range of characters."""
    first = _item(scan, flags, c, at)
    after = scan.rest(2)
    ends = after[1:] in ("]", "") or (after == "--" and not flags.ecma)
    if after[:1] != "-" or ends or (after[1:] == "[" and not flags.ecma):
        into.items.extend(first)
        return
    scan.take()
    start = scan.at
    last = _item(scan, flags, scan.take(), start)
    if _many(first) or _many(last):
        if not flags.ecma:
            raise refuse("has a range that begins or ends with a class", at)
        into.items.extend((*first, (45, 45), *last))
        return
    if last[0][0] < first[0][0]:
        raise refuse("has a reversed range", at)
    into.items.append((first[0][0], last[0][0]))


def _item(scan: Scanner, flags: Flags, c: str, at: int) -> Ranges:
    if c != "\\":
        return ((ord(c), ord(c)),)
    if scan.peek() == "b" and flags.ecma:
        scan.take()
        return ((8, 8),)
    return read_escape(scan, flags, at)


def _many(ranges: Ranges) -> bool:
    return len(ranges) != 1 or ranges[0][0] != ranges[0][1]
