"""The one thread of an engine that computes.

Everything that torch runs in parallel for an engine, loading included, happens in this thread: each thread
that starts parallel work gets a team of OpenMP workers of its own, and when there are more workers than
cores, every one of them is put to sleep between two kernels (a third of the speed at one row, measured).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class ComputeThread:
    """A daemon thread that runs what it is given, in order."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stolon-engine", daemon=True)
        self._thread.start()

    def run(self, task: Callable[[], T]) -> T:
        """Run a task in the thread and wait for its result. What it raises is raised here."""
        future: Future[T] = Future()

        def step() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(step)
        return future.result()

    def start(self, task: Callable[[], None]) -> None:
        """Run a last task without waiting for it; the thread ends with it."""
        self._tasks.put(task)
        self._tasks.put(None)

    def stop(self) -> None:
        """End the thread once its tasks are done, and wait for that."""
        self._tasks.put(None)
        self.join()

    def join(self) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
            del task  # it may hold a model
