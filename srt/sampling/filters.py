"""Top-k, top-p and min-p without sorting the vocabulary, and the draw.

A cut at a logit value keeps a set of most likely tokens, whatever the value. So the tokens near the
maximum are taken first, and the cut is lowered only while they are too few or too light; only what
is kept is sorted. A peaked distribution, the usual case, costs one comparison a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stolon.srt.protocol import Sampling

from .params import Floats, Ids
from .rng import token_uniforms

_BLOCK = 128
# Share of the largest weight from which a token counts as likely to win the draw.
_HEAVY = 0.02
# Depths of the cut below the maximum, in nats.
_DEPTHS = (4.0, 8.0, 16.0, 32.0)
# The last is the smallest positive float32: everything that has weight at all.
_NUCLEUS_DEPTHS = (4.0, 8.0, 16.0, 32.0, 103.0)
_FEW = 8192
_MAX_HALVINGS = 12

Weights = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The distribution to draw from.

    Attributes:
        index: places in the row of logits, ascending; None for every place.
        weights: unnormalised, the most likely has about 1.
        total: their sum.
    """

    index: Ids | None
    weights: Weights
    total: float


def exp_weights(logits: Floats, top: float, inverse_temperature: float) -> Floats:
    """``exp((logits - top) / T)`` of a whole row, float32; `top` is the row's maximum."""
    with np.errstate(over="ignore"):
        weights = logits - np.float32(top)
        if inverse_temperature != 1.0:
            weights *= np.float32(inverse_temperature)
    np.exp(weights, out=weights)
    return weights


def block_sums(weights: Weights) -> NDArray[np.float64]:
    """Sums of blocks of 128 weights, in float64, in an order that only the row's length decides."""
    starts = np.arange(0, len(weights), _BLOCK)
    sums: NDArray[np.float64] = np.add.reduceat(weights, starts, dtype=np.float64)
    return sums


def best(logits: Floats, top: float, k: int) -> Ids:
    """Places of the `k` largest logits, best first, equal ones by place; never one that is -inf."""
    for depth in _DEPTHS:
        index = np.flatnonzero(logits >= np.float32(top - depth))
        if len(index) >= k:
            break
    else:
        index = np.flatnonzero(logits > -np.inf)
    values = logits[index]
    if len(values) > 4 * k + 64:
        kth = np.partition(values, len(values) - k)[len(values) - k]
        index = index[values >= kth]
        values = logits[index]
    return index[np.argsort(-values, kind="stable")[:k]]


def candidates(logits: Floats, top: float, sampling: Sampling) -> Candidates:
    """Temperature, top-k, top-p, min-p, in this order, on one row with maximum `top`.

    Each filter works on the distribution that the one before it left, normalised anew. Exactly k
    tokens survive top-k; among equal logits the lower id is the more likely one.
    """
    inverse = 1.0 / sampling.temperature
    cut_k = 0 < sampling.top_k < len(logits)
    if not (cut_k or sampling.top_p < 1.0 or sampling.min_p > 0.0):
        full = exp_weights(logits, top, inverse)
        return Candidates(None, full, float(block_sums(full).sum()))
    if cut_k:
        index = best(logits, top, sampling.top_k)
        weights: Weights = _weights_at(logits, index, top, inverse)
        if sampling.top_p < 1.0:
            count = _nucleus(weights, sampling.top_p * float(weights.sum()))
            index, weights = index[:count], weights[:count]
        order = np.argsort(index)
        index, weights = index[order], weights[order]
    elif sampling.top_p < 1.0:
        index, weights = _top_p(logits, top, inverse, sampling.top_p)
    else:
        floor = top + np.log(sampling.min_p) / inverse
        index = np.flatnonzero(logits >= np.float32(floor - abs(floor) * 1e-6 - 1e-6))
        weights = _weights_at(logits, index, top, inverse)
    if sampling.min_p > 0.0:
        kept = weights >= sampling.min_p * weights.max()
        index, weights = index[kept], weights[kept]
    return Candidates(index, weights, float(weights.sum(dtype=np.float64)))


