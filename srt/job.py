"""What an admitted request is to the loop: the steps that each of its samples walks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stolon.constrained import ClosingTable, Grammar
from stolon.srt.boundary import AllowList
from stolon.srt.protocol import Event, Gen, GrammarSpec, Request, Select
from stolon.srt.stop_regex import StopRegex

SHARED_TOKENS = 16
"""A sibling is held back if waiting saves at least this many tokens of prefill."""


@dataclass(slots=True, frozen=True)
class Known:
    """Append these tokens."""

    ids: list[int]


@dataclass(slots=True, frozen=True)
class Uncompiled:
    """A grammar that a queued job waits for: of which segment, and the healed bytes before it."""

    segment: int
    spec: GrammarSpec
    prefix: bytes


@dataclass(slots=True, frozen=True)
class GenStep:
    """Generate; `prefix` are healed bytes the first tokens must repeat, `first_mask` enforces them where
    no grammar does; with `closing` the text is to end valid within the budget. While `compiling`, the
    grammar is still to come, and nothing may be generated."""

    segment: int
    gen: Gen
    grammar: Grammar | None
    stop_regexes: tuple[StopRegex, ...]
    seed: int
    prefix: bytes = b""
    first_mask: AllowList | None = None
    closing: ClosingTable | None = None
    compiling: Uncompiled | None = None


@dataclass(slots=True, frozen=True)
class SelectStep:
    """Score the choices (token ids, never empty) and append the winner."""

    segment: int
    select: Select
    choices: list[list[int]]
    seed: int


Step = Known | GenStep | SelectStep


@dataclass(slots=True)
class Job:
    """An admitted request: the steps that each of its samples walks. `on_event` is the way out.

    Attributes:
        prompt: int64, the leading known tokens.
        head: the first SHARED_TOKENS of them as bytes: jobs that differ here share nothing worth waiting for.
        aborted: whether a sample was cancelled before its end.
        over: whether it ended, with an error or with the last of its samples.
        unfinished: samples that are not at their end.
    """

    request: Request
    steps: list[Step]
    on_event: Callable[[Event], None]
    submitted: float
    prompt: NDArray[np.int64]
    head: bytes
    aborted: bool = False
    over: bool = False
    prompt_reported: bool = False
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = self.request.n

    @property
    def uncompiled(self) -> list[Uncompiled]:
        """What its steps wait for, in their order."""
        steps = (step for step in self.steps if isinstance(step, GenStep))
        return [step.compiling for step in steps if step.compiling is not None]

    def use_grammar(self, segment: int, grammar: Grammar) -> None:
        """A grammar is there: the step of that segment has it from now on."""
        for index, step in enumerate(self.steps):
            if isinstance(step, GenStep) and step.segment == segment:
                self.steps[index] = replace(step, grammar=grammar, compiling=None)
