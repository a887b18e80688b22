"""Branches and runs that record what a program does instead of sending it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stolon.lang.blocks import Block
from stolon.lang.branch import Branch
from stolon.lang.calls import BranchPath, Known
from stolon.lang.ir import Expr, ReasoningExpr
from stolon.lang.location import program_line
from stolon.lang.options import SamplingOptions
from stolon.lang.placeholders import Placeholder
from stolon.lang.run import ProgramRun
from stolon.lang.tracer import MAX_RECORDED, Tracer


class PlaceholderItem(Known):
    """A placeholder in the text of a branch."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Forked:
    """A fork in a branch's record."""

    branches: tuple[TracedBranch, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A join in a branch's record; `text`: the texts are appended."""

    text: bool
    where: str


@dataclass(frozen=True, slots=True)
class ReadAt:
    """A read in a branch's record."""

    name: str | None
    where: str


Recorded = Block | Forked | Joined | ReadAt


class TracedRun(ProgramRun):
    """A run that keeps blocks instead of sending them."""

    def __init__(
        self, tracer: Tracer, name: str, options: SamplingOptions, *, is_async: bool
    ) -> None:
        super().__init__(
            name=name, client=tracer.client, options=options, seed=0, is_async=is_async
        )
        self.tracer = tracer

    def cut(self) -> None:
        """What is recorded up to now is a block in every branch."""
        with self.lock:
            recorders, self._pending = self._pending, {}
            for recorder in recorders:
                recorder.take_blocks()

    def flush(self) -> None:
        """Something is waited for that has no placeholder."""
        self.tracer.end("the program waits here for what is generated")


class TracedBranch(Branch):
    """A branch that keeps a record of what happens on it."""

    __slots__ = ("children", "record")

    run: TracedRun

    def __init__(self, run: ProgramRun, path: BranchPath = ()) -> None:
        super().__init__(run, path)
        self.record: list[Recorded] = []
        self.children: list[TracedBranch] = []

    def append(self, expr: Expr) -> None:
        self.run.tracer.count()
        super().append(expr)

    def _append(self, expr: Expr, where: str) -> None:
        if isinstance(expr, Placeholder):
            self._add(PlaceholderItem(expr._label))
        else:
            super()._append(expr, where)

    def _add_text(self, text: str, *, special: bool) -> None:
        for part, label in self.run.tracer.parts(text):
            if label:
                self._add(PlaceholderItem(part))
            else:
                super()._add_text(part, special=special)

    def take_blocks(self) -> list[Block]:
        blocks = super().take_blocks()
        self.record += blocks
        return blocks

    def read(self, name: str | None) -> None:
        """The program waits for something, which sends what was recorded in every branch."""
        self.run.tracer.count()
        self.run.cut()
        self.record.append(ReadAt(name, program_line()))

    def fork(self, size: int) -> list[Branch]:
        self.run.tracer.count()
        if isinstance(size, int) and size > MAX_RECORDED:
            self.run.tracer.end(f"a fork of {size} branches is not traced")
        with self._forking():
            return super().fork(size)

    def fork_samples(self, name: str) -> list[Branch]:
        self.run.tracer.count()
        with self._forking():
            return super().fork_samples(name)

    def _separate(self, expr: ReasoningExpr, where: str) -> None:
        with self._forking():
            super()._separate(expr, where)

    @contextmanager
    def _forking(self) -> Iterator[None]:
        """Branches that are made inside are a fork of the record."""
        before = len(self.children)
        yield
        if len(self.children) > before:
            self.record.append(Forked(tuple(self.children[before:]), program_line()))

    def _send_pending(self) -> None:
        self.run.cut()

    def _child(self, path: BranchPath, inherited: Mapping[str, Any]) -> Branch:
        child = super()._child(path, inherited)
        assert isinstance(child, TracedBranch)
        self.children.append(child)
        return child

    def gather(self, children: list[Branch]) -> None:
        self.run.tracer.count()
        super().gather(children)
        self.record.append(Joined(text=False, where=program_line()))

    def concatenate(self, children: list[Branch]) -> None:
        self.run.tracer.count()
        self.run.cut()
        super().concatenate(children)
        self.record.append(Joined(text=True, where=program_line()))

    @property
    def prefix(self) -> list[Known]:
        """The constant text at its beginning."""
        known: list[Known] = []
        for item in self.items:
            if not isinstance(item, Known) or isinstance(item, PlaceholderItem):
                break
            known.append(item)
        return known
