"""What is likely to come next, and what it costs to find out: the estimates behind prompt-lookup speculation.

Text that repeats its own past (extraction, editing, code) can be guessed from it: the tokens that followed
the last tokens the time before (arXiv 2304.04487; "prompt lookup decoding"). A guess costs rows in a step,
and rows are cheap only while the weights take longer to read than the rows to multiply.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTHS = (4, 2, 1)
"""Lengths of the runs of words that are looked up, in this order."""
LONGEST = 8
"""Matches are told apart up to this length."""
PRIOR_RATES = (0.0, 0.15, 0.25, 0.4, 0.5, 0.6, 0.7, 0.75, 0.85)
"""How often a guess after a match of so many tokens is right, before anything is known."""
PRIOR_BASE = 5.0
"""Where nothing is known, a step without rows takes as long as so many rows."""

_FAST, _SLOW = 0.15, 0.02
_STEP_WEIGHT = 0.03
_PRIOR_VARIANCE = 0.5


class Words(dict[int, bytes]):
    """What tokens stand for when runs of them are compared: their bytes, without blanks before them.

    A name stands after a blank in a text and after a quote in JSON, and these are two tokens.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes

    def __missing__(self, token: int) -> bytes:
        data = self._token_bytes[token]
        self[token] = word = data.lstrip(b" ") or data
        return word


class NgramIndex:
    """Where runs of words of one growing sequence occurred last.

    Entries may be stale where the end of the sequence was replaced: what is found is compared with the
    tokens that are there now.
    """

    def __init__(self, words: Words) -> None:
        self._words = words
        self._size = 0
        self._after: dict[tuple[bytes, ...], int] = {}

    def find(self, tokens: list[int], tail: list[int]) -> tuple[int, int] | None:
        """Where the end of `tail` occurred last in `tokens`, before their end.

        Args:
            tail: what comes next is wanted after these; usually the last LONGEST of `tokens`.

        Returns:
            The position in `tokens` after the occurrence, and how many words agree (1 to LONGEST).
        """
        self._extend(tokens)
        words = self._as_words(tail[-LONGEST:])
        for length in LENGTHS:
            at = self._after.get(tuple(words[-length:]))
            if at is not None and at < len(tokens):
                agreed = _common_end(words, self._as_words(tokens[max(0, at - LONGEST) : at]))
                if agreed >= min(length, len(words)) > 0:
                    return at, agreed
        return None

    def _as_words(self, tokens: list[int]) -> list[bytes]:
        return list(map(self._words.__getitem__, tokens))

    def _extend(self, tokens: list[int]) -> None:
        """Take in all runs that end before the last token."""
        size = len(tokens)
        begin = max(0, min(self._size, size) - max(LENGTHS))
        recent = self._as_words(tokens[begin:-1])
        for length in LENGTHS:
            runs = zip(*(recent[i:] for i in range(length)), strict=False)
            self._after.update(zip(runs, range(begin + length, size), strict=False))
        self._size = size


def _common_end(a: list[bytes], b: list[bytes]) -> int:
    length = 0
    for one, other in zip(reversed(a), reversed(b), strict=False):
        if one != other:
            break
        length += 1
    return length


class Rates:
    """How often guesses were right, by the length of the match they came from: a running mean.

    Args:
        parent: where a newcomer starts, and what learns slowly from all that happens here.
    """

    def __init__(self, parent: Rates | None = None) -> None:
        self._parent = parent
        self._weight = _SLOW if parent is None else _FAST
        self.values: list[float] = list(PRIOR_RATES if parent is None else parent.values)

    def update(self, length: int, right: bool) -> None:
        self.values[length] += self._weight * (right - self.values[length])
        if self._parent is not None:
            self._parent.update(length, right)


class StepCost:
    """What a row adds to the time of a step: the slope of a line through recent steps.

    Exponentially weighted least squares. While all steps have about the same number of rows, their
    slope is unknown, and the prior holds.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._rows = 0.0
        self._time = 0.0
        self._variance = 0.0
        self._covariance = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows took so long. Outliers (another process, a page fault) count less."""
        self._steps += 1
        weight = max(_STEP_WEIGHT, 1 / self._steps)
        if self._steps > 1:
            seconds = min(seconds, 2 * self._time * max(1.0, rows / self._rows))
        more, later = rows - self._rows, seconds - self._time
        self._rows += weight * more
        self._time += weight * later
        if self._steps > 1:
            self._variance = (1 - weight) * (self._variance + weight * more * more)
            self._covariance = (1 - weight) * (self._covariance + weight * more * later)

    def growth(self, rows: int) -> float:
        """The time of one more row, as a share of the time of a step of `rows` rows, at least one."""
        rows = max(rows, 1)
        if not self._steps:
            return 1 / (rows + PRIOR_BASE)
        prior = self._time / (self._rows + PRIOR_BASE)
        slope = (self._covariance + _PRIOR_VARIANCE * prior) / (self._variance + _PRIOR_VARIANCE)
        # Neither is a row free, nor does a step of no rows take less than no time.
        slope = min(max(slope, prior / 50), self._time / self._rows)
        return slope / (self._time + slope * (rows - self._rows))
