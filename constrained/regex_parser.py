"""Regular expressions read into trees: our dialect, and ECMAScript's as JSON Schema uses it.

Hand-written and without recursion, so that no pattern exhausts the stack. What can't be a regular
language, or isn't read the same everywhere, is refused by name with its offset.
"""

from __future__ import annotations

import dataclasses

from stolon.constrained.regex_anchors import resolve
from stolon.constrained.regex_assertions import Assertion
from stolon.constrained.regex_ast import ANY, EMPTY, Node, Repeat
from stolon.constrained.regex_build import chars, choice, repeat, sequence
from stolon.constrained.regex_escapes import Scanner, read_escape, refuse
from stolon.constrained.regex_flags import Flags
from stolon.constrained.regex_sets import read_set

__all__ = ["MAX_REPEAT", "parse_ecma_search", "parse_regex"]

MAX_DEPTH = 100
MAX_LENGTH = 100_000
MAX_REPEAT = 100_000
PIECE = 4096
_FLAGS = {
    "i": "ignore_case",
    "m": "multi_line",
    "s": "dot_all",
    "x": "verbose",
    "u": "unicode",
    "R": "crlf",
    "U": "",
}


def parse_regex(pattern: str) -> Node:
    """The whole texts that a pattern of our dialect matches.

    Raises:
        GrammarError: the pattern is refused; `where` is the offset of what is at fault.
    """
    parser = _Parser(pattern, Flags())
    node = parser.parse()
    return resolve(node) if parser.asserts else node


def parse_ecma_search(pattern: str) -> Node:
    """The whole texts in which an ECMAScript pattern is found somewhere: JSON Schema's ``pattern``.

    Raises:
        GrammarError: the pattern is refused; `where` is the offset of what is at fault.
    """
    parser = _Parser(pattern, Flags(ecma=True))
    found = parser.parse()
    any_text = Repeat(ANY, 0, None)
    if not parser.asserts:
        return sequence((any_text, found, any_text))
    options = getattr(found, "options", None) or (found,)
    return resolve(choice(sequence((any_text, option, any_text)) for option in options))


class _Group:
    """A group being read: finished alternatives, the items of the current one."""

    __slots__ = ("alternatives", "at", "flags", "items")

    def __init__(self, flags: Flags, at: int) -> None:
        self.flags = flags  # to go back to when the group ends
        self.at = at
        self.alternatives: list[Node] = []
        self.items: list[tuple[Node, int]] = []  # a node, its depth

    def close(self) -> tuple[Node, int]:
        depth = max((d for _, d in self.items), default=0)
        self.alternatives.append(sequence(node for node, _ in self.items))
        while self.items:  # in pieces: freeing many at once holds up other threads
            del self.items[-PIECE:]
        return choice(self.alternatives), depth


