"""Reading EBNF, the notation that llama.cpp calls GBNF: rules ``name ::= …``, the first of them ``root``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stolon.constrained.regex_ast import ANY, SURROGATES, Chars, Node
from stolon.constrained.regex_build import Ranges, complement, union
from stolon.errors import GrammarError

__all__ = ["Expression", "Options", "Ref", "Row", "Terminal", "Times", "parse_ebnf"]

MAX_DEPTH = 64
MAX_ROUNDS = 100_000
_TOKEN = re.compile(
    r"""(?P<blank>\s+ | \#[^\n]*)
    | (?P<rule>[\w-]+)\s*::=
    | (?P<name>[\w-]+)
    | "(?P<text>(?:[^"\\]|\\.)*)"
    | \[(?P<set>(?:[^\]\\]|\\.)*)\]
    | (?P<times>[*+?])
    | \{\s*(?P<low>[0-9]*)\s*(?P<comma>,?)\s*(?P<high>[0-9]*)\s*\}
    | (?P<sign>[().|])""",
    re.DOTALL | re.VERBOSE,
)
_CHARACTER = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<c>.))|(?P<plain>.)",
    re.DOTALL,
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_SIGNS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Ref:
    """The texts of a rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other; no parts match the empty text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Any of two or more."""

    options: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """`low` to `high` times, without an upper end where `high` is None."""

    item: Expression
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A regular expression in one piece, and what its texts begin with. Not in what was parsed."""

    tree: Node
    first: Ranges


Expression = str | Chars | Ref | Row | Options | Times | Terminal
"""A text stands for itself; it is not empty."""


def parse_ebnf(text: str) -> dict[str, Expression]:
    """The rules by name; each that is named is there, and ``root`` is.

    Raises:
        GrammarError: with the line and column.
    """
    return _Parser(text).parse()


