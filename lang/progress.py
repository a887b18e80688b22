"""The progress bar of a batch."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from stolon.lang.run import ProgramRun

if TYPE_CHECKING:
    from tqdm import tqdm

# Where no cursor can go back, each drawing is a line of a log: seconds between two of them.
_LOG_INTERVAL = 10.0


class Progress:
    """Items done of all, failures, generated tokens per second and the time left, on stderr.

    Args:
        shown: "auto" draws on a terminal only.

    While a bar is on a terminal, lines printed to it go above the bar.
    """

    def __init__(
        self, description: str, total: int | None, *, shown: bool | Literal["auto"]
    ) -> None:
        self._start = time.monotonic()
        self._tokens = 0
        self._failed = 0
        self._bar: tqdm[Any] | None = None
        self._above: _AboveBar | None = None
        on_terminal = sys.stderr.isatty()
        if not shown or (shown == "auto" and not on_terminal):
            return
        from tqdm import tqdm

        self._bar = tqdm(
            total=total,
            desc=description,
            unit="run",
            dynamic_ncols=True,
            mininterval=0.1 if on_terminal else _LOG_INTERVAL,
        )
        if on_terminal and sys.stdout.isatty():
            self._above = _AboveBar(sys.stdout, self._bar)
            sys.stdout = cast(TextIO, self._above)

    def restored(self) -> None:
        """An item was finished before the batch began."""
        if self._bar is not None:
            # As what was there from the start it does not count for the speed.
            self._bar.initial += 1
            self._bar.update()

    def finished(self, run: ProgramRun | None, *, failed: bool) -> None:
        """An item has ended; `run` is its run, if it came so far."""
        if self._bar is None:
            return
        if run is not None:
            self._tokens += completion_tokens(run)
        self._failed += failed
        seconds = max(time.monotonic() - self._start, 1e-6)
        notes = [f"{self._failed} failed"] if self._failed else []
        notes.append(f"{self._tokens / seconds:.0f} tok/s")
        self._bar.set_postfix_str(", ".join(notes), refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is, and stdout as it was."""
        if self._bar is not None:
            self._bar.close()
        if self._above is not None:
            self._above.end()
            if sys.stdout is cast(TextIO, self._above):
                sys.stdout = self._above.under


class _AboveBar:
    """A stdout whose complete lines are printed above the bars of the same terminal."""

    def __init__(self, under: TextIO, bar: tqdm[Any]) -> None:
        self.under = under
        self._bar = bar
        self._open = ""

    def write(self, text: str) -> int:
        lines, end, rest = (self._open + text).rpartition("\n")
        self._open = rest
        if end:
            self._bar.write(lines, file=self.under)
        return len(text)

    def end(self) -> None:
        """Print a line that has no end yet."""
        self.under.write(self._open)
        self._open = ""

    def flush(self) -> None:
        self.under.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.under, name)


def completion_tokens(run: ProgramRun) -> int:
    """Tokens that a run has generated."""
    return sum(
        result.usage.completion_tokens
        for call in run.calls
        for result in call.results
        if result is not None
    )
