"""One generation or selection of a program: what was asked, what came back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from stolon.errors import Aborted, ProgramError, StolonError
from stolon.lang.typed import Decoder
from stolon.srt.protocol import Delta, Gen, GenResult, Select, SelectResult

CallKind = Literal["gen", "select"]
BranchPath = tuple[tuple[int, int], ...]


class Call:
    """A generation or selection. Filled in by the loop thread, read from everywhere.

    Attributes:
        segment: what the engine is asked for.
        n: number of samples.
        where: ``file.py:line`` that appended it.
        path: branch it belongs to: (fork, child) pairs from the root.
        results: outcome of each sample.
        pieces: streamed pieces of sample 0; complete once settled.
        error: why there is no outcome.
        settled: resolved when all results are there, or the error is.
        started_at, done_at: `time.perf_counter` when it was sent or the call before it in its block
            was done, and when it was settled.
        awaited: an ``await`` has waited for it, so that reading it needs no waiting.
    """

    __slots__ = (
        "awaited",
        "decode",
        "done_at",
        "error",
        "n",
        "path",
        "pieces",
        "results",
        "segment",
        "settled",
        "started_at",
        "where",
    )

    def __init__(
        self,
        segment: Gen | Select,
        *,
        where: str,
        path: BranchPath,
        n: int = 1,
        decode: Decoder | None = None,
    ) -> None:
        self.segment = segment
        self.n = n
        self.where = where
        self.path = path
        self.decode = decode
        self.results: list[GenResult | SelectResult | None] = [None] * n
        self.pieces: list[Delta] = []
        self.error: StolonError | None = None
        self.settled: Future[None] = Future()
        self.awaited = False
        self.started_at: float | None = None
        self.done_at: float | None = None

    @property
    def name(self) -> str | None:
        return self.segment.name

    @property
    def kind(self) -> CallKind:
        return "select" if isinstance(self.segment, Select) else "gen"

    def take(self, sample: int, result: GenResult | SelectResult) -> None:
        """Store the outcome of one sample; the last one settles the call."""
        if self.settled.done():
            return
        self.results[sample] = result
        if isinstance(result, GenResult) and result.finish.kind == "abort":
            self.fail(Aborted("the generation was aborted", where=self.where))
        elif all(done is not None for done in self.results):
            self._settle()

    def fail(self, error: StolonError) -> None:
        """Settle without an outcome. Does nothing when the outcome is already there."""
        if not self.settled.done():
            self.error = error
            self._settle()

    def _settle(self) -> None:
        self.done_at = time.perf_counter()
        self.settled.set_result(None)

    def outcome(self, sample: int = 0) -> GenResult | SelectResult:
        """The result of a settled call; raises its error."""
        if self.error is not None:
            raise self.error
        result = self.results[sample]
        if result is None:
            raise RuntimeError("the call is not settled")
        return result

    def text(self) -> str:
        """Text that the state goes on from: that of sample 0."""
        return self.outcome().text

    def value(self) -> str | list[str]:
        """The variable: a text, or the list of the samples' texts."""
        if self.n == 1:
            return self.text()
        return [self.outcome(sample).text for sample in range(self.n)]

    def typed(self) -> Any:
        """The variable as its type has it; `value` where it has none."""
        if self.decode is None:
            return self.value()
        values = [self._decode(sample, self.decode) for sample in range(self.n)]
        return values[0] if self.n == 1 else values

    def _decode(self, sample: int, decode: Decoder) -> Any:
        result = self.outcome(sample)
        try:
            return decode.parse(result.text)
        except ValueError as error:
            cut = isinstance(result, GenResult) and result.finish.kind == "length"
            raise ProgramError(
                f"the text of {self.name!r} is no valid {decode.label}: {result.text[:80]!r}",
                where=self.where,
                hint="it was cut at max_tokens; raise max_tokens" if cut else None,
            ) from error


@dataclass(frozen=True, slots=True)
class Known:
    """Known text of a branch. `special` text comes from a chat template."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The text of another branch's call, appended here as a literal once it is known."""

    call: Call


Item = Known | Borrowed | Call


def item_text(item: Item) -> str:
    """Text of an item whose call, if it has one, is settled."""
    if isinstance(item, Known):
        return item.text
    return (item.call if isinstance(item, Borrowed) else item).text()


def calls_of(items: Iterable[Item]) -> list[Call]:
    """The calls that the text of `items` waits for."""
    return [
        item.call if isinstance(item, Borrowed) else item
        for item in items
        if not isinstance(item, Known)
    ]


def known_text(items: Iterable[Item], placeholder: str = "...") -> str:
    """Text of the items; what is still being generated, or has failed, is the placeholder."""
    parts = []
    for item in items:
        unknown = any(not c.settled.done() or c.error is not None for c in calls_of((item,)))
        parts.append(placeholder if unknown else item_text(item))
    return "".join(parts)
