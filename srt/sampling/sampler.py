"""From logits to tokens.

The order of processing, per row::

    raw logits
      -> repetition penalty -> frequency, presence penalty -> logit bias     penalties.adjust
      -> mask of the grammar, bans until min_tokens                          penalties.restrict
      -> temperature -> top-k -> top-p -> min-p                              filters.candidates
      -> exponential race, a number for each (seed, sample, position, token)  filters.draw

Temperature 0 takes the best token after the mask, the lowest id among equals.

Every row is computed alone, from its own numbers, in an order that nothing else decides: the batch
it stands in can't change a bit of its result.

With a team of the C++ kernels the whole batch is one call (`native`). Without, rows are numpy views,
because numpy's vector loops are faster here than starting a parallel operation over the batch; that is
also the reference for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stolon.errors import InternalError, StolonError
from stolon.srt.protocol import LogprobSpec, Sampling, TokenLogprob

from .filters import Candidates, candidates, draw
from .logprobs import from_candidates, from_logits, require_finite
from .native import sample_native
from .params import Floats, Ids, Sampled, SamplerRow
from .penalties import adjust, restrict
from .rng import draw_key

# Colder than this is greedy: any other token's weight would underflow anyhow.
GREEDY_BELOW = 1e-5


def sample(
    logits: Floats,
    rows: Sequence[SamplerRow],
    *,
    team: Any = None,
    places: Sequence[int] | None = None,
    whole: int | None = None,
) -> list[Sampled | StolonError]:
    """Choose one token a row.

    Args:
        logits: ``[B, V]``; not changed.
        rows: B of them.
        team: a `stolon.kernels.cpu._native.Team` to compute with; None for numpy.
        places: for each row, which one of ``[*, V]`` logits is its own; default the i-th for the i-th.
        whole: how many of the logits' rows are complete, default all. The others hold the logits of the ids
            in their row's `mask.allow`, and what else stands there means nothing. Their row may ask for no
            log-probs but `processed` ones.

    Returns:
        For each row its token, or the error that row alone failed with: NaN or infinite logits, or
        a mask that leaves nothing.
    """
    count = logits.shape[0] if places is None and logits.ndim else len(places or ())
    if logits.ndim != 2 or count != len(rows):
        raise InternalError(f"{len(rows)} rows to sample from logits {tuple(logits.shape)}")
    if team is not None:
        return sample_native(team, logits, rows, places, whole)
    results: list[Sampled | StolonError] = []
    for place, row in zip(range(count) if places is None else places, rows, strict=True):
        values = logits[place]
        try:
            results.append(_sample_row(values, row, whole is None or place < whole))
        except StolonError as error:
            results.append(error)
        except Exception as error:
            # A fault in one row, such as an id outside the vocabulary, must not reach its
            # neighbours.
            failure = InternalError(f"sampling failed: {error!r}")
            failure.__cause__ = error
            results.append(failure)
    return results


def _sample_row(raw: Floats, row: SamplerRow, whole: bool) -> Sampled:
    if not whole:
        _require_list(row)
    adjusted = adjust(raw, row)
    ids, logits = restrict(adjusted, row)
    if len(logits) == 0:
        raise InternalError("the grammar allows no token")
    if logits is not raw and whole:
        # The mask may hide a NaN; a row that holds one is broken whatever was allowed.
        require_finite(float(raw.max()))
    sampling = row.sampling
    if sampling.temperature < GREEDY_BELOW or len(logits) == 1:
        found, place = None, int(logits.argmax())
        require_finite(float(logits[place]))
    else:
        top = float(logits.max())
        require_finite(top)
        found = candidates(logits, top, sampling)
        tokens = ids if found.index is None else _ids_at(ids, found.index)
        drawn = draw(found.weights, tokens, draw_key(row.seed, row.sample, row.position))
        place = drawn if found.index is None else int(found.index[drawn])
    token = place if ids is None else int(ids[place])
    if row.logprobs is None:
        return Sampled(token)
    return Sampled(token, _report(raw, token, row.logprobs, found, place, ids, logits, sampling))


def _require_list(row: SamplerRow) -> None:
    raw = row.logprobs is not None and row.logprobs.mode != "processed"
    if raw or row.mask is None or row.mask.allow is None:
        raise InternalError("logits are wanted that were not computed")


def _ids_at(ids: Ids | None, places: Ids) -> Ids:
    return places if ids is None else ids[places]


def _report(
    raw: Floats,
    token: int,
    spec: LogprobSpec,
    found: Candidates | None,
    place: int,
    ids: Ids | None,
    logits: Floats,
    sampling: Sampling,
) -> TokenLogprob:
    """The log-prob that `spec` asks for; `found` is None when there was no choice."""
    if spec.mode == "processed":
        if found is None:
            return TokenLogprob(token, 0.0, [(token, 0.0)] if spec.top else [])
        return from_candidates(found, place, ids, logits, sampling, spec.top)
    cold = sampling.temperature < GREEDY_BELOW
    temperature = 1.0 if spec.mode == "raw" or cold else sampling.temperature
    return from_logits(raw, token, top=spec.top, temperature=temperature)
