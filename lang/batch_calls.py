"""The part of a program that runs it for many inputs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any, Literal, overload

from stolon.errors import InvalidRequest
from stolon.lang.batch_drivers import AsyncBatch, BlockingBatch
from stolon.lang.batch_options import BatchOptions
from stolon.lang.batch_program import batch_program
from stolon.lang.body import BoundBody
from stolon.lang.location import located
from stolon.lang.option_checks import checked_flag, checked_seed
from stolon.lang.runtime_loop import refuse_on_loop
from stolon.lang.state import ProgramState
from stolon.srt.client import EngineClient


class BatchCalls(BoundBody):
    """`run_batch` and `arun_batch`."""

    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, as_completed: Literal[True], **kwargs: Any
    ) -> Iterator[tuple[int, ProgramState]]: ...
    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, generator_style: Literal[True], **kwargs: Any
    ) -> Iterator[ProgramState]: ...
    @overload
    def run_batch(
        self, batch_kwargs: Iterable[Any], *, return_exceptions: Literal[True], **kwargs: Any
    ) -> list[ProgramState | Exception]: ...
    @overload
    def run_batch(self, batch_kwargs: Iterable[Any], **kwargs: Any) -> list[ProgramState]: ...
    def run_batch(
        self,
        batch_kwargs: Iterable[Any],
        *,
        backend: EngineClient | None = None,
        seed: int | None = None,
        num_threads: int | Literal["auto"] = "auto",
        concurrency: int | Literal["auto"] | None = None,
        progress: bool | Literal["auto"] = False,
        progress_bar: bool = False,
        return_exceptions: bool = False,
        generator_style: bool = False,
        as_completed: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        retries: int = 2,
        backoff: float = 0.5,
        **sampling: Any,
    ) -> Any:
        """Run the program once per item, many at a time; states come in the order of the items.

        Args:
            batch_kwargs: dicts of arguments, or tuples or lists of positional ones, from any iterable. It is
                pulled from as places become free, in the calling thread.
            seed: item i runs with a seed derived from this one and i. Drawn if None.
            num_threads, concurrency: two names of one thing: programs running at once. "auto" begins
                with 64, adds more while the engine has no queue, and takes some away when requests
                queue up in it, or when programs drive each other out of its cache. An ``async def``
                program takes no thread; any other takes one while its body runs.
            progress, progress_bar: two names of one switch: a bar on stderr with items, failures,
                generated tokens per second and the time left; "auto" draws it on a terminal only.
            return_exceptions: failures stand in the list in the place of states, except for
                KeyboardInterrupt, SystemExit and GeneratorExit of a body. Otherwise the
                first failure, of an item or of `batch_kwargs`, lets no further item begin, and is
                raised when those that run are done; its attribute ``results`` is the list with the
                states that are finished, the exceptions, and None for items that never began or
                were handed over. Its notes, and the ``where`` of a StolonError, name the item.
            generator_style: yield states in order as they come due, and keep none; `batch_kwargs` may be
                endless. At most as many items are ahead as may run at once.
            as_completed: the same, but yield (index, state) as they are finished.
            checkpoint: a JSON Lines file. Every item that ends is appended to it at once. The same
                call with the same file takes the items that ended well from there, as
                `RestoredState`, and runs the others; without `seed` it has the seed of the file, so
                that the result is that of a call that was never interrupted.
            retries, backoff: an item that fails with an error that may pass (its ``retryable`` is
                True: a lost connection, an overloaded server) is run anew with the same seed, so
                often, after so many seconds, doubled each time.
            sampling: as in `run`.

        Raises:
            BatchInterrupted: at Ctrl-C, a KeyboardInterrupt with ``results`` as above.
            InvalidRequest: the checkpoint belongs to another batch, or is in use.
        """
        refuse_on_loop(f"{self.name}.run_batch()")
        given = {
            "num_threads": num_threads,
            "concurrency": concurrency,
            "progress": progress,
            "progress_bar": progress_bar,
            "return_exceptions": return_exceptions,
            "as_completed": as_completed,
            "checkpoint": checkpoint,
            "retries": retries,
            "backoff": backoff,
        }
        with located:
            seed = checked_seed(seed)
            options = BatchOptions.of(given)
            if checked_flag("generator_style", generator_style) and as_completed:
                raise InvalidRequest(
                    "generator_style and as_completed are two orders; give one of them",
                    param="as_completed",
                )
            if isinstance(batch_kwargs, AsyncIterable) and not isinstance(batch_kwargs, Iterable):
                raise InvalidRequest(
                    "batch_kwargs is an async iterable, for which run_batch() can't wait",
                    param="batch_kwargs",
                    hint="arun_batch() takes it",
                )
        program = batch_program(self, "run_batch", sampling, backend)
        plan = BlockingBatch(program, batch_kwargs, options, seed)
        return plan.stream() if generator_style or as_completed else plan.collect()

    def arun_batch(
        self,
        batch_kwargs: Iterable[Any] | AsyncIterable[Any],
        *,
        backend: EngineClient | None = None,
        seed: int | None = None,
        **arguments: Any,
    ) -> AsyncBatch:
        """`run_batch` on the running loop: ``await`` it for the list, or iterate over it.

        ``async for index, state in fn.arun_batch(items)`` yields in order, with ``as_completed=True``
        as items are finished, and keeps no states. `batch_kwargs` may be an async iterable, too. Arguments
        are those of `run_batch` but for ``generator_style``. Cancelling it, or leaving the iteration,
        aborts what runs.
        """
        with located:
            seed = checked_seed(seed)
            options = BatchOptions.take(arguments)
        program = batch_program(self, "arun_batch", arguments, backend)
        return AsyncBatch(program, batch_kwargs, options, seed)
