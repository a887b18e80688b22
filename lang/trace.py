"""What a run did: every generation and selection, where its tokens came from, how long it took."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stolon.errors import InvalidRequest
from stolon.lang import trace_export, trace_html, trace_otel, trace_text
from stolon.lang.call_trace import CallTrace, Prices, TokenCounts, traced
from stolon.lang.run import ProgramRun

# Unix time at the zero of `time.perf_counter`, once: two traces of a run agree.
_EPOCH = time.time() - time.perf_counter()


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
            tuple(traced(call, origin) for call in calls),
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
