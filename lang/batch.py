"""Many runs of one program: bounded concurrency, results in order, nothing finished is lost."""

from __future__ import annotations

import secrets
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stolon.errors import StolonError
from stolon.lang.batch_item import Item, Outcome
from stolon.lang.batch_options import BatchOptions
from stolon.lang.batch_program import BatchProgram
from stolon.lang.checkpoint import Checkpoint
from stolon.lang.checkpoint_lines import digest
from stolon.lang.concurrency import Concurrency, places
from stolon.lang.progress import Progress


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during `run_batch`. `checkpoint` is the file that has what is finished, if there is one.

    Attributes:
        results: per item the finished state, the exception it ended with, or None if it never
            finished, or was handed over before.
    """

    def __init__(
        self, results: list[Outcome | None], checkpoint: Path | None = None, *, handed_over: int = 0
    ) -> None:
        done = handed_over + sum(not isinstance(r, BaseException | None) for r in results)
        taken = f", {handed_over} of them handed over" if handed_over else ""
        text = f"interrupted; {done} of {len(results)} items are finished{taken}, see .results"
        if checkpoint is not None:
            text += f"; the same call goes on from {checkpoint}"
        super().__init__(text)
        self.results = results


class Batch:
    """The bookkeeping of one batch; a driver pulls the items and waits for the ends.

    Items are taken one by one as places become free. What was handed over is not kept.
    """

    def __init__(
        self,
        program: BatchProgram,
        options: BatchOptions,
        *,
        seed: int | None,
        total: int | None,
        post: Callable[[Item], None],
        launch: Callable[[Item], object],
        streaming: bool,
    ) -> None:
        self.failure: BaseException | None = None
        self.running: dict[int, Item] = {}
        self._program = program
        self._options = options
        self._total = total
        self._post = post
        self._launch = launch
        self._streaming = streaming
        self._ended: dict[int, Outcome] = {}
        self._started = 0
        self._position = 0
        self._checkpoint: Checkpoint | None = None
        draw = secrets.randbits(62)
        self._seed = draw if seed is None else seed
        if options.checkpoint is not None:
            self._checkpoint = Checkpoint(
                options.checkpoint, program.identity, seed=seed, draw=draw
            )
            self._seed = self._checkpoint.seed
        self._places: Concurrency = places(
            options.concurrency, program.client, is_async=program.is_async
        )
        self._bar = Progress(program.identity.program, total, shown=options.progress)

    # -- items in --------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether another item may be pulled."""
        taken = len(self.running) + (len(self._ended) if self._streaming else 0)
        return self.failure is None and taken < self._places.limit

    def begin(self, item: Any) -> None:
        """Start the next item, or take its result from the checkpoint."""
        index = self._started
        self._started += 1
        seed = item_seed(self._seed, index)
        key = ""
        if self._checkpoint is not None:
            key = digest(seed, self._program.arguments(item))
            restored = self._checkpoint.restore(index, key)
            if restored is not None:
                self._ended[index] = restored
                self._bar.restored()
                return
        try:
            entry = Item(
                index,
                lambda: self._program.prepare(index, item, seed),
                self._post,
                options=self._options,
                checkpoint=self._checkpoint,
                digest=key,
            )
        except Exception as error:
            self._end(index, error)
            self._bar.finished(None, failed=True)
            if self._checkpoint is not None:
                self._checkpoint.append(index, key, error)
            return
        self.running[index] = entry
        self._launch(entry)

    def fail(self, error: BaseException) -> None:
        """No further item begins; `finish` raises the first of these errors."""
        if self.failure is None:
            self.failure = error

    # -- results out -----------------------------------------------------------------------------

    def take(self, entry: Item) -> None:
        """An item has been posted.

        It leaves `running` last: after a Ctrl-C in the middle it is taken again.
        """
        self._places.observe(len(self.running), entry.run)
        if not entry.unfinished:
            self._end(entry.index, entry.outcome)
        del self.running[entry.index]
        if entry.unfinished:
            return
        self._bar.finished(entry.run, failed=isinstance(entry.outcome, BaseException))
        if entry.fault is not None:
            raise entry.fault

    def _end(self, index: int, outcome: Outcome) -> None:
        if isinstance(outcome, BaseException):
            outcome.add_note(f"in item {index} of the batch")
            if self._is_raised(outcome) and self.failure is None:
                self.fail(of_item(outcome, index))
        self._ended[index] = outcome

    def _is_raised(self, outcome: Outcome) -> bool:
        """Whether it ends the batch. What asks the interpreter to end is never a mere result."""
        if not isinstance(outcome, BaseException):
            return False
        mere = isinstance(outcome, Exception | CancelledError)
        return not (mere and self._options.return_exceptions)

    def ready(self) -> Iterator[tuple[int, Outcome]]:
        """Hand over what is due; what is to be raised is not, and in order nothing after it."""
        while (index := self._due()) is not None:
            outcome = self._ended.pop(index)
            self._position += 1
            yield index, outcome

    def _due(self) -> int | None:
        if self._options.as_completed:
            ended = self._ended.items()
            return next((index for index, end in ended if not self._is_raised(end)), None)
        end = self._ended.get(self._position)
        return None if end is None or self._is_raised(end) else self._position

    def finish(self) -> None:
        """When all is done: raise the first failure that is to be raised, with its `results`."""
        if self.failure is not None:
            attach(self.failure, self.partial())
            raise self.failure

    def results(self) -> list[Any]:
        """Everything, when all is done; raises what `finish` raises."""
        self.finish()
        return self.partial()

    def interrupted(self) -> BatchInterrupted:
        """The error of Ctrl-C."""
        return BatchInterrupted(
            self.partial(), self._options.checkpoint, handed_over=self._position
        )

    def partial(self) -> list[Outcome | None]:
        """What has ended and is not handed over, None for the rest."""
        length = self._started if self._total is None else max(self._started, self._total)
        return [self._ended.get(index) for index in range(length)]

    def close(self) -> None:
        """The checkpoint is on the disk, the bar is finished."""
        self._bar.close()
        if self._checkpoint is None:
            return
        try:
            self._checkpoint.close()
        except OSError as error:
            attach(error, self.partial())
            raise


def item_seed(seed: int, index: int) -> int:
    """The run seed of item `index`."""
    from stolon.srt.seeds import derive_seed

    return derive_seed(seed, index)


def of_item(error: BaseException, index: int) -> BaseException:
    """The error of an item, to be raised for the whole batch: its place names the item.

    Other exceptions than ours have the item in their notes alone.
    """
    if isinstance(error, StolonError):
        item = f"item {index} of the batch"
        error.where = f"{error.where}, {item}" if error.where else item
    return error


def attach(error: BaseException, results: list[Outcome | None]) -> None:
    """Give an exception its `results`; one with fixed attributes goes without."""
    try:
        error.results = results  # type: ignore[attr-defined]
    except AttributeError:
        return
