"""One item of a batch: its run, the runs after errors that may pass, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from stolon.errors import Aborted
from stolon.lang.batch_options import BatchOptions
from stolon.lang.checkpoint import Checkpoint
from stolon.lang.invocation import Invocation
from stolon.lang.restored import RestoredState
from stolon.lang.run import ProgramRun
from stolon.lang.runtime_loop import wait_for
from stolon.lang.state import ProgramState

# How an item ended: the state of its run, or the exception that ended it.
Outcome = ProgramState | RestoredState | BaseException


class Item:
    """A task of an event loop that runs one item to its end, and then posts itself.

    Every run of it has the same seed, so a repeated one gives what the first would have given.

    Attributes:
        outcome: set before it is posted.
        posted: it has ended, and is in the checkpoint if there is one.
        fault: why the outcome could not be written to the checkpoint.
    """

    def __init__(
        self,
        index: int,
        prepare: Callable[[], Invocation],
        post: Callable[[Item], None],
        *,
        options: BatchOptions,
        checkpoint: Checkpoint | None,
        digest: str,
    ) -> None:
        self.index = index
        self.outcome: ProgramState | BaseException = asyncio.CancelledError()
        self.fault: OSError | None = None
        self.posted = False
        self._prepare = prepare
        self._job: Invocation | None = prepare()
        self._in_thread = False
        self._post = post
        self._options = options
        self._checkpoint = checkpoint
        self._digest = digest
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._saving = False

    @property
    def run(self) -> ProgramRun | None:
        """The last run of the program."""
        return None if self._job is None else self._job.run

    async def execute(self) -> None:
        """Run to the end, on any loop. Never raises."""
        self._task = asyncio.current_task()
        try:
            if not self._stopped:
                self.outcome = await self._attempts()
        except BaseException as error:
            self.outcome = error
        if self._checkpoint is not None and not self.unfinished:
            self._saving = True
            await self._save(self._checkpoint)
        self._end()

    def _end(self) -> None:
        if not self.posted:
            self.posted = True
            self._post(self)

    @property
    def unfinished(self) -> bool:
        """Whether it was stopped before it ended by itself."""
        return self._stopped and isinstance(self.outcome, asyncio.CancelledError | Aborted)

    async def _attempts(self) -> ProgramState | BaseException:
        for attempt in count():
            job = self._job = self._job or self._prepare()
            try:
                await self._once(job)
            except Exception as error:
                pause = self._options.pause(attempt, error)
                if pause is None or self._stopped:
                    return error
            else:
                return job.state
            await asyncio.sleep(pause)
            self._job = None
        raise AssertionError("unreachable")

    async def _once(self, job: Invocation) -> None:
        if job.is_async:
            await job.run_async()
            return
        self._in_thread = True
        try:
            await wait_for(job.start())
        finally:
            self._in_thread = False

    async def _save(self, checkpoint: Checkpoint) -> None:
        try:
            # In a thread: a disk may be slow, and the loop has requests to serve.
            await asyncio.to_thread(checkpoint.append, self.index, self._digest, self.outcome)
        except asyncio.CancelledError:
            return  # the loop ends; the thread writes it all the same
        except OSError as error:
            self.fault = error

    def stop(self) -> None:
        """End it, on its loop: requests are aborted, what is waited for raises.

        What is being written is written: it was not posted, and nothing of it may be lost.
        """
        self._stopped = True
        if self._in_thread and self._job is not None:
            self._job.abort()
        elif self._task is None:  # it has not begun, and after Ctrl-C may never
            self._end()
        elif not self._saving:
            self._task.cancel()
