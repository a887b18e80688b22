"""A trace as OpenTelemetry spans, in OTLP's JSON."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from stolon.lang.trace_export import branches
from stolon.lang.trace_text import branch_label, printable

if TYPE_CHECKING:
    from stolon.lang.call_trace import CallTrace
    from stolon.lang.calls import BranchPath
    from stolon.lang.trace import Trace

# opentelemetry.proto.trace.v1.Span.SpanKind and Status.StatusCode
_INTERNAL, _CLIENT = 1, 3
_ERROR = 2
# Sampling parameters whose names in the semantic conventions are others than ours.
_RENAMED = {"stop": "stop_sequences"}


def otel_spans(trace: Trace) -> dict[str, Any]:
    """OTLP/JSON: 64-bit integers are strings, ids are hexadecimal."""
    spans = _Spans(trace)
    spans.branch((), trace.program, {"gen_ai.operation.name": "invoke_workflow"})
    for path in branches(trace)[1:]:
        spans.branch(path, branch_label(path), {})
    for call in trace.calls:
        spans.call(call)
    scope = {"name": "stolon", "version": version("stolon")}
    resource = {"attributes": [_attribute("service.name", trace.program)]}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans.spans}]}
        ]
    }


class _Spans:
    """The spans of a trace. Their ids follow from its content: exporting again gives the same."""

    def __init__(self, trace: Trace) -> None:
        self.spans: list[dict[str, Any]] = []
        self._trace = trace
        begun = (trace.program, trace.seed, trace.started_at)
        self._id = hashlib.blake2b(repr(begun).encode("utf-8", "replace"), digest_size=16)
        self._times: dict[BranchPath, tuple[float, float]] = {}
        for call in trace.calls:
            if call.started is None:
                continue
            end = call.started + (call.seconds or 0.0)
            for depth in range(len(call.path) + 1):
                path = call.path[:depth]
                first, last = self._times.get(path, (call.started, end))
                self._times[path] = (min(first, call.started), max(last, end))

    def branch(self, path: BranchPath, name: str, attributes: dict[str, Any]) -> None:
        """A span around everything that a branch and those forked from it did."""
        if not path:
            # Workflows are recorded as agents of that name.
            attributes |= {
                "gen_ai.agent.name": self._trace.program,
                "stolon.seed": self._trace.seed,
            }
        times = self._times.get(path, (0.0, 0.0))
        self._add(name, _INTERNAL, path, path[:-1] if path else None, times, attributes)

    def call(self, call: CallTrace) -> None:
        """A span of a call that has ended."""
        if call.started is None or call.seconds is None:
            return
        model = printable(self._trace.model)
        kind = _INTERNAL if self._trace.provider == "stolon" else _CLIENT
        times = (call.started, call.started + call.seconds)
        attributes = _call_attributes(self._trace, call)
        span = self._add(
            f"text_completion {model}".rstrip(),
            kind,
            (call.path, len(self.spans)),
            call.path,
            times,
            attributes,
        )
        if call.error is not None:
            span["status"] = {"code": _ERROR, "message": call.message}

    def _add(
        self,
        name: str,
        kind: int,
        key: object,
        parent: BranchPath | None,
        times: tuple[float, float],
        attributes: dict[str, Any],
    ) -> dict[str, Any]:
        begin, end = (str(round((self._trace.started_at + at) * 1e9)) for at in times)
        span = {
            "traceId": self._id.hexdigest(),
            "spanId": self._span_id(key),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": begin,
            "endTimeUnixNano": end,
            "attributes": [
                _attribute(key, value) for key, value in attributes.items() if value is not None
            ],
        }
        if parent is not None:
            span["parentSpanId"] = self._span_id(parent)
        self.spans.append(span)
        return span

    def _span_id(self, key: object) -> str:
        text = self._id.digest() + repr(key).encode()
        return hashlib.blake2b(text, digest_size=8).hexdigest()


def _call_attributes(trace: Trace, call: CallTrace) -> dict[str, Any]:
    """By the semantic conventions for generative AI, release 0.1; ours have a prefix of their own."""
    requested = {
        f"gen_ai.request.{_RENAMED.get(name, name)}": value
        for name, value in call.parameters.items()
    }
    finish = {"choice": "stop"}.get(call.finish, call.finish)
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": trace.provider,
        "gen_ai.request.model": trace.model,
        "gen_ai.response.model": trace.model,
        "gen_ai.request.choice.count": call.samples if call.samples > 1 else None,
        **requested,
        "gen_ai.request.stream": True if call.first_text is not None else None,
        "gen_ai.response.id": call.request,
        "gen_ai.response.finish_reasons": [finish],
        "gen_ai.response.time_to_first_chunk": call.first_text,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.tokens.output,
        "gen_ai.usage.cache_read.input_tokens": min(call.tokens.cached, call.prompt_tokens),
        "error.type": call.error,
        "stolon.call.kind": call.kind,
        "stolon.call.name": call.name,
        "stolon.call.where": call.where,
        "stolon.tokens.computed": call.tokens.computed,
        "stolon.tokens.forced": call.tokens.forced,
        "stolon.tokens.drafted": call.tokens.drafted,
        "stolon.tokens.accepted": call.tokens.accepted,
        "stolon.time.queue": call.queue_time,
        "stolon.time.prefill": call.prefill_time,
        "stolon.time.decode": call.decode_time,
        "stolon.cost": None if trace.prices is None else trace.prices.of(call),
    }


def _attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": _value(value)}


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    return {"stringValue": str(value)}
