"""Which line of the user's program is running."""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def program_line() -> str:
    """``file.py:line`` of the innermost frame outside the language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def placed(line: str, inner: str | None) -> str:
    """`where` of an error: the program line, then the place inside what it appends, if known."""
    return f"{line}: {inner}" if inner else line
