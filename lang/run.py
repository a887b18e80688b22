"""One execution of a program: what all its branches share, and the life of its requests."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from stolon.errors import Aborted, InternalError, InvalidRequest, StolonError
from stolon.lang.blocks import Block, walk
from stolon.lang.calls import Call
from stolon.lang.location import program_line
from stolon.lang.options import SamplingOptions
from stolon.lang.runtime_loop import Signal, running_loop, runtime_loop, wait_for
from stolon.srt.client import EngineClient


class Recorder(Protocol):
    """A branch that may have recorded generations which are not sent yet."""

    def take_blocks(self) -> list[Block]: ...


class ProgramRun:
    """One execution of a program.

    Attributes:
        name: of the program.
        options: sampling arguments of the run, defaults filled in.
        seed: every generation's seed is derived from it.
        streaming: requests also send their text in pieces.
        is_async: the body is a coroutine function.
        lock: guards what branches record.
        calls: every generation and selection in the order the program made them.
        changed: notified when text arrives, a call settles, or the body appends something.
        finished: the body is over and everything it asked for is settled.
        failure: the exception that ended the program.
        cancelled: what reads raise since `cancel`.
    """

    def __init__(
        self,
        *,
        name: str,
        client: EngineClient,
        options: SamplingOptions,
        seed: int | None = None,
        streaming: bool = False,
        is_async: bool = False,
    ) -> None:
        self.name = name
        self.client = client
        self.options = options
        self.seed = secrets.randbits(62) if seed is None else seed
        self.streaming = streaming
        self.is_async = is_async
        self.lock = threading.RLock()
        self.calls: list[Call] = []
        self.changed = Signal()
        self.finished = False
        self.failure: BaseException | None = None
        self.cancelled: Aborted | None = None
        self._id = secrets.token_hex(6)
        self._pending: dict[Recorder, None] = {}
        self._handled: dict[int, BaseException] = {}
        self._requests = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._body_loop: asyncio.AbstractEventLoop | None = None

    def must_await(self) -> bool:
        """Whether a blocking wait here would stop the loop of the program or of its requests."""
        loop = running_loop()
        if loop is None or self.finished:
            return False
        return loop is self._body_loop or runtime_loop().is_current()

    # -- requests --------------------------------------------------------------------------------

    def record(self, call: Call, recorder: Recorder) -> None:
        """A branch recorded a call that is not sent yet."""
        self.calls.append(call)
        self._pending[recorder] = None

    def flush(self) -> None:
        """Send the recorded blocks of every branch, all at the same time."""
        with self.lock:
            blocks = [block for recorder in self._pending for block in recorder.take_blocks()]
            self._pending.clear()
        self.start(blocks)

    def start(self, blocks: list[Block]) -> None:
        """Send blocks; those that continue another one wait for it on the loop."""
        if blocks:
            runtime_loop().call(self._start, blocks)

    def _start(self, blocks: list[Block]) -> None:
        for block in blocks:
            if self._closed:
                block.fail(Aborted("the program has ended", where=block.calls[0].where))
                continue
            self._requests += 1
            task = asyncio.get_running_loop().create_task(
                self._walk(block, f"{self._id}-{self._requests}")
            )
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, block))
        self.changed.notify()

    async def _walk(self, block: Block, rid: str) -> None:
        try:
            await walk(
                block, self.client, rid, streaming=self.streaming, changed=self.changed.notify
            )
        except Exception as error:
            fault = InternalError(
                f"{type(error).__name__} while a request was served: {error}",
                where=block.calls[0].where,
            )
            fault.__cause__ = error
            block.fail(fault)
        finally:
            self.changed.notify()

    def _ended(self, block: Block, task: asyncio.Task[None]) -> None:
        # Not in `_walk`: a task that is cancelled before its first step never enters it.
        self._tasks.discard(task)
        if task.cancelled():
            block.fail(Aborted("the program was ended", where=block.calls[0].where))
            self.changed.notify()

    async def drain(self) -> None:
        """Wait, on the loop, until everything that was sent is settled."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def abort(self) -> None:
        """Cancel, on the loop, every request that runs; later ones are refused."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cancel(self) -> None:
        """End the run from anywhere, without waiting; nothing happens when it is finished."""
        with self.lock:
            if self.over:
                return
            self.cancelled = Aborted("the program was cancelled", where=program_line())
        runtime_loop().submit(self.abort())
        self.changed.notify()

    @property
    def over(self) -> bool:
        """Whether an observer outside has nothing more to wait for."""
        return self.finished or self.cancelled is not None

    def ended_by(self) -> BaseException | None:
        """What ended the run before its time, None while it runs or if all went well."""
        return (self.failure if self.finished else None) or self.cancelled

    # -- errors ----------------------------------------------------------------------------------

    def handled(self, error: BaseException) -> None:
        """The program has seen this error; if it goes on all the same, so does the run."""
        self._handled[id(error)] = error

    def first_error(self) -> StolonError | None:
        """The first error, in program order, that the program has not seen."""
        return next(
            (
                call.error
                for call in self.calls
                if call.error is not None and id(call.error) not in self._handled
            ),
            None,
        )

    # -- life cycle ------------------------------------------------------------------------------

    def execute(self, body: Callable[[], object]) -> object:
        """Run a synchronous body to the end of everything it asked for.

        Raises what the body raises, else the first error of a generation that the body has not
        seen. Whatever ends the program, no request of it goes on.
        """
        refuse_on_loop(f"{self.name}.run()")
        try:
            result = self._noting(body)
            self.flush()
            runtime_loop().submit(self.drain()).result()
            self._raise_first()
        except BaseException as error:
            self.failure = error
            runtime_loop().submit(self.abort()).result()
            raise
        finally:
            self._finish()
        return result

    async def execute_async(self, body: Callable[[], object]) -> object:
        """`execute` for a body that is a coroutine function."""
        self._body_loop = running_loop()
        try:
            result = await self._noting_async(body)
            self.flush()
            await wait_for(runtime_loop().submit(self.drain()))
            self._raise_first()
        except BaseException as error:
            self.failure = error
            await wait_for(runtime_loop().submit(self.abort()))
            raise
        finally:
            self._finish()
        return result

    def _noting(self, body: Callable[[], object]) -> object:
        try:
            return body()
        except Exception as error:
            error.add_note(f"in the program {self.name!r}")
            raise

    async def _noting_async(self, body: Callable[[], object]) -> object:
        try:
            result = body()
            return await result if asyncio.iscoroutine(result) else result
        except Exception as error:
            error.add_note(f"in the program {self.name!r}")
            raise

    def _raise_first(self) -> None:
        error = self.first_error() or self.cancelled
        if error is not None:
            raise error

    def _finish(self) -> None:
        self.finished = True
        self.changed.notify()


def refuse_on_loop(what: str) -> None:
    """Raise where a blocking call would stop the loop that has to answer it."""
    if runtime_loop().is_current():
        raise InvalidRequest(
            f"{what} would block the event loop that runs this program",
            where=program_line(),
            hint="use 'await' with the async form: arun, aget, async_sync",
        )
