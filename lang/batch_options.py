"""How a batch is run: the arguments of `run_batch` and `arun_batch` that are not the program's."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from stolon.errors import InvalidRequest
from stolon.lang.option_checks import checked_flag

# Longest pause before a failed item is tried again, in seconds.
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Checked arguments of a batch; see `Function.run_batch`.

    Attributes:
        concurrency: programs running at once.
        progress: draw a bar; "auto" draws it on a terminal only.
        as_completed: hand results over as (index, result) when they are there, not in order.
        checkpoint: file that finished items are appended to, and taken from.
        retries: how often an item is run anew after an error that may pass.
        backoff: seconds before the first of them; doubled each time.
    """

    concurrency: int | Literal["auto"] = "auto"
    progress: bool | Literal["auto"] = False
    return_exceptions: bool = False
    as_completed: bool = False
    checkpoint: Path | None = None
    retries: int = 2
    backoff: float = 0.5

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BatchOptions:
        """Check the arguments; two names of one thing must agree."""
        values = dict(given)
        threads = values.pop("num_threads", "auto")
        if values.get("concurrency") is None:
            values["concurrency"] = threads
            name = "num_threads"
        else:
            name = "concurrency"
            if threads not in ("auto", values["concurrency"]):
                raise InvalidRequest(
                    "num_threads and concurrency are two names of one argument; give one of them",
                    param="concurrency",
                )
        concurrency = values["concurrency"]
        if concurrency != "auto" and not _whole(concurrency, least=1):
            raise InvalidRequest(
                f"{name} must be 'auto' or a positive integer, not {concurrency!r}", param=name
            )
        for flag in ("return_exceptions", "as_completed"):
            checked_flag(flag, values.get(flag, False))
        bar = values.pop("progress_bar", False)
        values["progress"] = values.get("progress", False) or bar
        if values["progress"] not in (True, False, "auto"):
            raise InvalidRequest(
                f"progress must be True, False or 'auto', not {values['progress']!r}",
                param="progress",
            )
        if not _whole(values.get("retries", 0), least=0):
            raise InvalidRequest(
                f"retries must be 0 or more, not {values['retries']!r}", param="retries"
            )
        backoff = values.get("backoff", 0.0)
        if (
            isinstance(backoff, bool)
            or not isinstance(backoff, int | float)
            or not 0 <= backoff < math.inf
        ):
            raise InvalidRequest(
                f"backoff must be a number of seconds, not {backoff!r}", param="backoff"
            )
        path = values.get("checkpoint")
        if path is not None:
            if not isinstance(path, str | os.PathLike) or not os.fspath(path):
                raise InvalidRequest(f"checkpoint must be a path, not {path!r}", param="checkpoint")
            values["checkpoint"] = Path(path)
        return cls(**values)

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> BatchOptions:
        """Remove the arguments of a batch from a call's keyword arguments, and check them."""
        return cls.of({name: arguments.pop(name) for name in BATCH_NAMES if name in arguments})

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Seconds before the run after number `attempt` (from 0), None if there is to be none.

        Up to a quarter is taken off at random: items that failed together don't return together.
        A server's own word on when to come back is respected.
        """
        if attempt >= self.retries or getattr(error, "retryable", False) is not True:
            return None
        pause = self.backoff * 2.0 ** min(attempt, 32) * random.uniform(0.75, 1.0)
        after = getattr(error, "retry_after", None)
        if isinstance(after, int | float):
            pause = max(pause, after)
        return min(pause, _LONGEST_PAUSE)


BATCH_NAMES = (
    *(field.name for field in fields(BatchOptions)),
    "num_threads",
    "progress_bar",
)


def _whole(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
