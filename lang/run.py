"""One execution of a program: what all its branches share, from its body to its end."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn, Protocol

from stolon.errors import Aborted, StolonError
from stolon.lang.blocks import Block
from stolon.lang.calls import BranchPath, Call, branch_name
from stolon.lang.latch import Signal, running_loop
from stolon.lang.location import program_line
from stolon.lang.nesting import deeper
from stolon.lang.open_blocks import OpenBlocks
from stolon.lang.options import SamplingOptions
from stolon.lang.runtime_loop import on_runtime_loop, refuse_on_loop
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
        blocks: its requests that are under way.
        finished: the body is over and everything it asked for is settled.
        failure: the exception that ended the program.
        result: what the body returned.
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
        self.blocks = OpenBlocks(client, self.changed, streaming=streaming)
        self.finished = False
        self.failure: BaseException | None = None
        self.result: object = None
        self.cancelled: Aborted | None = None
        self._left_body: TracebackType | None = None
        self._pending: dict[Recorder, None] = {}
        self._handled: dict[int, BaseException] = {}
        self._body_loop: asyncio.AbstractEventLoop | None = None

    def must_await(self) -> bool:
        """Whether a blocking wait here would stop the loop of the program or of its requests."""
        loop = running_loop()
        if loop is None or self.finished:
            return False
        return loop is self._body_loop or on_runtime_loop()

    # -- requests --------------------------------------------------------------------------------

    def record(self, call: Call, recorder: Recorder) -> None:
        """A branch recorded a call that is not sent yet."""
        self.calls.append(call)
        self._pending[recorder] = None

    def flush(self) -> None:
        """Send the recorded blocks of every branch, all at the same time, from this thread."""
        if not self._pending:
            return
        with self.lock:
            blocks = [block for recorder in self._pending for block in recorder.take_blocks()]
            self._pending.clear()
            self.blocks.add(blocks)  # before any of them is sent
        for block in blocks:
            self.blocks.send(block)

    # -- ending it from outside ------------------------------------------------------------------

    def abort(self) -> None:
        """Abort every request that runs and refuse later ones. From any thread; does not wait."""
        self.blocks.close(self.failure)

    def cancel(self, path: BranchPath = ()) -> None:
        """End a branch with those forked from it, or with no path the run. Does not wait.

        From any thread. Nothing happens when the run is finished or the branch cancelled already.
        """
        with self.lock:
            if self.over or path in self.blocks.cancelled:
                return
            what = "branch" if path else "program"
            error = Aborted(f"the {what} was cancelled", where=program_line())
            error.branch = branch_name(path) or None
            if path:
                self.blocks.cancelled[path] = error
                self.handled(error)  # the program wanted it
            else:
                self.cancelled = error
        if not path:
            self.abort()
        self.blocks.end(path, error)
        self.changed.notify()

    @property
    def over(self) -> bool:
        """Whether an observer outside has nothing more to wait for."""
        return self.finished or self.cancelled is not None

    def ended_by(self) -> BaseException | None:
        """What ended the run before its time, None while it runs or if all went well."""
        return (self.failure if self.finished else None) or self.cancelled

    def raise_again(self, ended: BaseException) -> NoReturn:
        """Raise what ended the run as it left the body: an earlier read has not changed it."""
        context = ended.__context__
        try:
            raise ended.with_traceback(self._left_body if ended is self.failure else None)
        finally:
            ended.__context__ = context

    def unseen_cause(self, error: StolonError) -> Exception | None:
        """What ended the program, if `error` only follows from it and no caller was told.

        `run` and `arun` raise it to their callers; of a run that streams, whoever reads learns it.
        """
        cause = error.__cause__
        told = not self.streaming or not isinstance(error, Aborted)
        return (
            None if told or cause is not self.failure or not isinstance(cause, Exception) else cause
        )

    # -- errors ----------------------------------------------------------------------------------

    def handled(self, error: BaseException) -> None:
        """The program has seen this error; if it goes on all the same, so does the run."""
        self._handled[id(error)] = error

    def unseen_errors(self) -> list[StolonError]:
        """The errors that the program has not seen, in program order; each once."""
        errors = {id(call.error): call.error for call in self.calls if call.error is not None}
        return [error for key, error in errors.items() if key not in self._handled]

    # -- life cycle ------------------------------------------------------------------------------

    def execute(self, body: Callable[[], object]) -> None:
        """Run a synchronous body to the end of everything it asked for.

        Raises what the body raises, else the first error of a generation that the body has not
        seen. Whatever ends the program, no request of it goes on.
        """
        refuse_on_loop(f"{self.name}.run()")
        try:
            try:
                with self._nested():
                    result = body()
            except StopIteration as error:
                # As Python does it for a coroutine: futures and generators can't pass one on.
                raise RuntimeError(f"the program {self.name!r} raised StopIteration") from error
            self.flush()
            for latch in self.blocks.drain():
                latch.wait()
            self._raise_first()
            self.result = result
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._finish()

    async def execute_async(self, body: Callable[[], object]) -> None:
        """`execute` for a body that is a coroutine function."""
        self._body_loop = running_loop()
        try:
            with self._nested():
                result = body()
                if asyncio.iscoroutine(result):
                    result = await result
            self.flush()
            for latch in self.blocks.drain():
                await latch.arrive()
            self._raise_first()
            self.result = result
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._finish()

    @contextmanager
    def _nested(self) -> Iterator[None]:
        """Around the body: its errors name the program, and runs inside it are counted."""
        with deeper(f"{self.name}.run()"):
            try:
                yield
            except Exception as error:
                note = f"in the program {self.name!r}"
                if note not in getattr(error, "__notes__", ()):
                    error.add_note(note)
                raise

    def _raise_first(self) -> None:
        errors = self.unseen_errors()
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors)} errors in this run; the first is shown")
        error = errors[0] if errors else self.cancelled
        if error is not None:
            raise error.with_traceback(None)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._left_body = error.__traceback__
        self.abort()

    def _finish(self) -> None:
        self.finished = True
        self.changed.notify()
