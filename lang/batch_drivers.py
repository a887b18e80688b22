"""The two ways to go through a batch: from a thread that waits, and on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Sized
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.batch import Batch, attach
from stolon.lang.batch_item import Item
from stolon.lang.batch_options import BatchOptions
from stolon.lang.batch_program import BatchProgram
from stolon.lang.runtime_loop import runtime_loop

# Once a batch is ended early, how long bodies that are busy outside of reads may take to notice, in
# seconds.
_GRACE = 5.0


class BlockingBatch:
    """A batch driven by the calling thread, which also pulls the items."""

    def __init__(
        self, program: BatchProgram, items: Iterable[Any], options: BatchOptions, seed: int | None
    ) -> None:
        self._program = program
        self._items = items
        self._options = options
        self._seed = seed
        self._exhausted = False
        self._posted: SimpleQueue[Item] = SimpleQueue()

    def collect(self) -> list[Any]:
        """Run everything; see `Function.run_batch` for what failures and Ctrl-C do."""
        batch = self._open(streaming=False)
        try:
            source = iter(self._items)
            while self._fill(batch, source):
                batch.take(self._posted.get())
        except KeyboardInterrupt:
            self._stop(batch)
            raise batch.interrupted() from None
        except BaseException as error:
            self._stop(batch)
            attach(error, batch.partial())
            raise
        finally:
            batch.close()
        return batch.results()

    def stream(self) -> Iterator[Any]:
        """Yield results as they are due; what `collect` raises comes after them.

        Leaving the iteration early aborts what runs.
        """
        batch = self._open(streaming=True)
        try:
            source = iter(self._items)
            while True:
                running = self._fill(batch, source)
                handed = False
                for index, outcome in batch.ready():
                    handed = True
                    yield (index, outcome) if self._options.as_completed else outcome
                if handed:
                    continue  # there is room again
                if not running:
                    break
                batch.take(self._posted.get())
        except KeyboardInterrupt:
            self._stop(batch)
            raise batch.interrupted() from None
        except BaseException as error:
            self._stop(batch)
            attach(error, batch.partial())
            raise
        finally:
            batch.close()
        batch.finish()

    def _open(self, *, streaming: bool) -> Batch:
        return Batch(
            self._program,
            self._options,
            seed=self._seed,
            total=len(self._items) if isinstance(self._items, Sized) else None,
            post=self._posted.put,
            launch=lambda entry: runtime_loop().submit(entry.execute()),
            streaming=streaming,
        )

    def _fill(self, batch: Batch, source: Iterator[Any]) -> bool:
        """Start items while there is room; whether any is running."""
        while not self._exhausted and batch.has_room():
            try:
                item = next(source)
            except StopIteration:
                self._exhausted = True
                break
            except Exception as error:
                batch.fail(error)
                break
            batch.begin(item)
        return bool(batch.running)

    def _stop(self, batch: Batch) -> None:
        """Abort what runs; keep what finishes all the same, and forget what does not."""
        for entry in batch.running.values():
            runtime_loop().call(entry.stop)
        deadline = time.monotonic() + _GRACE
        while True:
            # Not as they come from the queue: Ctrl-C may have come after one was pulled.
            for entry in [entry for entry in batch.running.values() if entry.posted]:
                with suppress(OSError):  # of the checkpoint; what ended the batch is told already
                    batch.take(entry)
            if not batch.running:
                return
            try:
                self._posted.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return


class AsyncBatch:
    """What `arun_batch` returns. It runs once, on the loop that awaits it or iterates over it.

    ``await batch`` gives the list of results; ``async for index, result in batch`` gives each of them
    with the index of its item. Items may come from an async iterable.
    """

    def __init__(
        self,
        program: BatchProgram,
        items: Iterable[Any] | AsyncIterable[Any],
        options: BatchOptions,
        seed: int | None,
    ) -> None:
        self._program = program
        self._items = items
        self._options = options
        self._seed = seed
        self._begun = False
        self._changed = asyncio.Event()
        self._posted: deque[Item] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._collect().__await__()

    def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        return self._stream()

    async def _collect(self) -> list[Any]:
        batch = self._open(streaming=False)
        feeder = self._feeder(batch)
        try:
            while await self._go_on(batch, feeder):
                pass
        except BaseException as error:
            await self._stop(batch, feeder)
            attach(error, batch.partial())
            raise
        finally:
            batch.close()
        return batch.results()

    async def _stream(self) -> AsyncIterator[tuple[int, Any]]:
        batch = self._open(streaming=True)
        feeder = self._feeder(batch)
        try:
            more = True
            while more:
                more = await self._go_on(batch, feeder)
                for result in batch.ready():
                    self._changed.set()  # there is room again
                    yield result
        except BaseException as error:
            await self._stop(batch, feeder)
            attach(error, batch.partial())
            raise
        finally:
            batch.close()
        batch.finish()

    def _open(self, *, streaming: bool) -> Batch:
        if self._begun:
            raise InvalidRequest("a batch can be awaited or iterated over once")
        self._begun = True
        return Batch(
            self._program,
            self._options,
            seed=self._seed,
            total=len(self._items) if isinstance(self._items, Sized) else None,
            post=self._post,
            launch=self._launch,
            streaming=streaming,
        )

    def _post(self, entry: Item) -> None:
        self._posted.append(entry)
        self._changed.set()

    def _launch(self, entry: Item) -> None:
        task = asyncio.get_running_loop().create_task(entry.execute())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _feeder(self, batch: Batch) -> asyncio.Task[None]:
        feeder = asyncio.get_running_loop().create_task(self._feed(batch))
        feeder.add_done_callback(lambda _: self._changed.set())
        return feeder

    async def _feed(self, batch: Batch) -> None:
        """Pull and start items while there is room, to the end of them."""
        source = aiter(_each(self._items))
        while batch.failure is None:
            if not batch.has_room():
                await self._change()
                continue
            try:
                item = await anext(source)
            except StopAsyncIteration:
                return
            except Exception as error:
                batch.fail(error)
                return
            batch.begin(item)
            self._changed.set()

    async def _go_on(self, batch: Batch, feeder: asyncio.Task[None]) -> bool:
        """Take what has ended, or wait for a change; whether there is more to come."""
        if feeder.done():
            feeder.result()
            if not batch.running:
                return False
        if not self._posted:
            await self._change()
        while self._posted:
            batch.take(self._posted.popleft())
        self._changed.set()  # there is room again, and the feeder may have looked before
        return True

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _stop(self, batch: Batch, feeder: asyncio.Task[None]) -> None:
        """Abort what runs, and wait for its end a while."""
        feeder.cancel()
        for entry in batch.running.values():
            entry.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GRACE)
        while self._posted:
            with suppress(OSError):
                batch.take(self._posted.popleft())


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
