"""What one generation or selection did: where its tokens came from, how long it took, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.calls import BranchPath, Call, CallKind
from stolon.lang.option_checks import require
from stolon.srt.protocol import Gen, GenResult, Usage

_PARAMETERS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "stop",
)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens by origin: found in the prefix cache, prefilled, forced by a grammar, sampled.

    Of those that were `drafted`, the draws agreed with `accepted`; they are sampled or forced ones.
    """

    cached: int = 0
    computed: int = 0
    forced: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, usage: Usage) -> TokenCounts:
        return cls(
            usage.cached_tokens,
            usage.computed_tokens,
            usage.forced_tokens,
            usage.sampled_tokens,
            usage.drafted_tokens,
            usage.accepted_tokens,
        )

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            self.cached + other.cached,
            self.computed + other.computed,
            self.forced + other.forced,
            self.sampled + other.sampled,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
        )

    @property
    def output(self) -> int:
        """Tokens of the answer: sampled or forced."""
        return self.forced + self.sampled

    def __str__(self) -> str:
        return (
            f"cached {self.cached} · computed {self.computed} · "
            f"forced {self.forced} · generated {self.sampled}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What a provider charges for a million tokens, in one currency.

    Attributes:
        input: of the prompt.
        output: of the answer.
        cached: of the prompt, found in the provider's cache; as `input` if None.
    """

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached"):
            price = getattr(self, name)
            if price is None and name == "cached":
                continue
            require(name, price, (int, float), "a number")
            if not 0 <= price < math.inf:
                raise InvalidRequest(
                    f"{name} must be a finite price, 0 or more, not {price!r}", param=name
                )

    def of(self, call: CallTrace) -> float:
        """The price of a call. Its prompt is paid once, whatever the number of samples."""
        cached = min(call.tokens.cached, call.prompt_tokens)
        rate = self.input if self.cached is None else self.cached
        paid = (call.prompt_tokens - cached) * self.input + cached * rate
        return (paid + call.tokens.output * self.output) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTrace:
    """One generation or selection.

    Attributes:
        path: branch: (fork, child) pairs from the root.
        where: ``file.py:line`` that appended it.
        request: id of the engine's request; calls that follow one another in a program share it.
        finish: ``stop``, ``length``, ``choice``, ``error`` or ``running``.
        error, message: code and text of what went wrong.
        tokens: of all samples together.
        prompt_tokens: tokens before it.
        logprobs: whether the log-probs of its tokens are there.
        parameters: of sampling, as the engine got them; those that are off are left out.
        started, seconds: when its turn came, relative to the run's first call, and how long until
            its value was there; None where that has not happened.
        first_text: seconds from `started` to the first text, if the run streams.
        queue_time, prefill_time, decode_time: seconds, as the engine reports them for sample 0.
    """

    name: str | None
    kind: CallKind
    path: BranchPath
    where: str
    finish: str
    samples: int
    tokens: TokenCounts
    request: str | None = None
    error: str | None = None
    message: str | None = None
    prompt_tokens: int = 0
    logprobs: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    started: float | None = None
    seconds: float | None = None
    first_text: float | None = None
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0


def traced(call: Call, origin: float) -> CallTrace:
    """A snapshot of a call; times are relative to `origin`, in seconds."""
    done = [result for result in call.results if result is not None]
    first = call.results[0]
    if call.error is not None:
        finish = "error"
    elif not call.settled.done() or first is None:
        finish = "running"
    else:
        finish = first.finish.kind if isinstance(first, GenResult) else "choice"
    usage = Usage() if first is None else first.usage
    return CallTrace(
        name=call.name,
        kind=call.kind,
        path=call.path,
        where=call.where,
        finish=finish,
        samples=call.n,
        tokens=sum((TokenCounts.of(result.usage) for result in done), TokenCounts()),
        request=call.request,
        error=None if call.error is None else call.error.code,
        message=None if call.error is None else call.error.message,
        prompt_tokens=usage.prompt_tokens,
        logprobs=any(isinstance(r, GenResult) and r.logprobs is not None for r in done),
        parameters=_parameters(call),
        started=_between(origin, call.started_at),
        seconds=_between(call.started_at, call.done_at),
        first_text=_between(call.started_at, call.first_at),
        queue_time=usage.queue_time,
        prefill_time=usage.prefill_time,
        decode_time=usage.decode_time,
    )


def _parameters(call: Call) -> dict[str, Any]:
    segment = call.segment
    source = segment.sampling if isinstance(segment, Gen) else segment
    given = {name: getattr(source, name, None) for name in _PARAMETERS}
    # 0 switches the others off, or is what they are without being asked for.
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value or (name in ("temperature", "max_tokens", "seed") and value is not None)
    }


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin
