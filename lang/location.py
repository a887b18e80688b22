"""Which line of the user's program is running."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from types import FrameType, TracebackType

from stolon.errors import StolonError

_HERE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))

# Between a program and the language there may be frames of the library that call on its behalf.
_INSIDE = (
    _HERE + os.sep,
    os.path.join(_STANDARD, "contextlib.py"),
    os.path.join(_STANDARD, "threading.py"),
    os.path.join(_STANDARD, "asyncio", ""),
    os.path.join(_STANDARD, "concurrent", ""),
)
# Below it are the frames of whoever runs the loop, which has not called the task.
_TASK_BEGINS = os.path.join(_STANDARD, "asyncio", "events.py")

_started: ContextVar[str | None] = ContextVar("stolon_started", default=None)


def program_line() -> str:
    """``file.py:line`` of the innermost frame outside the language.

    In a thread or task that the language started and where no such frame is, the line that started it.
    """
    started = _started.get()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        if started is not None and frame.f_code.co_filename == _TASK_BEGINS:
            return started
        frame = frame.f_back
    if frame is None:
        return started or "?"
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


@contextmanager
def started_at(line: str) -> Iterator[None]:
    """Threads and tasks that begin inside, and the current one, have this as the line that started them."""
    token = _started.set(line)
    try:
        yield
    finally:
        _started.reset(token)


def raised_at(error: BaseException) -> str:
    """``file.py:line`` of the innermost frame outside the language that an exception passed."""
    where = "?"
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_INSIDE):
            where = f"{os.path.basename(code.co_filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return where


def placed(line: str, inner: str | None) -> str:
    """`where` of an error: the program line, then the place inside what it appends, if known."""
    return f"{line}: {inner}" if inner else line


class _Located(ContextDecorator):
    """Errors of the tree that leave it without a place get the program line. Holds no state."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, StolonError) and error.where is None:
            error.where = program_line()


located = _Located()
