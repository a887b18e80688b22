"""Text of which two dialects of regexes say the same.

A `pattern` is read twice: as ECMAScript's by the grammar, whose `\\d` and `\\w` are ASCII, and by pydantic,
whose are Unicode's. What their negations take differs, and of `\\s` two characters do.
"""

from __future__ import annotations

import re

_NO_OTHER_DIGITS = r"^([0-9]|\P{Nd})*$"
# The word characters of pydantic's two engines: both zero-width joiners are of one of them.
_NO_OTHER_WORDS = r"^([0-9A-Za-z_]|[^\p{Alphabetic}\p{M}\p{N}\p{Pc}\u200c\u200d])*$"
_NO_OTHER_BLANKS = r"^[^\x85\ufeff]*$"


def shared_text(pattern: str) -> list[str]:
    """ECMAScript patterns that leave out text on which the dialects may differ about `pattern`."""
    classes = set(re.findall(r"\\([dDwWsS])", pattern))
    negated = "[^" in pattern
    shared = []
    if "D" in classes or (negated and "d" in classes):
        shared.append(_NO_OTHER_DIGITS)
    if "W" in classes or (negated and "w" in classes):
        shared.append(_NO_OTHER_WORDS)
    if classes & {"s", "S"}:
        shared.append(_NO_OTHER_BLANKS)
    return shared
