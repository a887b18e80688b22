"""One branch of a program: what it says, and the branches that go on from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.blocks import Tail
from stolon.lang.calls import Borrowed, BranchPath, Call, Item, Known, Sample, calls_of
from stolon.lang.history import History
from stolon.lang.ir import Expr, ReasoningExpr
from stolon.lang.location import program_line
from stolon.lang.recording import Recording
from stolon.lang.roles import Turn
from stolon.lang.run import ProgramRun
from stolon.lang.separation import REASONING, separation
from stolon.lang.variables import Gathered, Span, Variables
from stolon.srt.protocol import Gen

MAX_BRANCHES = 100_000
"""Branches of one fork. A branch that is only made takes about a kilobyte."""


class Branch(Recording):
    """A record that can be forked, and joined with what was forked from it."""

    __slots__ = ("_base_items", "_base_turns", "_forks")

    def __init__(self, run: ProgramRun, path: BranchPath = ()) -> None:
        super().__init__(run, path)
        self._forks = 0
        self._base_items = 0
        self._base_turns = 0

    # -- forks -----------------------------------------------------------------------------------

    def fork(self, size: int) -> list[Branch]:
        """Branches that go on from here. What this one has asked for so far is sent."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidRequest(
                f"fork() needs a positive number of branches, not {size!r}",
                param="size",
                where=program_line(),
            )
        if size > MAX_BRANCHES:
            raise InvalidRequest(
                f"fork() makes at most {MAX_BRANCHES:,} branches, not {size:,}",
                param="size",
                where=program_line(),
                hint="fork several times, or run the program for many inputs with run_batch()",
            )
        with self.run.lock:
            self._send_pending()
            inherited = self.variables.snapshot()
            return [self._child(path, inherited) for path in self._fork_paths(size)]

    def fork_samples(self, name: str) -> list[Branch]:
        """One branch per sample of the generation behind a variable, going on from that sample.

        Text may follow the generation, such as the end of its message; nothing else may.
        """
        with self.run.lock:
            call = self.variables.get(name, name)
            if not isinstance(call, Call) or not isinstance(call.segment, Gen):
                raise _no_samples(name, "is no generation of this branch")
            self._send_pending()
            position = len(self.items) - 1
            while isinstance(self.items[position], Known):
                position -= 1
            if self.items[position] is not call or self.head is None:
                raise _no_samples(name, "is not the last that was generated here")
            paths = self._fork_paths(call.n)
            return [self._sample_child(path, call, position) for path in paths]

    def _sample_child(self, path: BranchPath, call: Call, position: int) -> Branch:
        """A child for sample ``path[-1][1]`` of the call at `position` of the items."""
        sample = Sample(call, path[-1][1])

        def chosen(items: Iterable[Item]) -> tuple[Item, ...]:
            return tuple(sample if item is call else item for item in items)

        inherited = dict(self.variables.snapshot())
        for name, value in inherited.items():
            if value is call:
                inherited[name] = sample
            elif isinstance(value, Span):
                inherited[name] = Span(chosen(value.items))
        child = self._child(path, inherited)
        child.items = History(self.items, position)
        for item in chosen(self.items.since(position)):
            child.items.append(item)
        turns = tuple(Turn(turn.role, chosen(turn.items)) for turn in self.chat.turns)
        child.chat = replace(self.chat, turns=turns)
        if self.head is not None:
            child.head = Tail(self.head.block, sample.sample)
        return child

    def _send_pending(self) -> None:
        if any(isinstance(item, Call) for item in self.pending):
            self.run.flush()

    def _fork_paths(self, size: int) -> list[BranchPath]:
        fork = self._forks
        self._forks += 1
        return [(*self.path, (fork, index)) for index in range(size)]

    def _child(self, path: BranchPath, inherited: Mapping[str, Any]) -> Branch:
        child = type(self)(self.run, path)
        child.items = History(self.items)
        child.pending = self.pending.copy()
        child.variables = Variables(inherited)
        child.chat = self.chat
        child.head = self.head
        child._base_items = len(self.items)
        child._base_turns = len(self.chat.turns)
        return child

    def gather(self, children: list[Branch]) -> None:
        """Variables that a child has set since the fork become lists of all children's values."""
        with self.run.lock:
            names = dict.fromkeys(name for c in children for name in c.variables.changes())
            for name in names:
                values = tuple(child.variables.get(name) for child in children)
                self.variables[name] = Gathered(values)
        self.run.changed.notify()

    def concatenate(self, children: list[Branch]) -> None:
        """Append what the children said since the fork, in child order, as literal text.

        Generated text of a child is tokenised anew here: it stands after other text than it did
            there.
        """
        with self.run.lock:
            if any(child.chat.open != self.chat.open for child in children):
                raise InvalidRequest(
                    "a branch that ends in another role than it began can't be concatenated",
                    where=program_line(),
                )
            turns: list[Turn] = []
            for child in children:
                for item in child.items.since(child._base_items):
                    self._add(_borrow(item))
                turns += [
                    Turn(turn.role, tuple(map(_borrow, turn.items)))
                    for turn in child.chat.turns[child._base_turns :]
                ]
            self.chat = self.chat.with_turns(turns)
        self.run.changed.notify()

    # -- reasoning -------------------------------------------------------------------------------

    def _append(self, expr: Expr, where: str) -> None:
        if isinstance(expr, ReasoningExpr):
            self._separate(expr, where)
        else:
            super()._append(expr, where)

    def _separate(self, expr: ReasoningExpr, where: str) -> None:
        """Generate on a branch of its own; here the answer is appended, as text."""
        name = expr.inner.name
        plan = separation(expr, self._text_before(), self.run.options)
        if plan is None:
            self._append(expr.inner, where)
            answer: Any = None
            reasoning: Any = ""
        else:
            self._send_pending()
            (path,) = self._fork_paths(1)
            child = self._child(path, self.variables.snapshot())
            for part in plan.exprs:
                child._append(part, where)
            answer, reasoning = plan.sides(calls_of(child.items.since(len(self.items))))
            self._add_text(plan.closing, special=True)
            self._add(Borrowed(answer))
        if name is not None:
            if answer is not None:
                self.variables[name] = answer
            self.variables[name + REASONING] = reasoning

    def _text_before(self) -> str:
        """The known text that the branch ends with."""
        known: list[str] = []
        for item in reversed(self.items):
            if not isinstance(item, Known):
                break
            known.append(item.text)
        return "".join(reversed(known))


def _borrow(item: Item) -> Item:
    if isinstance(item, Sample):
        return Borrowed(item.call, item.sample)
    return Borrowed(item) if isinstance(item, Call) else item


def _no_samples(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"fork_samples({name!r}): {name!r} {why}",
        where=program_line(),
        hint="fork right after s += sl.gen(name, n=...); only text may stand in between",
    )
