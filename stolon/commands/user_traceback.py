"""The traceback of a user's mistake: the lines of the user's own program, without ours."""

from __future__ import annotations

import traceback
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("stolon", "stolon.lang", "stolon.srt")
# What lies between our frames and the user's; it belongs to whoever called it.
_LIBRARY = Path(traceback.__file__).parent
_CARRIERS = (
    "<frozen runpy>",
    *(str(_LIBRARY / part) for part in ("concurrent/futures/", "asyncio/", "threading.py")),
)


def user_traceback(error: BaseException) -> str:
    """What Python prints for an exception, less the frames of Stolon and what those called."""
    report = traceback.TracebackException.from_exception(error)
    _strip(report, _folders())
    return "".join(report.format())


def _folders() -> tuple[str, ...]:
    """Where our code lies; the packages need not be in one folder."""
    places = [
        place
        for spec in map(find_spec, _PACKAGES)
        if spec is not None
        for place in spec.submodule_search_locations or ()
    ]
    return tuple(f"{Path(place)}/" for place in places)


def _strip(report: traceback.TracebackException, ours: tuple[str, ...]) -> None:
    hidden = True
    kept = []
    for frame in report.stack:
        if frame.filename.startswith(ours):
            hidden = True
        elif not frame.filename.startswith(_CARRIERS):
            hidden = False
        if not hidden:
            kept.append(frame)
    report.stack = traceback.StackSummary.from_list(kept)
    related = [report.__cause__, report.__context__, *(report.exceptions or ())]
    for other in related:
        if other is not None:
            _strip(other, ours)
