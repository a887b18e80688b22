"""One generation or selection of a program: what was asked, what came back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import copy as copy_of
from dataclasses import dataclass
from typing import Any, Literal

from stolon.errors import ProgramError, StolonError
from stolon.lang.latch import Latch
from stolon.lang.location import placed
from stolon.lang.typed import Decoder, reason
from stolon.srt.protocol import (
    Delta,
    Gen,
    GenResult,
    PromptLogprobs,
    Select,
    SelectResult,
    TokenLogprob,
)

CallKind = Literal["gen", "select"]
BranchPath = tuple[tuple[int, int], ...]


def branch_name(path: BranchPath) -> str:
    """``fork.child`` of each level from the root, as in ``0.3/1.0``; empty for the root."""
    return "/".join(f"{fork}.{child}" for fork, child in path)


class Call:
    """A generation or selection. Filled in by the loop thread, read from everywhere.

    Attributes:
        segment: what the engine is asked for.
        n: number of samples.
        where: ``file.py:line`` that appended it.
        path: branch it belongs to: (fork, child) pairs from the root.
        request: id of the engine's request that serves it, once it is sent.
        results: outcome of each sample.
        pieces: streamed pieces of sample 0; complete once settled.
        parts: calls that are made of this one's text, and told what comes.
        prompt_logprobs: what to report of the text before, which then has a request of its own.
        prompt: the log-probs of the text before, if they were asked for.
        spelled: log-probs are reported with the text of their tokens.
        error: why there is no outcome.
        settled: set when all results are there, or the error is.
        started_at, done_at: `time.perf_counter` when it was sent or the call before it in its block
            was done, and when it was settled.
        first_at: `time.perf_counter` when the first text of it came, if it is streamed.
        awaited: an ``await`` has waited for it, so that reading it needs no waiting.
    """

    __slots__ = (
        "awaited",
        "decode",
        "done_at",
        "error",
        "first_at",
        "n",
        "parts",
        "path",
        "pieces",
        "prompt",
        "prompt_logprobs",
        "request",
        "results",
        "segment",
        "settled",
        "spelled",
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
        prompt_logprobs: PromptLogprobs | None = None,
        spelled: bool = True,
    ) -> None:
        self.segment = segment
        self.n = n
        self.where = where
        self.path = path
        self.decode = decode
        self.results: list[GenResult | SelectResult | None] = [None] * n
        self.pieces: list[Delta] = []
        self.parts: tuple[Call, ...] = ()
        self.prompt_logprobs = prompt_logprobs
        self.prompt: list[TokenLogprob] | None = None
        self.spelled = spelled
        self.error: StolonError | None = None
        self.settled = Latch()
        self.request: str | None = None
        self.awaited = False
        self.started_at: float | None = None
        self.done_at: float | None = None
        self.first_at: float | None = None

    @property
    def name(self) -> str | None:
        return self.segment.name

    @property
    def kind(self) -> CallKind:
        return "select" if isinstance(self.segment, Select) else "gen"

    def hear(self, delta: Delta) -> None:
        """Text of sample 0 has arrived."""
        if self.first_at is None:
            self.first_at = time.perf_counter()
        self.pieces.append(delta)
        for part in self.parts:
            part.hear(delta)

    def follow(self) -> None:
        """What this call is a part of is settled."""

    def complete(self) -> bool:
        """Whether every sample has its outcome."""
        return all(result is not None for result in self.results)

    def settle(self, error: StolonError | None = None) -> None:
        """Let readers go on, with the outcome or with an error. Does nothing the second time."""
        if not self.settled.done():
            self.error = error
            self.done_at = time.perf_counter()
            for part in self.parts:
                part.follow()
            self.settled.set()

    def located(self, error: StolonError) -> StolonError:
        """A copy of an error that says where in the program it belongs, and to which request."""
        copy = copy_of(error)
        copy.where = placed(self.where, error.where)
        copy.branch = branch_name(self.path) or None
        copy.request = self.request
        copy.__cause__ = error.__cause__
        return copy

    def outcome(self, sample: int = 0) -> GenResult | SelectResult:
        """The result of a settled call; raises its error."""
        if self.error is not None:
            # Raised wherever it is read: each time with the traceback of that read alone.
            raise self.error.with_traceback(None)
        result = self.results[sample]
        if result is None:
            raise RuntimeError("the call is not settled")
        return result

    def text(self, sample: int = 0) -> str:
        """Text of a sample; the state goes on from that of sample 0."""
        return self.outcome(sample).text

    def value(self) -> str | list[str]:
        """The variable: a text, or the list of the samples' texts."""
        if self.n == 1:
            return self.text()
        return [self.text(sample) for sample in range(self.n)]

    def typed(self, sample: int | None = None) -> Any:
        """The variable as its type has it, or one sample of it; the text where it has none."""
        if sample is not None:
            return self.text(sample) if self.decode is None else self._decode(sample, self.decode)
        values = [self.typed(sample) for sample in range(self.n)]
        return values[0] if self.n == 1 else values

    def _decode(self, sample: int, decode: Decoder) -> Any:
        result = self.outcome(sample)
        try:
            return decode.parse(result.text)
        except Exception as error:  # a type's validators may raise anything
            cut = isinstance(result, GenResult) and result.finish.kind == "length"
            refusal = ProgramError(
                f"the text of {self.name!r} is no valid {decode.label}: {reason(error)}, "
                f"in {result.text[:80]!r}",
                hint="it was cut at max_tokens; raise max_tokens" if cut else None,
            )
            raise self.located(refusal) from error


@dataclass(frozen=True, slots=True)
class Known:
    """Known text of a branch. `special` text comes from a chat template."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The text of another branch's call, appended here as a literal once it is known."""

    call: Call
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a call of the branch before, which this branch goes on from."""

    call: Call
    sample: int


Item = Known | Borrowed | Sample | Call


def item_text(item: Item) -> str:
    """Text of an item whose call, if it has one, is settled."""
    if isinstance(item, Known):
        return item.text
    return item.text() if isinstance(item, Call) else item.call.text(item.sample)


def calls_of(items: Iterable[Item]) -> list[Call]:
    """The calls that the text of `items` waits for."""
    return [
        item if isinstance(item, Call) else item.call
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
