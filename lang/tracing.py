"""Tracing: a program's body runs once with placeholders, over the branches that a run records with.

Nothing is sent. Appending, roles, scopes, forks, joins and nested programs are recorded as in a run;
reading what would be generated gives another placeholder. Where the body needs the value itself, the
trace ends, and what was recorded up to there is kept.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stolon.errors import StolonError
from stolon.lang.location import raised_at
from stolon.lang.options import SamplingOptions, run_defaults
from stolon.lang.plan import TraceEnd
from stolon.lang.runtime_loop import spawn
from stolon.lang.traced_branch import TracedBranch, TracedRun
from stolon.lang.traced_state import TracedState
from stolon.lang.tracer import Tracer, TraceStop

Body = Callable[[Any], Any]


class Tracing(Tracer):
    """A trace of a program, and of those that it runs on states of their own.

    Attributes:
        roots: (program, branch) of them all, the traced one first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.roots: list[tuple[str, TracedBranch]] = []

    def trace(self, name: str, call: Body, *, is_async: bool) -> None:
        """Trace a program to its end or that of the trace.

        Raises what the body raises, if strict; else that ends the trace.
        """
        try:
            with _body_of(self):
                self.run(name, call, SamplingOptions(), is_async=is_async)
        except TraceStop:
            pass
        except Exception as error:
            if self.strict and self.ended is None:
                raise
            self._end_by(error)
        if self.refusal is not None:
            raise self.refusal
        for _, branch in self.roots:
            branch.run.cut()

    def _end_by(self, error: Exception) -> None:
        if self.ended is None:
            where = getattr(error, "where", None) or raised_at(error)
            text = error.message if isinstance(error, StolonError) else str(error)
            self.ended = TraceEnd(where, f"{type(error).__name__}: {self.shown(text)}")

    def run(
        self, name: str, call: Body, options: SamplingOptions, *, is_async: bool
    ) -> TracedState:
        """The body on a state of its own, as `Function.run` would."""
        state = self._root(name, options, is_async=is_async)
        if is_async:
            state.ret_value = spawn(lambda: asyncio.run(call(state))).result()
        else:
            state.ret_value = call(state)
        state.traced.run.cut()
        return state

    async def arun(self, name: str, call: Body, options: SamplingOptions) -> TracedState:
        """The body on a state of its own, as `Function.arun` would."""
        state = self._root(name, options, is_async=True)
        result = call(state)
        state.ret_value = await result if inspect.isawaitable(result) else result
        state.traced.run.cut()
        return state

    def _root(self, name: str, options: SamplingOptions, *, is_async: bool) -> TracedState:
        self.count()
        run = TracedRun(self, name, options.over(run_defaults()), is_async=is_async)
        branch = TracedBranch(run)
        self.roots.append((name, branch))
        return TracedState(branch)


_active: ContextVar[Tracing | None] = ContextVar("stolon_tracer", default=None)


def active_trace() -> Tracing | None:
    """The trace that the calling code is the body of, if it is one."""
    return _active.get()


@contextmanager
def _body_of(trace: Tracing) -> Iterator[None]:
    """The body of a trace runs inside."""
    token = _active.set(trace)
    try:
        yield
    finally:
        _active.reset(token)
