"""The sampler in C++: a whole batch in one call, rows on the lanes of the engine's team.

It gives what the numpy sampler in this package gives, token for token; log-probs and the edges of the
filters may differ by rounding. Here rows are flattened into tuples of plain values, and results turned
back. Ids, sizes and element types are checked on the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stolon.errors import InternalError, StolonError
from stolon.srt.protocol import TokenLogprob

from .params import BrokenLogits, Floats, Sampled, SamplerRow, TokenMask

try:
    from stolon.kernels.cpu import _native
except ImportError:  # installed without a compiler
    _native = None  # type: ignore[assignment]

# Numbers of the enumerations in sample.h.
_REPORTS = {"raw": 1, "tempered": 2, "processed": 3}
_NO_MASK, _ALLOW, _DENY, _BITS, _LISTED = range(5)
_FAULTS = {
    -1: "the model gave a NaN logit",
    -2: "the model gave an infinite logit",
    -3: "no allowed token has a finite logit",
    -4: "the grammar allows no token",
    -5: "sampling failed: a token id is outside of the vocabulary",
}
_BROKEN = (-1, -2, -3)
_GREEDY: tuple[Any, ...] = (0.0, 0, 1.0, 0.0, 0, 0, 0, 0, 0, None)


def sample_native(
    team: Any,
    logits: Floats,
    rows: Sequence[SamplerRow],
    places: Sequence[int] | None,
    whole: int | None,
) -> list[Sampled | StolonError]:
    """What `sampler.sample` does, for logits ``[*, V]`` whose rows are contiguous."""
    faults: dict[int, Exception] = {}
    flat: list[tuple[Any, ...]] = []
    for index, row in enumerate(rows):
        try:
            place = index if places is None else places[index]
            flat.append(_flatten(row, whole is None or place < whole))
        except Exception as error:
            faults[index] = error
            flat.append(_GREEDY)
    drawn = _native.sample(team, logits, flat, places)
    results = [Sampled(one) if type(one) is int and one >= 0 else _read(one) for one in drawn]
    for index, fault in faults.items():
        results[index] = InternalError(f"sampling failed: {fault!r}")
    return results


def log_totals_native(team: Any, logits: Floats) -> list[float]:
    """What `logprobs.log_totals` does."""
    totals: list[float] = _native.log_totals(team, logits)
    return totals


def score_native(
    team: Any, logits: Floats, tokens: Sequence[int], *, top: int
) -> list[TokenLogprob]:
    """What `logprobs.token_logprobs` does."""
    found: list[tuple[float, list[tuple[int, float]]]] = []
    if not top:
        found = [(total, []) for total in log_totals_native(team, logits)]
    else:
        # The best token of a row comes with its log-prob, and so with the total.
        row = (*_GREEDY[:7], _REPORTS["raw"], top, None)
        for values, one in zip(
            logits, _native.sample(team, logits, [row] * len(tokens)), strict=True
        ):
            result = _read(one)
            if isinstance(result, StolonError):
                raise result
            best = result.logprob
            assert best is not None
            assert best.logprob is not None
            found.append((float(values[best.token]) - best.logprob, best.top))
    scored = []
    for values, token, (total, alternatives) in zip(logits, tokens, found, strict=True):
        logprob = float(values[token]) - total
        if np.isnan(logprob):
            raise BrokenLogits("the model gave a NaN logit, or nothing finite")
        scored.append(TokenLogprob(token, logprob if logprob > -np.inf else None, alternatives))
    return scored


def _flatten(row: SamplerRow, whole: bool) -> tuple[Any, ...]:
    sampling = row.sampling
    spec = row.logprobs
    changed = (
        row.mask is not None
        or not whole
        or row.banned
        or sampling.logit_bias
        or sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty
        or sampling.presence_penalty
    )
    return (
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        row.seed,
        row.sample,
        row.position,
        0 if spec is None else _REPORTS[spec.mode],
        0 if spec is None else spec.top,
        _changes(row, whole) if changed else None,
    )


def _changes(row: SamplerRow, whole: bool) -> tuple[Any, ...]:
    sampling = row.sampling
    form, ids = _mask(row.mask)
    if not whole:
        if form != _ALLOW:
            raise InternalError("logits are wanted that were not computed")
        form = _LISTED
    counted = sampling.frequency_penalty or sampling.presence_penalty
    return (
        form,
        ids,
        row.banned,
        row.seen if sampling.repetition_penalty != 1.0 else None,
        sampling.repetition_penalty,
        row.output_counts if counted else None,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        sampling.logit_bias or None,
    )


def _mask(mask: TokenMask | None) -> tuple[int, Any]:
    if mask is None:
        return _NO_MASK, None
    if mask.allow is not None:
        return _ALLOW, mask.allow
    if mask.bits is not None:
        return _BITS, mask.bits.view(np.uint8)
    return (_NO_MASK, None) if mask.deny is None else (_DENY, mask.deny)


def _read(one: Any) -> Sampled | StolonError:
    if isinstance(one, tuple):
        token, logprob, top = one
        return Sampled(token, TokenLogprob(token, logprob if logprob > -np.inf else None, top))
    if isinstance(one, str):
        return InternalError(f"sampling failed: {one}")
    return (BrokenLogits if one in _BROKEN else InternalError)(_FAULTS[one])
