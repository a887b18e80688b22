"""What a run did: every generation and selection, where its tokens came from, how long it took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stolon.errors import InvalidRequest
from stolon.lang import trace_export, trace_html, trace_otel, trace_text
from stolon.lang.calls import BranchPath, Call, CallKind
from stolon.lang.run import ProgramRun
from stolon.srt.protocol import Gen, GenResult, Usage

# Unix time at the zero of `time.perf_counter`, once: two traces of a run agree.
_EPOCH = time.time() - time.perf_counter()
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


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of a run in program order; prints as a tree of branches.

    Attributes:
        model: name of what was served.
        provider: who served it, ``stolon`` for an engine of ours.
        started_at: Unix time of the first call, in seconds.
        prices: those of the backend, if it has any.
    """

    program: str
    seed: int
    calls: tuple[CallTrace, ...]
    model: str = ""
    provider: str = "stolon"
    started_at: float = 0.0
    prices: Prices | None = None

    @classmethod
    def of(cls, run: ProgramRun) -> Trace:
        """A snapshot; calls that are not finished yet have finish ``running``."""
        calls = list(run.calls)
        origin = min((c.started_at for c in calls if c.started_at is not None), default=0.0)
        client = run.client
        return cls(
            run.name,
            run.seed,
            tuple(_trace(call, origin) for call in calls),
            model=client.info.name,
            provider=getattr(client, "provider", "stolon"),
            started_at=_EPOCH + origin if calls else 0.0,
            prices=getattr(client, "prices", None),
        )

    @property
    def totals(self) -> TokenCounts:
        """Tokens of all calls."""
        return sum((call.tokens for call in self.calls), TokenCounts())

    @property
    def seconds(self) -> float:
        """From the first request to the last value."""
        return max(((c.started or 0.0) + c.seconds for c in self.calls if c.seconds), default=0.0)

    @property
    def branches(self) -> int:
        """Branches that generated something, and those they come from."""
        return len(
            {call.path[:depth] for call in self.calls for depth in range(len(call.path) + 1)}
        )

    def cost(self, prices: Prices | None = None) -> float | None:
        """What the run cost at these prices, or those of the backend; None where there are none."""
        prices = prices or self.prices
        return None if prices is None else sum(map(prices.of, self.calls))

    # -- as text, and for other tools ------------------------------------------------------------

    def tree(self, width: int | None = None) -> str:
        """The branches with their calls, at most `width` columns wide; that of the terminal if None."""
        return trace_text.tree(self, width)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON data. ``version`` is that of the form."""
        return trace_export.as_dict(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """`as_dict` as text."""
        return json.dumps(self.as_dict(), indent=indent)

    def chrome(self) -> dict[str, Any]:
        """Chrome's trace events, for Perfetto or ``chrome://tracing``: one lane for each branch."""
        return trace_export.chrome(self)

    def otel_spans(self) -> dict[str, Any]:
        """OpenTelemetry spans as OTLP/JSON, as a collector takes them at ``/v1/traces``.

        The run is a span, each fork's branch and each finished call one inside it, with ``gen_ai``
        attributes. Texts are not in it.
        """
        return trace_otel.otel_spans(self)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        format: Literal["stolon", "chrome", "otel"] = "stolon",
    ) -> None:
        """Write `as_dict`, `chrome` or `otel_spans` as a JSON file."""
        forms = {"stolon": self.as_dict, "chrome": self.chrome, "otel": self.otel_spans}
        if format not in forms:
            raise InvalidRequest(
                f"format must be one of {', '.join(forms)}, not {format!r}", param="format"
            )
        Path(path).write_text(json.dumps(forms[format]()) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        return self.tree()

    def _repr_html_(self) -> str:
        return trace_html.page(self)

    def _append_hint(self) -> str:
        return "append str(trace) to let the model read it"


def _trace(call: Call, origin: float) -> CallTrace:
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
