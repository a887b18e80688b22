"""What the sampler is told about one row of logits, and what it answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stolon.errors import InternalError
from stolon.srt.protocol import LogprobSpec, Sampling, TokenLogprob

Floats = NDArray[np.float32]
"""Logits; their rows are contiguous."""
Ids = NDArray[np.int64]


class TokenMask(Protocol):
    """Which tokens may come next; at most one of the three forms is set, none when all may.

    Attributes:
        count: how many tokens may come.
        allow: the ids that may, int64.
        deny: the ids that may not, int64.
        bits: bool ``[vocab]``, True for the ids that may. Logits past its end are not allowed.
    """

    @property
    def count(self) -> int: ...
    @property
    def allow(self) -> Ids | None: ...
    @property
    def deny(self) -> Ids | None: ...
    @property
    def bits(self) -> NDArray[np.bool_] | None: ...


class BrokenLogits(InternalError):
    """A model computed what no tokens can be drawn from. Whoever knows its file says so in `where`."""

    def __init__(self, message: str, **place: str | None) -> None:
        hint = "its weights are damaged, or too large for the dtype: check the file, or try float32"
        super().__init__(message, **{"hint": hint, **place})


@dataclass(slots=True, kw_only=True)
class SamplerRow:
    """How to choose the next token of one sequence.

    Attributes:
        sampling: the parameters; max_tokens, min_tokens, stops and its seed are the caller's
            business.
        seed, sample, position: what the draw is keyed by (see `rng.draw_key`).
        logprobs: what to report; None reports nothing.
        mask: the grammar's; None allows everything.
        banned: ids that may not come now: end and stop tokens until min_tokens. If the grammar
            allows nothing else, the ban is dropped: output stays in the grammar.
        output_counts: how often each token was generated, for presence and frequency penalties.
        seen: ids of prompt and output, for the repetition penalty; None when that is off. An int64
            array or a set; the array is faster.
    """

    sampling: Sampling
    seed: int
    sample: int = 0
    position: int = 0
    logprobs: LogprobSpec | None = None
    mask: TokenMask | None = None
    banned: tuple[int, ...] = ()
    output_counts: dict[int, int] = field(default_factory=dict)
    seen: Ids | Collection[int] | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The chosen token, with its log-prob if the row asked for it."""

    token: int
    logprob: TokenLogprob | None = None