def draw(weights: Weights, tokens: Ids | None, key: tuple[int, int]) -> int:
    """The place that wins an exponential race: the largest weight / E, with E ~ Exp(1) by token id.

    This is the Gumbel-max trick (Maddison et al., arXiv 1411.0030): the place is drawn in proportion to
    its weight. Since every token's number depends on its id alone, a rounding error in the weights only
    matters between two tokens that nearly tie, and a token that a filter removes changes nothing unless
    it had won. An inverse CDF would shift all tokens after the first one that differs.

    Args:
        weights: unnormalised, the largest about 1.
        tokens: id of each place; None when a place is its id.
        key: of `rng.draw_key`.
    """
    ids = np.arange(len(weights), dtype=np.uint32) if tokens is None else tokens.astype(np.uint32)
    numbers = token_uniforms(key, ids)
    heavy = np.flatnonzero(weights > _HEAVY * weights.max())
    bound = float(_scores(weights[heavy], numbers[heavy]).max())
    # E = -log(1 - v) >= v, so a place with v >= weight / bound has lost already. The factor covers the
    # rounding of this comparison.
    alive = np.flatnonzero(numbers * np.float32(bound * (1 - 1e-6)) <= weights)
    return int(alive[_scores(weights[alive], numbers[alive]).argmax()])


def _scores(weights: Weights, numbers: NDArray[np.float32]) -> NDArray[np.float64]:
    scores: NDArray[np.float64] = weights / -np.log1p(-numbers.astype(np.float64))
    return scores


def _weights_at(logits: Floats, index: Ids, top: float, inverse: float) -> NDArray[np.float64]:
    return np.exp((logits[index].astype(np.float64) - top) * inverse)


def _nucleus(weights: Weights, wanted: float) -> int:
    """How many of the descending weights it takes to reach a mass."""
    reached = np.cumsum(weights, dtype=np.float64).searchsorted(wanted, "left")
    return min(int(reached) + 1, len(weights))


def _top_p(logits: Floats, top: float, inverse: float, p: float) -> tuple[Ids, Weights]:
    """The nucleus (arXiv 1904.09751), places ascending.

    Two cuts close in on its edge: above the upper one everything belongs to it, below the lower one
    nothing does. Only the logits between them are sorted.
    """
    full = exp_weights(logits, top, inverse)
    wanted = p * float(block_sums(full).sum())
    kept = np.zeros(len(full), dtype=np.bool_)
    mass = shallow = 0.0
    for deep in _NUCLEUS_DEPTHS:
        reached = _above(full, deep)
        mass_reached = _mass(full, reached)
        if mass_reached >= wanted:
            break
        kept, mass, shallow = reached, mass_reached, deep
    for _ in range(_MAX_HALVINGS):
        if np.count_nonzero(reached) - np.count_nonzero(kept) <= _FEW:
            break
        middle = (shallow + deep) / 2
        between = _above(full, middle)
        mass_between = _mass(full, between)
        if mass_between >= wanted:
            reached, deep = between, middle
        else:
            kept, mass, shallow = between, mass_between, middle
    band = np.flatnonzero(reached > kept)
    if len(band):
        values = logits[band]
        ranked = -np.sort(-values)
        count = _nucleus(np.exp((ranked.astype(np.float64) - top) * inverse), wanted - mass)
        edge = ranked[count - 1]
        inside = values > edge
        ties = np.flatnonzero(values == edge)
        inside[ties[: count - int(inside.sum())]] = True
        kept[band[inside]] = True
    index = np.flatnonzero(kept)
    return index, full[index]


def _above(weights: Floats, depth: float) -> NDArray[np.bool_]:
    return weights >= np.float32(np.exp(-depth))


def _mass(weights: Floats, chosen: NDArray[np.bool_]) -> float:
    # Multiplying beats gathering: it has no branches.
    return float(block_sums(weights * chosen).sum())
