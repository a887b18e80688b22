"""Log-probabilities (natural log) of tokens, from logits that nobody has touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stolon.errors import InternalError
from stolon.srt.protocol import Sampling, TokenLogprob

from .filters import Candidates, best, block_sums, exp_weights
from .native import log_totals_native, score_native
from .params import BrokenLogits, Floats, Ids


def require_finite(top: float) -> None:
    """Raise BrokenLogits if a row whose maximum is `top` can't be sampled from.

    A NaN anywhere makes the maximum NaN.
    """
    if math.isnan(top):
        raise BrokenLogits("the model gave a NaN logit")
    if math.isinf(top):
        raise BrokenLogits(
            "the model gave an infinite logit" if top > 0 else "no allowed token has a finite logit"
        )


def from_logits(logits: Floats, token: int, *, top: int, temperature: float) -> TokenLogprob:
    """Log-softmax of ``logits / temperature`` (one row) at `token`, and the `top` best of it."""
    peak = float(logits.max())
    require_finite(peak)
    inverse = 1.0 / temperature
    log_total = math.log(float(block_sums(exp_weights(logits, peak, inverse)).sum()))

    def at(place: int) -> float:
        return (float(logits[place]) - peak) * inverse - log_total

    chosen = at(token)
    return TokenLogprob(
        token,
        chosen if chosen > -math.inf else None,
        [(int(i), at(int(i))) for i in best(logits, peak, top)] if top else [],
    )


def from_candidates(
    found: Candidates,
    place: int,
    ids: Ids | None,
    logits: Floats,
    sampling: Sampling,
    top: int,
) -> TokenLogprob:
    """Log-probs of the distribution that was drawn from.

    Args:
        found: the distribution over places of `logits`.
        place: where in `logits` the chosen token stands.
        ids: token id of each place; None when places are ids.
        logits: after penalties and mask.
        top: number of alternatives.
    """
    peak = float(logits.max())
    inverse = 1.0 / sampling.temperature
    log_total = math.log(found.total)

    def entry(at: int) -> tuple[int, float]:
        value = (float(logits[at]) - peak) * inverse - log_total
        return int(at if ids is None else ids[at]), value

    if not top:
        ranked: list[int] = []
    elif found.index is None:
        ranked = best(logits, peak, top).tolist()
    else:
        order = np.argsort(-logits[found.index], kind="stable")[:top]
        ranked = found.index[order].tolist()
    token, value = entry(place)
    return TokenLogprob(token, value, [entry(at) for at in ranked])


def token_logprobs(
    logits: Floats, tokens: Sequence[int], *, top: int = 0, team: Any = None
) -> list[TokenLogprob]:
    """Score known tokens: row i of ``[S, V]`` predicts ``tokens[i]``, with `top` alternatives.

    `team` as in `sampler.sample`. Raises InternalError if a row holds a NaN or nothing finite.
    """
    if len(logits) != len(tokens):
        raise InternalError(f"{len(tokens)} tokens to score with {len(logits)} rows of logits")
    if team is not None:
        return score_native(team, logits, tokens, top=top)
    return [
        from_logits(row, token, top=top, temperature=1.0)
        for row, token in zip(logits, tokens, strict=True)
    ]


def log_totals(logits: Floats, *, team: Any = None) -> list[float]:
    """The log of the sum of e^logit of each row of ``[S, V]``: what a logit exceeds its log-prob by.

    `team` as in `sampler.sample`. NaN for a row that holds a NaN or nothing finite.
    """
    if team is not None:
        return log_totals_native(team, logits)
    totals = []
    for row in logits:
        peak = float(row.max())
        finite = math.isfinite(peak)
        total = float(block_sums(exp_weights(row, peak, 1.0)).sum()) if finite else math.nan
        totals.append(peak + math.log(total) if finite else math.nan)
    return totals