class _Parser:
    def __init__(self, pattern: str, flags: Flags) -> None:
        if len(pattern) > MAX_LENGTH:
            raise refuse(f"has {len(pattern):,} characters; the limit is {MAX_LENGTH:,}", 0)
        self._in = Scanner(pattern)
        self._flags = flags
        self._groups = [_Group(flags, 0)]
        self._depths = [0]  # of what the alternatives of each group hold
        self._quantified = True  # nothing that a quantifier could apply to
        self.asserts = False

    def parse(self) -> Node:
        scan = self._in
        while not scan.done:
            at = scan.at
            c = scan.take()
            if self._flags.verbose and c in " \t\n\v\f\r\x85\u200e\u200f\u2028\u2029":
                continue
            if self._flags.verbose and c == "#":
                scan.take_until("\n")
            elif c == "(":
                self._open(at)
            elif c == ")":
                self._close(at)
            elif c == "|":
                group = self._groups[-1]
                self._depths[-1] = max([self._depths[-1], *(d for _, d in group.items)])
                group.alternatives.append(sequence(node for node, _ in group.items))
                group.items = []
                self._quantified = True
            elif c in "*+?":
                self._quantify(at, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[c])
            elif c == "{":
                self._braces(at)
            elif c == "[":
                self._add(chars(read_set(scan, self._flags, at)))
            elif c == ".":
                if not self._flags.unicode:
                    raise refuse("uses . without Unicode, which matches bytes", at)
                self._add(self._flags.dot())
            elif c == "^":
                self._assert(self._flags.line_start())
            elif c == "$":
                self._assert(self._flags.line_end())
            elif c == "\\":
                self._escape(at)
            else:
                self._add(chars(self._flags.cased(((ord(c), ord(c)),))))
        if len(self._groups) > 1:
            raise refuse("has an unclosed group", self._groups[-1].at)
        return self._groups[0].close()[0]

    def _add(self, node: Node, *, depth: int = 0) -> None:
        self._groups[-1].items.append((node, depth))
        self._quantified = False

    def _assert(self, assertion: Assertion) -> None:
        self.asserts = True
        self._add(assertion)

    def _escape(self, at: int) -> None:
        scan, flags = self._in, self._flags
        if scan.done:
            raise refuse("ends with a backslash", at)
        c = scan.peek()
        if c == "A" and not flags.ecma:
            scan.take()
            self._assert(dataclasses.replace(flags, multi_line=False).line_start())
        elif c == "z" and not flags.ecma:
            scan.take()
            self._assert(dataclasses.replace(flags, multi_line=False).line_end())
        elif c in "bB" or (c in "<>" and not flags.ecma):
            scan.take()
            braces = scan.braces() if c == "b" and not flags.ecma else None
            assertion = flags.word_boundary(c if braces is None else f"{c}{{{braces}}}")
            if assertion is None:
                raise refuse("uses an unknown word boundary", at)
            self._assert(assertion)
        else:
            self._add(chars(flags.cased(read_escape(scan, flags, at))))

    def _quantify(self, at: int, low: int, high: int | None) -> None:
        items = self._groups[-1].items
        if self._quantified or not items:
            raise refuse("has a quantifier with nothing before it", at)
        if high is not None and high < low:
            raise refuse("has a quantifier whose bounds are reversed", at)
        if max(low, high or 0) > MAX_REPEAT:
            raise refuse(f"repeats more than {MAX_REPEAT:,} times", at)
        node, depth = items[-1]
        if self._flags.ecma and isinstance(node, Assertion):
            raise refuse("has a quantifier after an anchor", at)
        if depth + 1 > MAX_DEPTH:
            raise refuse("is nested too deeply", at)
        items[-1] = (self._repeated(node, low, high), depth + 1)
        if self._in.peek() == "?":
            self._in.take()
        elif self._in.peek() == "+":
            raise refuse("uses a possessive quantifier", at)
        if self._flags.ecma:
            self._quantified = True

    def _repeated(self, node: Node, low: int, high: int | None) -> Node:
        if isinstance(node, Assertion):
            return node if low else EMPTY  # holding once is holding any number of times
        return repeat(node, low, high)

    def _braces(self, at: int) -> None:
        """``{n}``, ``{n,}``, ``{n,m}``, ``{,m}``; any other brace is a character."""
        start = self._in.at
        text = self._in.take_until("}", limit=32)
        low, comma, high = (part.strip() for part in (text or "").partition(","))
        digits = [part for part in (low, high) if part]
        numbers = bool(digits) and all(p.isascii() and p.isdigit() for p in digits)
        if text is None or not numbers or (not low and self._flags.ecma):
            self._in.at = start
            if numbers and text is not None:
                raise refuse("uses {,n}, which dialects read differently", at)
            self._add(chars(((ord("{"), ord("{")),)))
        else:
            first = int(low or 0)
            last = first if not comma else int(high) if high else None
            self._quantify(at, first, last)

    def _open(self, at: int) -> None:
        scan = self._in
        if len(self._groups) > MAX_DEPTH:
            raise refuse("is nested too deeply", at)
        flags = self._flags
        if scan.peek() == "?":
            scan.take()
            rest = scan.rest(3)
            if rest.startswith(("=", "!", "<=", "<!")):
                raise refuse("uses look-around", at)
            if rest.startswith(">"):
                raise refuse("uses an atomic group", at)
            if rest.startswith("("):
                raise refuse("uses a conditional", at)
            if rest.startswith("P="):
                raise refuse("uses a back-reference", at)
            if rest.startswith("#"):
                if scan.take_until(")") is None:
                    raise refuse("has an unclosed comment", at)
                return
            if rest.startswith(("P<", "<", "P'", "'")):
                self._name(at)
            else:
                inner, ends = self._read_flags(at)
                if ends:
                    self._flags = inner
                    self._quantified = True
                    return
                flags = inner
        self._groups.append(_Group(self._flags, at))
        self._depths.append(0)
        self._flags = flags
        self._quantified = True

    def _name(self, at: int) -> None:
        if self._in.peek() == "P":
            self._in.take()
        close = ">" if self._in.take() == "<" else "'"
        name = self._in.take_until(close)
        if not name or not name.replace(".", "_").replace("$", "_").isidentifier():
            raise refuse("has a group name that can't be read", at)

    def _read_flags(self, at: int) -> tuple[Flags, bool]:
        """Flags up to ``:`` or ``)``; and whether they hold for the rest of the group around."""
        flags = self._flags
        on = True
        while not self._in.done:
            c = self._in.take()
            if c == ":":
                return flags, False
            if c == ")":
                return flags, True
            if c == "-" and on:
                on = False
            elif c in _FLAGS and not (flags.ecma and c not in "ims"):
                if name := _FLAGS[c]:
                    flags = dataclasses.replace(flags, **{name: on})
            else:
                raise refuse(f"uses the unknown flag or group {c!r}", at)
        raise refuse("has an unclosed group", at)

    def _close(self, at: int) -> None:
        if len(self._groups) == 1:
            raise refuse("closes a group that was not opened", at)
        group = self._groups.pop()
        node, depth = group.close()
        depth = max(depth, self._depths.pop())
        self._flags = group.flags
        self._add(node, depth=depth + 1)
