"""Where a test stands, as errors tell it."""

from __future__ import annotations

import inspect
from pathlib import Path


def line(offset: int = 0) -> str:
    """File and line of the call, `offset` lines further down."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{Path(frame.f_back.f_code.co_filename).name}:{frame.f_back.f_lineno + offset}"
