"""A trace as data for other tools: plain JSON, and Chrome's trace events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stolon.lang.trace_text import branch_label, call_label

if TYPE_CHECKING:
    from stolon.lang.call_trace import CallTrace
    from stolon.lang.calls import BranchPath
    from stolon.lang.trace import Trace

VERSION = 1


def as_dict(trace: Trace) -> dict[str, Any]:
    """All fields of the trace and of its calls, with the totals."""
    return {
        "version": VERSION,
        "program": trace.program,
        "model": trace.model,
        "provider": trace.provider,
        "seed": trace.seed,
        "started_at": trace.started_at,
        "seconds": trace.seconds,
        "branches": trace.branches,
        "tokens": asdict(trace.totals),
        "cost": trace.cost(),
        "calls": [_call_dict(trace, call) for call in trace.calls],
    }


def _call_dict(trace: Trace, call: CallTrace) -> dict[str, Any]:
    fields = asdict(call)
    fields["path"] = [list(step) for step in call.path]
    fields["cost"] = None if trace.prices is None else trace.prices.of(call)
    return fields


# -- Chrome --------------------------------------------------------------------------------------


def chrome(trace: Trace) -> dict[str, Any]:
    """The trace event format: a complete event for each call, with its phases nested in it.

    Times are microseconds since the first call.
    """
    lanes = {path: lane for lane, path in enumerate(branches(trace), start=1)}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": trace.program}}
    ]
    for path, lane in lanes.items():
        name = " / ".join(branch_label(path[: depth + 1]) for depth in range(len(path)))
        for kind, value in (
            ("name", {"name": name or "main"}),
            ("sort_index", {"sort_index": lane}),
        ):
            events.append(
                {"ph": "M", "pid": 1, "tid": lane, "name": f"thread_{kind}", "args": value}
            )
    for call in trace.calls:
        events += _call_events(call, lanes[call.path])
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": trace.model, "seed": str(trace.seed)},
    }


def _call_events(call: CallTrace, lane: int) -> Iterator[dict[str, Any]]:
    if call.started is None:
        return
    begin = call.started * 1e6
    event = {"pid": 1, "tid": lane, "ts": begin, "cat": call.kind, "name": call_label(call)}
    args = {**asdict(call.tokens), "finish": call.finish, "where": call.where}
    if call.error is not None:
        args |= {"error": call.error, "message": call.message}
    if call.seconds is None:
        yield event | {"ph": "B", "args": args}
        return
    end = begin + call.seconds * 1e6
    yield event | {"ph": "X", "dur": end - begin, "args": args}
    for phase in ("queue", "prefill", "decode"):
        # The engine's clock and ours may differ by a little; a slice must not leave its call.
        done = min(begin + getattr(call, f"{phase}_time") * 1e6, end)
        if done > begin:
            yield event | {"ph": "X", "ts": begin, "dur": done - begin, "cat": phase, "name": phase}
        begin = done


def branches(trace: Trace) -> list[BranchPath]:
    """Every branch that generated, and those it comes from; parents before children."""
    paths = {call.path[:depth] for call in trace.calls for depth in range(len(call.path) + 1)}
    return sorted(paths | {()})
