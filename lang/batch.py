"""Many runs of one program: bounded concurrency, results in order, nothing finished is lost."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Literal

from stolon.errors import Aborted, InvalidRequest, StolonError
from stolon.lang.invocation import Invocation
from stolon.lang.run import ProgramRun
from stolon.lang.state import ProgramState

# Programs that run at once unless the caller says otherwise.
AUTO_LIMIT = 64
# After Ctrl-C, how long bodies that are busy outside of reads may take to notice, in seconds.
_GRACE = 5.0


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during `run_batch`.

    Attributes:
        results: per item the finished state, the exception it ended with, or None if it never
            finished.
    """

    def __init__(self, results: list[ProgramState | BaseException | None]) -> None:
        done = sum(isinstance(result, ProgramState) for result in results)
        super().__init__(f"interrupted; {done} of {len(results)} items are finished, see .results")
        self.results = results


def batch_seed(seed: int | None) -> int:
    """The seed of a batch; drawn if None."""
    return secrets.randbits(62) if seed is None else seed


def item_seed(seed: int, index: int) -> int:
    """The run seed of item `index`."""
    from stolon.srt.sampling.rng import derive_seed

    return derive_seed(seed, index)


def thread_limit(num_threads: int | Literal["auto"]) -> int:
    """How many programs may run at once."""
    if num_threads == "auto":
        return AUTO_LIMIT
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InvalidRequest(
            f"num_threads must be 'auto' or a positive integer, not {num_threads!r}",
            param="num_threads",
        )
    return num_threads


class Batch:
    """The execution of one `run_batch`. Items are taken one by one as places become free."""

    def __init__(
        self,
        prepare: Callable[[int, Any], Invocation],
        items: Iterable[Any],
        *,
        limit: int,
        progress: bool,
        description: str,
        keep_going: bool,
    ) -> None:
        self._prepare = prepare
        self._items = enumerate(items)
        self._total = len(items) if isinstance(items, Sized) else None
        self._limit = limit
        self._keep_going = keep_going
        self._results: list[ProgramState | BaseException | None] = []
        self._running: dict[Future[None], tuple[int, Invocation]] = {}
        self._bar = _Bar(description, self._total) if progress else None
        self._exhausted = False
        self._failed: int | None = None

    def collect(self) -> list[Any]:
        """Run everything; see `Function.run_batch` for what failures and Ctrl-C do."""
        try:
            while self._fill():
                self._take_finished()
        except KeyboardInterrupt:
            self._stop()
            raise BatchInterrupted(self._all_results()) from None
        except BaseException as error:
            self._stop()
            _attach(error, self._all_results())
            raise
        finally:
            self._close()
        if self._failed is not None:
            first = self._results[self._failed]
            if isinstance(first, BaseException):
                _attach(first, self._all_results())
                raise _of_item(first, self._failed)
        return self._results

    def stream(self) -> Iterator[Any]:
        """Yield results in order. Leaving the iteration early aborts what runs."""
        position = 0
        try:
            while True:
                ahead = position + self._limit
                more = self._fill(ahead)
                while position < len(self._results) and self._results[position] is not None:
                    result, index = self._results[position], position
                    # The caller keeps what it wants; a long batch must not keep all states alive.
                    self._results[position] = None
                    position += 1
                    if isinstance(result, BaseException) and not self._keep_going:
                        raise _of_item(result, index)
                    yield result
                    more = True
                if not more:
                    return
                if self._running and (
                    position >= len(self._results) or self._results[position] is None
                ):
                    self._take_finished()
        finally:
            self._stop()
            self._close()

    def _fill(self, ahead: int | None = None) -> bool:
        """Start items while places are free; whether any is running."""
        while (
            len(self._running) < self._limit
            and not self._exhausted
            and self._failed is None
            and (ahead is None or len(self._results) < ahead)
        ):
            try:
                index, item = next(self._items)
            except StopIteration:
                self._exhausted = True
                break
            self._results.append(None)
            try:
                job = self._prepare(index, item)
            except Exception as error:
                error.add_note(f"in item {index} of the batch")
                self._finish(index, error)
                continue
            self._running[job.start()] = (index, job)
        return bool(self._running)

    def _take_finished(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            self._take(future)

    def _take(self, future: Future[None]) -> None:
        index, job = self._running.pop(future)
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is not None:
            error.add_note(f"in item {index} of the batch")
        self._finish(index, job.state if error is None else error)
        if self._bar is not None:
            self._bar.advance(job.run)

    def _finish(self, index: int, result: ProgramState | BaseException) -> None:
        self._results[index] = result
        if isinstance(result, BaseException) and not self._keep_going and self._failed is None:
            self._failed = index

    def _stop(self) -> None:
        """Abort what runs; keep what finishes all the same, and forget what does not."""
        for future, (_, job) in self._running.items():
            job.abort()
            future.cancel()  # an async body may be waiting for something that is not ours
        done, _ = wait(self._running, timeout=_GRACE)
        for future in done:
            index, _ = self._running[future]
            self._take(future)
            if isinstance(self._results[index], Aborted | CancelledError):
                self._results[index] = None

    def _all_results(self) -> list[ProgramState | BaseException | None]:
        missing = 0 if self._total is None else self._total - len(self._results)
        return [*self._results, *[None] * missing]

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _of_item(error: BaseException, index: int) -> BaseException:
    """The error of an item, to be raised for the whole batch: its place names the item.

    Other exceptions than ours have the item in their notes alone.
    """
    if isinstance(error, StolonError):
        item = f"item {index} of the batch"
        error.where = f"{error.where}, {item}" if error.where else item
    return error


def _attach(error: BaseException, results: list[ProgramState | BaseException | None]) -> None:
    """Give an exception its `results`; one with fixed attributes goes without."""
    try:
        error.results = results  # type: ignore[attr-defined]
    except AttributeError:
        return


class _Bar:
    """A progress bar on stderr with generated tokens per second."""

    def __init__(self, description: str, total: int | None) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, desc=description, unit="run", dynamic_ncols=True)
        self._start = time.monotonic()
        self._tokens = 0

    def advance(self, run: ProgramRun) -> None:
        self._tokens += sum(
            result.usage.completion_tokens
            for call in run.calls
            for result in call.results
            if result is not None
        )
        seconds = max(time.monotonic() - self._start, 1e-6)
        self._bar.set_postfix_str(f"{self._tokens / seconds:.0f} tok/s", refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()
