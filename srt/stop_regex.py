"""Stop patterns that are searched for while text is generated, in time linear in the text.

A pattern from a request must not be able to hold the engine's loop, so Python's backtracking matcher is not
used: its parser is (``re`` syntax), and the parse tree becomes a Thompson automaton that is simulated one
character at a time (Russ Cox, "Regular Expression Matching Can Be Simple And Fast", 2007).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from re import _constants as _c  # type: ignore[attr-defined]
from re import _parser as _p  # type: ignore[attr-defined]
from typing import Any

from stolon.errors import GrammarError

MAX_STATES = 2_000
"""States of one pattern's automaton, after counted repeats are written out."""


@dataclass(slots=True)
class _State:
    """Either a test on one character (`test` set) or an empty move to `out`."""

    test: re.Pattern[str] | None = None
    out: list[int] = field(default_factory=list)


class StopRegex:
    """A compiled pattern. Anchors, look-around and back-references are refused; classes are Unicode.

    Raises:
        GrammarError: the pattern is wrong, uses what is refused, matches nothing, or is too large.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._states: list[_State] = []
        try:
            tree = _p.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise GrammarError(
                f"stop_regex {pattern!r} is not a regular expression: {error}", param="stop_regex"
            ) from error
        self._flags = tree.state.flags & (re.IGNORECASE | re.DOTALL)
        start = self._add()
        end = self._sequence(tree, start)
        self._final = end
        self._initial = self._closure([start])
        if self._final in self._initial:
            raise GrammarError(
                f"stop_regex {pattern!r} matches the empty string, so every text would end at once",
                param="stop_regex",
                hint="ask for at least one character, e.g. + instead of *",
            )

    def search(self) -> StopSearch:
        """A fresh search over one growing text."""
        return StopSearch(self)

    def _add(self, test: re.Pattern[str] | None = None) -> int:
        if len(self._states) >= MAX_STATES:
            raise GrammarError(
                f"stop_regex {self.pattern!r} needs more than {MAX_STATES} states",
                param="stop_regex",
                hint="use smaller repeat counts",
            )
        self._states.append(_State(test))
        return len(self._states) - 1

    def _sequence(self, items: Any, at: int) -> int:
        for item in items:
            at = self._item(item, at)
        return at

    def _item(self, item: Any, at: int) -> int:
        op, arg = item
        if op in (_c.LITERAL, _c.NOT_LITERAL, _c.IN, _c.ANY):
            test = self._add(_character_test(op, arg, self._flags))
            self._states[at].out.append(test)
            after = self._add()
            self._states[test].out.append(after)
            return after
        if op is _c.SUBPATTERN:
            _group, add_flags, del_flags, body = arg
            if add_flags or del_flags:
                raise self._refuse("inline flags on a group")
            return self._sequence(body, at)
        if op is _c.BRANCH:
            end = self._add()
            for branch in arg[1]:
                start = self._add()
                self._states[at].out.append(start)
                self._states[self._sequence(branch, start)].out.append(end)
            return end
        if op in (_c.MAX_REPEAT, _c.MIN_REPEAT):
            return self._repeat(*arg, at=at)
        raise self._refuse(str(op).lower().replace("_", " "))

    def _repeat(self, low: int, high: Any, body: Any, *, at: int) -> int:
        for _ in range(low):
            at = self._sequence(body, at)
        end = self._add()
        if high is _c.MAXREPEAT:
            loop = self._add()
            self._states[at].out.append(loop)
            back = self._sequence(body, loop)
            self._states[back].out.append(loop)
            self._states[loop].out.append(end)
            return end
        self._states[at].out.append(end)
        for _ in range(int(high) - low):
            at = self._sequence(body, at)
            self._states[at].out.append(end)
        return end

    def _refuse(self, what: str) -> GrammarError:
        return GrammarError(
            f"stop_regex {self.pattern!r} uses {what}, which a streaming search can't honour",
            param="stop_regex",
            hint="use literals, classes, groups, | and repeats",
        )

    def _closure(self, states: list[int]) -> frozenset[int]:
        seen: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            if self._states[state].test is None:
                todo.extend(self._states[state].out)
        return frozenset(seen)


def _character_test(op: Any, arg: Any, flags: int) -> re.Pattern[str]:
    """A one-character pattern for one node of the parse tree, written back as regex source."""
    if op is _c.ANY:
        source = "."
    elif op is _c.LITERAL:
        source = re.escape(chr(arg))
    elif op is _c.NOT_LITERAL:
        source = f"[^{re.escape(chr(arg))}]"
    else:
        source = "[" + "".join(_class_item(*item) for item in arg) + "]"
    return re.compile(source, flags)


_CATEGORIES = {
    _c.CATEGORY_DIGIT: r"\d",
    _c.CATEGORY_NOT_DIGIT: r"\D",
    _c.CATEGORY_SPACE: r"\s",
    _c.CATEGORY_NOT_SPACE: r"\S",
    _c.CATEGORY_WORD: r"\w",
    _c.CATEGORY_NOT_WORD: r"\W",
}


def _class_item(op: Any, arg: Any) -> str:
    if op is _c.NEGATE:
        return "^"
    if op is _c.LITERAL:
        return re.escape(chr(arg))
    if op is _c.RANGE:
        return f"{re.escape(chr(arg[0]))}-{re.escape(chr(arg[1]))}"
    return _CATEGORIES[arg]


class StopSearch:
    """Searches one growing text for the leftmost match, as early as it is complete."""

    def __init__(self, regex: StopRegex) -> None:
        self.pattern = regex.pattern
        self._regex = regex
        self._active: dict[int, int] = {}  # state -> earliest start of a match that is in it

    def feed(self, text: str, start: int) -> tuple[int, int] | None:
        """Read ``text[start:]``. Returns (begin, end) of a match that is now complete, or None."""
        states = self._regex._states
        for position in range(start, len(text)):
            for state in self._regex._initial:
                self._active.setdefault(state, position)
            following: dict[int, int] = {}
            for state, begin in self._active.items():
                test = states[state].test
                if test is not None and test.match(text, position):
                    for after in self._regex._closure(states[state].out):
                        if begin < following.get(after, position + 1):
                            following[after] = begin
            self._active = following
            if self._regex._final in following:
                return following[self._regex._final], position + 1
        return None

    def earliest_start(self, length: int) -> int:
        """Where the earliest unfinished match begins; `length` if none is under way."""
        return min(self._active.values(), default=length)
