"""Changes to the logits that depend on what was said before, or that the caller asked for."""

from __future__ import annotations

import numpy as np

from .params import Floats, Ids, SamplerRow


def adjust(logits: Floats, row: SamplerRow) -> Floats:
    """Repetition, frequency and presence penalty, then the logit bias, on one row ``[V]``.

    Returns `logits` itself when nothing is asked for, else a changed copy.
    """
    sampling = row.sampling
    repetition = sampling.repetition_penalty != 1.0 and row.seen is not None and len(row.seen) > 0
    counted = bool(sampling.presence_penalty or sampling.frequency_penalty) and bool(
        row.output_counts
    )
    if not (repetition or counted or sampling.logit_bias):
        return logits
    changed = logits.copy()
    if repetition and row.seen is not None:
        ids = _as_ids(row.seen)
        values = changed[ids]
        penalty = np.float32(sampling.repetition_penalty)
        changed[ids] = np.where(values > 0, values / penalty, values * penalty)
    if counted:
        ids, counts = _columns(row.output_counts)
        changed[ids] -= np.float32(sampling.frequency_penalty) * counts
        changed[ids] -= np.float32(sampling.presence_penalty) * (counts > 0)
    if sampling.logit_bias:
        ids, bias = _columns(sampling.logit_bias)
        changed[ids] += bias
    return changed


def restrict(logits: Floats, row: SamplerRow) -> tuple[Ids | None, Floats]:
    """Apply the mask and the bans to one row ``[V]``.

    Returns ``(ids, values)``: the ids that may come, ascending, with their logits; or ``(None,
    values)`` for the whole vocabulary, with -inf where a token may not come. Never changes its
    argument.
    """
    mask = row.mask
    if mask is not None and mask.allow is not None:
        ids = mask.allow
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            ids = np.unique(ids)
        if row.banned:
            kept = ids[~np.isin(ids, row.banned)]
            ids = kept if len(kept) else ids
        return ids, logits[ids]
    if mask is not None and mask.bits is not None:
        size = min(len(mask.bits), len(logits))
        allowed = np.full_like(logits, -np.inf)
        # Not copyto(where=...), which branches on every token and is several times slower.
        allowed[:size] = np.where(mask.bits[:size], logits[:size], np.float32(-np.inf))
    elif mask is not None and mask.deny is not None and len(mask.deny):
        allowed = logits.copy()
        allowed[mask.deny] = -np.inf
    else:
        return None, _ban(logits, row.banned)
    without = _ban(allowed, row.banned)
    return None, without if row.banned and without.max() > -np.inf else allowed


def _ban(logits: Floats, banned: tuple[int, ...]) -> Floats:
    if not banned:
        return logits
    left = logits.copy()
    left[list(banned)] = -np.inf
    return left


def _as_ids(ids: object) -> Ids:
    if isinstance(ids, np.ndarray):
        return ids
    return np.fromiter(ids, dtype=np.int64)  # type: ignore[call-overload,no-any-return]


def _columns(table: dict[int, int] | dict[int, float]) -> tuple[Ids, Floats]:
    size = len(table)
    return (
        np.fromiter(table.keys(), dtype=np.int64, count=size),
        np.fromiter(table.values(), dtype=np.float32, count=size),
    )