class _Group:
    """What a parenthesis or a rule holds so far."""

    __slots__ = ("at", "may_repeat", "options", "row")

    def __init__(self, at: int) -> None:
        self.at = at
        self.options: list[Expression] = []
        self.row: list[Expression] = []
        self.may_repeat = False

    def add(self, item: Expression, *, may_repeat: bool = True) -> None:
        self.row.append(item)
        self.may_repeat = may_repeat

    def next_option(self) -> None:
        self.options.append(self.row[0] if len(self.row) == 1 else Row(tuple(self.row)))
        self.row = []
        self.may_repeat = False

    def close(self) -> Expression:
        self.next_option()
        return self.options[0] if len(self.options) == 1 else Options(tuple(self.options))


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._rules: dict[str, Expression] = {}
        self._named: dict[str, int] = {}  # each rule that is referred to, and where first
        self._rule: str | None = None
        self._groups: list[_Group] = []

    def parse(self) -> dict[str, Expression]:
        at = 0
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None:
                raise self._wrong(_unread(self._text[at]), at)
            if found["rule"] is not None:
                self._begin_rule(found["rule"], at)
            elif found["blank"] is None:
                self._token(found, at)
            at = found.end()
        self._end_rule()
        for name, where in self._named.items():
            if name not in self._rules:
                raise self._wrong(f"has no rule {name!r}", where)
        if "root" not in self._rules:
            raise GrammarError("the EBNF has no rule 'root'", hint="it is where every text begins")
        return self._rules

    def _begin_rule(self, name: str, at: int) -> None:
        self._end_rule()
        if name in self._rules:
            raise self._wrong(f"defines the rule {name!r} twice", at)
        self._rule = name
        self._groups = [_Group(at)]

    def _end_rule(self) -> None:
        if self._rule is None:
            return
        if len(self._groups) > 1:
            raise self._wrong("has a parenthesis that is not closed", self._groups[-1].at)
        self._rules[self._rule] = self._groups[0].close()

    def _token(self, found: re.Match[str], at: int) -> None:
        if not self._groups:
            hint = "a rule is written name ::= …; a Lark grammar is given as lark="
            raise self._wrong("does not begin with a rule", at, hint=hint)
        group = self._groups[-1]
        match found.lastgroup:
            case "name":
                self._named.setdefault(found["name"], at)
                group.add(Ref(found["name"]))
            case "text":
                text = "".join(c for c, _ in self._characters(found["text"], found.start("text")))
                group.add(text or Row(()))
            case "set":
                group.add(self._set(found["set"], found.start("set")))
            case "times":
                self._repeat(group, *_SIGNS[found["times"]], at)
            case "high":
                self._repeat(group, *self._rounds(found, at), at)
            case _:
                self._sign(found["sign"], group, at)

    def _sign(self, sign: str, group: _Group, at: int) -> None:
        if sign == ".":
            group.add(ANY)
        elif sign == "|":
            group.next_option()
        elif sign == "(":
            if len(self._groups) > MAX_DEPTH:
                raise self._wrong(f"nests more than {MAX_DEPTH} parentheses", at)
            self._groups.append(_Group(at))
        else:
            if len(self._groups) == 1:
                raise self._wrong("closes a parenthesis that is not open", at)
            self._groups.pop()
            self._groups[-1].add(group.close())

    def _repeat(self, group: _Group, low: int, high: int | None, at: int) -> None:
        if not group.row:
            raise self._wrong("repeats nothing", at)
        if not group.may_repeat:
            raise self._wrong("repeats twice", at, hint="put what is repeated in parentheses")
        group.add(Times(group.row.pop(), low, high), may_repeat=False)

    def _rounds(self, found: re.Match[str], at: int) -> tuple[int, int | None]:
        low, comma, high = found["low"], found["comma"], found["high"]
        if not (low or high) or (high and not comma):
            raise self._wrong("has a repetition that can't be read", at)
        if max(len(low), len(high)) > 9 or max(int(low or 0), int(high or 0)) > MAX_ROUNDS:
            raise self._wrong(f"repeats more than {MAX_ROUNDS:,} times", at)
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise self._wrong("has a repetition whose end is before its beginning", at)
        return least, most

    def _set(self, text: str, at: int) -> Chars:
        negated = text.startswith("^")
        chars = self._characters(text[negated:], at + negated)
        ranges = []
        i = 0
        while i < len(chars):
            low = high = chars[i][0]
            if i + 2 < len(chars) and self._text[chars[i + 1][1]] == "-":
                high = chars[i + 2][0]
                if high < low:
                    raise self._wrong("has a reversed range", chars[i][1])
                i += 2
            ranges.append((ord(low), ord(high)))
            i += 1
        listed = union(ranges)
        kept = complement(listed) if negated else listed
        if not listed or not kept:
            raise self._wrong("has an empty set", at - 1)
        return Chars(kept)

    def _characters(self, text: str, at: int) -> list[tuple[str, int]]:
        """The characters that a literal or a set writes, each with where it stands."""
        out = []
        for found in _CHARACTER.finditer(text):
            here = at + found.start()
            digits, c = found["x"] or found["u"] or found["U"], found["c"]
            if digits:
                code = int(digits, 16)
                if code > 0x10FFFF or SURROGATES[0] <= code <= SURROGATES[1]:
                    raise self._wrong(f"names {found.group()}, which is no character", here)
                out.append((chr(code), here))
            elif c is None:
                out.append((found["plain"], here))
            elif c.isascii() and (c in _CONTROLS or not (c.isalnum() or c.isspace())):
                out.append((_CONTROLS.get(c, c), here))
            else:
                raise self._wrong(f"uses the escape \\{c}, which can't be read", here)
        return out

    def _wrong(self, what: str, at: int, *, hint: str | None = None) -> GrammarError:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return GrammarError(f"the EBNF {what}", where=f"line {line}, column {column}", hint=hint)


def _unread(char: str) -> str:
    kinds = {'"': "literal", "[": "set"}
    if char in kinds:
        return f"has a {kinds[char]} that is not closed"
    return "has a repetition that can't be read" if char == "{" else f"can't have {char!r} here"
