"""Choices compared by the log-probs of their tokens, by each method of `protocol.Select`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from stolon.lang.backends.scorer import Scored
from stolon.lang.backends.transcript import TranscriptTokenizer
from stolon.srt.protocol import ChoiceScore, Select, SelectMethod, SelectResult, Usage


def compared(
    select: Select,
    choices: Sequence[Scored],
    start: int,
    alone: Sequence[Sequence[float]] | None,
    sample: int,
    tokenizer: TranscriptTokenizer,
) -> SelectResult:
    """The best choice, or one that is drawn. The tokens of a choice begin at `start`.

    `alone` are their log-probs without the text before, for the method that needs them.
    """
    rows = [[0.0 if value is None else value for value in one.logprobs[start:]] for one in choices]
    normalized = [
        _normalized(select.method, row, alone[at] if alone else None) for at, row in enumerate(rows)
    ]
    index = _winner(select, rows, normalized, sample)
    scores = [
        ChoiceScore(
            text=text,
            token_ids=[tokenizer.piece(token.encode()) for token in one.texts[start:]],
            token_logprobs=row,
            logprob=sum(row),
            normalized=value,
            unconditional=sum(alone[at]) if alone else None,
        )
        for at, (text, one, row, value) in enumerate(
            zip(select.choices, choices, rows, normalized, strict=True)
        )
    ]
    counts = choices[0].counts
    usage = Usage(
        prompt_tokens=start,
        cached_tokens=counts.cached,
        computed_tokens=sum(one.counts.prompt - one.counts.cached for one in choices),
    )
    text = select.choices[index]
    return SelectResult(
        text=text, index=index, token_ids=list(text.encode()), scores=scores, usage=usage
    )


def _normalized(method: SelectMethod, row: Sequence[float], alone: Sequence[float] | None) -> float:
    if method == "sum":
        return sum(row)
    if alone is not None:
        return sum(a - b for a, b in zip(row, alone, strict=True)) / len(row)
    return sum(row) / len(row)


def _winner(
    select: Select, rows: Sequence[Sequence[float]], normalized: Sequence[float], sample: int
) -> int:
    if select.method == "greedy_token_selection":
        return _greedy(rows, normalized)
    if select.temperature:
        return _drawn(normalized, select, sample)
    return max(range(len(rows)), key=lambda at: (normalized[at], -at))


def _greedy(rows: Sequence[Sequence[float]], means: Sequence[float]) -> int:
    """Compare position by position and keep the maxima; a shorter choice is padded with its own mean."""
    alive = list(range(len(rows)))
    for position in range(max(map(len, rows))):
        values = {at: rows[at][position] if position < len(rows[at]) else means[at] for at in alive}
        best = max(values.values())
        alive = [at for at in alive if values[at] == best]
    return alive[0]


def _drawn(scores: Sequence[float], select: Select, sample: int) -> int:
    """A choice in proportion to exp(score / temperature), by the select's seed."""
    high = max(scores)
    weights = [math.exp((value - high) / select.temperature) for value in scores]
    number = random.Random(f"{select.seed}/{sample}").random() * sum(weights)
    for at, weight in enumerate(weights):
        number -= weight
        if number < 0:
            return at
    return len(weights) - 1
