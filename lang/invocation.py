"""One call of a program: where its body runs, and how it is ended from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from stolon.lang.body import RESERVED, BoundBody
from stolon.lang.branch import Branch
from stolon.lang.config import global_config
from stolon.lang.options import OPTION_NAMES, SamplingOptions, run_defaults
from stolon.lang.run import ProgramRun
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop, spawn, wait_for
from stolon.lang.state import ProgramState
from stolon.srt.client import EngineClient

Call = Callable[[ProgramState], Any]


RUN_ARGUMENTS = (*RESERVED, *OPTION_NAMES, "max_new_tokens")
"""What `Function.run` takes beside the program's own arguments."""


class Invocation:
    """A program with its arguments, ready to run once.

    Attributes:
        state: what the caller is given; the body has a view of its own on the same branch.
    """

    def __init__(self, state: ProgramState, call: Call, *, is_async: bool) -> None:
        self.state = state
        self.run = state._branch.run
        self.is_async = is_async
        self._call = call

    @classmethod
    def of(
        cls,
        program: BoundBody,
        call: Call,
        engine: EngineClient,
        options: SamplingOptions,
        seed: int | None,
        *,
        stream: bool = False,
    ) -> Invocation:
        """A new run of a program; `call` is its `bind_call`."""
        run = ProgramRun(
            name=program.name,
            client=engine,
            options=options.over(run_defaults()),
            seed=seed,
            streaming=stream,
            is_async=program.is_async,
        )
        state = ProgramState(Branch(run), outside=True)
        return cls(state, call, is_async=program.is_async)

    def _body(self) -> Any:
        return self._call(ProgramState(self.state._branch))

    @contextmanager
    def _carried(self) -> Iterator[None]:
        """What ends the run carries the state, so that what is finished can still be read."""
        try:
            yield
            if global_config.verbosity >= 2:
                print(self.state.text())
        except BaseException as error:
            # One that has such an attribute of its own, or takes none, goes without.
            if isinstance(getattr(error, "state", None), ProgramState | None):
                with suppress(AttributeError):
                    error.state = self.state  # type: ignore[attr-defined]
            raise

    def run_here(self) -> None:
        """Run a synchronous body in the calling thread."""
        with self._carried():
            self.run.execute(self._body)

    async def run_async(self) -> None:
        """Run an asynchronous body in the calling task."""
        with self._carried():
            await self.run.execute_async(self._body)

    def run_on_loop(self) -> None:
        """Run an asynchronous body on the background loop and wait for it."""
        refuse_on_loop(f"{self.run.name}.run()")
        future = runtime_loop().submit(self.run_async())
        try:
            future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the body is cancelled, which aborts its requests
            raise

    def start(self) -> Future[None]:
        """Run the body away from the calling thread."""
        if self.is_async:
            return runtime_loop().submit(self.run_async())
        return spawn(self.run_here)

    async def run_in_thread(self) -> None:
        """Run a synchronous body in a thread; cancelling the wait ends it."""
        future = self.start()
        try:
            await wait_for(future)
        except asyncio.CancelledError:
            self.run.abort()
            raise

    def abort(self) -> None:
        """End the program from outside: its requests are aborted, its reads raise Aborted."""
        self.run.abort()
